"""Tokenizers over bytes: every text has a code, and decoding gives it back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from suite.atomic import write_atomically
from suite.errors import InputError

if TYPE_CHECKING:
    import tokenizers

    from suite.corpora.documents import Corpus

END_OF_TEXT = "<|endoftext|>"
NUM_BYTES = 256
SMALLEST_VOCABULARY = NUM_BYTES + 2

# Part of the cache key: a change of how the pairs are trained must change it.
_TRAINING = "byte-level pairs, GPT-2 word pattern, no prefix space, separator first"


class ByteTokenizer:
    """The id of a token is the value of its byte; the separator is 256."""

    name = "byte"
    vocab_size = NUM_BYTES + 1
    eos_id = NUM_BYTES
    opening: tuple[int, ...] = ()
    digest = sha256(b"byte values, separator 256").hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """The bytes of the text in UTF-8."""
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of each text in UTF-8."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the bytes; invalid UTF-8 becomes U+FFFD."""
        separator = END_OF_TEXT.encode()
        parts = (separator if i == self.eos_id else bytes((i,)) for i in ids)
        return b"".join(parts).decode(errors="replace")

    def save(self, folder: Path) -> None:
        """Writes the same tokenizer as byte-level pairs without any pair."""
        from tokenizers import models

        letters = _byte_letters()
        vocabulary = {letters[value]: value for value in range(NUM_BYTES)}
        backend = _byte_level(models.BPE(vocab=vocabulary, merges=[]))
        backend.add_special_tokens([END_OF_TEXT])
        _save(backend, folder)


class BytePairTokenizer:
    """Byte-level pairs in the ``tokenizers`` library.

    Attributes:
        name: ``bpe-<vocabulary>``.
        opening: nothing; sequences begin with their text.
    """

    opening: tuple[int, ...] = ()

    def __init__(self, name: str, backend: tokenizers.Tokenizer) -> None:
        self.name = name
        self._backend = backend
        # A document that spells the separator must not end there. This is a state of the
        # object and not stored with it.
        self._backend.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        """Bytes, pairs and the separator."""
        return self._backend.get_vocab_size()

    @cached_property
    def eos_id(self) -> int:
        """Id of the separator."""
        found = self._backend.token_to_id(END_OF_TEXT)
        assert found is not None
        return found

    @cached_property
    def digest(self) -> str:
        """16 hex characters of SHA-256 over vocabulary, pairs and settings."""
        return sha256(self._backend.to_str().encode()).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, on all cores."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json`` and ``tokenizer_config.json``."""
        _save(self._backend, folder)


def byte_pair_tokenizer(
    corpus: Corpus, *, vocabulary: int, cache: Path, key: str
) -> BytePairTokenizer:
    """Trains byte-level pairs on the training documents, or reads them from the cache.

    Args:
        corpus: its held-out documents are not seen.
        vocabulary: number of tokens: 256 bytes, the separator and the pairs.
        cache: the file is ``tokenizers/<digest>.json`` in it; one that cannot be read is made
            again.
        key: key path of the tokenizer in the study file.

    Raises:
        InputError: if the documents do not have enough pairs for the vocabulary.
    """
    asked = f"{_TRAINING}\0{corpus.digest}\0{vocabulary}"
    path = cache / "tokenizers" / f"{sha256(asked.encode()).hexdigest()[:16]}.json"
    backend = _read(path, vocabulary)
    if backend is None:
        backend = _train(corpus.train, vocabulary)
        found = backend.get_vocab_size()
        if found != vocabulary:
            raise InputError(
                f"a vocabulary of {vocabulary} needs more text: the training documents of "
                f"{corpus.key} give {found} tokens; name bpe-{found} or less, or a larger corpus"
                if found >= SMALLEST_VOCABULARY
                else f"the training documents of {corpus.key} have no repeated pairs; name byte",
                key=key,
            )
        content = backend.to_str().encode()
        write_atomically(path, lambda file: file.write(content))
    return BytePairTokenizer(f"bpe-{vocabulary}", backend)


def _read(path: Path, vocabulary: int) -> tokenizers.Tokenizer | None:
    from tokenizers import Tokenizer

    if not path.is_file():
        return None
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception:  # the library raises bare Exception for a file that it cannot parse
        return None
    is_whole = backend.get_vocab_size() == vocabulary and backend.token_to_id(END_OF_TEXT) == 0
    return backend if is_whole else None


def _train(documents: Sequence[str], vocabulary: int) -> tokenizers.Tokenizer:
    from tokenizers import models, pre_tokenizers, trainers

    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(documents, trainer, length=len(documents))
    return backend


def _byte_level(model: tokenizers.models.BPE) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_letters() -> list[str]:
    """The printable letter by which byte-level vocabularies write each of the 256 bytes.

    Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on,
    in order (Radford et al. 2019, the encoder of GPT-2).
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(NUM_BYTES + index) for index in range(NUM_BYTES))
    return [chr(value) if value in printable else next(others) for value in range(NUM_BYTES)]


def _save(backend: tokenizers.Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, eos_token=END_OF_TEXT
    )
    tokenizer.save_pretrained(str(folder))
