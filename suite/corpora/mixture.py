"""Several corpora of a study as one, mixed by their share of the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from suite.corpora.documents import Corpus
from suite.corpora.parts import Part, Split


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Corpora with their shares; it has no documents of its own.

    Attributes:
        name: how the study calls the mixture.
        shares: corpora and their weights, relative to each other.
    """

    name: str
    shares: tuple[tuple[Corpus, float], ...]

    def parts(self, split: Split) -> tuple[Part, ...]:
        """One side of each corpus, with the share that it has of the tokens."""
        return tuple(
            Part(name=corpus.name, documents=corpus.side(split), weight=weight)
            for corpus, weight in self.shares
        )

    @property
    def digest(self) -> str:
        """16 hex characters of SHA-256 over the corpora's digests and shares, in their order."""
        total = sum(weight for _, weight in self.shares)
        content = [f"{corpus.digest} {(weight / total).hex()}" for corpus, weight in self.shares]
        return sha256("\n".join(content).encode()).hexdigest()[:16]

    @property
    def num_documents(self) -> int:
        """Number of documents in all corpora, on both sides."""
        return sum(corpus.num_documents for corpus, _ in self.shares)

    @property
    def num_characters(self) -> int:
        """Number of characters in all documents."""
        return sum(corpus.num_characters for corpus, _ in self.shares)
