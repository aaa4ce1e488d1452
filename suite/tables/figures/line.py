"""A law of one variable as a line through its points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.reports import style
from suite.tables.columns import Array
from suite.tables.figures.axes import RASTER_ABOVE, kinds, scale_axis, variable_label
from suite.tables.outcome import Outcome

_GRID = 200
_BEYOND = 1.5


@dataclass(frozen=True, kw_only=True, eq=False)
class LineDisplay:
    """Points of a law of one variable, and the law between and a little beyond them.

    Attributes:
        title: law and table.
        label: of the variable's axis.
        x: the variable [points].
        measured: losses [points] in nats.
        held_out: whether the law did not see the point [points].
        grid: where the law is drawn [grid].
        predicted: the law there [grid].
    """

    title: str
    label: str
    x: Array
    measured: Array
    held_out: NDArray[np.bool_]
    grid: Array
    predicted: Array

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> LineDisplay | None:
        """Evaluate the law; None for a law of several variables."""
        if len(outcome.points.variables) > 1:
            return None
        ((name, x),) = outcome.points.variables.items()
        grid = np.geomspace(x.min() / _BEYOND, x.max() * _BEYOND, _GRID)
        return cls(
            title=f"{outcome.form.name} on {outcome.table.name}",
            label=variable_label(name, outcome.request.column(name)),
            x=x,
            measured=outcome.points.loss,
            held_out=outcome.points.held_out,
            grid=grid,
            predicted=outcome.fit.predict({name: grid}),
        )

    def plot(self) -> Figure:
        """Draw it."""
        with style.drawing():
            figure = style.new_figure(1, 1, panel=(4.2, 3.0))
            ax = figure.subplots()
            for series, colour, marker, chosen in kinds(self.held_out):
                ax.plot(
                    self.x[chosen],
                    self.measured[chosen],
                    marker,
                    color=colour,
                    markersize=4.5,
                    markeredgewidth=0.0,
                    alpha=0.7,
                    rasterized=len(self.x) > RASTER_ABOVE,
                    label=series,
                )
            ax.plot(self.grid, self.predicted, color=style.INK, linestyle="--", label="Law")
            scale_axis(ax, "x", self.grid)
            scale_axis(ax, "y", self.measured)
            ax.set_title(style.wrapped(self.title, 60))
            ax.set_xlabel(self.label)
            ax.set_ylabel("Loss (nats)")
            ax.legend(loc="best")
        return figure
