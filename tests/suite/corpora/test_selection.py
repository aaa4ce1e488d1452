"""Which documents a calibration takes: lengths, shares and prefixes, against plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.corpora import (
    Corpus,
    Cut,
    ExhaustedError,
    Mixture,
    Part,
    Tokenizer,
    cut_for,
    load_corpus,
    select_documents,
)
from suite.corpora.byte_level import ByteTokenizer
from suite.corpora.tokens import CalibrationPiece
from suite.errors import InputError
from suite.study import CalibrationSpec, CorpusSpec, DocumentsSpec, ModelSpec

BYTE = ByteTokenizer()
DOCUMENTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=12)
PLAIN = Cut(sequence_length=10**6, sinks=0)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    spec = CorpusSpec(source="embedded", max_documents=150)
    return load_corpus("worked_math", spec, base=Path())


def pieces(
    documents: Sequence[str], *, sequence_length: int, seed: int, tokenizer: Tokenizer = BYTE
) -> Iterator[CalibrationPiece]:
    """Sequences of one corpus, as it comes."""
    how = Cut(sequence_length=sequence_length, sinks=0)
    part = Part(name="one", documents=documents, weight=1.0)
    chosen = select_documents([part], tokenizer, DocumentsSpec(), how, seed=seed)
    return itertools.chain.from_iterable(chosen)


class CountingTokenizer(ByteTokenizer):
    """Counts the texts that it is asked to encode."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += 1
        return super().encode(text)


@given(documents=DOCUMENTS, length=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_pieces_never_join_documents_and_lose_nothing(
    documents: list[str], length: int, seed: int
) -> None:
    found = [
        bytes(piece.tolist()) for piece in pieces(documents, sequence_length=length, seed=seed)
    ]
    expected = [
        encoded[start : start + length]
        for encoded in (text.encode() for text in documents)
        for start in range(0, len(encoded), length)
    ]
    assert sorted(found) == sorted(expected)
    again = [*pieces(documents[::-1], sequence_length=length, seed=seed)]
    assert [bytes(piece.tolist()) for piece in again] == found


def test_pieces_of_a_document_follow_each_other(corpus: Corpus) -> None:
    joined: list[str] = []
    rest = ""
    for piece in pieces(corpus.train, sequence_length=100, seed=4):
        rest += BYTE.decode(piece.tolist())
        if len(piece) < 100:
            joined.append(rest)
            rest = ""
    assert sorted("".join(joined)) == sorted("".join(corpus.train))
    assert "".join(joined).startswith(next(t for t in corpus.train if joined[0].startswith(t)))


def test_piece_order_is_seeded_and_mixes_the_source(corpus: Corpus) -> None:
    def order(seed: int) -> list[str]:
        whole = pieces(corpus.train, sequence_length=10**6, seed=seed)
        return [BYTE.decode(piece.tolist()) for piece in whole]

    assert order(0) == order(0)
    assert sorted(order(0)) == sorted(corpus.train)
    positions = [np.array([corpus.train.index(text) for text in order(seed)]) for seed in (0, 1)]
    source = np.arange(len(corpus.train))
    # Independent orders correlate with standard deviation 1 / sqrt(n - 1), here about 0.09.
    for one, other in ((positions[0], positions[1]), (positions[0], source)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.35


def test_pieces_are_tokenised_as_they_are_asked_for(corpus: Corpus) -> None:
    tokenizer = CountingTokenizer()
    next(pieces(corpus.train, sequence_length=50, seed=0, tokenizer=tokenizer))
    assert tokenizer.encoded < len(corpus.train) / 4


def texts(lengths: Sequence[int], letter: str) -> list[str]:
    """Documents of so many bytes, all different."""
    return [f"{number:04d}".ljust(length, letter)[:length] for number, length in enumerate(lengths)]


def tokens_by(
    documents: Sequence[list[CalibrationPiece]], of: str, how: Cut = PLAIN
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Kept tokens of the documents that end with a letter, after each document."""
    return np.cumsum(
        [
            sum(map(how.kept, document)) if document[-1][-1] == ord(of) else 0
            for document in documents
        ]
    )


def taken(
    parts: Sequence[Part], spec: DocumentsSpec, how: Cut = PLAIN, seed: int = 0
) -> tuple[list[list[CalibrationPiece]], str]:
    """Documents until one stratum ends, and which it was."""
    found: list[list[CalibrationPiece]] = []
    try:
        for document in select_documents(parts, BYTE, spec, how, seed=seed):
            found.append(document)
    except ExhaustedError as error:
        return found, error.stratum
    return found, ""


@given(
    one=st.lists(st.integers(5, 60), min_size=1, max_size=30),
    other=st.lists(st.integers(5, 60), min_size=1, max_size=30),
    weights=st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)),
)
def test_shares_of_a_mixture_are_met_to_within_one_document_everywhere(
    one: list[int], other: list[int], weights: tuple[float, float]
) -> None:
    parts = [
        Part(name="a", documents=texts(one, "a"), weight=weights[0]),
        Part(name="b", documents=texts(other, "b"), weight=weights[1]),
    ]
    documents, ended = taken(parts, DocumentsSpec())
    assert ended in ("'a'", "'b'")
    a, b = (tokens_by(documents, letter) for letter in "ab")
    share = weights[0] / sum(weights)
    assert np.all(np.abs(a - share * (a + b)) <= 60)


def test_long_and_short_documents_have_their_shares_of_the_tokens() -> None:
    chance = np.random.default_rng(0)
    lengths = chance.integers(10, 400, size=600)
    part = Part(name="mixed", documents=texts(lengths.tolist(), "x"), weight=1.0)
    spec = DocumentsSpec(least=50, most=350, long_from=200, long_share=0.25)
    how = Cut(sequence_length=1_000, sinks=2, drop_last=3)
    documents, ended = taken([part], spec, how)
    assert ended.startswith("'mixed' with ")
    sizes = np.array([sum(map(len, document)) for document in documents])
    assert sizes.min() >= 50
    assert sizes.max() <= 350
    kept = np.array([sum(map(how.kept, document)) for document in documents])
    long = np.cumsum(np.where(sizes >= 200, kept, 0))
    assert np.all(np.abs(long - 0.25 * np.cumsum(kept)) <= 350)
    # within each length documents keep the seeded order that they have without shares
    plain, _ = taken([part], DocumentsSpec(least=50, most=350), how)
    for is_long in (False, True):
        order = [bytes(d[0].tolist()) for d in documents if (sum(map(len, d)) >= 200) == is_long]
        expected = [bytes(d[0].tolist()) for d in plain if (sum(map(len, d)) >= 200) == is_long]
        assert order == expected[: len(order)]


@pytest.mark.parametrize(
    ("length", "expected"), [(3, []), (5, []), (6, [1]), (8, [3]), (14, [3, 1])]
)
def test_positions_that_count_are_those_between_sinks_and_dropped_ones(
    length: int, expected: list[int]
) -> None:
    how = Cut(sequence_length=8, sinks=2, drop_last=3)
    found = how.pieces(np.arange(length))
    assert [how.kept(piece) for piece in found] == expected


@pytest.mark.parametrize(
    ("length", "expected", "counted"),
    [
        (1, [], []),  # with BOS no more than the sinks
        (2, [[9, 0, 1]], [1]),
        (7, [[9, 0, 1, 2, 3, 4, 5, 6]], [6]),
        (8, [[9, 0, 1, 2, 3, 4, 5, 6]], [6]),  # what is left over is a sink
        (9, [[9, 0, 1, 2, 3, 4, 5, 6], [9, 7, 8]], [6, 1]),
    ],
)
def test_every_sequence_opens_as_the_tokenizer_opens_it_and_that_never_counts(
    length: int, expected: list[list[int]], counted: list[int]
) -> None:
    how = Cut(sequence_length=8, sinks=2, opening=(9,))
    found = how.pieces(np.arange(length))
    assert [piece.tolist() for piece in found] == expected
    assert [how.kept(piece) for piece in found] == counted


@pytest.mark.parametrize(("length", "counted"), [(1, [1]), (7, [7]), (8, [7, 1]), (14, [7, 7])])
def test_without_sinks_all_but_what_a_sequence_opens_with_counts(
    length: int, counted: list[int]
) -> None:
    how = Cut(sequence_length=8, sinks=0, opening=(9,))
    assert [how.kept(piece) for piece in how.pieces(np.arange(length))] == counted


def test_a_sequence_too_short_for_what_it_opens_with_is_refused() -> None:
    class Opening(ByteTokenizer):
        opening = (256, 256)

    spec = CalibrationSpec(
        models=(ModelSpec(path="m"),),
        calibrate_on=("a",),
        evaluate_on=("a",),
        budgets=(10,),
        rank=1,
        sequence_length=4,
        sinks=1,
        drop_last=1,
    )
    assert cut_for(spec, Opening()).left_out == 2
    with pytest.raises(InputError, match="begin with 2 special tokens") as caught:
        cut_for(replace(spec, drop_last=2), Opening())
    assert caught.value.key == "calibration.sequence_length"


def test_a_mixture_does_not_depend_on_the_order_of_a_corpus_and_depends_on_the_seed() -> None:
    one, other = texts([20] * 30, "a"), texts([30] * 30, "b")

    def order(one: list[str], seed: int) -> list[bytes]:
        parts = [
            Part(name="a", documents=one, weight=1.0),
            Part(name="b", documents=other, weight=1.0),
        ]
        return [bytes(d[0].tolist()) for d in taken(parts, DocumentsSpec(), seed=seed)[0]]

    assert order(one, 0) == order(one[::-1], 0)
    assert order(one, 0) != order(one, 1)


def test_the_digest_of_a_mixture_follows_its_corpora_and_their_shares(corpus: Corpus) -> None:
    other = load_corpus("worked_math", CorpusSpec(source="embedded", max_documents=90), base=Path())

    def digest(*shares: tuple[Corpus, float]) -> str:
        return Mixture(name="mix", shares=shares).digest

    plain = digest((corpus, 1.0), (other, 1.0))
    assert plain == digest((corpus, 0.5), (other, 0.5))
    assert (
        len({plain, digest((corpus, 1.0), (other, 2.0)), digest((other, 1.0), (other, 1.0))}) == 3
    )
    mixture = Mixture(name="mix", shares=((corpus, 1.0), (other, 1.0)))
    assert mixture.num_documents == corpus.num_documents + other.num_documents
    assert [part.documents for part in mixture.parts("held_out")] == [
        corpus.held_out,
        other.held_out,
    ]
