"""Corpora: the split by the text itself, digests, and what a specification may say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import blake2b, sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.corpora import Corpus, load_corpus
from suite.corpora.documents import is_held_out
from suite.errors import InputError
from suite.study import CorpusSpec

TEXTS = [f"document number {index}" for index in range(60)]
SHARES = st.floats(min_value=0.01, max_value=0.99)


def corpus_of(folder: Path, texts: list[str], **fields: object) -> Corpus:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "rows.jsonl").write_text(rows)
    spec = CorpusSpec(source="files", path="rows.jsonl", **fields)  # type: ignore[arg-type]
    return load_corpus("c", spec, base=folder)


@given(text=st.text(), share=SHARES)
def test_side_is_a_threshold_on_the_hash_of_the_text(text: str, share: float) -> None:
    fraction = int(blake2b(text.encode("utf-8"), digest_size=8).hexdigest(), 16) / 2**64
    assert is_held_out(text, share) == (fraction < share)


@given(text=st.text(), one=SHARES, other=SHARES)
def test_larger_share_keeps_what_a_smaller_one_holds_out(
    text: str, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert is_held_out(text, high) or not is_held_out(text, low)


def test_share_of_held_out_documents_is_as_asked() -> None:
    held_out = sum(is_held_out(f"text {index}", 0.1) for index in range(20_000))
    assert abs(held_out - 2_000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5


def test_sides_partition_the_documents_and_keep_duplicates_together(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [*TEXTS, *TEXTS[:20]])
    assert sorted(corpus.train + corpus.held_out) == sorted(corpus.documents)
    assert not set(corpus.train) & set(corpus.held_out)


def test_split_does_not_depend_on_order_or_on_other_documents(tmp_path: Path) -> None:
    held_out = set(corpus_of(tmp_path, TEXTS).held_out)
    assert set(corpus_of(tmp_path, TEXTS[::-1]).held_out) == held_out
    longer = set(corpus_of(tmp_path, ["more", *TEXTS]).held_out)
    assert longer - {"more"} == held_out


def test_digest_covers_documents_order_and_share(tmp_path: Path) -> None:
    reference = corpus_of(tmp_path, TEXTS)
    rule = b"blake2b-8(text) / 2**64 < held_out\0" + float.hex(0.1).encode() + b"\0"
    parts = [len(text).to_bytes(8, "little") + text.encode() for text in TEXTS]
    assert reference.digest == sha256(rule + b"".join(parts)).hexdigest()[:16]
    others = [
        corpus_of(tmp_path, TEXTS[::-1]).digest,
        corpus_of(tmp_path, TEXTS[1:]).digest,
        corpus_of(tmp_path, [TEXTS[0] + TEXTS[1], *TEXTS[2:]]).digest,
        corpus_of(tmp_path, TEXTS, held_out=0.2).digest,
    ]
    assert len({reference.digest, *others}) == 5


def test_documents_without_text_are_dropped_before_they_are_counted(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ["", " \n\t", *TEXTS, ""], max_documents=30)
    assert corpus.documents == tuple(TEXTS[:30])
    assert (corpus.num_documents, corpus.num_characters) == (30, sum(map(len, TEXTS[:30])))


def test_corpus_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document with any text") as caught:
        _ = corpus_of(tmp_path, ["", "  "]).documents
    assert caught.value.key == "corpora.c"


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.001, r"none of the 60 documents is held out at held_out = 0\.001; .* raise held_out"),
        (0.999, r"none of the 60 documents is left for training .* lower held_out"),
    ],
)
def test_small_corpus_with_an_empty_side_names_the_cure(
    tmp_path: Path, share: float, message: str
) -> None:
    corpus = corpus_of(tmp_path, TEXTS, held_out=share)
    with pytest.raises(InputError, match=message) as caught:
        _ = corpus.train
    assert caught.value.key == "corpora.c"


@pytest.mark.parametrize(
    ("spec", "key", "message"),
    [
        (CorpusSpec(source="files"), "path", "missing; give a glob"),
        (CorpusSpec(source="hub", max_documents=5), "path", "missing; give the id"),
        (CorpusSpec(source="hub", path="a/b"), "max_documents", "may have no end"),
        (CorpusSpec(source="files", path="x", shuffle_seed=1), "shuffle_seed", "1 has no meaning"),
        (CorpusSpec(source="files", path="x", revision="v1"), "revision", "for source 'files'"),
        (CorpusSpec(source="files", path="x", split="test"), "split", "'test' has no meaning"),
        (CorpusSpec(source="embedded", path="pydocs", where=("a > 1",)), "where", "no meaning"),
        (CorpusSpec(source="embedded", path="pydocs", column="body"), "column", "no meaning"),
        (CorpusSpec(source="files", path="x", where=("a > 1", "a ~ 1")), "where[1]", "a ~ 1"),
    ],
)
def test_impossible_specification_is_refused_before_reading(
    spec: CorpusSpec, key: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_corpus("c", spec, base=Path())
    assert caught.value.key == f"corpora.c.{key}"


def test_importing_the_package_loads_no_heavy_library() -> None:
    script = "import sys, suite.corpora; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"torch", "datasets", "tokenizers", "transformers", "polars", "pyarrow", "mlflow"}
    assert not heavy & set(done.stdout.split())
