"""Documents as tokens: one stream for pretraining, separate pieces for calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suite.atomic import write_atomically
from suite.corpora.documents import Corpus
from suite.corpora.parts import Split
from suite.corpora.tokenizers import Tokenizer
from suite.errors import InputError

Tokens = NDArray[np.unsignedinteger[Any]]
CalibrationPiece = NDArray[np.int64]

# Part of the cache key: a change of how documents are joined must change it.
_LAYOUT = "documents, each followed by the separator"
_JOINED_AT_ONCE = 256  # documents; enough to keep all cores busy
_CUT_AT_ONCE = 16  # documents; few, because a calibration budget may end after one


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStream:
    """Documents joined into one row of tokens, each followed by the separator.

    Attributes:
        tokens: token ids, [tokens], in the smallest unsigned type that holds the vocabulary;
            memory-mapped and read-only if it comes from the cache.
        document_ends: number of tokens up to each document's separator included, [documents].
        document_bytes: bytes of each document's text in UTF-8, [documents].
    """

    tokens: Tokens
    document_ends: NDArray[np.int64]
    document_bytes: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_ends)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all texts in UTF-8; a separator has none."""
        return int(self.document_bytes.sum())

    def bytes_of_first(self, num_tokens: int) -> float:
        """Bytes of text that the first tokens stand for, the denominator of bits per byte.

        Exact where a document ends; inside a document its bytes are spread evenly over its
        tokens.

        Args:
            num_tokens: from 0 to the number of tokens.
        """
        ends = np.concatenate(([0], self.document_ends))
        sizes = np.concatenate(([0], np.cumsum(self.document_bytes)))
        return float(np.interp(num_tokens, ends, sizes))

    def windows(self, sequence_length: int, *, key: str) -> Tokens:
        """The stream cut into training sequences, without copying it.

        Window i holds tokens i * L to (i + 1) * L, both included: its first L tokens are the
        inputs and its last L the targets, so that every token but the first is a target once.
        Tokens that do not fill the last window are left out.

        Args:
            sequence_length: L, in tokens.
            key: key path of L in the study file.

        Returns:
            A read-only view, [windows, L + 1].

        Raises:
            InputError: if the stream does not fill one window.
        """
        if self.num_tokens < sequence_length + 1:
            raise InputError(
                f"{sequence_length} is too long: the documents have {self.num_tokens} tokens, "
                f"and a sequence takes {sequence_length + 1} of them; give at most "
                f"{self.num_tokens - 1}, or more text",
                key=key,
            )
        views = np.lib.stride_tricks.sliding_window_view(self.tokens, sequence_length + 1)
        return views[::sequence_length]


def join_documents(documents: Sequence[str], tokenizer: Tokenizer) -> TokenStream:
    """Tokenises the documents and joins them, each followed by the separator.

    Args:
        documents: texts, in the order of the stream.
        tokenizer: see ``load_tokenizer``.
    """
    kind = np.min_scalar_type(tokenizer.vocab_size - 1)
    parts: list[Tokens] = []
    for ids in _encoded(documents, tokenizer, at_once=_JOINED_AT_ONCE):
        parts.append(np.array([*ids, tokenizer.eos_id], dtype=kind))
    return TokenStream(
        tokens=np.concatenate(parts) if parts else np.empty(0, dtype=kind),
        document_ends=np.cumsum([len(part) for part in parts], dtype=np.int64),
        document_bytes=_num_bytes(documents),
    )


def token_stream(corpus: Corpus, split: Split, tokenizer: Tokenizer, *, cache: Path) -> TokenStream:
    """The token stream of one side of a corpus, kept in the cache.

    The cache key is the corpus digest, the side and the tokenizer digest. A file that is
    damaged is made again.

    Args:
        corpus: where the documents come from.
        split: side of the corpus.
        tokenizer: see ``load_tokenizer``.
        cache: the files are ``tokens/<key>.npy`` and ``tokens/<key>.ends.npy`` in it.
    """
    asked = f"{_LAYOUT}\0{corpus.digest}\0{split}\0{tokenizer.digest}"
    path = cache / "tokens" / f"{sha256(asked.encode()).hexdigest()[:16]}.npy"
    documents = corpus.side(split)
    found = _read(path, documents, tokenizer)
    if found is not None:
        return found
    stream = join_documents(documents, tokenizer)
    write_atomically(_ends_path(path), lambda file: np.save(file, stream.document_ends))
    write_atomically(path, lambda file: np.save(file, stream.tokens))
    return _read(path, documents, tokenizer) or stream


def ordered(documents: Sequence[str], *, seed: int) -> list[str]:
    """Documents in a seeded order.

    It sorts a keyed hash of the text, so it depends neither on the order of the source nor on a
    random generator's version.

    Args:
        documents: texts.
        seed: another seed gives another order.
    """
    salt = seed.to_bytes(8, "little")
    return sorted(documents, key=lambda text: blake2b(text.encode(), key=salt).digest())


def tokenised(documents: Sequence[str], tokenizer: Tokenizer) -> Iterator[CalibrationPiece]:
    """Token ids of each document, [tokens], without separators.

    Documents are tokenised as they are asked for: a small budget costs little on a large corpus.
    """
    for ids in _encoded(documents, tokenizer, at_once=_CUT_AT_ONCE):
        yield np.array(ids, dtype=np.int64)


def cut(document: CalibrationPiece, sequence_length: int) -> Iterator[CalibrationPiece]:
    """Sequences of at most ``sequence_length`` tokens; none of them joins two documents."""
    for start in range(0, len(document), sequence_length):
        yield document[start : start + sequence_length]


def _encoded(
    documents: Sequence[str], tokenizer: Tokenizer, *, at_once: int
) -> Iterator[list[int]]:
    for start in range(0, len(documents), at_once):
        yield from tokenizer.encode_batch(documents[start : start + at_once])


def _read(path: Path, documents: Sequence[str], tokenizer: Tokenizer) -> TokenStream | None:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        ends = np.load(_ends_path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    is_whole = (
        tokens.ndim == 1
        and tokens.dtype == np.min_scalar_type(tokenizer.vocab_size - 1)
        and ends.dtype == np.int64
        and ends.shape == (len(documents),)
        and ends[-1] == len(tokens)
        and bool((tokens[ends - 1] == tokenizer.eos_id).all())
    )
    if not is_whole:
        return None
    return TokenStream(tokens=tokens, document_ends=ends, document_bytes=_num_bytes(documents))


def _ends_path(path: Path) -> Path:
    return path.with_suffix(".ends.npy")


def _num_bytes(documents: Sequence[str]) -> NDArray[np.int64]:
    return np.array([len(document.encode()) for document in documents], dtype=np.int64)
