"""Parity: the law's loss against the measured loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.reports import style
from suite.tables.columns import Array
from suite.tables.figures.axes import RASTER_ABOVE, kinds
from suite.tables.outcome import Outcome


@dataclass(frozen=True, kw_only=True, eq=False)
class ParityDisplay:
    """Measured and predicted loss of every point.

    Attributes:
        title: law and table.
        measured: losses [points] in nats.
        predicted: the law's losses [points].
        held_out: whether the law did not see the point [points].
        errors: mean relative error of fitted and of held-out points, or None.
    """

    title: str
    measured: Array
    predicted: Array
    held_out: NDArray[np.bool_]
    errors: tuple[float, float | None]

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> ParityDisplay:
        """Pair the losses."""
        return cls(
            title=f"{outcome.form.name} on {outcome.table.name}",
            measured=outcome.points.loss,
            predicted=outcome.predicted,
            held_out=outcome.points.held_out,
            errors=(
                outcome.goodness.mean_relative_error_fitted,
                outcome.goodness.mean_relative_error_held_out,
            ),
        )

    def plot(self) -> Figure:
        """Draw it."""
        with style.drawing():
            figure = style.new_figure(1, 1, panel=(3.8, 3.8))
            ax = figure.subplots()
            for (series, colour, marker, chosen), error in zip(
                kinds(self.held_out), (e for e in self.errors if e is not None), strict=True
            ):
                ax.plot(
                    self.measured[chosen],
                    self.predicted[chosen],
                    marker,
                    color=colour,
                    markersize=4.0,
                    markeredgewidth=0.0,
                    alpha=0.6,
                    rasterized=len(self.measured) > RASTER_ABOVE,
                    label=f"{series}, mean error {error:.2%}",
                )
            both = np.concatenate([self.measured, self.predicted])
            margin = 0.04 * float(np.ptp(both)) or 0.5
            limits = (float(both.min()) - margin, float(both.max()) + margin)
            ax.plot(limits, limits, color=style.GREY, linewidth=1.0, zorder=1.5)
            ax.set_xlim(*limits)
            ax.set_ylim(*limits)
            ax.set_aspect("equal")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(style.round_ticks(8))
            ax.set_title(style.wrapped(self.title, 50))
            ax.set_xlabel("Measured loss (nats)")
            ax.set_ylabel("Predicted loss (nats)")
            ax.legend(loc="upper left")
        return figure
