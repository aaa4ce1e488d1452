from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.errors import SuiteError
from suite.tracking.curves import (
    CURVE_SCHEMA,
    POINT_SCHEMA,
    Attempt,
    attempts_from_tags,
    live,
    mark_superseded,
)

Point = tuple[str, str, int, float, int]  # run, key, step, value, timestamp
Start = tuple[str, int, int, int]  # run, attempt, started, resumed_from


def marked(points: Sequence[Point], attempts: Sequence[Start]) -> pl.DataFrame:
    return mark_superseded(
        pl.DataFrame(points, schema=POINT_SCHEMA, orient="row"),
        pl.DataFrame(
            attempts,
            schema={
                "run_id": pl.String,
                "number": pl.Int64,
                "started": pl.Int64,
                "resumed_from": pl.Int64,
            },
            orient="row",
        ),
    )


def curve(
    points: Sequence[tuple[int, int]], attempts: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, bool]]:
    """Attempt and fate of each (step, timestamp), given (started, resumed_from) of attempts."""
    frame = marked(
        [("r", "loss", step, 0.0, time) for step, time in points],
        [("r", number, *start) for number, start in enumerate(attempts, start=1)],
    )
    return {
        (row["step"], row["timestamp"]): (row["attempt"], row["superseded"])
        for row in frame.iter_rows(named=True)
    }


def test_without_attempts_every_point_counts() -> None:
    assert curve([(0, 5), (10, 6)], []) == {(0, 5): (1, False), (10, 6): (1, False)}


def test_one_attempt_overtakes_nothing() -> None:
    assert curve([(0, 5), (10, 6)], [(4, -1)]) == {(0, 5): (1, False), (10, 6): (1, False)}


def test_a_resumed_attempt_overtakes_what_lies_above_its_checkpoint() -> None:
    found = curve(
        [(10, 11), (20, 12), (30, 13), (30, 21), (40, 22)],
        [(10, -1), (20, 20)],
    )
    assert found == {
        (10, 11): (1, False),
        (20, 12): (1, False),  # exactly at resumed_from: part of the checkpoint
        (30, 13): (1, True),
        (30, 21): (2, False),
        (40, 22): (2, False),
    }


def test_a_point_at_the_start_of_an_attempt_belongs_to_it() -> None:
    assert curve([(30, 20), (30, 19)], [(10, -1), (20, 20)]) == {
        (30, 19): (1, True),
        (30, 20): (2, False),
    }


def test_starting_afresh_overtakes_step_zero() -> None:
    found = curve([(0, 11), (10, 12), (0, 21)], [(10, -1), (20, -1)])
    assert found == {(0, 11): (1, True), (10, 12): (1, True), (0, 21): (2, False)}


def test_resuming_from_zero_keeps_step_zero() -> None:
    assert curve([(0, 11), (1, 12)], [(10, -1), (20, 0)]) == {
        (0, 11): (1, False),
        (1, 12): (1, True),
    }


def test_a_later_and_deeper_rollback_reaches_through_to_the_first_attempt() -> None:
    found = curve(
        [(20, 11), (40, 12), (60, 13), (50, 21), (70, 22), (30, 31), (60, 32)],
        [(10, -1), (20, 40), (30, 20)],
    )
    assert found == {
        (20, 11): (1, False),
        (40, 12): (1, True),  # kept by attempt 2, overtaken by attempt 3
        (60, 13): (1, True),
        (50, 21): (2, True),
        (70, 22): (2, True),
        (30, 31): (3, False),
        (60, 32): (3, False),
    }


def test_a_shallower_rollback_after_a_deep_one_does_not_revive_points() -> None:
    found = curve(
        [(20, 11), (60, 13), (30, 21), (50, 22), (60, 31)],
        [(10, -1), (20, 20), (30, 40)],
    )
    assert found == {
        (20, 11): (1, False),
        (60, 13): (1, True),
        (30, 21): (2, False),
        (50, 22): (2, True),
        (60, 31): (3, False),
    }


def test_points_older_than_every_attempt_belong_to_the_first() -> None:
    """The clock went back between logging and the attempt's record."""
    assert curve([(10, 1), (30, 2)], [(10, -1), (20, 20)]) == {
        (10, 1): (1, False),
        (30, 2): (1, True),
    }


def test_points_in_wild_order_are_told_apart_by_time_not_by_row() -> None:
    points = [(30, 21), (10, 11), (30, 13), (40, 22), (20, 12)]
    assert curve(points, [(10, -1), (20, 20)]) == curve(sorted(points), [(10, -1), (20, 20)])


def test_runs_and_keys_do_not_touch_each_other() -> None:
    frame = marked(
        [("a", "x", 30, 1.0, 12), ("b", "x", 30, 2.0, 12), ("a", "y", 10, 3.0, 12)],
        [("a", 1, 10, -1), ("a", 2, 20, 20), ("b", 1, 10, -1)],
    )
    assert frame.select("run_id", "key", "superseded").rows() == [
        ("a", "x", True),
        ("a", "y", False),
        ("b", "x", False),
    ]


def test_no_points_give_an_empty_typed_frame() -> None:
    frame = marked([], [("a", 1, 10, -1)])
    assert dict(frame.schema) == {name: kind() for name, kind in CURVE_SCHEMA.items()}
    assert frame.is_empty()
    assert dict(live(frame).schema) == {name: kind() for name, kind in POINT_SCHEMA.items()}


def test_live_keeps_the_newest_of_several_points_at_a_step() -> None:
    frame = live(
        marked(
            [
                ("r", "x", 10, 1.0, 12),
                ("r", "x", 10, 2.0, 11),
                ("r", "x", 0, math.nan, 11),
                ("r", "w", 10, 5.0, 11),
                ("r", "x", 30, 9.0, 12),
            ],
            [("r", 1, 10, -1), ("r", 2, 20, 20)],
        )
    )
    assert frame.rows()[0] == ("r", "w", 10, 5.0, 11)
    assert frame.rows()[2] == ("r", "x", 10, 1.0, 12)
    assert math.isnan(frame.rows()[1][3])
    assert len(frame) == 3


def test_attempts_survive_their_tags() -> None:
    attempts = [
        Attempt(
            number=number,
            started=1_000 * number,
            resumed_from=number - 2,
            host="größe",
            pid=7,
            device="cpu x 1",
            ended=5 if number == 1 else None,
            outcome="KILLED" if number == 1 else None,
        )
        for number in (1, 2, 10)
    ]
    tags = dict(attempt.to_tag() for attempt in reversed(attempts))
    assert set(tags) == {"suite.attempt.1", "suite.attempt.2", "suite.attempt.10"}
    assert attempts_from_tags({**tags, "suite.attempts": "3", "other": "x"}) == tuple(attempts)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Point], list[Start]]:
    points: list[Point] = []
    attempts: list[Start] = []
    for run in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        starts = draw(st.lists(st.integers(0, 30), unique=True, max_size=4))
        for number, started in enumerate(sorted(starts), start=1):
            attempts.append((run, number, started, draw(st.integers(-1, 12))))
        points += draw(
            st.lists(
                st.tuples(
                    st.just(run),
                    st.sampled_from(["x", "y"]),
                    st.integers(0, 12),
                    st.floats(allow_nan=False),
                    st.integers(0, 40),
                ),
                max_size=15,
            )
        )
    return draw(st.permutations(points)), draw(st.permutations(attempts))


def slowly(points: list[Point], attempts: list[Start]) -> list[tuple[Point, int, bool]]:
    """Every point with its attempt and fate, read off the definition."""
    found = []
    for point in points:
        run, _, step, _, time = point
        own = sorted(start[1:] for start in attempts if start[0] == run)
        begun = [number for number, started, _ in own if started <= time]
        attempt = max(begun, default=1)
        fate = any(number > attempt and resumed < step for number, _, resumed in own)
        found.append((point, attempt, fate))
    return found


@given(histories())
@settings(max_examples=150, deadline=None)
def test_marks_what_the_definition_says(history: tuple[list[Point], list[Start]]) -> None:
    points, attempts = history
    expected = slowly(points, attempts)
    frame = marked(points, attempts)
    order = ["run_id", "key", "step", "timestamp", "value"]
    assert frame.equals(frame.sort(order, maintain_order=True))
    assert sorted(frame.rows()) == sorted((*point, *rest) for point, *rest in expected)

    newest: dict[tuple[str, str, int], tuple[int, float]] = {}
    for (run, key, step, value, time), _, fate in expected:
        if not fate:
            at = (run, key, step)
            newest[at] = max(newest.get(at, (-1, 0.0)), (time, value))
    assert live(frame).rows() == [
        (*at, value, time) for at, (time, value) in sorted(newest.items())
    ]


@pytest.mark.parametrize("value", ["{bad", "[]", "{}", '{"number": 1}'])
def test_an_edited_attempt_is_named(value: str) -> None:
    with pytest.raises(SuiteError, match=r"suite\.attempt\.1 does not describe an attempt"):
        attempts_from_tags({"suite.attempt.1": value})
