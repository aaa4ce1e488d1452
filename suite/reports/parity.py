"""Parity: the law's loss against the tracked loss, fitted and held-out cells apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.reports import style
from suite.reports.pairs import Pair, pair_cells
from suite.reports.points import Curve, collect_points
from suite.reports.records import Tracked

_RASTER_ABOVE = 2_000  # points; beyond, single markers make SVG files of many megabytes


@dataclass(frozen=True, kw_only=True, eq=False)
class ParityDisplay:
    """Real against predicted loss over the law's fit window.

    Attributes:
        pairs: one for each cell that the law predicts.
        law: form of the law.
        metric: the tracked metric.
        fit_from: share of each curve's tokens, from its start, that is left out.
        r2_all: tracked R² over all points, or None.
        r2_held_out: tracked R² over held-out cells only, or None.
    """

    name: ClassVar[str] = "parity"

    pairs: tuple[Pair, ...]
    law: str
    metric: str
    fit_from: float
    r2_all: Curve | None
    r2_held_out: Curve | None

    @classmethod
    def from_tracked(cls, tracked: Tracked) -> ParityDisplay:
        """Pair the curves.

        Raises:
            NoDataError: if no law is tracked, or it predicts no tracked point.
        """
        law, pairs = pair_cells(tracked)
        scores = [tracked.curve(law.run_id, key) for key in ("law/r2/all", "law/r2/held_out")]
        r2_all, r2_held_out = (score if len(score) else None for score in scores)
        return cls(
            pairs=tuple(pairs.values()),
            law=law.form,
            metric=tracked.loss_metric,
            fit_from=law.fit_from,
            r2_all=r2_all,
            r2_held_out=r2_held_out,
        )

    @property
    def title(self) -> str:
        """Heading of the panel."""
        return "Real against predicted loss"

    @property
    def caption(self) -> str:
        """What was measured."""
        return (
            f"Tracked loss ({self.metric}, nats a token, as logged) against the loss of the law "
            f"{self.law} at the same tokens, without the first {100 * self.fit_from:g} % of each "
            "curve, which the fit leaves out too. R² is as tracked with the law. "
            "On the grey line, prediction and measurement agree."
        )

    def _groups(self) -> Iterable[tuple[str, str, str, list[Pair], Curve | None]]:
        """(series, colour, marker, pairs, score) of the two kinds of points."""
        fitted = [pair for pair in self.pairs if not pair.held_out]
        held_out = [pair for pair in self.pairs if pair.held_out]
        if fitted:
            yield "Fitted", style.BLUE, "o", fitted, None
        if held_out:
            yield "Held out", style.ORANGE, "^", held_out, self.r2_held_out

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the panel into ``figure``, or into a new one."""
        with style.drawing():
            figure = figure or style.new_figure(1, 1, panel=(3.8, 3.6))
            self._plot(figure.subplots())
        return figure

    def _plot(self, ax: Axes) -> None:
        total = sum(len(pair.real) for pair in self.pairs)
        for series, colour, marker, pairs, score in self._groups():
            ax.plot(
                np.concatenate([pair.real.value for pair in pairs]),
                np.concatenate([pair.predicted.value for pair in pairs]),
                marker,
                color=colour,
                markersize=5.0 if marker == "^" else 4.0,  # a triangle is smaller than a disc
                markeredgewidth=0.0,
                alpha=0.55,
                rasterized=total > _RASTER_ABOVE,
                label=series + _score(score),
            )
        values = np.concatenate(
            [c.value[c.finite] for p in self.pairs for c in (p.real, p.predicted)]
        )
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        margin = 0.04 * (high - low) or 0.5
        limits = (low - margin, high + margin)
        ax.plot(
            limits, limits, color=style.GREY, linewidth=1.0, zorder=1.5, label="real = predicted"
        )
        ax.set_xlim(*limits)
        ax.set_ylim(*limits)
        ax.set_aspect("equal")
        ax.xaxis.set_major_locator(style.round_ticks(9))
        ax.yaxis.set_major_locator(style.round_ticks(9))
        ax.set_title(style.wrapped(f"Law {self.law}{_score(self.r2_all, 'R² of all points')}", 50))
        ax.set_xlabel("Real Total Loss")
        ax.set_ylabel("Predicted Total Loss")
        ax.legend(loc="upper left")

    def points(self) -> pl.DataFrame:
        """Every plotted point, see ``Display.points``; a point is a real and a predicted row."""
        axes = f"law {self.law}"
        curves = [
            (axes, series, curve)
            for series, _, _, pairs, _ in self._groups()
            for pair in pairs
            for curve in (pair.real, pair.predicted)
        ]
        scores = [(axes, "R²", c) for c in (self.r2_all, self.r2_held_out) if c is not None]
        return collect_points(self.name, [*curves, *scores])


def _score(score: Curve | None, name: str = "R²") -> str:
    if score is None or score.last_value is None:
        return ""
    return f", {name} = {score.last_value:.4f}"
