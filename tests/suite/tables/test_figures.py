from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from suite.tables.figures import displays, draw
from suite.tables.figures.axes import short
from suite.tables.figures.contours import ContourDisplay
from suite.tables.figures.curves import CurveDisplay
from suite.tables.figures.line import LineDisplay
from suite.tables.figures.parity import ParityDisplay
from suite.tables.figures.residuals import ResidualDisplay
from suite.tables.outcome import Outcome, fit_table
from suite.tables.request import FitRequest
from suite.tables.sources import from_frame


@pytest.fixture(scope="module")
def fitted(runs: pl.DataFrame) -> Callable[..., Outcome]:
    def run(frame: pl.DataFrame = runs, **settings: object) -> Outcome:
        plain = {"columns": {"parameters": "params"}, "group": "run", "starts": 4}
        table = from_frame("runs", frame, lambda row: f"row {row}")
        return fit_table(table, FitRequest(**(plain | settings)))

    return run


def test_parity_pairs_every_point(fitted: Callable[..., Outcome]) -> None:
    outcome = fitted(hold_out=("size=L",))
    display = ParityDisplay.from_outcome(outcome)
    np.testing.assert_array_equal(display.measured, outcome.points.loss)
    np.testing.assert_array_equal(display.predicted, outcome.predicted)
    ax = display.plot().axes[0]
    fitted_line, held_out_line, _ = ax.lines
    assert held_out_line.get_xdata().tolist() == outcome.points.loss[-8:].tolist()
    assert len(fitted_line.get_xdata()) == 16
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert [label.partition(",")[0] for label in labels] == ["Fitted", "Held out"]


def test_residuals_are_drawn_against_every_variable(fitted: Callable[..., Outcome]) -> None:
    outcome = fitted()
    display = ResidualDisplay.from_outcome(outcome)
    assert list(display.variables) == ["N (params)", "D (tokens)"]
    np.testing.assert_allclose(
        display.residual, outcome.predicted / outcome.points.loss - 1, rtol=1e-12
    )
    panels = display.plot().axes
    assert [ax.get_xlabel() for ax in panels] == ["N (params)", "D (tokens)"]
    np.testing.assert_allclose(panels[1].lines[1].get_ydata(), 100 * display.residual)


def test_curves_have_a_panel_a_group_in_the_order_of_tokens(
    fitted: Callable[..., Outcome], runs: pl.DataFrame
) -> None:
    display = CurveDisplay.from_outcome(fitted(runs.sample(24, shuffle=True, seed=1)))
    assert display is not None
    assert {curve.name for curve in display.curves} == set(runs["run"])
    for curve in display.curves:
        rows = runs.filter(run=curve.name)
        assert curve.along.tolist() == rows["tokens"].to_list()
        assert curve.measured.tolist() == rows["loss"].to_list()
    figure = display.plot()
    titles = [ax.get_title() for ax in figure.axes if ax.get_visible()]
    assert titles == [curve.name for curve in display.curves]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (2, 2), (6, 3), (15, 5), (16, 4), (20, 5)])
def test_panels_fill_their_grid(count: int, columns: int, fitted: Callable[..., Outcome]) -> None:
    display = CurveDisplay.from_outcome(fitted())
    assert display is not None
    display = replace(display, curves=(display.curves * 4)[:count])
    figure = display.plot()
    assert figure.axes[0].get_gridspec().ncols == columns
    assert sum(ax.get_visible() for ax in figure.axes) == count


def test_curves_carry_the_band_of_the_law(fitted: Callable[..., Outcome]) -> None:
    outcome = fitted(bootstrap=400)
    display = CurveDisplay.from_outcome(outcome)
    assert display is not None
    assert outcome.intervals is not None
    last = display.curves[-1]
    assert last.band is not None
    np.testing.assert_array_equal(last.band[0], outcome.intervals.lower[-4:])
    assert ((last.band[0] <= last.predicted) & (last.predicted <= last.band[1])).all()
    assert len(display.plot().axes[0].collections) == 1
    plain = CurveDisplay.from_outcome(fitted())
    assert plain is not None
    assert plain.curves[0].band is None


def test_groups_of_single_points_and_no_groups_have_no_curves(
    fitted: Callable[..., Outcome],
) -> None:
    assert CurveDisplay.from_outcome(fitted(final=1)) is None
    assert CurveDisplay.from_outcome(fitted(group=None)) is None


def test_many_groups_are_thinned_and_the_title_says_so(
    fitted: Callable[..., Outcome], runs: pl.DataFrame
) -> None:
    copies = [runs.with_columns(run=pl.col("run") + f"#{copy}") for copy in range(5)]
    display = CurveDisplay.from_outcome(fitted(pl.concat(copies)))
    assert display is not None
    assert len(display.curves) == 20
    assert display.title.endswith("20 of 30 groups")


def test_contours_are_the_laws_own_loss(fitted: Callable[..., Outcome]) -> None:
    outcome = fitted()
    display = ContourDisplay.from_outcome(outcome)
    assert display is not None
    p = outcome.parameters
    expected = (
        p["E"] + p["A"] / display.x[None] ** p["alpha"] + p["B"] / display.y[:, None] ** p["beta"]
    )
    np.testing.assert_allclose(display.loss, expected, rtol=1e-12)
    assert display.x[0] < 5e7 < 1e9 < display.x[-1]


def test_other_variables_stay_at_a_value_that_occurs(
    fitted: Callable[..., Outcome], runs: pl.DataFrame
) -> None:
    loops = [runs.with_columns(loops=pl.lit(t), loss=pl.col("loss") + 0.3 / t) for t in (1, 2, 8)]
    outcome = fitted(
        pl.concat(loops),
        form="parameters + tokens + recurrence",
        columns={"parameters": "params", "recurrence": "loops"},
    )
    display = ContourDisplay.from_outcome(outcome)
    assert display is not None
    assert display.title.endswith("at T_m = 2")
    corner = {"parameters": display.x[:1], "tokens": display.y[:1], "recurrence": np.array([2.0])}
    assert display.loss[0, 0] == pytest.approx(outcome.fit.predict(corner)[0], rel=1e-12)


def test_a_law_of_one_variable_is_a_line(fitted: Callable[..., Outcome]) -> None:
    frame = pl.DataFrame({"width": [1.0, 2, 4, 8, 16, 64]}).with_columns(
        loss=0.7 + 2.5 / pl.col("width")
    )
    outcome = fitted(frame, form="power", columns={"x": "width"}, group=None)
    assert set(displays(outcome)) == {"parity", "residuals", "law"}
    display = LineDisplay.from_outcome(outcome)
    assert display is not None
    np.testing.assert_allclose(display.predicted, 0.7 + 2.5 / display.grid, rtol=1e-6)
    assert set(draw(outcome)) == {"parity", "residuals", "law"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.4e9, "1.4B"), (53e6, "53M"), (2.5e5, "250K"), (8, "8"), (0.25, "0.25"), (5e12, "5T")],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert short(value) == text
