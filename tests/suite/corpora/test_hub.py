"""Datasets of the hub, streamed here from a local folder through the same call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from suite.corpora import Corpus, load_corpus
from suite.errors import InputError
from suite.study import CorpusSpec

datasets = pytest.importorskip("datasets")

TEXTS = [f"document {index}" for index in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    for part in range(2):
        texts = TEXTS[20 * part : 20 * part + 20]
        scores = [(20 * part + index) / 40 for index in range(20)]
        table = pa.table({"text": texts, "score": scores, "id": range(20)})
        parquet.write_table(table, tmp_path / "set" / f"part-{part}.parquet")
    return tmp_path


def hub(base: Path, **fields: object) -> Corpus:
    settings: dict[str, object] = {"path": "set", "max_documents": 1_000} | fields
    return load_corpus("c", CorpusSpec(source="hub", **settings), base=base)  # type: ignore[arg-type]


def test_rows_come_in_the_order_of_the_files(folder: Path) -> None:
    assert hub(folder).documents == tuple(TEXTS)
    assert hub(folder, max_documents=25).documents == tuple(TEXTS[:25])
    assert hub(Path("/"), path=str(folder / "set")).documents == tuple(TEXTS)


def test_filters_keep_rows_of_the_stream(folder: Path) -> None:
    kept = hub(folder, where=("score >= 0.5", "text != 'document 30'")).documents
    assert kept == tuple(text for text in TEXTS[20:] if text != "document 30")


def test_shuffle_seed_fixes_an_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The library waits this many seconds after each shuffled stream, for its reader threads.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    one, again = (hub(folder, shuffle_seed=1).documents for _ in range(2))
    other = hub(folder, shuffle_seed=2).documents
    assert one == again
    assert len({one, other, tuple(TEXTS)}) == 3
    assert sorted(one) == sorted(other) == sorted(TEXTS)


@pytest.mark.parametrize(
    ("fields", "key", "message"),
    [
        ({"split": "test"}, "path", r"cannot stream .*split test.* Available splits: \['train'\]"),
        ({"name": "large"}, "path", r"name large.*'large' not found"),
        ({"path": "./other"}, "path", r"'\./other' is not a folder"),
        ({"column": "content"}, "column", r"no column 'content'; its columns are text, score, id"),
        ({"column": "id"}, "column", r"'id' holds a int at .*row 1;"),
        ({"where": ("quality > 3",)}, "where[0]", "no column 'quality'"),
    ],
)
def test_faults_say_what_was_tried(
    folder: Path, fields: dict[str, object], key: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        _ = hub(folder, **fields).documents
    assert caught.value.key == f"corpora.c.{key}"


def test_unreachable_hub_is_an_input_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def unreachable(path: str, name: str | None, **options: object) -> None:
        asked.append((path, name, options))
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    corpus = hub(folder, path="org/set", name="small", revision="v2", split="train[:5]")
    with pytest.raises(InputError, match=r"org/set \(name small, split train\[:5\], revision v2"):
        _ = corpus.documents
    options = {"split": "train[:5]", "streaming": True, "revision": "v2"}
    assert asked == [("org/set", "small", options)]


def test_endless_stream_is_read_no_further_than_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object, **__: object) -> Iterator[dict[str, str]]:
        return ({"text": f"row {index}"} for index in itertools.count())

    monkeypatch.setattr(datasets, "load_dataset", endless)
    assert hub(folder, max_documents=3).documents == ("row 0", "row 1", "row 2")


def test_stream_that_breaks_off_is_an_input_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*_: object, **__: object) -> Iterator[dict[str, str]]:
        yield {"text": "first"}
        raise TimeoutError("read timed out")

    monkeypatch.setattr(datasets, "load_dataset", breaking)
    with pytest.raises(InputError, match="TimeoutError: read timed out"):
        _ = hub(folder).documents
    assert hub(folder, max_documents=1).documents == ("first",)
