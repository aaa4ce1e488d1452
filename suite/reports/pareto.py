"""The front of a search: every trial, and the trials that no other trial beats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from suite.reports import style
from suite.reports.front import non_dominated
from suite.reports.labels import place_labels
from suite.reports.points import Curve, NoDataError, collect_points
from suite.reports.records import Search, Tracked, Trial

_AXIS_LABELS = {
    "key/relative_error": "Key Relative Reconstruction Error",
    "value/relative_error": "Value Relative Reconstruction Error",
    "calibration_seconds": "Calibration Time (s)",
}
_COST = "calibration_seconds"
_LOG_FROM = 30.0  # ratio of the largest to the smallest value from which an axis is logarithmic


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialPoint:
    """One finished trial.

    Attributes:
        trial: its settings.
        objectives: one curve of a single point for each objective of the search.
        on_front: whether no other trial is better.
    """

    trial: Trial
    objectives: tuple[Curve, ...]
    on_front: bool

    @property
    def values(self) -> NDArray[np.float64]:
        """Objective values, ``[objectives]``."""
        return np.array([float(curve.value[-1]) for curve in self.objectives])

    @property
    def label(self) -> str:
        """The settings, short enough to stand beside a dot."""
        niter = "exact" if self.trial.niter == "exact" else f"niter {self.trial.niter}"
        return f"{niter}, {style.token_count(self.trial.tokens)}, r {self.trial.rank}"


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchPanel:
    """One search, or two of its objectives where it has more.

    Attributes:
        title: name of the search, its model and corpora.
        objectives: names of the objectives of the search.
        shown: positions of the objectives on the horizontal and the vertical axis; a search
            with one objective has the number of the trial on its horizontal axis, None.
        trials: finished trials with a value for each objective.
        unfinished: trials that are not drawn.
    """

    title: str
    objectives: tuple[str, ...]
    shown: tuple[int | None, int]
    trials: tuple[TrialPoint, ...]
    unfinished: int

    @property
    def curves(self) -> Iterable[tuple[str, str, Curve]]:
        """What is drawn, as (axes, series, curve)."""
        for point in self.trials:
            series = "Front" if point.on_front else "Trial"
            for position in self.shown:
                if position is not None:
                    yield self.title, series, point.objectives[position]

    def coordinates(self, points: Sequence[TrialPoint]) -> NDArray[np.float64]:
        """Horizontal and vertical position of trials, ``[points, 2]``."""
        across, up = self.shown
        rows = [
            (p.trial.number if across is None else p.values[across], p.values[up]) for p in points
        ]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    def plot(self, ax: Axes) -> None:
        """Draw trials as dots, the front as a line, and its settings where they fit."""
        across, up = self.shown
        drawn = [p for p in self.trials if np.isfinite(p.values).all()]
        front = sorted((p for p in drawn if p.on_front), key=lambda p: tuple(p.values))
        every, best = self.coordinates(drawn), self.coordinates(front)
        best = best[np.lexsort((best[:, 1], best[:, 0]))]
        _scale(ax, "x", every[:, 0] if across is not None else None)
        _scale(ax, "y", every[:, 1])
        ax.plot(every[:, 0], every[:, 1], "o", color=style.BLUE, alpha=0.55, label="Trial")
        ax.plot(
            best[:, 0],
            best[:, 1],
            "-o" if self._joined else "o",
            color=style.ORANGE,
            markersize=6.5,
            label="Best" if across is None else "Front",
        )
        ax.margins(0.12)
        ax.set_title(style.wrapped(self.title, 64))
        ax.set_xlabel("Trial" if across is None else axis_label(self.objectives[across]))
        ax.set_ylabel(axis_label(self.objectives[up]))
        ax.legend(loc="upper right")

    @property
    def _joined(self) -> bool:
        # With one objective there is nothing to trade; of three, two axes show a shadow.
        return self.shown[0] is not None and len(self.objectives) == 2

    def write_labels(self, ax: Axes) -> None:
        """Write the settings of front trials, once the axes have their final place."""
        points = [p for p in self.trials if np.isfinite(p.values).all()]
        front = [p for p in points if p.on_front]
        place_labels(
            ax,
            [point.label for point in front],
            at=self.coordinates(front),
            avoid=self.coordinates(points),
            joined=self._joined,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ParetoDisplay:
    """Every search of the study.

    Attributes:
        panels: one for a search with two objectives; more where it has more.
    """

    name: ClassVar[str] = "pareto"

    panels: tuple[SearchPanel, ...]

    @classmethod
    def from_tracked(cls, tracked: Tracked) -> ParetoDisplay:
        """Read the trials.

        Raises:
            NoDataError: if no trial has finished.
        """
        panels = [panel for search in tracked.searches for panel in _panels(tracked, search)]
        panels = [panel for panel in panels if panel.trials]
        if not panels:
            raise NoDataError(f"no search of {tracked.study!r} has a finished trial yet")
        return cls(panels=tuple(panels))

    @property
    def title(self) -> str:
        """Heading of the panel."""
        return "Front of the search"

    @property
    def caption(self) -> str:
        """What was measured."""
        text = (
            "Each dot is a finished trial; every objective is minimised. A trial is on the front "
            "if no other is at least as good in all objectives and better in one; its label gives "
            "niter, calibration tokens and rank."
        )
        if any(_COST in panel.objectives for panel in self.panels):
            text += (
                " Calibration time is the time from scratch: the forward passes over the tokens "
                "used, and the solve."
            )
        unfinished = sum({panel.title: panel.unfinished for panel in self.panels}.values())
        if unfinished:
            text += f" Trials without a result, not drawn: {unfinished}."
        return text

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the searches side by side, at most two across."""
        with style.drawing():
            columns = min(2, len(self.panels))
            rows = -(-len(self.panels) // columns)
            figure = figure or style.new_figure(rows, columns, panel=(5.2, 3.8))
            grid = figure.subplots(rows, columns, squeeze=False).flat
            used = list(zip(grid, self.panels, strict=False))
            for axes, panel in used:
                panel.plot(axes)
            for axes in list(figure.axes)[len(self.panels) :]:
                axes.remove()
            figure.draw_without_rendering()  # places the axes; labels depend on it
            for axes, panel in used:
                panel.write_labels(axes)
        return figure

    def points(self) -> pl.DataFrame:
        """Every plotted point, see ``Display.points``."""
        return collect_points(self.name, [c for panel in self.panels for c in panel.curves])


def axis_label(objective: str) -> str:
    """Words and unit of an objective."""
    return _AXIS_LABELS.get(objective, style.plain(objective, 50))


def finished_trials(tracked: Tracked, search: Search) -> tuple[TrialPoint, ...]:
    """Trials that finished with a value for each objective, by number, with the front marked."""
    found = []
    for trial in search.trials:
        curves = [tracked.curve(trial.run_id, f"objective/{name}") for name in search.objectives]
        if trial.finished and curves and all(len(curve) for curve in curves):
            last = tuple(curve.select(np.array([len(curve) - 1])) for curve in curves)
            found.append((trial, last))
    values = np.array([[float(c.value[0]) for c in curves] for _, curves in found])
    front = non_dominated(values.reshape(len(found), len(search.objectives)))
    return tuple(
        TrialPoint(trial=trial, objectives=curves, on_front=bool(best))
        for (trial, curves), best in zip(found, front, strict=True)
    )


def _panels(tracked: Tracked, search: Search) -> Iterable[SearchPanel]:
    trials = finished_trials(tracked, search)
    names = search.objectives
    cost = names.index(_COST) if _COST in names else len(names) - 1
    title = f"{search.search}: {search.model}, {search.calibrate_on} → {search.evaluate_on}"
    for position in range(len(names)):
        if position != cost or len(names) == 1:
            yield SearchPanel(
                title=title if len(names) <= 2 else f"{title} ({names[position]})",
                objectives=names,
                shown=(None if len(names) == 1 else cost, position),
                trials=trials,
                unfinished=len(search.trials) - len(trials),
            )


def _scale(ax: Axes, which: str, values: NDArray[np.float64] | None) -> None:
    """Logarithmic ticks at 1, 2, 5 for values over a wide range, else a few round ones."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    wide = values is not None and values.size and values.min() > 0
    if wide and values is not None and values.max() / values.min() >= _LOG_FROM:
        (ax.set_xscale if which == "x" else ax.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axis.set_major_locator(style.round_ticks(8, integer=values is None))
