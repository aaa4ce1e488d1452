from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from suite.reports.parity import ParityDisplay
from suite.reports.points import NoDataError
from suite.reports.tracked import read_tracked


def display(maker: Any) -> ParityDisplay:
    return ParityDisplay.from_tracked(read_tracked(maker.reader, "demo"))


def test_each_point_pairs_real_and_predicted_at_one_step(demo: Any) -> None:
    for pair in display(demo).pairs:
        np.testing.assert_array_equal(pair.real.step, pair.predicted.step)
        for curve in (pair.real, pair.predicted):
            for step, value in zip(curve.step, curve.value, strict=True):
                assert demo.reader.point(curve.run_id, curve.key, step)["value"] == value


def test_points_before_the_fit_window_are_left_out(demo: Any) -> None:
    # 20 points a cell, those before a tenth of the tokens left out: the first is.
    assert {len(pair.real) for pair in display(demo).pairs} == {19}
    assert "without the first 10 %" in display(demo).caption


def test_held_out_points_are_a_series_of_their_own(demo: Any) -> None:
    points = display(demo).points()
    runs = {
        series: set(
            points.filter(pl.col("series") == series, pl.col("key") == "train/total_loss")["run_id"]
        )
        for series in ("Fitted", "Held out")
    }
    named = {
        size: {demo.reader.run_named(f"pretrain {size} Tm={t}") for t in (2, 4)}
        for size in ("small", "medium")
    }
    assert runs == {"Fitted": named["small"], "Held out": named["medium"]}


def test_lines_and_scores(demo: Any) -> None:
    (ax,) = display(demo).plot().axes
    fitted, held_out, identity = ax.get_lines()
    assert (fitted.get_marker(), held_out.get_marker()) == ("o", "^")
    assert fitted.get_color() != held_out.get_color()
    assert held_out.get_label() == "Held out, R² = 0.9712"
    assert ax.get_title() == "Law looplm_total, R² of all points = 0.9981"
    np.testing.assert_array_equal(identity.get_xdata(), identity.get_ydata())
    assert ax.get_xlim() == ax.get_ylim()
    assert (len(fitted.get_xdata()), len(held_out.get_xdata())) == (38, 38)


def test_scores_are_among_the_points(demo: Any) -> None:
    scores = display(demo).points().filter(pl.col("series") == "R²")
    assert dict(zip(scores["key"], scores["value"], strict=True)) == {
        "law/r2/all": 0.9981,
        "law/r2/held_out": 0.9712,
    }


def test_no_law_no_parity(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    with pytest.raises(NoDataError, match="no finished law run"):
        display(maker)


def test_law_without_predictions_has_no_parity(demo: Any) -> None:
    demo.reader.points = [
        point for point in demo.reader.points if not str(point["key"]).startswith("predicted/")
    ]
    with pytest.raises(NoDataError, match="predicts none"):
        display(demo)
