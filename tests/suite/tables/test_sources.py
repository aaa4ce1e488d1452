from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import InputError
from suite.tables.sources import ROW, read_table

FRAME = pl.DataFrame({"n": [1e6, 2e6], "loss": [3.5, 3.25], "run": ["a", "b"]})


@pytest.mark.parametrize("name", ["t.csv", "t.CSV", "t.tsv", "t.parquet", "t.jsonl", "t.ndjson"])
def test_one_table_reads_the_same_from_every_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    match path.suffix.lower():
        case ".parquet":
            FRAME.write_parquet(path)
        case ".csv":
            FRAME.write_csv(path)
        case ".tsv":
            FRAME.write_csv(path, separator="\t")
        case _:
            FRAME.write_ndjson(path)
    table = read_table(path)
    assert table.frame.drop(ROW).equals(FRAME)
    assert table.frame[ROW].to_list() == [0, 1]
    assert table.columns == ["n", "loss", "run"]
    assert len(table.digest) == 64


def test_lines_of_a_csv_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('n,loss,note\n\n1,2,x\n3,4,"two\nlines"\n\n5,6,y\n')
    table = read_table(path)
    assert table.frame["n"].to_list() == [1, 3, 5]
    places = [table.place(row) for row in table.frame[ROW]]
    assert places == ["line 3 of t.csv", "line 4 of t.csv", "line 7 of t.csv"]


def test_rows_of_other_formats_are_counted_from_one(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").place(1) == "row 2 of t.parquet"
    (tmp_path / "t.jsonl").write_text('{"n": 1}\n\n{"n": NaN}\n')
    lines = read_table(tmp_path / "t.jsonl")
    assert lines.place(1) == "line 3 of t.jsonl"
    assert lines.frame["n"].is_nan().to_list() == [False, True]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", "", r"t.xlsx is no table that can be read; its name must end with .csv"),
        ("t.csv", "", r"t.csv is no csv table: empty CSV"),
        ("t.csv", "n,loss\n", r"t.csv has no rows"),
        ("t.csv", "n;loss\n1;2\n", r"has the one column 'n;loss'; separate columns with commas"),
        ("t.csv", "n,loss\n1,2,3\n", r"t.csv is no csv table: found more fields"),
        ("t.parquet", "junk", r"t.parquet is no parquet table"),
        ("t.jsonl", '{"n": 1}\n{"n": \n', r"line 2 of t.jsonl is no JSON"),
        ("t.jsonl", "1\n", r"line 1 of t.jsonl is no JSON object"),
        ("t.jsonl", "\n", r"t.jsonl has no rows"),
    ],
)
def test_what_is_no_table_is_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_table(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv cannot be read: No such file"):
        read_table(tmp_path / "none.csv")


def test_an_absent_column_is_told_those_there_are(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "t.csv")
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / "t.csv").check_column("los", "--loss")
    assert str(caught.value) == (
        "--loss: t.csv has no column 'los' (did you mean 'loss'?); it has n, loss, run"
    )


@given(st.lists(st.dictionaries(st.text(max_size=3), st.floats() | st.text()), min_size=1))
def test_any_json_lines_are_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    try:
        table = read_table(path)
    except InputError as error:
        assert "t.jsonl" in str(error)  # noqa: PT017
    else:
        assert len(table.frame) == len(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "n,loss\n1,2\n".encode("utf-16"), "is text in UTF-16; save it as UTF-8"),
        ("t.jsonl", b' [{"n": 1}]', "is one JSON array; write one object a line"),
        ("t.csv", b"n,loss,n\n1,2,3\n", "has 2 columns 'n'; give each a name of its own"),
    ],
)
def test_files_of_another_kind_are_told_the_cure(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(path)
