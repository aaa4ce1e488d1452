"""The residual grid: predicted over measured loss, less 1, against tokens, for every cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from suite.reports import style
from suite.reports.grid import lay_out
from suite.reports.pairs import Pair, pair_cells
from suite.reports.points import Curve, collect_points
from suite.reports.records import Tracked

_LOOKS = {"Fitted": (style.BLUE, "o", 3.0), "Held out": (style.ORANGE, "^", 4.0)}
_RASTER_ABOVE = 2_000  # points; beyond, single markers make SVG files of many megabytes
_SPIKE = 1.5  # how far, in 99th percentiles, a single residual may widen every panel


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualPanel:
    """One cell of the grid.

    Attributes:
        title: such as "Tm = 2, N = 53M".
        pair: measured and predicted loss; None where there is no run, or no prediction.
        blind: whether the curve was predicted blind.
    """

    title: str
    pair: Pair | None
    blind: bool

    @property
    def curves(self) -> Iterable[tuple[str, str, Curve]]:
        """What the residuals are made of, as (axes, series, curve)."""
        if self.pair is not None:
            yield self.title, self.pair.series, self.pair.real
            yield self.title, self.pair.series, self.pair.predicted

    def plot(self, ax: Axes, unit: style.TokenUnit, *, rasterized: bool) -> None:
        """Draw the residuals in per cent, the zero line, their mean, and what the cell is."""
        ax.set_title(style.wrapped(self.title, 40))
        ax.set_xlabel(unit.label)
        ax.set_ylabel("Relative error (%)")
        ax.axhline(0.0, color=style.GREY, linewidth=1.0, zorder=1.5)
        if self.pair is None:
            ax.text(
                0.5, 0.4, "no prediction", ha="center", transform=ax.transAxes, color=style.GREY
            )
            return
        colour, marker, size = _LOOKS[self.pair.series]
        residual = self.pair.residual
        ax.plot(
            self.pair.real.step / unit.divisor,
            100 * np.where(np.isfinite(residual), residual, np.nan),
            marker,
            color=colour,
            markersize=size,
            markeredgewidth=0.0,
            alpha=0.6,
            rasterized=rasterized,
            label=self.pair.series,
        )
        known = residual[np.isfinite(residual)]
        if known.size:
            _write(ax, f"mean {style.percent(float(known.mean()))}", top=False, colour=style.INK)
        if self.pair.held_out:
            _write(ax, style.mark(self.blind), top=True, colour=style.DARK_ORANGE)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualGridDisplay:
    """Relative residuals of every pretraining cell over the law's fit window.

    Attributes:
        panels: rows by increasing T_m, columns by increasing N.
        law: form of the law.
        metric: the tracked metric.
        fit_from: share of each curve's tokens, from its start, that is left out.
    """

    name: ClassVar[str] = "residuals"

    panels: tuple[tuple[ResidualPanel, ...], ...]
    law: str
    metric: str
    fit_from: float

    @classmethod
    def from_tracked(cls, tracked: Tracked) -> ResidualGridDisplay:
        """Lay the cells out.

        Raises:
            NoDataError: if no law is tracked, or it predicts no tracked point.
        """
        law, pairs = pair_cells(tracked)
        return cls(
            panels=tuple(
                tuple(
                    ResidualPanel(
                        title=place.title,
                        pair=pairs.get(place.cell.run_id) if place.cell else None,
                        blind=place.cell is not None and tracked.blind(place.cell),
                    )
                    for place in row
                )
                for row in lay_out(tracked.pretraining)
            ),
            law=law.form,
            metric=tracked.loss_metric,
            fit_from=law.fit_from,
        )

    @property
    def title(self) -> str:
        """Heading of the panel."""
        return "Residuals of the law against tokens"

    @property
    def caption(self) -> str:
        """What was measured, and what of it lies outside the drawing."""
        sentences = [
            f"Residual: the loss of the law {self.law} over the tracked one ({self.metric}, as "
            "logged), less 1, so that above zero the law predicts too much; without the first "
            f"{100 * self.fit_from:g} % of each curve, which the fit leaves out too. All panels "
            "share their axes. Noise scatters about the zero line; a law that misses a cell, or "
            "the shape of its curve, leaves it on one side.",
        ]
        if any(pair.held_out for pair in self._pairs):
            sentences.append("Orange triangles are cells that the law was not fitted to.")
        outside = int(np.count_nonzero(np.abs(self._residuals) > self.limit))
        if outside:
            sentences.append(f"Points outside the drawn range: {outside}.")
        return " ".join(sentences)

    @property
    def _flat(self) -> tuple[ResidualPanel, ...]:
        return tuple(panel for row in self.panels for panel in row)

    @property
    def _pairs(self) -> tuple[Pair, ...]:
        return tuple(panel.pair for panel in self._flat if panel.pair is not None)

    @property
    def _residuals(self) -> NDArray[np.float64]:
        values = np.concatenate([pair.residual for pair in self._pairs])
        finite: NDArray[np.float64] = values[np.isfinite(values)]
        return finite

    @property
    def limit(self) -> float:
        """Residual at the top of every panel, as a ratio; the bottom is its negative.

        Every panel counts with its 99th percentile; a spike beyond widens all by half at most.
        Two fifths more leave room for words above and below the points.
        """
        sizes = [np.abs(pair.residual[np.isfinite(pair.residual)]) for pair in self._pairs]
        sizes = [values for values in sizes if values.size]
        if not sizes:
            return 0.01
        most = max(float(np.percentile(values, 99)) for values in sizes)
        largest = max(float(values.max()) for values in sizes)
        return 1.4 * min(largest, _SPIKE * most) or 0.01

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the grid into ``figure``, or into a new one that grows with the grid."""
        with style.drawing():
            rows, columns = len(self.panels), len(self.panels[0])
            figure = figure or style.new_figure(rows, columns, panel=(3.1, 2.3))
            tokens = max(1, *(pair.real.last_step or 0 for pair in self._pairs))
            unit = style.token_unit(tokens)
            grid = figure.subplots(rows, columns, squeeze=False)
            total = sum(len(pair.real) for pair in self._pairs)
            for axes, panel in zip(grid.flat, self._flat, strict=True):
                axes.set_xlim(-0.03 * tokens / unit.divisor, 1.03 * tokens / unit.divisor)
                axes.set_ylim(-100 * self.limit, 100 * self.limit)
                axes.xaxis.set_major_locator(style.round_ticks(5))
                axes.yaxis.set_major_locator(style.round_ticks(6))
                panel.plot(axes, unit, rasterized=total > _RASTER_ABOVE)
            self._add_legend(figure)
        return figure

    def _add_legend(self, figure: Figure) -> None:
        """One legend over the grid: inside a panel it would hide points."""
        present = {pair.series for pair in self._pairs}
        handles = [
            Line2D([], [], color=colour, marker=marker, linestyle="none", label=series)
            for series, (colour, marker, _) in _LOOKS.items()
            if series in present
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))

    def points(self) -> pl.DataFrame:
        """Every plotted point, see ``Display.points``; a residual is a real and a predicted row."""
        return collect_points(self.name, (c for panel in self._flat for c in panel.curves))


def _write(ax: Axes, text: str, *, top: bool, colour: str) -> None:
    ax.annotate(
        text,
        (1.0, 1.0 if top else 0.0),
        xycoords="axes fraction",
        xytext=(-5.0, -5.0 if top else 5.0),
        textcoords="offset points",
        ha="right",
        va="top" if top else "bottom",
        fontsize=8.0,
        color=colour,
        bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"},
        zorder=1.9,  # under the points, over the grid
    )
