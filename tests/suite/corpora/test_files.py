"""Documents from txt, jsonl and parquet files, and readable faults of each."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from suite.corpora import Corpus, load_corpus
from suite.errors import InputError
from suite.study import CorpusSpec

ROWS = [
    {"text": f"text {i} — ünïcode\n", "body": f"body {i}", "score": i / 10, "lang": "ende"[i % 2 :]}
    for i in range(10)
]


def files(base: Path, path: str, **fields: object) -> Corpus:
    return load_corpus("c", CorpusSpec(source="files", path=path, **fields), base=base)  # type: ignore[arg-type]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, rows: list[dict[str, object]], **options: object) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)


def refusal(corpus: Corpus) -> InputError:
    with pytest.raises(InputError) as caught:
        _ = corpus.documents
    return caught.value


def test_text_files_are_one_document_each_in_path_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", "B.txt"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"in {name}\r\nsecond line".encode())
    (tmp_path / "data/a.txt").write_bytes(b"\xef\xbb\xbfwith a mark")
    assert files(tmp_path, "data/*.txt").documents == (
        "in B.txt\r\nsecond line",
        "with a mark",
        "in b.txt\r\nsecond line",
    )
    assert files(tmp_path, "data/**/c.txt").documents == ("in sub/c.txt\r\nsecond line",)
    absolute = files(Path("/nowhere"), str(tmp_path / "data" / "*.txt"))
    assert absolute.documents == files(tmp_path, "data/*.txt").documents


def test_base_folder_may_hold_glob_characters(tmp_path: Path) -> None:
    base = tmp_path / "run[1]*"
    base.mkdir()
    (base / "a.txt").write_text("found")
    assert files(base, "*.txt").documents == ("found",)


def test_jsonl_and_parquet_of_the_same_rows_are_the_same_corpus(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    write_parquet(tmp_path / "rows.parquet", ROWS, row_group_size=3)
    jsonl, table = files(tmp_path, "rows.jsonl"), files(tmp_path, "rows.parquet")
    assert jsonl.documents == tuple(str(row["text"]) for row in ROWS) == table.documents
    assert jsonl.digest == table.digest


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_filters_and_column(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    write_parquet(tmp_path / "rows.parquet", ROWS)
    corpus = files(tmp_path, name, column="body", where=("score >= 0.3", "lang == 'ende'"))
    assert corpus.documents == ("body 4", "body 6", "body 8")


def test_reading_stops_at_max_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("broken\n")
    assert len(files(tmp_path, "rows.jsonl", max_documents=10).documents) == 10


def test_blank_lines_and_null_texts_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"text": "one"}\n  \n{"text": null}\n{"text": "two"}')
    assert files(tmp_path, "a.jsonl").documents == ("one", "two")


@pytest.mark.parametrize(
    ("name", "content", "key", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n\n{"text": \n', "path", r"a\.jsonl line 3 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n["x"]\n', "path", r"line 2 holds a list; .* an object"),
        ("a.jsonl", b'{"text": "x"}\n{"t": "\xff"}\n', "path", r"line 2 \(byte 7 of the line\)"),
        ("a.jsonl", b'{"title": "x", "id": 1}\n', "column", "no column 'text'.* title, id"),
        ("a.jsonl", b"{}\n", "column", "its columns are none at all"),
        ("a.jsonl", b'{"text": 3}\n', "column", "'text' holds a int at .*line 1"),
        ("a.jsonl", b'{"text": "a\\ud800"}\n', "column", "unpaired surrogate .*, character 1"),
        ("a.txt", b"one\ntwo \xe9\n", "path", r"a\.txt line 2 \(byte 8 of the file\) is not"),
        ("a.csv", b"text\nx\n", "path", r"a\.csv has a suffix .* \.txt, \.jsonl, \.parquet"),
        ("a.parquet", b"PAR1 not really", "path", r"a\.parquet is not a parquet file"),
        ("a.parquet", b"", "path", r"a\.parquet is not a parquet file"),
    ],
)
def test_faults_name_file_place_and_cure(
    tmp_path: Path, name: str, content: bytes, key: str, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    error = refusal(files(tmp_path, "a.*"))
    assert error.key == f"corpora.c.{key}"
    with pytest.raises(InputError, match=message):
        raise error


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
@pytest.mark.parametrize(
    ("fields", "key"),
    [({"column": "content"}, "column"), ({"where": ("score > 0", "quality > 1")}, "where[1]")],
)
def test_absent_columns_list_the_ones_there(
    tmp_path: Path, name: str, fields: dict[str, object], key: str
) -> None:
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    write_parquet(tmp_path / "rows.parquet", ROWS)
    error = refusal(files(tmp_path, name, **fields))
    assert error.key == f"corpora.c.{key}"
    assert "text, body, score, lang" in str(error)


def test_no_match_names_the_pattern_and_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    error = refusal(files(tmp_path, "*.txt"))
    assert error.key == "corpora.c.path"
    assert f"no file matches '*.txt', searched from {tmp_path}" in str(error)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_of_lists_gives_a_document_for_each_text(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, object]] = [
        {"text": ["one", "two"]},
        {"text": []},
        {"text": None},
        {"text": ["three", None, "  "]},
    ]
    (write_jsonl if name.endswith("jsonl") else write_parquet)(tmp_path / name, rows)
    assert files(tmp_path, name).documents == ("one", "two", "three")


@pytest.mark.parametrize(
    ("fields", "key"), [({"where": ("a > 1",)}, "where"), ({"column": "b"}, "column")]
)
def test_text_files_have_no_columns(tmp_path: Path, fields: dict[str, object], key: str) -> None:
    (tmp_path / "a.txt").write_text("text")
    error = refusal(files(tmp_path, "a.txt", **fields))
    assert error.key == f"corpora.c.{key}"
    assert "has no columns" in str(error)
