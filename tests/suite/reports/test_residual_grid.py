from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_hex

from suite.reports.points import NoDataError
from suite.reports.residual_grid import ResidualGridDisplay
from suite.reports.tracked import read_tracked

LAW = "law looplm_total"


def display(maker: Any) -> ResidualGridDisplay:
    return ResidualGridDisplay.from_tracked(read_tracked(maker.reader, "demo"))


def by_hand(maker: Any, name: str) -> tuple[list[int], list[float]]:
    """Steps in the window of the fit, and predicted over measured loss less 1, in per cent."""
    run, law = maker.reader.run_named(name), maker.reader.run_named(LAW)
    (cell,) = [row["cell"] for row in maker.reader.rows if row["run_id"] == run]
    steps = list(range(100_000, 1_000_001, 50_000))
    return steps, [
        100 * (maker.reader.point(law, f"predicted/{cell}", step)["value"]
               / maker.reader.point(run, "train/total_loss", step)["value"] - 1)
        for step in steps
    ]  # fmt: skip


def test_drawn_points_are_predicted_over_measured_less_one(demo: Any) -> None:
    for ax, name in zip(
        display(demo).plot().axes,
        [f"pretrain {size} Tm={t}" for t in (2, 4) for size in ("small", "medium")],
        strict=True,
    ):
        steps, residuals = by_hand(demo, name)
        zero, dots = ax.get_lines()
        assert list(zero.get_ydata()) == [0.0, 0.0]
        np.testing.assert_allclose(dots.get_xdata() * 1e6, steps)
        np.testing.assert_allclose(dots.get_ydata(), residuals, rtol=1e-12)
        mean = f"mean {np.mean(residuals):+.2f} %".replace("-", "\u2212")
        assert ax.texts[0].get_text() == mean


def test_places_and_scales_are_those_of_a_grid(demo: Any) -> None:
    axes = display(demo).plot().axes
    assert [ax.get_title() for ax in axes] == [
        f"Tm = {t}, N = {n}" for t in (2, 4) for n in ("60K", "173K")
    ]
    (limits,) = {ax.get_ylim() for ax in axes}
    assert limits[0] == -limits[1]
    assert len({ax.get_xlim() for ax in axes}) == 1
    assert {(ax.get_xlabel(), ax.get_ylabel()) for ax in axes} == {
        ("Tokens(M)", "Relative error (%)")
    }


def test_held_out_cells_differ_in_colour_and_marker_and_in_the_legend(demo: Any) -> None:
    figure = display(demo).plot()
    looks = [
        (line.get_label(), line.get_marker(), to_hex(line.get_color()))
        for ax in figure.axes
        for line in ax.get_lines()[1:]
    ]
    assert looks == [("Fitted", "o", "#1f77b4"), ("Held out", "^", "#ff7f0e")] * 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Fitted", "Held out"]
    assert "Orange triangles are cells that the law was not fitted to" in display(demo).caption


@pytest.mark.parametrize(("fixture", "mark"), [("demo", "held out"), ("judged", "predicted blind")])
def test_held_out_panels_say_how_they_were_predicted(
    request: pytest.FixtureRequest, fixture: str, mark: str
) -> None:
    axes = display(request.getfixturevalue(fixture)).plot().axes
    marks = [[text.get_text() for text in ax.texts[1:]] for ax in axes]
    assert marks == [[], [mark], [], [mark]]


def test_a_residual_is_a_real_and_a_predicted_point(demo: Any) -> None:
    points = display(demo).points()
    one = points.filter(pl.col("axes") == "Tm = 4, N = 173K")
    assert one["series"].unique().to_list() == ["Held out"]
    run, law = demo.reader.run_named("pretrain medium Tm=4"), demo.reader.run_named(LAW)
    assert dict(one.group_by("run_id").len().iter_rows()) == {run: 19, law: 19}
    for run_id, key, step, value in points.select("run_id", "key", "step", "value").iter_rows():
        assert demo.reader.point(run_id, key, step)["value"] == value


def test_one_spike_does_not_flatten_the_panels(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, recurrences=(2,), points=200)
    maker.fit()
    calm = display(maker).limit
    run = maker.reader.run_named("pretrain small Tm=2")
    maker.reader.point(run, "train/total_loss", 500_000)["value"] = 1e6
    shown = display(maker)
    assert calm < shown.limit < 2.1 * calm
    assert "Points outside the drawn range: 1." in shown.caption


def test_points_that_are_not_finite_leave_a_gap(demo: Any) -> None:
    run = demo.reader.run_named("pretrain small Tm=2")
    demo.reader.point(run, "train/total_loss", 500_000)["value"] = math.nan
    ax = display(demo).plot().axes[0]
    assert np.isnan(ax.get_lines()[1].get_ydata()).sum() == 1
    assert "NaN" not in ax.texts[0].get_text()
    assert math.isfinite(display(demo).limit)


def test_places_without_a_run_or_a_prediction_are_shown_empty(demo: Any) -> None:
    demo.pretraining(sizes={"large": 734_977}, recurrences=(2,), points=20)
    axes = {ax.get_title(): ax for ax in display(demo).plot().axes}
    for title in ("Tm = 2, N = 735K", "Tm = 4, N = 735K"):
        assert [text.get_text() for text in axes[title].texts] == ["no prediction"]


def test_words_stay_inside_their_panels_and_labels_inside_the_figure(judged: Any) -> None:
    figure = display(judged).plot()
    figure.draw_without_rendering()
    for ax in figure.axes:
        frame, label = ax.get_window_extent(), ax.yaxis.label.get_window_extent()
        assert frame.y0 <= label.y0
        assert label.y1 <= frame.y1
        for text in ax.texts:
            box = text.get_window_extent()
            assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
            assert frame.y0 <= box.y0 <= box.y1 <= frame.y1
    legend = figure.legends[0].get_window_extent()
    titles = [ax.title.get_window_extent() for ax in figure.axes]
    assert not any(legend.overlaps(title) for title in titles)


def test_no_law_no_residuals(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    with pytest.raises(NoDataError, match="no finished law run"):
        display(maker)
