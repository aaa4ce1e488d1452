from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import InputError, SuiteError
from suite.laws.points import (
    FitPoints,
    evenly_spaced,
    moving_average,
    prepare_first_share,
    prepare_points,
)
from suite.study import LawSpec

PLAIN = LawSpec(form="chinchilla", fit_from=0.0)


def cells(*rows: tuple[str, int, int, bool]) -> pl.DataFrame:
    """A tenth of the parameters of every cell lie outside the loop."""
    table = pl.DataFrame(
        rows, schema=["run_id", "parameters", "recurrence", "held_out"], orient="row"
    )
    return table.with_columns(looped=pl.col("parameters") * 9 // 10)


def curves(**values: list[tuple[int, float]]) -> pl.DataFrame:
    rows = [(run, step, value) for run, points in values.items() for step, value in points]
    schema = {"run_id": pl.String, "step": pl.Int64, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def falling(count: int, top: float = 5.0) -> list[tuple[int, float]]:
    return [(100 * i, top - 0.01 * i) for i in range(1, count + 1)]


TWO = cells(("a", 1000, 2, False), ("b", 2000, 4, False))
SIX = cells(*((f"r{n}{t}", n, t, False) for n in (1000, 2000, 4000) for t in (2, 4)))


def test_points_carry_the_settings_of_their_run() -> None:
    found = prepare_points(TWO, curves(b=falling(3, 4.0), a=falling(2), other=falling(9)), PLAIN)
    assert found.run_ids == ("a", "b")
    assert found.run.tolist() == [0, 0, 1, 1, 1]
    assert found.parameters.tolist() == [1000, 1000, 2000, 2000, 2000]
    assert found.recurrence.tolist() == [2, 2, 4, 4, 4]
    assert found.tokens.tolist() == [100, 200, 100, 200, 300]
    assert found.loss.tolist() == [4.99, 4.98, 3.99, 3.98, 3.97]
    assert not found.held_out.any()
    assert (found.num_dropped, found.excluded, found.warnings) == (0, (), ())
    assert len(found) == 5


def test_variables_are_the_columns_a_law_reads() -> None:
    table = cells(("a", 1000, 2, False), ("b", 2000, 4, False), ("c", 4000, 4, True))
    logged = curves(a=falling(4), b=falling(4), c=falling(2))
    found = prepare_points(table, logged, PLAIN)
    names = {"parameters", "tokens", "recurrence", "parameters_once", "parameters_recurrent"}
    assert set(found.variables()) == names
    held_out = found.variables(found.held_out)
    assert held_out["parameters"].tolist() == [4000, 4000]
    assert held_out["tokens"].tolist() == [100, 200]
    assert held_out["parameters_once"].tolist() == [400, 400]
    assert held_out["parameters_recurrent"].tolist() == [3600, 3600]
    assert found.variables(~found.held_out)["recurrence"].tolist() == [2] * 4 + [4] * 4


def test_the_window_opens_at_a_share_of_each_runs_own_tokens() -> None:
    law = LawSpec(form="chinchilla", fit_from=0.25)
    found = prepare_points(TWO, curves(a=falling(8), b=falling(4)), law)
    assert found.tokens[found.run == 0].tolist() == [200, 300, 400, 500, 600, 700, 800]
    assert found.tokens[found.run == 1].tolist() == [100, 200, 300, 400]


def test_the_point_before_training_is_never_fitted() -> None:
    found = prepare_points(TWO, curves(a=[(0, 9.0), *falling(3)], b=falling(3)), PLAIN)
    assert found.tokens.min() == 100
    assert found.warnings == ()


def test_smoothing_sees_the_points_before_the_window() -> None:
    law = LawSpec(form="chinchilla", fit_from=0.5, smoothing=3)
    logged = [(100, 9.0), (200, 6.0), (300, 3.0), (400, 2.5), (500, 2.0)]
    found = prepare_points(TWO, curves(a=logged, b=falling(5)), law)
    first = found.loss[found.run == 0]
    np.testing.assert_allclose(first, [(6 + 3 + 2.5) / 3, (3 + 2.5 + 2) / 3, 2.0])


def test_points_that_are_not_finite_are_dropped_before_smoothing_and_counted() -> None:
    law = LawSpec(form="chinchilla", fit_from=0.0, smoothing=3)
    logged = [(100, 3.0), (200, math.nan), (300, 2.0), (400, math.inf), (500, 1.0)]
    found = prepare_points(TWO, curves(a=logged, b=falling(3)), law)
    assert found.tokens[found.run == 0].tolist() == [100, 300, 500]
    np.testing.assert_allclose(found.loss[found.run == 0], [3.0, 2.0, 1.0])
    assert found.num_dropped == 2
    assert found.warnings == (
        "run a: 2 of 5 points of train/total_loss are not finite and were dropped",
    )


@pytest.mark.parametrize(
    "diverged",
    [
        [],
        [(100, math.nan), (200, math.nan)],
        # Finite only before the window: the run's last tokens are those of its last point.
        [(100, 3.0), *((100 * i, math.nan) for i in range(2, 12))],
    ],
)
def test_a_run_without_finite_points_in_the_window_is_left_out(
    diverged: list[tuple[int, float]],
) -> None:
    law = LawSpec(form="chinchilla", fit_from=0.1)
    table = cells(("a", 1000, 2, False), ("b", 2000, 4, False), ("c", 3000, 4, False))
    found = prepare_points(table, curves(a=falling(3), b=diverged, c=falling(3)), law)
    assert found.run_ids == ("a", "c")
    assert found.run.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.excluded == ("b",)
    assert found.warnings[-1].startswith("run b was left out")


def test_thinning_comes_last_and_keeps_both_ends() -> None:
    law = LawSpec(form="chinchilla", fit_from=0.1, points_per_curve=4)
    found = prepare_points(TWO, curves(a=falling(1000, 20.0), b=falling(3)), law)
    assert found.tokens[found.run == 0].tolist() == [10_000, 40_000, 70_000, 100_000]
    assert found.tokens[found.run == 1].tolist() == [100, 200, 300]


def test_no_usable_run_is_a_failure_of_the_study() -> None:
    broken = curves(a=[(100, math.nan)], b=[(100, math.inf)])
    with pytest.raises(SuiteError, match="none of the 2 cells has a finite train/total_loss") as e:
        prepare_points(TWO, broken, PLAIN)
    assert e.value.exit_code == 1


def test_no_cells_at_all_is_a_failure_with_its_cure() -> None:
    with pytest.raises(SuiteError, match="no cells to fit the law to; run the pretraining"):
        prepare_points(cells(), curves(), PLAIN)


def test_cells_that_are_held_out_are_not_counted_as_broken() -> None:
    one = TWO.with_columns(held_out=pl.col("run_id") == "b")
    with pytest.raises(SuiteError, match="none of the 1 cells has a finite"):
        prepare_points(one, curves(a=[(100, math.nan)], b=falling(20)), PLAIN)


def test_sizes_that_differ_in_layers_alone_may_be_held_out() -> None:
    table = SIX.with_columns(
        looped=pl.col("parameters") - 500,
        held_out=(pl.col("parameters") == 4000) | (pl.col("recurrence") == 4),
    )
    logged = curves(**{run: falling(20) for run in SIX["run_id"]})
    found = prepare_points(table, logged, LawSpec(form="recurrence_equivalence", fit_from=0.0))
    assert set(found.parameters_once) == {500.0}
    table = table.with_columns(held_out=pl.col("run_id") != "r10002")
    with pytest.raises(InputError, match="two such settings; hold out fewer"):
        prepare_points(table, logged, LawSpec(form="recurrence_equivalence", fit_from=0.0))


def test_a_loss_that_is_not_positive_is_refused_by_run_and_tokens() -> None:
    logged = curves(a=falling(3), b=[(100, 0.5), (200, -0.25)])
    with pytest.raises(InputError, match=r"is -0.25 at 200 tokens of run b") as e:
        prepare_points(TWO, logged, PLAIN)
    assert e.value.key == "law.metric"


@pytest.mark.parametrize(
    ("held_out", "law", "message"),
    [
        (lambda n, t: True, {}, "all 6 cells are held out"),
        (lambda n, t: n > 1000, {}, "only cells with parameters 1000 are left"),
        (lambda n, t: t == 4, {}, "only cells with recurrence 2 are left"),
        (
            lambda n, t: n == 4000 or (n, t) in {(1000, 4), (2000, 2)},
            {"points_per_curve": 4},
            "8 points are left to fit, and the law 'looplm_total' has 10 parameters",
        ),
    ],
)
def test_a_hold_out_that_leaves_too_little_is_refused(
    held_out: Any, law: dict[str, Any], message: str
) -> None:
    table = SIX.with_columns(
        held_out=pl.Series([held_out(n, t) for _, n, t, *_ in SIX.rows()], dtype=pl.Boolean)
    )
    logged = curves(**{run: falling(20) for run in SIX["run_id"]})
    with pytest.raises(InputError, match=message) as e:
        prepare_points(table, logged, LawSpec(fit_from=0.0, **law))
    assert e.value.key == "law.hold_out"


def test_a_law_that_does_not_read_recurrence_may_lose_it() -> None:
    table = SIX.with_columns(held_out=pl.col("recurrence") == 4)
    logged = curves(**{run: falling(20) for run in SIX["run_id"]})
    found = prepare_points(table, logged, PLAIN)
    assert found.held_out.sum() == 60


def test_a_single_level_without_hold_out_is_left_to_the_fit() -> None:
    one = cells(("a", 1000, 2, False), ("b", 2000, 2, False), ("c", 4000, 2, True))
    found = prepare_points(one, curves(a=falling(20), b=falling(20), c=falling(20)), LawSpec())
    assert set(found.recurrence) == {2.0}


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (1, [8.0, 4.0, 2.0, 1.0, 5.0]),
        (2, [8.0, (4 + 2 * 4 + 1) / 4 + 1.25, 9 / 4, 9 / 4, 5.0]),
        (3, [8.0, 14 / 3, 7 / 3, 8 / 3, 5.0]),
        (4, [8.0, 14 / 3, (8 / 2 + 4 + 2 + 1 + 5 / 2) / 4, 8 / 3, 5.0]),
        (5, [8.0, 14 / 3, 4.0, 8 / 3, 5.0]),
        (99, [8.0, 14 / 3, 4.0, 8 / 3, 5.0]),
    ],
)
def test_moving_average_by_hand(width: int, expected: list[float]) -> None:
    found = moving_average(np.array([8.0, 4.0, 2.0, 1.0, 5.0]), width)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@given(
    width=st.integers(1, 60),
    count=st.integers(1, 40),
    level=st.floats(0.1, 20),
    slope=st.floats(-1, 1),
)
def test_moving_average_leaves_a_straight_line_alone(
    width: int, count: int, level: float, slope: float
) -> None:
    line = level + slope * np.arange(count)
    np.testing.assert_allclose(moving_average(line, width), line, rtol=1e-9, atol=1e-9)


@given(steps=st.lists(st.integers(1, 1000), min_size=1, max_size=300), count=st.integers(2, 50))
def test_evenly_spaced_keeps_the_ends_and_never_too_many(steps: list[int], count: int) -> None:
    tokens = np.cumsum(steps).astype(float)
    kept = evenly_spaced(tokens, count)
    assert len(kept) <= max(count, 1)
    assert kept[0] == 0
    assert kept[-1] == len(tokens) - 1
    assert np.all(np.diff(kept) > 0)
    if len(tokens) <= count:
        assert len(kept) == len(tokens)
    else:
        # No mark is further from a kept point than from the nearest point there is.
        marks = np.linspace(tokens[0], tokens[-1], count)
        distance = np.abs(marks[:, None] - tokens)
        np.testing.assert_allclose(distance[:, kept].min(axis=1), distance.min(axis=1))


def sides(found: FitPoints, run: int) -> tuple[list[float], list[float]]:
    """Tokens of a run's fitted and of its held-out points."""
    of_run = found.run == run
    fitted, held_out = of_run & ~found.held_out, of_run & found.held_out
    return found.tokens[fitted].tolist(), found.tokens[held_out].tolist()


def test_the_first_share_is_that_of_each_runs_own_tokens() -> None:
    found = prepare_first_share(TWO, curves(a=falling(8), b=falling(4)), PLAIN, 0.5)
    assert sides(found, 0) == ([100, 200, 300, 400], [500, 600, 700, 800])
    assert sides(found, 1) == ([100, 200], [300, 400])
    assert found.run_ids == ("a", "b")
    assert found.parameters[found.run == 1].tolist() == [2000] * 4
    # a run's last point counts for its length even where it is not finite
    lost = curves(a=[*falling(7), (800, math.nan)], b=falling(4))
    assert sides(prepare_first_share(TWO, lost, PLAIN, 0.5), 0)[0] == [100, 200, 300, 400]


def test_the_window_of_a_split_curve_is_that_of_the_whole_curve() -> None:
    law = LawSpec(form="chinchilla", fit_from=0.25)
    found = prepare_first_share(TWO, curves(a=falling(8), b=falling(4)), law, 0.5)
    assert sides(found, 0) == ([200, 300, 400], [500, 600, 700, 800])
    assert sides(found, 1) == ([100, 200], [300, 400])


def test_each_side_of_a_split_curve_is_smoothed_and_thinned_by_itself() -> None:
    random = np.random.default_rng(0)
    loss = 5.0 + random.random(40)
    logged = [(100 * step, float(value)) for step, value in enumerate(loss, start=1)]
    law = LawSpec(form="chinchilla", fit_from=0.0, smoothing=7, points_per_curve=6)
    found = prepare_first_share(TWO, curves(a=logged, b=logged), law, 0.5)
    for side, piece, tokens in (
        (~found.held_out, loss[:20], 100.0 * np.arange(1, 21)),
        (found.held_out, loss[20:], 100.0 * np.arange(21, 41)),
    ):
        kept = evenly_spaced(tokens, 6)
        assert found.tokens[side & (found.run == 0)].tolist() == tokens[kept].tolist()
        smoothed = moving_average(piece, 7)[kept]
        assert found.loss[side & (found.run == 0)].tolist() == smoothed.tolist()


@given(
    values=st.lists(st.floats(0.1, 10.0), min_size=4, max_size=60),
    other=st.lists(st.floats(0.1, 10.0), min_size=60, max_size=60),
    share=st.floats(0.25, 0.9),
    smoothing=st.integers(1, 30),
    count=st.integers(2, 40),
)
def test_neither_side_of_a_split_curve_knows_the_other(
    values: list[float], other: list[float], share: float, smoothing: int, count: int
) -> None:
    law = LawSpec(form="chinchilla", fit_from=0.0, smoothing=smoothing, points_per_curve=count)
    steps = [100 * step for step in range(1, len(values) + 1)]
    late = [step > share * steps[-1] for step in steps]

    def prepared(early: list[float], later: list[float]) -> FitPoints:
        mixed = [later[at] if is_late else early[at] for at, is_late in enumerate(late)]
        logged = list(zip(steps, mixed, strict=True))
        return prepare_first_share(TWO, curves(a=logged, b=logged), law, share)

    found = prepared(values, values)
    for fitted, changed in ((True, prepared(values, other)), (False, prepared(other, values))):
        ours, theirs = (
            points.loss[points.held_out != fitted].tolist() for points in (found, changed)
        )
        assert ours == theirs


@pytest.mark.parametrize(
    ("share", "settings", "message"),
    [
        (25, {}, "share of tokens is 25"),
        (0.01, {}, "no run has points both within and after the first 1% of its tokens"),
        (
            0.5,
            {"fit_from": 0.6},
            "law.fit_from: it is 0.6, and no run has a point from there to "
            "the first 50% of its tokens; a value below 0.5",
        ),
    ],
)
def test_a_share_that_leaves_nothing_is_refused(
    share: float, settings: dict[str, Any], message: str
) -> None:
    law = LawSpec(form="chinchilla", **{"fit_from": 0.0, **settings})
    with pytest.raises(InputError, match=message):
        prepare_first_share(TWO, curves(a=falling(8), b=falling(4)), law, share)


def test_a_run_without_points_on_one_side_of_the_split_takes_no_part() -> None:
    late = [(100 * step, 4.0) for step in (6, 7, 8)]
    lost = [(100, 4.0), (200, 3.9), (800, math.nan)]
    for other in (late, lost):
        found = prepare_first_share(TWO, curves(a=falling(8), b=other), PLAIN, 0.5)
        alone = prepare_first_share(TWO.head(1), curves(a=falling(8)), PLAIN, 0.5)
        assert found.run_ids == ("a",)
        assert found.tokens.tolist() == alone.tokens.tolist()
        assert found.held_out.tolist() == alone.held_out.tolist()


def test_curves_of_one_point_leave_nothing_to_predict() -> None:
    one = curves(a=[(100, 4.0), (1000, math.nan)], b=[(100, 4.0), (1000, math.nan)])
    with pytest.raises(InputError, match="points both within and after the first 50%"):
        prepare_first_share(TWO, one, PLAIN, 0.5)
