from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from suite.errors import InputError
from suite.laws.fit import Fit
from suite.laws.forms import CHINCHILLA
from suite.tables.outcome import fit_table
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


def test_losses_of_held_out_rows_never_reach_those_that_are_fitted(table: Table) -> None:
    """The last rows of ``a`` and ``c`` are fitted, and those before them held out."""
    asked = request(hold_out=("d == 2000000000",), final=3, where=("run != 'b'",))
    more = table.frame.with_columns(run=pl.col("run") + "2", n=8 * pl.col("n"))
    more = pl.concat(
        [table.frame, more, more.with_columns(run=pl.col("run") + "3", d=pl.col("d") * 2)]
    )
    wide = Table(name="t", digest="", frame=more, place=table.place)
    points = points_of(wide, asked, CHINCHILLA)
    assert points.loss[:2].tolist() == [(13 + 11) / 2, (33 + 31) / 2]
    assert not points.held_out[:2].any()


def test_a_held_out_last_row_is_averaged_with_held_out_rows(table: Table) -> None:
    asked = request(hold_out=("d >= 2e9",), final=3, where=("run != 'b'",))
    late = table.frame.with_columns(run=pl.col("run") + "2", d=pl.col("d") / 10)
    later = [
        late.with_columns(run=pl.col("run") + str(n), n=n * pl.col("n"), d=n * pl.col("d"))
        for n in (1, 2, 3)
    ]
    wide = Table(name="t", digest="", frame=pl.concat([table.frame, *later]), place=table.place)
    points = points_of(wide, asked, CHINCHILLA)
    assert points.loss[:2].tolist() == [12.5, 32.5]
    assert points.held_out[:2].all()
    assert not points.held_out[2:].any()


def test_the_highest_losses_are_dropped_among_those_that_are_fitted(table: Table) -> None:
    points = points_of(table, request(drop_highest=1, hold_out=("run=c",)), CHINCHILLA)
    assert sorted(points.loss[points.held_out]) == [31, 32, 33]
    assert sorted(points.loss[~points.held_out]) == [11, 12, 13, 21, 22]


@pytest.mark.parametrize(
    "settings", [{}, {"drop_highest": 2}, {"final": 2}, {"final": 2, "drop_highest": 1}]
)
def test_losses_of_held_out_rows_do_not_move_the_fit_by_a_bit(
    settings: dict[str, int], runs: pl.DataFrame
) -> None:
    """Held out is the third of the four points of every run."""
    runs = runs.with_columns(part=pl.int_range(pl.len()).over("run"))
    changed = runs.with_columns(
        loss=pl.when(pl.col("part") == 2).then(pl.col("loss") * 1.5).otherwise(pl.col("loss"))
    )
    asked = FitRequest(
        columns={"parameters": "params"},
        group="run",
        hold_out=("part=2",),
        starts=20,
        **settings,
    )

    def fitted(frame: pl.DataFrame) -> Fit:
        return fit_table(from_frame("t", frame, lambda row: f"row {row + 1}"), asked).fit

    before, after = fitted(runs), fitted(changed)
    assert (after.parameters, after.objective) == (before.parameters, before.objective)


def grid(odd: tuple[float, float, float], sizes: int = 5) -> Table:
    """Points of a law, and one odd one as the last."""
    rows = [
        (n, d, 1.7 + 400 / n**0.34 + 1500 / d**0.37)
        for n in (1e7, 3e7, 1e8, 3e8, 1e9)[:sizes]
        for d in (1e9, 3e9, 1e10)
    ]
    frame = pl.DataFrame([*rows, odd], schema=["n", "d", "loss"], orient="row")
    return from_frame("t", frame, lambda row: f"row {row + 1}")


ASKED = FitRequest(columns={"parameters": "n", "tokens": "d"}, starts=8)


@pytest.mark.parametrize("value", [1e300, 1e-300])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_values_that_no_fit_can_hold_are_refused_with_their_row(at: int, value: float) -> None:
    odd = [1e8, 1e10, 1.9]
    odd[at] = value
    column = ("n", "d", "loss")[at]
    side = "< 1e100" if value > 1 else "> 1e-100"
    with pytest.raises(InputError, match=rf'{column} is .* in row 16 .*--where "{column} {side}"'):
        points_of(grid((odd[0], odd[1], odd[2])), ASKED, CHINCHILLA)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1e99, 1e40, 1e15, 1e1, 1e-40, 1e-99])
def test_a_value_far_from_all_others_is_told_and_its_own_term_kept(n: float) -> None:
    found = fit_table(grid((n, 1e10, 1.9)), ASKED, None).warnings
    assert found[0].startswith(f"n is {n:g} in row 16, 100,000 times or more away from all others")
    # Of a size far too small the term would be huge, so that it must indeed be nothing.
    assert any("vanished" in sentence for sentence in found) == (n < 1)


def test_values_that_others_are_near_are_not_told() -> None:
    warnings = points_of(grid((9e13, 1e10, 1.9)), ASKED, CHINCHILLA).warnings
    assert not any("away from all others" in sentence for sentence in warnings)


@pytest.mark.parametrize(
    ("drop", "said"),
    [(8, ""), (9, "nearly exact"), (10, "nearly exact"), (11, "is exact")],
)
def test_few_points_more_than_parameters_are_told(drop: int, said: str) -> None:
    asked = FitRequest(columns=ASKED.columns, drop_highest=drop)
    warnings = points_of(grid((2e8, 2e10, 2.1)), asked, CHINCHILLA).warnings
    told = [sentence for sentence in warnings if "says nothing of its errors" in sentence]
    assert bool(told) == bool(said)
    assert all(said in sentence for sentence in told)
