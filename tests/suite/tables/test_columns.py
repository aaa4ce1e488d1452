from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest

from suite.errors import InputError
from suite.tables.columns import held_out, keep, numbers
from suite.tables.sources import Table, from_frame, read_table


@pytest.fixture
def table() -> Table:
    frame = pl.DataFrame(
        {
            "n": [1, 2, 3],
            "loss": [2.5, math.nan, None],
            "text": ["1e3", " x", "2"],
            "size": ["S", "M", None],
            "a*b": [7, 8, 9],
            "flag": [True, False, True],
        }
    )
    return from_frame("runs", frame, lambda row: f"row {row + 1}")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n", [1, 2, 3]),
        ("n*1e6", [1e6, 2e6, 3e6]),
        ("2 * n*n", [2, 8, 18]),
        ("a*b", [7, 8, 9]),
    ],
)
def test_a_column_may_be_a_product(text: str, values: list[float], table: Table) -> None:
    assert numbers(table, text, "--n").tolist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m", r"--n: runs has no column 'm'; it has n, loss, text"),
        ("n*m", r"runs has no column 'm'"),
        ("n*", r"runs has no column ''"),
        ("text", r"text is ' x' in row 2 \(1 such row of 3\); a number is needed"),
        ("loss", r"loss is empty in row 3"),
        ("flag", r"the column 'flag' holds Boolean and no numbers"),
    ],
)
def test_what_is_no_number_is_named(text: str, message: str, table: Table) -> None:
    with pytest.raises(InputError, match=message):
        numbers(table, text, "--n")


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (["n >= 2"], [2, 3]),
        (["loss > 0"], [1]),  # neither NaN nor empty
        (["loss != 0"], [1]),
        (["size == 'S'"], [1]),
        (["n > 1", "n < 3"], [2]),
        ([], [1, 2, 3]),
    ],
)
def test_filters_keep_rows_that_pass_all(where: list[str], kept: list[int], table: Table) -> None:
    assert keep(table, where).frame["n"].to_list() == kept


@pytest.mark.parametrize("absent", ["nan", "NaN", "NA", "", "diverged"])
def test_a_cell_that_is_no_number_passes_no_comparison_with_one(
    absent: str, tmp_path: Path
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"n,loss\n1,2.5\n2,{absent}\n3,3.5\n")
    table = read_table(path)
    for where in ("loss > 0", "loss != 0", "loss < 9"):
        assert keep(table, [where]).frame["n"].to_list() == [1, 3]
    assert numbers(keep(table, ["loss > 0"]), "loss", "--loss").tolist() == [2.5, 3.5]
    assert held_out(table, ["loss >= 3"]).tolist() == [False, False, True]
    if absent not in ("nan", "NaN"):
        with pytest.raises(InputError, match='leave them out with --where "loss > 0"'):
            numbers(table, "loss", "--loss")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("n > 5", r"--where: none of the 3 rows of runs passes n > 5"),
        ("m > 5", r"--where: runs has no column 'm'"),
        ("size > 5", r"the column 'size' holds no numbers, which cannot be compared with 5"),
        ("n == 'S'", r"the column 'n' holds no text, which cannot be compared with 'S'"),
        ("flag == 1", r"the column 'flag' holds no numbers"),
        ("n", r"--where: 'n' is not a filter; write a column"),
    ],
)
def test_filters_that_make_no_sense_are_refused(where: str, message: str, table: Table) -> None:
    with pytest.raises(InputError, match=message):
        keep(table, [where])


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["size=S"], [True, False, False]),
        (["size = 'S'"], [True, False, False]),
        (["n=2"], [False, True, False]),
        (["n=2.0", "size=S"], [True, True, False]),
        (["n >= 2"], [False, True, True]),
        (["size == 'M'"], [False, True, False]),
        ([], [False, False, False]),
    ],
)
def test_rows_are_held_out_by_value_or_filter(
    conditions: list[str], expected: list[bool], table: Table
) -> None:
    assert held_out(table, conditions).tolist() == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("size=XL", r"--hold-out: no row has size=XL; size is None, M, S"),
        ("n > 7", r"no row has n > 7; n is 1, 2, 3"),
        ("n=S", r"the column 'n' holds numbers, and 'S' is none"),
        ("m=1", r"runs has no column 'm'"),
        ("m", r"'m' is not a filter"),
    ],
)
def test_hold_outs_that_hold_nothing_are_refused(
    condition: str, message: str, table: Table
) -> None:
    with pytest.raises(InputError, match=message):
        held_out(table, [condition])
