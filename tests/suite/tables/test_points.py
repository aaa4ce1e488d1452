from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from suite.laws.forms import CHINCHILLA
from suite.tables.points import points_of
from suite.tables.request import FitRequest
from suite.tables.sources import Table, from_frame


@pytest.fixture
def table() -> Table:
    """Three curves whose rows are out of order; losses name their run and their tokens."""
    rows = [
        (run, n, d, 10.0 * number + d / 1e9)
        for d in (3e9, 1e9, 2e9)
        for number, (run, n) in enumerate((("a", 1e7), ("b", 2e7), ("c", 4e7)), start=1)
    ]
    frame = pl.DataFrame(rows, schema=["run", "n", "d", "loss"], orient="row")
    return from_frame("t", frame, lambda row: f"row {row + 1}")


def request(**settings: object) -> FitRequest:
    return FitRequest(columns={"parameters": "n", "tokens": "d"}, group="run", **settings)


def test_points_keep_the_order_and_the_rows_of_the_table(table: Table) -> None:
    points = points_of(table, request(where=("d > 1e9",)), CHINCHILLA)
    assert points.loss.tolist() == [13, 23, 33, 12, 22, 32]
    assert points.row.tolist() == [0, 1, 2, 6, 7, 8]
    assert points.groups == ("a", "b", "c")
    assert points.group.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("count", "expected"), [(1, [13, 23, 33]), (2, [12.5, 22.5, 32.5])])
def test_losses_of_the_last_rows_are_averaged(
    count: int, expected: list[float], table: Table
) -> None:
    more = pl.concat(
        [
            table.frame,
            table.frame.with_columns(run=pl.col("run") + "2", n=2 * pl.col("n"), d=2 * pl.col("d")),
        ]
    )
    wide = Table(name="t", digest="", frame=more, place=table.place)
    points = points_of(wide, request(final=count), CHINCHILLA)
    assert points.loss[:3].tolist() == expected
    assert points.variables["tokens"].tolist() == [3e9] * 3 + [6e9] * 3
    assert points.row[:3].tolist() == [0, 1, 2]


def test_the_highest_losses_are_dropped_after_the_filters(table: Table) -> None:
    points = points_of(table, request(drop_highest=2, where=("loss < 33",)), CHINCHILLA)
    assert sorted(points.loss) == [11, 12, 13, 21, 22, 23]


def test_held_out_points_stay_but_are_not_fitted(table: Table) -> None:
    points = points_of(table, request(hold_out=("run=c",)), CHINCHILLA)
    assert points.held_out.sum() == 3
    assert set(points.fitted()["parameters"]) == {1e7, 2e7}
    assert len(points) == 9
    assert np.isfinite(points.loss).all()
