from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from suite.reports.pareto import ParetoDisplay
from suite.reports.points import NoDataError
from suite.reports.tracked import read_tracked


def display(maker: Any) -> ParetoDisplay:
    return ParetoDisplay.from_tracked(read_tracked(maker.reader, "demo"))


def by_hand(maker: Any, values: list[tuple[float, float]]) -> None:
    parent = maker.search(trials=0)
    for number, pair in enumerate(values):
        run = maker.reader.add(
            "trial",
            f"trial {number}",
            parent=parent,
            params={"niter": "8", "tokens": 1_000, "rank": 64, "trial.number": number},
        )
        for key, value in zip(("value/relative_error", "calibration_seconds"), pair, strict=True):
            maker.reader.log(run, f"objective/{key}", [1_000], [value])


def test_front_is_a_line_through_the_trials_that_none_beats(maker: Any) -> None:
    by_hand(maker, [(0.5, 1.0), (0.2, 9.0), (0.3, 4.0), (0.4, 5.0), (0.6, 2.0)])
    (ax,) = display(maker).plot().axes
    dots, front = ax.get_lines()
    np.testing.assert_array_equal(front.get_xydata(), [(1.0, 0.5), (4.0, 0.3), (9.0, 0.2)])
    assert (front.get_linestyle(), dots.get_linestyle()) == ("-", "None")
    assert len(dots.get_xydata()) == 5
    assert ax.get_xlabel() == "Calibration Time (s)"
    assert ax.get_ylabel() == "Value Relative Reconstruction Error"


def test_labels_give_settings_and_cover_neither_dots_nor_each_other(maker: Any) -> None:
    maker.search(trials=40)
    figure = display(maker).plot()
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert len(ax.texts) >= 3
    assert ax.texts[0].get_text().startswith(("niter ", "exact"))
    boxes = [text.get_window_extent() for text in ax.texts]
    dots = ax.transData.transform(ax.get_lines()[0].get_xydata())
    frame = ax.get_window_extent()
    for place, box in enumerate(boxes):
        assert not any(box.contains(x, y) for x, y in dots)
        assert not any(box.overlaps(other) for other in boxes[:place])
        assert not box.overlaps(ax.get_legend().get_window_extent())
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1


def test_points_are_the_objectives_of_finished_trials(maker: Any) -> None:
    maker.search(trials=12, failed=2)
    shown = display(maker)
    points = shown.points()
    runs = points["run_id"].unique().to_list()
    assert len(runs) == 10
    tracked = maker.reader.curves(runs)
    columns = ["run_id", "key", "step", "value"]
    assert points.select(columns).sort(columns).equals(tracked.select(columns).sort(columns))
    assert "Trials without a result, not drawn: 2." in shown.caption


def test_value_that_is_not_finite_is_kept_as_a_point_but_not_drawn(maker: Any) -> None:
    by_hand(maker, [(0.5, 1.0), (math.nan, 0.1)])
    shown = display(maker)
    assert shown.points().filter(pl.col("value").is_nan()).height == 1
    assert len(shown.plot().axes[0].get_lines()[0].get_xydata()) == 1


def test_wide_range_of_times_is_logarithmic_with_few_ticks(maker: Any) -> None:
    by_hand(maker, [(0.5, 1.0), (0.2, 90.0), (0.3, 4.0)])
    figure = display(maker).plot()
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert len(ax.xaxis.get_minorticklocs()) == 0
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert "20" in labels
    assert not any("$" in label for label in labels)


def test_three_objectives_give_two_axes_without_a_joining_line(maker: Any) -> None:
    names = ("key/relative_error", "value/relative_error", "calibration_seconds")
    maker.search(objectives=names, trials=10)
    axes = display(maker).plot().axes
    assert [ax.get_ylabel() for ax in axes] == [
        "Key Relative Reconstruction Error",
        "Value Relative Reconstruction Error",
    ]
    assert {ax.get_lines()[1].get_linestyle() for ax in axes} == {"None"}


def test_single_objective_is_drawn_over_the_trial_number(maker: Any) -> None:
    maker.search(objectives=("value/relative_error",), trials=6)
    (ax,) = display(maker).plot().axes
    dots, best = ax.get_lines()
    assert ax.get_xlabel() == "Trial"
    assert dots.get_xdata().tolist() == [0, 1, 2, 3, 4, 5]
    assert set(best.get_ydata()) == {dots.get_ydata().min()}


def test_unused_places_of_the_grid_are_removed(maker: Any) -> None:
    for name in ("a", "b", "c"):
        maker.search(name=name, trials=3)
    assert len(display(maker).plot().axes) == 3


def test_search_without_results_has_no_front(maker: Any) -> None:
    maker.search(trials=2, failed=2)
    with pytest.raises(NoDataError, match="no search of 'demo' has a finished trial"):
        display(maker)
