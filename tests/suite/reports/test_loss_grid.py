from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_hex

from suite.reports.loss_grid import LossGridDisplay
from suite.reports.points import POINT_IDENTITY, NoDataError
from suite.reports.tracked import read_tracked

PAPER = {
    "53M": 53_228_545,
    "134M": 134_125_057,
    "374M": 373_917_697,
    "778M": 777_931_777,
    "1.36B": 1_364_398_081,
}


def display(maker: Any) -> LossGridDisplay:
    return LossGridDisplay.from_tracked(read_tracked(maker.reader, "demo"))


def test_grid_of_the_published_figure(maker: Any) -> None:
    maker.pretraining(sizes=PAPER, tokens=20_000_000_000, points=20)
    maker.fit()
    figure = display(maker).plot()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == [f"Tm = {t}, N = {n}" for t in (2, 4, 8) for n in PAPER]
    places = [ax.get_subplotspec().rowspan.start for ax in figure.axes]
    assert places == [0] * 5 + [1] * 5 + [2] * 5
    for ax in figure.axes:
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("Tokens(B)", "Total Loss")
        real, pred = ax.get_lines()
        assert (real.get_linestyle(), to_hex(real.get_color())) == ("-", "#1f77b4")
        assert (pred.get_linestyle(), to_hex(pred.get_color())) == ("--", "#ff7f0e")
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["Real", "Pred"]
        assert ax.get_legend()._loc == 1  # upper right
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    assert len({ax.get_xlim() for ax in figure.axes}) == 1


def test_drawn_lines_are_the_tracked_values(demo: Any) -> None:
    shown = display(demo)
    lines = {
        (ax.get_title(), line.get_label()): line
        for ax in shown.plot().axes
        for line in ax.get_lines()
    }
    for axes, series, key in [("Tm = 4, N = 173K", "Real", "train/total_loss")]:
        run = demo.reader.run_named("pretrain medium Tm=4")
        frame = demo.reader.curves([run], [key])
        np.testing.assert_array_equal(lines[axes, series].get_ydata(), frame["value"])
        np.testing.assert_allclose(lines[axes, series].get_xdata() * 1e6, frame["step"])


def test_points_are_every_tracked_point_once_in_order(demo: Any) -> None:
    points = display(demo).points()
    tracked = demo.reader.curves(points["run_id"].unique().to_list())
    expected = tracked.filter(
        (pl.col("key") == "train/total_loss") | pl.col("key").str.starts_with("predicted/")
    )
    columns = ["run_id", "key", "step", "value"]
    assert points.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert points.equals(points.sort(POINT_IDENTITY))
    assert not points.select(POINT_IDENTITY).is_duplicated().any()


def test_without_a_law_there_is_no_prediction(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=20)
    assert display(maker).points()["series"].unique().to_list() == ["Real"]
    assert "Pred" not in display(maker).caption


def test_metric_of_the_law_is_drawn(demo: Any) -> None:
    law = demo.reader.run_named("law looplm_total")
    demo.reader.texts[law]["params"]["metric"] = "val/total_loss"
    points = display(demo).points().filter(pl.col("series") == "Real")
    assert points["key"].unique().to_list() == ["val/total_loss"]


def test_held_out_cells_are_marked(demo: Any) -> None:
    texts = {ax.get_title(): [t.get_text() for t in ax.texts] for ax in display(demo).plot().axes}
    assert texts == {
        "Tm = 2, N = 60K": [],
        "Tm = 2, N = 173K": ["held out"],
        "Tm = 4, N = 60K": [],
        "Tm = 4, N = 173K": ["held out"],
    }


def test_blind_cells_are_marked_and_others_say_held_out(judged: Any) -> None:
    judged.reader.point(
        judged.reader.run_named("pretrain medium Tm=4"), "train/total_loss", 50_000
    )["timestamp"] = 5
    shown = display(judged)
    texts = {ax.get_title(): [t.get_text() for t in ax.texts] for ax in shown.plot().axes}
    assert texts == {
        "Tm = 2, N = 60K": [],
        "Tm = 2, N = 173K": ["predicted blind"],
        "Tm = 4, N = 60K": [],
        "Tm = 4, N = 173K": ["held out"],
    }
    assert "complete and on record before anything of the cell was measured" in shown.caption


def test_without_a_blind_panel_the_caption_does_not_speak_of_one(demo: Any) -> None:
    assert "on record before" not in display(demo).caption


def test_interval_is_a_band_between_the_two_curves_with_a_legend_entry(judged: Any) -> None:
    law = judged.reader.run_named("law looplm_total")
    cell = next(row for row in judged.reader.rows if row["name"] == "pretrain medium Tm=4")
    ax = display(judged).plot().axes[3]
    assert ax.get_title() == "Tm = 4, N = 173K"
    (band,) = ax.collections
    real, predicted = ax.get_lines()
    assert real.get_zorder() < band.get_zorder() < predicted.get_zorder()
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["Real", "Pred", "95 % interval"]
    corners = {(round(x * 1e6), y) for x, y in band.get_paths()[0].vertices}
    points = [p for p in judged.reader.points if p["run_id"] == law]
    for end in ("lower", "upper"):
        tracked = {
            (p["step"], p["value"]) for p in points if p["key"] == f"predicted/{cell['cell']}/{end}"
        }
        assert len(tracked) == 20
        assert tracked <= corners


def test_interval_is_among_the_points(judged: Any) -> None:
    points = display(judged).points()
    series = points.filter(pl.col("axes") == "Tm = 4, N = 173K")["series"].unique().sort()
    expected = ["95 % interval, lower", "95 % interval, upper", "Pred", "Real"]
    assert series.to_list() == expected


def test_interval_without_bound_does_not_widen_the_range(judged: Any) -> None:
    shown = display(judged)
    calm = shown.loss_range
    law = judged.reader.run_named("law looplm_total")
    cell = next(row["cell"] for row in judged.reader.rows if row["kind"] == "pretraining")
    judged.reader.point(law, f"predicted/{cell}/upper", 50_000)["value"] = 1e9
    wild = display(judged)
    assert wild.loss_range == calm
    assert "Ends of the interval outside it: 1." in wild.caption
    assert "outside" not in shown.caption


def test_interval_with_one_end_is_not_drawn(judged: Any) -> None:
    judged.reader.points = [p for p in judged.reader.points if not p["key"].endswith("/upper")]
    assert not any(ax.collections for ax in display(judged).plot().axes)
    assert "95 % interval" not in display(judged).caption


def test_remarks_stand_below_the_legend(judged: Any) -> None:
    figure = display(judged).plot()
    figure.draw_without_rendering()
    marked = [ax for ax in figure.axes if ax.texts]
    assert len(marked) == 2
    for ax in marked:
        (text,) = ax.texts
        assert text.get_window_extent().y1 <= ax.get_legend().get_window_extent().y0


def test_failed_cell_keeps_its_curve_and_says_why(maker: Any) -> None:
    maker.pretraining(
        sizes={"small": 1000}, recurrences=(2, 4), fail={("small", 4): "loss is NaN"}, points=60
    )
    failed = display(maker).plot().axes[1]
    assert [t.get_text() for t in failed.texts] == ["FAILED at 333K tokens\nloss is NaN"]
    curve, cross = failed.get_lines()
    assert np.isfinite(curve.get_ydata()).sum() == 19
    assert cross.get_marker() == "x"
    assert "not finite and leave a gap: 1." in display(maker).caption


def test_run_that_still_works_says_how_far_it_is(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, recurrences=(2,), points=20)
    maker.reader.rows[0]["status"] = "RUNNING"
    (ax,) = display(maker).plot().axes
    assert [t.get_text() for t in ax.texts] == ["running at 1M tokens"]


def test_missing_place_of_the_grid_is_shown_empty(maker: Any) -> None:
    maker.pretraining(sizes={"a": 1000, "b": 2000}, recurrences=(2, 4), skip=[("b", 4)], points=20)
    ax = display(maker).plot().axes[3]
    assert ax.get_title() == "Tm = 4, N = 2K"
    assert [t.get_text() for t in ax.texts] == ["no run"]


def test_sizes_that_round_alike_are_told_apart_by_name(maker: Any) -> None:
    maker.pretraining(sizes={"wide": 1_200_000, "deep": 1_400_000}, recurrences=(2,), points=20)
    titles = [ax.get_title() for ax in display(maker).plot().axes]
    assert titles == ["Tm = 2, N = 1M (wide)", "Tm = 2, N = 1M (deep)"]


def test_diverged_run_does_not_flatten_the_others(maker: Any) -> None:
    maker.pretraining(
        sizes={"small": 1000}, recurrences=(2, 4), fail={("small", 4): "loss is inf"}, points=60
    )
    calm = display(maker).loss_range
    failed = maker.reader.run_named("pretrain small Tm=4")
    maker.reader.log(failed, "train/total_loss", [900_000, 900_001], [1e12, math.inf])
    low, high = display(maker).loss_range
    assert high - low <= 1.4 * (calm[1] - calm[0])
    assert "outside the drawn range: 1." in display(maker).caption


def test_prediction_without_bound_widens_the_range_by_a_quarter_at_most(demo: Any) -> None:
    real = display(demo).loss_range
    law = demo.reader.run_named("law looplm_total")
    cell = next(row["cell"] for row in demo.reader.rows if row["kind"] == "pretraining")
    demo.reader.log(law, f"predicted/{cell}", [1], [500.0])
    _, high = display(demo).loss_range
    assert high < real[1] + 0.35 * (real[1] - real[0])


def test_single_point_is_visible(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, recurrences=(2,), points=1)
    (line,) = display(maker).plot().axes[0].get_lines()
    assert line.get_marker() == "."


def test_dollar_signs_in_names_are_text(maker: Any) -> None:
    maker.pretraining(sizes={"$\\bad{": 1_200_000, "b": 1_400_000}, recurrences=(2,), points=5)
    figure = display(maker).plot()
    figure.draw_without_rendering()
    assert figure.axes[0].get_title() == "Tm = 2, N = 1M ($\\bad{)"


def test_study_without_losses_has_no_grid(maker: Any) -> None:
    maker.calibration(models={"x": (0.1, 0.2)})
    with pytest.raises(NoDataError, match="no pretraining run of 'demo' has tracked"):
        display(maker)
