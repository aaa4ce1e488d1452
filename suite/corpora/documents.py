"""A corpus: the documents that one ``CorpusSpec`` asks for, split by their own text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path

from suite.corpora.embedded import EMBEDDED, embedded_documents
from suite.corpora.files import file_documents
from suite.corpora.filters import parse_filters
from suite.corpora.hub import hub_documents
from suite.corpora.parts import Part, Split
from suite.errors import InputError
from suite.study import CorpusSpec

# Part of every digest: a change of the split rule below must change the fingerprints.
_RULE = b"blake2b-8(text) / 2**64 < held_out"

# Fields of CorpusSpec that mean something for some sources only. Refusing them elsewhere keeps
# a setting from being ignored in silence.
_FIELDS_OF_SOURCE: dict[str, frozenset[str]] = {
    "embedded": frozenset({"path"}),
    "files": frozenset({"path", "column", "where"}),
    "hub": frozenset({"path", "name", "split", "column", "where", "shuffle_seed", "revision"}),
}


@dataclass(frozen=True)
class Corpus:
    """Documents of one corpus, read into memory at the first use of any of them.

    Attributes:
        name: how the study calls the corpus.
        spec: where the text comes from.
        base: folder that relative paths start from, the study file's.
    """

    name: str
    spec: CorpusSpec
    base: Path

    @property
    def key(self) -> str:
        """Key path of the corpus in the study file."""
        return f"corpora.{self.name}"

    @cached_property
    def documents(self) -> tuple[str, ...]:
        """All documents in the order of their source; those without any text are dropped.

        Raises:
            InputError: if the source cannot be read, or holds no text.
        """
        texts = (text for text in self._source() if text.strip())
        documents = tuple(islice(texts, self.spec.max_documents))
        if not documents:
            raise InputError(
                "no document with any text was found; check the path, the column and the filters",
                key=self.key,
            )
        return documents

    @property
    def train(self) -> tuple[str, ...]:
        """Documents for training and for calibration, in order."""
        return self._sides[0]

    @property
    def held_out(self) -> tuple[str, ...]:
        """Documents for evaluation, in order; none of them is also in ``train``."""
        return self._sides[1]

    def side(self, split: Split) -> tuple[str, ...]:
        """The documents of one side of the split."""
        return self.train if split == "train" else self.held_out

    def parts(self, split: Split) -> tuple[Part, ...]:
        """One side of the split as the whole of a selection; a mixture has several."""
        return (Part(name=self.name, documents=self.side(split), weight=1.0),)

    @cached_property
    def digest(self) -> str:
        """16 hex characters of SHA-256 over the documents, their order and the split rule."""
        content = sha256(_RULE + b"\0" + float(self.spec.held_out).hex().encode() + b"\0")
        for document in self.documents:
            encoded = document.encode()
            content.update(len(encoded).to_bytes(8, "little"))
            content.update(encoded)
        return content.hexdigest()[:16]

    @property
    def num_documents(self) -> int:
        """Number of documents on both sides."""
        return len(self.documents)

    @cached_property
    def num_characters(self) -> int:
        """Number of characters (Unicode code points) in all documents."""
        return sum(map(len, self.documents))

    @cached_property
    def _sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        train: list[str] = []
        held_out: list[str] = []
        for document in self.documents:
            chosen = held_out if is_held_out(document, self.spec.held_out) else train
            chosen.append(document)
        if not train or not held_out:
            side = "held out" if train else "left for training"
            raise InputError(
                f"none of the {self.num_documents} documents is {side} at held_out = "
                f"{self.spec.held_out}; documents are split whole, so give more of them (cut a "
                f"long text into several files or rows) or {'raise' if train else 'lower'} "
                "held_out",
                key=self.key,
            )
        return tuple(train), tuple(held_out)

    def _source(self) -> Iterator[str]:
        if self.spec.source == "embedded":
            return iter(embedded_documents(self.spec.path or self.name))
        if self.spec.source == "files":
            return file_documents(self.spec, key=self.key, base=self.base)
        return hub_documents(self.spec, key=self.key, base=self.base)


def is_held_out(document: str, share: float) -> bool:
    """Whether a document is kept for evaluation.

    Depends on the text and the share alone: not on order, other documents or the process. Equal
    documents land on the same side, and a larger share keeps all that a smaller one keeps.

    Args:
        document: the text.
        share: expected share of distinct documents that are held out.
    """
    number = int.from_bytes(blake2b(document.encode(), digest_size=8).digest(), "big")
    return number < share * 2**64


def load_corpus(name: str, spec: CorpusSpec, *, base: Path) -> Corpus:
    """Checks what can be checked without reading, and gives the corpus.

    Args:
        name: how the study calls the corpus; for ``embedded`` also the default of ``path``.
        spec: where the text comes from and how it is split.
        base: folder that relative paths start from.

    Raises:
        InputError: if the specification is incomplete, holds a field that its source does not
            know, names an unknown embedded corpus, or has a filter that cannot be parsed.
            Faults of the data raise it at the first use of the documents.
    """
    corpus = Corpus(name=name, spec=spec, base=base)
    known = _FIELDS_OF_SOURCE[spec.source]
    defaults = CorpusSpec(source=spec.source)
    for field in sorted(_FIELDS_OF_SOURCE["hub"] - known):
        value = getattr(spec, field)
        if value != getattr(defaults, field):
            raise InputError(
                f"{value!r} has no meaning for source {spec.source!r}, which knows only "
                f"{', '.join(sorted(known))}, max_documents and held_out",
                key=f"{corpus.key}.{field}",
            )
    if spec.source == "embedded":
        if (embedded := spec.path or name) not in EMBEDDED:
            raise InputError(
                f"no embedded corpus is called {embedded!r}; there are {', '.join(EMBEDDED)}",
                key=f"{corpus.key}.path",
            )
    elif not spec.path:
        wanted = {
            "files": "a glob of txt, jsonl or parquet files",
            "hub": "the id of a hub dataset or a local folder of parquet files",
        }[spec.source]
        raise InputError(f"missing; give {wanted}", key=f"{corpus.key}.path")
    if spec.source == "hub" and spec.max_documents is None:
        raise InputError(
            "missing; a hub dataset is streamed and may have no end, so say how many documents "
            "to read, such as 10_000",
            key=f"{corpus.key}.max_documents",
        )
    parse_filters(spec.where, key=corpus.key)
    return corpus
