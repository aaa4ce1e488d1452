"""Curves of groups: measured and predicted loss against tokens, a panel a group."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.reports import style
from suite.tables.columns import Array
from suite.tables.figures.axes import scale_axis, variable_label
from suite.tables.outcome import Outcome

_MOST_PANELS = 20
_COLUMNS = (5, 4, 3)
_MARKED = 12  # points of a curve up to which each has a marker
_CANDIDATES = ("tokens", "step", "x")  # what a curve may run along


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupCurve:
    """One group's points, by the variable that the curves run along.

    Attributes:
        name: of the group.
        along: values [points], increasing.
        measured: losses [points] in nats.
        predicted: the law's losses [points].
        held_out: whether the law saw none of them.
        band: lower and upper ends of the law's loss [2, points], where there are intervals.
    """

    name: str
    along: Array
    measured: Array
    predicted: Array
    held_out: bool
    band: Array | None


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveDisplay:
    """Curves of the groups, evenly chosen where there are too many.

    Attributes:
        title: law, table, and how many groups are not shown.
        label: axis label of the variable that the curves run along.
        curves: one a group.
    """

    title: str
    label: str
    curves: tuple[GroupCurve, ...]

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> CurveDisplay | None:
        """Curves of the groups that have several points; None where there is none."""
        points = outcome.points
        along = next((name for name in _CANDIDATES if name in points.variables), None)
        if along is None or not points.grouped:
            return None
        intervals = outcome.intervals
        band = np.stack([intervals.lower, intervals.upper]) if intervals else None
        curves = []
        for index in dict.fromkeys(points.group.tolist()):
            rows = np.flatnonzero(points.group == index)
            values = points.variables[along][rows]
            if len(np.unique(values)) < 2:
                continue
            rows = rows[np.argsort(values, kind="stable")]
            curves.append(
                GroupCurve(
                    name=points.groups[index],
                    along=points.variables[along][rows],
                    measured=points.loss[rows],
                    predicted=outcome.predicted[rows],
                    held_out=bool(points.held_out[rows].all()),
                    band=None if band is None else band[:, rows],
                )
            )
        if not curves:
            return None
        shown = np.unique(np.linspace(0, len(curves) - 1, min(len(curves), _MOST_PANELS)).round())
        hidden = len(curves) - len(shown)
        return cls(
            title=f"{outcome.form.name} on {outcome.table.name}"
            + (f", {len(shown)} of {len(curves)} groups" if hidden else ""),
            label=variable_label(along, outcome.request.column(along)),
            curves=tuple(curves[int(index)] for index in shown),
        )

    def plot(self) -> Figure:
        """Draw the grid; all panels share both axes."""
        count = len(self.curves)
        # The widest of the grids that leave the fewest places empty.
        columns = min(count, min(_COLUMNS, key=lambda width: (-count % width, -width)))
        rows = math.ceil(count / columns)
        with style.drawing():
            figure = style.new_figure(rows, columns, panel=(2.7, 2.2))
            panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
            for index, ax in enumerate(panels.flat):
                if index < len(self.curves):
                    self._panel(ax, self.curves[index], legend=index == 0)
                else:
                    ax.set_visible(False)
                bottom = index + columns >= len(self.curves)
                ax.tick_params(labelbottom=bottom)
                if bottom:
                    ax.set_xlabel(self.label)
            for ax in panels[:, 0]:
                ax.set_ylabel("Loss (nats)")
            figure.suptitle(style.wrapped(self.title, 40 * columns), fontsize=10.0)
        return figure

    def _panel(self, ax: Axes, curve: GroupCurve, *, legend: bool) -> None:
        marker = "." if len(curve.along) <= _MARKED else ""
        if curve.band is not None:
            ax.fill_between(
                curve.along,
                *curve.band,
                color=style.ORANGE,
                alpha=0.25,
                linewidth=0,
                label="Its interval",
            )
        ax.plot(curve.along, curve.measured, color=style.BLUE, marker=marker, label="Measured")
        ax.plot(
            curve.along,
            curve.predicted,
            color=style.ORANGE,
            linestyle="--",
            label="Predicted",
        )
        scale_axis(ax, "x", np.concatenate([c.along for c in self.curves]))
        scale_axis(ax, "y", np.concatenate([c.measured for c in self.curves]))
        ax.set_title(style.wrapped(curve.name, 30) + (" (held out)" if curve.held_out else ""))
        if legend:
            ax.legend(loc="upper right")
