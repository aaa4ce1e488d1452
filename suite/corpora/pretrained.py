"""Tokenizers of Hugging Face ``transformers``, by folder or hub id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from suite.corpora.places import find_folder
from suite.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PretrainedTokenizer:
    """A tokenizer of ``transformers``.

    Args:
        name: how the study calls it.
        tokenizer: the loaded tokenizer.
        key: key path of the name in the study file.
        opens: whether sequences of the model begin with the special tokens that the tokenizer
            puts first; not of a model that was trained without them.

    Attributes:
        name: how the study calls it.
        eos_id: its end-of-sequence token, or its beginning-of-sequence token if it has no end.

    Raises:
        InputError: if it has neither, so that documents could not be told apart in a stream.
    """

    def __init__(
        self, name: str, tokenizer: PreTrainedTokenizerBase, *, key: str, opens: bool = True
    ) -> None:
        self.name = name
        self._opens = opens
        self._tokenizer = tokenizer
        separators = (tokenizer.eos_token_id, tokenizer.bos_token_id)
        found = next((each for each in separators if each is not None), None)
        if found is None:
            raise InputError(
                f"the tokenizer {name!r} has neither an end-of-sequence nor a beginning-of-"
                "sequence token to stand between documents; name one that has",
                key=key,
            )
        self.eos_id = int(found)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        return 1 + max(self._tokenizer.get_vocab().values())

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Special tokens that a sequence of the model begins with, such as BOS; none of most."""
        if not self._opens:
            return ()
        plain, whole = (
            self._tokenizer("a", add_special_tokens=special)["input_ids"]
            for special in (False, True)
        )
        if len(whole) == len(plain):
            return ()
        starts = range(len(whole) - len(plain) + 1)
        text_at = next((at for at in starts if whole[at : at + len(plain)] == plain), 0)
        return tuple(whole[:text_at])

    @cached_property
    def digest(self) -> str:
        """16 hex characters of SHA-256 over class, vocabulary, separator and fast backend."""
        backend = self._tokenizer.backend_tokenizer.to_str() if self._tokenizer.is_fast else ""
        vocabulary = json.dumps(sorted(self._tokenizer.get_vocab().items()))
        content = (type(self._tokenizer).__name__, vocabulary, str(self.eos_id), backend)
        return sha256("\0".join(content).encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, however long; special tokens in it are ordinary text."""
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        return [list(ids) for ids in encoded["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        text = self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def save(self, folder: Path) -> None:
        """Writes the files of the tokenizer."""
        self._tokenizer.save_pretrained(str(folder))


def pretrained_tokenizer(
    path: str,
    *,
    key: str,
    base: Path,
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    opens: bool = True,
) -> PretrainedTokenizer:
    """Loads a tokenizer with ``transformers.AutoTokenizer``.

    Args:
        path: a folder, relative to ``base``, if there is one, and a hub id if not.
        key: key path of the name in the study file.
        base: folder that a relative path starts from.
        revision: commit or tag of a hub tokenizer.
        gguf_file: GGUF file in ``path`` that holds the tokenizer.
        trust_remote_code: run code that comes with the checkpoint.
        opens: see ``PretrainedTokenizer``.

    Raises:
        InputError: if it cannot be loaded, or has no token to stand between documents.
    """
    folder = find_folder(path, base=base)
    if folder is None and path.startswith((".", "/", "~")):
        raise InputError(
            f"there is no tokenizer {path!r}: not a folder, seen from {base}; name byte, "
            "bpe-<vocabulary>, a folder or a hub id",
            key=key,
        )
    from transformers import AutoTokenizer

    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder or path),
            revision=revision or "main",
            trust_remote_code=trust_remote_code,
            **options,
        )
    except Exception as error:
        # A missing file, an unknown class, a library that is not there and a lost network each
        # raise something else; the cure is the same.
        raise InputError(
            f"cannot load the tokenizer {path!r}: {type(error).__name__}: {error}; name byte, "
            "bpe-<vocabulary>, a folder or a hub id",
            key=key,
        ) from error
    return PretrainedTokenizer(path, tokenizer, key=key, opens=opens)
