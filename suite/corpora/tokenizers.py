"""Tokenizers by name: ``byte``, ``bpe-<vocabulary>`` or one of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from suite.corpora.byte_level import (
    SMALLEST_VOCABULARY,
    ByteTokenizer,
    byte_pair_tokenizer,
)
from suite.corpora.pretrained import pretrained_tokenizer
from suite.errors import InputError

if TYPE_CHECKING:
    from suite.corpora.documents import Corpus


class Tokenizer(Protocol):
    """What the rest of the suite asks of a tokenizer."""

    @property
    def name(self) -> str:
        """The name in the study file."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""

    @property
    def eos_id(self) -> int:
        """Id of the token that stands after every document of a stream."""

    @property
    def opening(self) -> tuple[int, ...]:
        """Ids of the special tokens that a sequence of the model begins with, such as BOS."""

    @property
    def digest(self) -> str:
        """16 hex characters over everything that decides the token ids of a text."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; no special token is added or recognised in it."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""

    def save(self, folder: Path) -> None:
        """Writes files from which ``transformers.AutoTokenizer`` loads the same tokenizer."""


def load_tokenizer(
    text: str, *, corpus: Corpus | None, cache: Path, key: str, base: Path
) -> Tokenizer:
    """The tokenizer that a study names.

    Args:
        text: ``byte`` (256 bytes and a separator), ``bpe-<vocabulary>`` (byte-level pairs,
            trained on the training documents of ``corpus``), or a local folder or hub id of a
            Hugging Face tokenizer.
        corpus: needed by ``bpe`` only.
        cache: folder of the home in which trained tokenizers are kept.
        key: key path of the name in the study file.
        base: folder that relative paths start from.

    Raises:
        InputError: if there is no such tokenizer, or it cannot be trained or used.
    """
    if text == "byte":
        return ByteTokenizer()
    if text.startswith("bpe-"):
        digits = text.removeprefix("bpe-")
        if not (digits.isascii() and digits.isdigit() and int(digits) >= SMALLEST_VOCABULARY):
            raise InputError(
                f"{text!r} is not a tokenizer; write bpe-<vocabulary> with a vocabulary of at "
                f"least {SMALLEST_VOCABULARY}: 256 bytes, a separator and one pair",
                key=key,
            )
        if corpus is None:
            raise InputError(
                f"{text!r} is trained on a corpus and there is none here; name byte or a "
                "Hugging Face tokenizer",
                key=key,
            )
        return byte_pair_tokenizer(corpus, vocabulary=int(digits), cache=cache, key=key)
    return pretrained_tokenizer(text, key=key, base=base)
