"""Residuals against each variable: what the law misses, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.reports import style
from suite.tables.columns import Array
from suite.tables.figures.axes import RASTER_ABOVE, kinds, scale_axis, variable_label
from suite.tables.outcome import Outcome, residuals


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualDisplay:
    """Relative residual of every point, against each variable of the law.

    Attributes:
        title: law and table.
        variables: columns [points] by axis label.
        residual: predicted over measured loss, less 1 [points].
        held_out: whether the law did not see the point [points].
    """

    title: str
    variables: Mapping[str, Array]
    residual: Array
    held_out: NDArray[np.bool_]

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> ResidualDisplay:
        """Collect the columns."""
        return cls(
            title=f"{outcome.form.name} on {outcome.table.name}",
            variables={
                variable_label(name, outcome.request.column(name)): values
                for name, values in outcome.points.variables.items()
            },
            residual=residuals(outcome),
            held_out=outcome.points.held_out,
        )

    def plot(self) -> Figure:
        """Draw one panel a variable, side by side."""
        with style.drawing():
            figure = style.new_figure(1, len(self.variables), panel=(3.6, 3.2))
            panels = figure.subplots(1, len(self.variables), sharey=True, squeeze=False)[0]
            for ax, (label, values) in zip(panels, self.variables.items(), strict=True):
                ax.axhline(0.0, color=style.GREY, linewidth=1.0, zorder=1.5)
                for series, colour, marker, chosen in kinds(self.held_out):
                    ax.plot(
                        values[chosen],
                        100 * self.residual[chosen],
                        marker,
                        color=colour,
                        markersize=4.0,
                        markeredgewidth=0.0,
                        alpha=0.6,
                        rasterized=len(values) > RASTER_ABOVE,
                        label=series,
                    )
                scale_axis(ax, "x", values)
                ax.set_xlabel(label)
            panels[0].set_ylabel("Predicted over measured, less 1 (%)")
            if self.held_out.any():
                panels[0].legend(loc="best")
            figure.suptitle(style.wrapped(self.title, 60), fontsize=10.0)
        return figure
