from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from matplotlib.colors import to_hex

from suite.reports.error_grid import ErrorGridDisplay
from suite.reports.error_looks import line_look
from suite.reports.points import NoDataError
from suite.reports.tracked import read_tracked

BLUE, ORANGE, RED, GREEN = "#1f77b4", "#ff7f0e", "#d62728", "#2ca02c"
MODELS = {"Llama 3.1 8B": (0.09, 0.28), "Mistral-NeMo 12B": (0.14, 0.28)}


def display(maker: Any) -> ErrorGridDisplay:
    return ErrorGridDisplay.from_tracked(read_tracked(maker.reader, "demo"))


def test_grid_of_the_published_figure(maker: Any) -> None:
    maker.calibration(models=MODELS)
    figure = display(maker).plot()
    assert [ax.get_title() for ax in figure.axes] == [
        "(a) Llama 3.1 8B (Key)",
        "(b) Mistral-NeMo 12B (Key)",
        "(c) Llama 3.1 8B (Value)",
        "(d) Mistral-NeMo 12B (Value)",
    ]
    assert [ax.get_subplotspec().rowspan.start for ax in figure.axes] == [0, 0, 1, 1]
    for place, ax in enumerate(figure.axes):
        assert ax.get_xlabel() == "#Calibration Tokens (Thousands)"
        assert ax.get_ylabel() == "Relative Reconstruction Error"
        assert ax.get_xticks().tolist() == [20, 40, 60, 80, 100, 120, 140, 160]
        word, eight, one = ("Key", "o", "s") if place < 2 else ("Value", "v", "^")
        looks = [
            (line.get_label(), to_hex(line.get_color()), line.get_marker(), line.get_linestyle())
            for line in ax.get_lines()
        ]
        assert looks == [
            (f"{word} FineWeb → OpenR1 niter=8", BLUE, eight, "-"),
            (f"{word} FineWeb → OpenR1 niter=1", ORANGE, one, "-"),
            (f"{word} FineWeb → FineWeb niter=8", RED, eight, "-"),
            (f"{word} FineWeb → FineWeb niter=1", GREEN, one, "-"),
        ]
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        assert legend == [look[0] for look in looks]


def test_points_are_the_uncentred_norm_ratios(maker: Any) -> None:
    maker.calibration(models=MODELS)
    points = display(maker).points()
    tracked = maker.reader.curves(points["run_id"].unique().to_list())
    expected = tracked.filter(pl.col("key").str.contains("^(key|value)/relative_error/"))
    columns = ["run_id", "key", "step", "value"]
    assert points.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert "‖X \u2212 X̂‖_F / ‖X‖_F, uncentred" in display(maker).caption


def test_exact_basis_is_a_thin_grey_floor(maker: Any) -> None:
    maker.calibration(models={"x": (0.1, 0.2)}, niters=("8", "exact"))
    lines = {line.get_label(): line for line in display(maker).plot().axes[0].get_lines()}
    for corpus, dashes in (("FineWeb", "-"), ("OpenR1", "--")):
        line = lines[f"Key FineWeb → {corpus} exact"]
        assert (line.get_linestyle(), line.get_marker()) == (dashes, "")
        assert to_hex(line.get_color()) == "#8a8a8a"
        assert line.get_linewidth() < 1.0
    assert list(lines)[-2:] == ["Key FineWeb → OpenR1 exact", "Key FineWeb → FineWeb exact"]
    assert "exact basis, which no niter can beat" in display(maker).caption


def test_no_two_lines_of_a_panel_look_alike() -> None:
    niters = ("0", "1", "4", "8", "16", "exact")
    for matrix in ("key", "value"):
        looks = [
            line_look(matrix, niter, target=target, niters=niters)
            for niter in niters
            for target in (None, 0, 1, 2)
        ]
        assert len(set(looks)) == len(looks)


def test_each_calibration_corpus_has_its_own_column(maker: Any) -> None:
    maker.calibration(models={"x": (0.1, 0.2)}, calibrate_on=("FineWeb", "OpenR1"))
    axes = display(maker).plot().axes
    assert [ax.get_title() for ax in axes] == [
        "(a) x (Key) from FineWeb",
        "(b) x (Key) from OpenR1",
        "(c) x (Value) from FineWeb",
        "(d) x (Value) from OpenR1",
    ]
    # In the second column FineWeb is the corpus that the basis was carried to.
    first = axes[1].get_lines()[0]
    assert (first.get_label(), to_hex(first.get_color())) == (
        "Key OpenR1 → FineWeb niter=8",
        BLUE,
    )


def test_long_legend_stands_below_the_axes(maker: Any) -> None:
    maker.calibration(
        models={"x": (0.1, 0.2)},
        evaluate_on=("OpenR1", "FineWeb", "code", "wiki"),
        niters=("1", "4", "8"),
    )
    figure = display(maker).plot()
    figure.draw_without_rendering()
    for ax in figure.axes:
        assert ax.get_legend().get_window_extent().y1 < ax.get_window_extent().y0
    boxes = [ax.get_tightbbox() for ax in figure.axes]
    assert boxes[1].y1 <= boxes[0].y0 + 1  # the rows do not run into each other
    assert min(box.y0 for box in boxes) >= 0


@pytest.mark.parametrize("budgets", [(1_000, 2_000, 4_000), (20_000, 40_000), (5_000,)])
def test_legend_hides_no_point(maker: Any, budgets: tuple[int, ...]) -> None:
    maker.calibration(models=MODELS, budgets=budgets, niters=("1", "8", "exact"))
    figure = display(maker).plot()
    figure.draw_without_rendering()
    for ax in figure.axes:
        legend = ax.get_legend().get_window_extent()
        for line in ax.get_lines():
            for x, y in ax.transData.transform(line.get_xydata()):
                assert not legend.contains(x, y)


def test_failed_run_is_told_in_its_panels(maker: Any) -> None:
    maker.calibration(models={"x": (0.1, 0.2)}, fail="out of memory")
    for ax in display(maker).plot().axes:
        assert [t.get_text() for t in ax.texts] == ["niter=8 FAILED at 80K tokens: out of memory"]


def test_letters_go_on_after_z(maker: Any) -> None:
    models = {f"m{number:02}": (0.1, 0.2) for number in range(15)}
    maker.calibration(models=models, niters=("8",), budgets=(1_000, 2_000))
    panels = display(maker).panels
    assert panels[1][-1].title == "(ad) m14 (Value)"
    assert panels[1][10].title == "(z) m10 (Value)"


def test_study_without_errors_has_no_grid(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    with pytest.raises(NoDataError, match="no calibration run"):
        display(maker)


def test_long_names_neither_leave_the_figure_nor_hide_lines(maker: Any) -> None:
    long = "corpus-" * 4
    maker.calibration(
        models={"organisation/model-with-a-long-name-" * 2: (0.1, 0.2), "y": (0.1, 0.2)},
        calibrate_on=(long,),
        evaluate_on=(long, long + "2"),
    )
    figure = display(maker).plot()
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    titles = [ax.title.get_window_extent() for ax in figure.axes]
    assert titles[0].x1 < titles[1].x0
    for ax in figure.axes:
        box = ax.get_tightbbox()
        assert (box.x0 >= 0, box.y0 >= 0, box.x1 <= width, box.y1 <= height) == (True,) * 4
        assert ax.get_legend().get_window_extent().y1 < ax.get_window_extent().y0
