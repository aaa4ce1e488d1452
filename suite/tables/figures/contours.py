"""Iso-loss contours of the law over two of its variables, with the points that it saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.laws.forms import VARIABLES
from suite.reports import style
from suite.tables.columns import Array
from suite.tables.figures.axes import RASTER_ABOVE, kinds, scale_axis, short, variable_label
from suite.tables.outcome import Outcome

_GRID = 120
_BEYOND = 1.5  # how far the grid reaches past the points, as a factor
_LEVELS = 12
_CROWDED = 500  # points; beyond, their edges would hide their colours
_PREFERRED = ("parameters", "parameters_recurrent", "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class ContourDisplay:
    """The law's loss on a grid of two variables, others at their middle values.

    Attributes:
        title: law, table, and what the other variables are.
        labels: of both axes.
        x: grid of the first variable [grid].
        y: grid of the second variable [grid].
        loss: the law's losses in nats [grid of y, grid of x].
        points: both variables of the points [2, points].
        measured: their losses [points] in nats.
        held_out: whether the law did not see the point [points].
    """

    title: str
    labels: tuple[str, str]
    x: Array
    y: Array
    loss: Array
    points: Array
    measured: Array
    held_out: NDArray[np.bool_]

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> ContourDisplay | None:
        """Evaluate the law; None for a law of one variable."""
        variables = outcome.points.variables
        if len(variables) < 2:
            return None
        preferred = [name for name in _PREFERRED if name in variables]
        first, second = [*preferred, *(n for n in variables if n not in preferred)][:2]
        x, y = (_grid(variables[name]) for name in (first, second))
        across, down = np.meshgrid(x, y)
        columns = {
            name: np.full(across.size, _middle(values)) for name, values in variables.items()
        } | {first: across.ravel(), second: down.ravel()}
        others = ", ".join(
            f"{VARIABLES[name].letter} = {short(_middle(values))}"
            for name, values in variables.items()
            if name not in (first, second)
        )
        return cls(
            title=f"Loss of {outcome.form.name} on {outcome.table.name}"
            + (f" at {others}" if others else ""),
            labels=(
                variable_label(first, outcome.request.column(first)),
                variable_label(second, outcome.request.column(second)),
            ),
            x=x,
            y=y,
            loss=outcome.fit.predict(columns).reshape(across.shape),
            points=np.stack([variables[first], variables[second]]),
            measured=outcome.points.loss,
            held_out=outcome.points.held_out,
        )

    def plot(self) -> Figure:
        """Draw contours, and the points in the colour of their measured loss."""
        everything = np.concatenate([self.loss.ravel(), self.measured])
        # A few losses of early training would leave one colour for all the rest.
        colours = Normalize(float(everything.min()), float(np.quantile(self.measured, 0.98)))
        crowded = len(self.measured) > _CROWDED
        levels = np.quantile(self.loss, np.linspace(0.02, 0.98, _LEVELS))
        with style.drawing():
            figure = style.new_figure(1, 1, panel=(4.4, 3.4))
            ax = figure.subplots()
            if len(np.unique(levels)) == len(levels):
                lines = ax.contour(
                    self.x,
                    self.y,
                    self.loss,
                    levels=levels,
                    cmap="viridis_r",
                    norm=colours,
                    linewidths=1.1,
                )
                ax.clabel(lines, fmt="%.2f", fontsize=7)
            for series, _, marker, chosen in kinds(self.held_out):
                ax.scatter(
                    self.points[0, chosen],
                    self.points[1, chosen],
                    c=self.measured[chosen],
                    cmap="viridis_r",
                    norm=colours,
                    s=9 if crowded else 22,
                    marker=marker,
                    edgecolors=style.INK,
                    linewidths=0.0 if crowded else 0.4,
                    label=f"{series}, measured",
                    zorder=3,
                    rasterized=len(self.measured) > RASTER_ABOVE,
                )
            scale_axis(ax, "x", self.x)
            scale_axis(ax, "y", self.y)
            ax.set_xlim(self.x[0], self.x[-1])
            ax.set_ylim(self.y[0], self.y[-1])
            ax.set_title(style.wrapped(self.title, 60))
            ax.set_xlabel(self.labels[0])
            ax.set_ylabel(self.labels[1])
            figure.legend(loc="outside lower center", ncols=2)
            figure.colorbar(ax.collections[-1], ax=ax, label="Loss (nats)", extend="max")
        return figure


def _grid(values: Array) -> Array:
    return np.geomspace(values.min() / _BEYOND, values.max() * _BEYOND, _GRID)


def _middle(values: Array) -> float:
    """A value that occurs, in the middle of the distinct ones."""
    levels = np.unique(values)
    return float(levels[len(levels) // 2])
