"""The words that corpora, mixtures and selections share: a side of the split, and a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "held_out"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Documents of one corpus, and their share in a mixture.

    Attributes:
        name: how the study calls the corpus.
        documents: texts of one side of it.
        weight: its share of the tokens, relative to the other parts.
    """

    name: str
    documents: Sequence[str]
    weight: float
