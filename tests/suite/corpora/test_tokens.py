"""Token streams: nothing lost, nothing joined, nothing computed twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.atomic import write_atomically
from suite.corpora import (
    Corpus,
    TokenStream,
    join_documents,
    load_corpus,
    load_tokenizer,
    token_stream,
)
from suite.corpora.byte_level import ByteTokenizer
from suite.errors import InputError
from suite.study import CorpusSpec

BYTE = ByteTokenizer()
DOCUMENTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=12)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    spec = CorpusSpec(source="embedded", max_documents=150)
    return load_corpus("worked_math", spec, base=Path())


@given(documents=DOCUMENTS)
def test_stream_is_every_document_and_a_separator(documents: list[str]) -> None:
    stream = join_documents(documents, BYTE)
    expected = [token for text in documents for token in (*text.encode(), 256)]
    assert stream.tokens.tolist() == expected
    assert stream.tokens.dtype == np.uint16
    assert stream.num_documents == len(documents)
    assert stream.num_bytes == sum(len(text.encode()) for text in documents)
    assert stream.num_tokens == stream.num_bytes + len(documents)
    assert np.flatnonzero(stream.tokens == 256).tolist() == (stream.document_ends - 1).tolist()


@given(documents=DOCUMENTS)
def test_bytes_of_first_tokens_are_exact_at_document_ends(documents: list[str]) -> None:
    stream = join_documents(documents, BYTE)
    assert stream.bytes_of_first(0) == 0
    for number, end in enumerate(stream.document_ends, start=1):
        expected = sum(len(text.encode()) for text in documents[:number])
        assert stream.bytes_of_first(int(end)) == expected


def test_bytes_inside_a_document_are_spread_evenly() -> None:
    stream = join_documents(["abc", "1234567"], BYTE)  # 4 and 8 tokens, 3 and 7 bytes
    assert stream.bytes_of_first(2) == pytest.approx(1.5)
    assert stream.bytes_of_first(6) == pytest.approx(3 + 7 * 2 / 8)


@given(documents=DOCUMENTS, length=st.integers(1, 9))
def test_windows_make_every_token_but_the_first_a_target_once(
    documents: list[str], length: int
) -> None:
    stream = join_documents([*documents, "at least ten"], BYTE)
    windows = stream.windows(length, key="k")
    targets = windows[:, 1:].ravel().tolist()
    assert windows.shape == ((stream.num_tokens - 1) // length, length + 1)
    assert targets == stream.tokens[1 : 1 + len(targets)].tolist()
    assert windows[:, :-1].ravel().tolist() == stream.tokens[: len(targets)].tolist()
    assert stream.num_tokens - 1 - len(targets) < length


def test_windows_copy_nothing_and_cannot_be_written() -> None:
    stream = join_documents(["abcdefgh"], BYTE)
    windows = stream.windows(2, key="k")
    assert np.shares_memory(windows, stream.tokens)
    assert not windows.flags.writeable


def test_sequence_longer_than_the_stream_is_refused() -> None:
    stream = join_documents(["abc"], BYTE)
    assert stream.windows(3, key="k").tolist() == [[97, 98, 99, 256]]
    with pytest.raises(InputError, match=r"4 is too long: .* 4 tokens.* give at most 3") as caught:
        stream.windows(4, key="pretraining.sequence_length")
    assert caught.value.key == "pretraining.sequence_length"


class CountingTokenizer(ByteTokenizer):
    """Counts the texts that it is asked to encode."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        return super().encode(text)


def same(one: TokenStream, other: TokenStream) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("tokens", "document_ends", "document_bytes")
    )


def test_cached_stream_is_mapped_and_equal(corpus: Corpus, tmp_path: Path) -> None:
    tokenizer = CountingTokenizer()
    expected = join_documents(corpus.train, BYTE)
    for _ in range(3):
        stream = token_stream(corpus, "train", tokenizer, cache=tmp_path)
        assert same(stream, expected)
        assert isinstance(stream.tokens, np.memmap)
    assert tokenizer.encoded == len(corpus.train)
    for _ in range(2):
        held_out = token_stream(corpus, "held_out", tokenizer, cache=tmp_path)
        assert same(held_out, join_documents(corpus.held_out, BYTE))
        assert same(token_stream(corpus, "train", tokenizer, cache=tmp_path), expected)
    assert tokenizer.encoded == corpus.num_documents


def test_cache_tells_corpora_and_tokenizers_apart(corpus: Corpus, tmp_path: Path) -> None:
    other = load_corpus(
        "worked_math", CorpusSpec(source="embedded", max_documents=149), base=Path()
    )
    pairs = load_tokenizer("bpe-300", corpus=corpus, cache=tmp_path, key="k", base=Path())
    for one, tokenizer in ((corpus, BYTE), (other, BYTE), (corpus, pairs)):
        stream = token_stream(one, "train", tokenizer, cache=tmp_path)
        assert same(stream, join_documents(one.train, tokenizer))
    assert len(list(tmp_path.glob("tokens/*.ends.npy"))) == 3


@pytest.mark.parametrize("damage", ["cut", "emptied", "ends lost", "other length", "pickled"])
def test_damaged_cache_is_made_again(corpus: Corpus, tmp_path: Path, damage: str) -> None:
    expected = join_documents(corpus.train, BYTE)
    token_stream(corpus, "train", BYTE, cache=tmp_path)
    (ends,) = tmp_path.glob("tokens/*.ends.npy")
    path = ends.with_name(ends.name.replace(".ends", ""))
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "ends lost":
        ends.unlink()
    elif damage == "other length":
        np.save(path, expected.tokens[:-5])
    else:
        np.save(path, np.array([object()]), allow_pickle=True)
    assert same(token_stream(corpus, "train", BYTE, cache=tmp_path), expected)
    assert path.read_bytes() == content


def test_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def fails(file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fails)
    assert [each.read_bytes() for each in path.parent.iterdir()] == [b"old"]
