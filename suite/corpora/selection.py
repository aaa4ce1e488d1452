"""Which documents a calibration takes, in which order: by length, long and short, by corpus.

The order is one and the same whatever the budget, so that a smaller budget is a prefix of a
larger one. Shares are kept by always going on with the stratum that is furthest behind its own;
they are met to within one document at every point of the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from suite.corpora.parts import Part
from suite.corpora.tokenizers import Tokenizer
from suite.corpora.tokens import CalibrationPiece, cut, ordered, tokenised
from suite.errors import InputError
from suite.study import CalibrationSpec, DocumentsSpec


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How documents become sequences, and which positions of these count.

    Attributes:
        sequence_length: tokens of a sequence, at most.
        sinks: first positions of each sequence that do not count.
        drop_last: last positions of each sequence that do not count.
        opening: special tokens that every sequence begins with, such as BOS. They take
            positions of the sequence, are among its sinks, and never count.
    """

    sequence_length: int
    sinks: int
    drop_last: int = 0
    opening: tuple[int, ...] = ()

    @property
    def left_out(self) -> int:
        """First positions of a sequence that do not count: sinks, or what it opens with."""
        return max(self.sinks, len(self.opening))

    def kept(self, piece: CalibrationPiece) -> int:
        """Positions of a sequence that count."""
        return max(len(piece) - self.left_out - self.drop_last, 0)

    def pieces(self, document: CalibrationPiece) -> list[CalibrationPiece]:
        """Sequences of a document; those without a position that counts are left out."""
        opening = np.array(self.opening, dtype=np.int64)
        parts = cut(document, self.sequence_length - len(opening))
        opened = (np.concatenate([opening, part]) if len(opening) else part for part in parts)
        return [each for each in opened if self.kept(each)]


def cut_for(spec: CalibrationSpec, tokenizer: Tokenizer) -> Cut:
    """How a calibration cuts the documents of a model with this tokenizer.

    Raises:
        InputError: what a sequence opens with leaves no position of it.
    """
    opening = tokenizer.opening
    if len(opening) + spec.drop_last >= spec.sequence_length:
        raise InputError(
            f"got {spec.sequence_length}; sequences of the tokenizer {tokenizer.name!r} begin with "
            f"{len(opening)} special tokens and their last {spec.drop_last} do not count, so that "
            "nothing is left; give more",
            key="calibration.sequence_length",
        )
    return Cut(
        sequence_length=spec.sequence_length,
        sinks=spec.sinks,
        drop_last=spec.drop_last,
        opening=opening,
    )


class ExhaustedError(Exception):
    """A stratum has no document left, so that no more can be taken in the shares asked for.

    Attributes:
        stratum: which, in words.
    """

    def __init__(self, stratum: str) -> None:
        self.stratum = stratum
        super().__init__(stratum)


class _Source:
    """Documents of one part, tokenised in their seeded order as they are asked for.

    Those of the other length that are passed on the way wait for their turn.
    """

    def __init__(
        self, part: Part, tokenizer: Tokenizer, spec: DocumentsSpec, how: Cut, seed: int
    ) -> None:
        self._documents = tokenised(ordered(part.documents, seed=seed), tokenizer)
        self._spec = spec
        self._cut = how
        self._waiting: dict[bool, deque[list[CalibrationPiece]]] = {True: deque(), False: deque()}

    def next(self, *, long: bool) -> list[CalibrationPiece] | None:
        """The next document that is long, or that is not; none where there is no more."""
        while not self._waiting[long]:
            document = next(self._documents, None)
            if document is None:
                return None
            length, spec = len(document), self._spec
            if length < spec.least or (spec.most is not None and length > spec.most):
                continue
            if pieces := self._cut.pieces(document):
                is_long = spec.long_share is not None and length >= (spec.long_from or 0)
                self._waiting[is_long].append(pieces)
        return self._waiting[long].popleft()


@dataclass
class _Stratum:
    name: str
    source: _Source
    long: bool
    weight: float
    kept: int = 0


def select_documents(
    parts: Sequence[Part], tokenizer: Tokenizer, spec: DocumentsSpec, how: Cut, *, seed: int
) -> Iterator[list[CalibrationPiece]]:
    """Documents in the order in which a calibration takes them, each as its sequences.

    A single part without a share of long documents gives its documents in their seeded order.

    Args:
        parts: corpora, each with its share of the tokens.
        tokenizer: see ``load_tokenizer``.
        spec: lengths, in tokens, and the share of long documents.
        how: how documents are cut.
        seed: another seed gives another order.

    Yields:
        Sequences of one document, each token ids [1 to sequence_length].

    Raises:
        ExhaustedError: where the stratum whose turn it is has no document left; not where there
            is but one, which just ends.
    """
    strata = []
    for part in parts:
        source = _Source(part, tokenizer, spec, how, seed)
        if spec.long_share is None:
            strata.append(_Stratum(f"{part.name!r}", source, False, part.weight))
            continue
        for long, share in ((False, 1 - spec.long_share), (True, spec.long_share)):
            words = f"{part.name!r} with {'at least' if long else 'fewer than'} {spec.long_from:,}"
            strata.append(_Stratum(f"{words} tokens", source, long, part.weight * share))
    while True:
        behind = min(strata, key=lambda stratum: stratum.kept / stratum.weight)
        document = behind.source.next(long=behind.long)
        if document is None:
            if len(strata) == 1:
                return
            raise ExhaustedError(behind.name)
        behind.kept += sum(map(how.kept, document))
        yield document
