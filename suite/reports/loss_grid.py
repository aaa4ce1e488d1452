"""The loss grid: real and predicted total loss against tokens, T_m down and N across."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.reports import style
from suite.reports.grid import lay_out
from suite.reports.points import Curve, NoDataError, collect_points
from suite.reports.records import PretrainingCell, Tracked

INTERVAL = "95 % interval"
_STATUS = {"FAILED": "FAILED", "KILLED": "stopped", "RUNNING": "running", "SCHEDULED": "scheduled"}


@dataclass(frozen=True, kw_only=True, eq=False)
class LossPanel:
    """One cell of the grid.

    Attributes:
        title: such as "Tm = 2, N = 53M".
        real: the tracked loss; None where the study has no run at this place.
        predicted: the law's loss; None where there is no law.
        interval: lower and upper end of the law's 95 % interval; None where there is none.
        held_out: whether the law was fitted without this cell.
        blind: whether its curve was predicted blind.
        remark: what became of a run that did not finish.
        failed: whether it failed.
        planned_tokens: tokens that the run was meant to train on.
    """

    title: str
    real: Curve | None = None
    predicted: Curve | None = None
    interval: tuple[Curve, Curve] | None = None
    held_out: bool = False
    blind: bool = False
    remark: str | None = None
    failed: bool = False
    planned_tokens: int = 0

    @property
    def lines(self) -> Iterable[tuple[str, str, Curve]]:
        """What is drawn as lines, as (axes, series, curve)."""
        for series, curve in (("Real", self.real), ("Pred", self.predicted)):
            if curve is not None:
                yield self.title, series, curve

    @property
    def band(self) -> Iterable[tuple[str, str, Curve]]:
        """The ends of the interval, as (axes, series, curve)."""
        if self.interval is not None:
            for end, curve in zip(("lower", "upper"), self.interval, strict=True):
                yield self.title, f"{INTERVAL}, {end}", curve

    def plot(self, ax: Axes, unit: style.TokenUnit) -> None:
        """Draw the two curves, the title, the legend and what is to be said of the run."""
        ax.set_title(style.wrapped(self.title, 40))
        ax.set_xlabel(unit.label)
        ax.set_ylabel("Total Loss")
        if self.real is None:
            ax.text(0.5, 0.5, "no run", ha="center", transform=ax.transAxes, color=style.GREY)
            return
        looks = (
            ("Real", self.real, style.BLUE, "-", 2.0),
            ("Pred", self.predicted, style.ORANGE, "--", 2.2),
        )
        for series, curve, colour, line, order in looks:
            if curve is None:
                continue
            # A lone point would leave no trace as a line.
            marker = "." if np.count_nonzero(curve.finite) < 2 else ""
            ax.plot(
                curve.step / unit.divisor,
                np.where(curve.finite, curve.value, np.nan),
                color=colour,
                linestyle=line,
                marker=marker,
                zorder=order,
                label=series,
            )
        if self.interval is not None:
            self._fill(ax, unit, *self.interval)
        if self.failed and self.real.finite.any():
            last = np.flatnonzero(self.real.finite)[-1]
            ax.plot(
                self.real.step[last] / unit.divisor,
                self.real.value[last],
                "x",
                color=style.RED,
                markersize=7,
                markeredgewidth=1.8,
            )
        ax.legend(loc="upper right")
        self._write_remarks(ax)

    def _fill(self, ax: Axes, unit: style.TokenUnit, lower: Curve, upper: Curve) -> None:
        """Draw the interval over the real curve and under the predicted one."""
        ax.fill_between(
            lower.step / unit.divisor,
            np.where(lower.finite, lower.value, np.nan),
            np.where(upper.finite, upper.value, np.nan),
            color=style.ORANGE,
            alpha=0.28,
            linewidth=0.0,
            zorder=2.1,
            label=INTERVAL,
        )

    def _write_remarks(self, ax: Axes) -> None:
        remarks = []
        if self.held_out:
            remarks.append((style.mark(self.blind), style.DARK_ORANGE))
        if self.remark:
            remarks.append((self.remark, style.RED if self.failed else style.INK))
        offset = 13.0 if self.interval is not None else 0.0
        for text, colour in remarks:
            ax.annotate(
                text,
                (1.0, 1.0),
                xycoords="axes fraction",
                # below a legend of two lines, or of three
                xytext=(-7.0, -44.0 - offset),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8.0,
                color=colour,
                bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"},
                zorder=1.9,  # under the lines, over the grid
            )
            offset += 13.0 * (text.count("\n") + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class LossGridDisplay:
    """Real and predicted loss of every pretraining cell.

    Attributes:
        panels: rows by increasing T_m, columns by increasing N.
        metric: the tracked metric.
        law: form of the law, or None.
        objective: forms in which the loss was tracked.
    """

    name: ClassVar[str] = "loss_grid"

    panels: tuple[tuple[LossPanel, ...], ...]
    metric: str
    law: str | None
    objective: str

    @classmethod
    def from_tracked(cls, tracked: Tracked) -> LossGridDisplay:
        """Lay the cells out.

        Raises:
            NoDataError: if no pretraining run has logged the metric.
        """
        metric = tracked.loss_metric
        if not any(len(tracked.curve(cell.run_id, metric)) for cell in tracked.pretraining):
            raise NoDataError(f"no pretraining run of {tracked.study!r} has tracked {metric} yet")
        return cls(
            panels=tuple(
                tuple(
                    _panel(tracked, place.cell, place.title)
                    if place.cell
                    else LossPanel(title=place.title)
                    for place in row
                )
                for row in lay_out(tracked.pretraining)
            ),
            metric=metric,
            law=tracked.law.form if tracked.law else None,
            objective="; ".join(sorted({c.objective for c in tracked.pretraining if c.objective})),
        )

    @property
    def title(self) -> str:
        """Heading of the panel."""
        return "Total loss against tokens"

    @property
    def caption(self) -> str:
        """What was measured, and what of it lies outside the drawing."""
        objective = f" ({self.objective})" if self.objective else ""
        sentences = [
            f"Total loss in nats a token{objective}, metric {self.metric}, against training "
            "tokens; recurrence Tm down, parameters N across; all panels share their axes.",
        ]
        if self.law:
            sentences.append(f"Real is tracked, Pred is the law {self.law}.")
            if any(panel.interval for panel in self._flat):
                sentences.append(
                    "The band is the 95 % interval of the law, from a bootstrap over runs; it "
                    "tells how well the law is known, not how much a run scatters about it."
                )
            if any(panel.held_out for panel in self._flat):
                marks = " or ".join(map(style.mark, (True, False)))
                sentences.append(f"The law was fitted without the panels marked {marks}.")
            if any(panel.blind for panel in self._flat):
                sentences.append(
                    "Predicted blind means that the prediction was complete and on record before "
                    "anything of the cell was measured, by all runs that the store still has, "
                    "deleted ones too; what was removed for good (mlflow gc) cannot be seen."
                )
        lines = [curve for _, _, curve in self._lines]
        infinite = sum(int(np.count_nonzero(~curve.finite)) for curve in lines)
        if outside := self._outside(lines):
            sentences.append(f"Points outside the drawn range: {outside}.")
        if outside := self._outside([curve for panel in self._flat for _, _, curve in panel.band]):
            sentences.append(f"Ends of the interval outside it: {outside}.")
        if infinite:
            sentences.append(f"Points that are not finite and leave a gap: {infinite}.")
        return " ".join(sentences)

    @property
    def _flat(self) -> tuple[LossPanel, ...]:
        return tuple(panel for row in self.panels for panel in row)

    @property
    def _lines(self) -> list[tuple[str, str, Curve]]:
        return [curve for panel in self._flat for curve in panel.lines]

    def _outside(self, curves: Iterable[Curve]) -> int:
        low, high = self.loss_range
        return sum(
            int(np.count_nonzero((values < low) | (values > high)))
            for values in (curve.value[curve.finite] for curve in curves)
        )

    @property
    def loss_range(self) -> tuple[float, float]:
        """Loss shown at the bottom and at the top of every panel.

        The range follows the real curves: each counts with its first value and its 99th
        percentile, so that neither a diverged run nor a spike flattens all others. Predictions
        widen it by a quarter at most: laws grow without bound towards zero tokens. Intervals do
        not widen it.
        """
        real = [p.real.value[p.real.finite] for p in self._flat if p.real is not None]
        real = [values for values in real if values.size]
        sound = [
            p.real.value[p.real.finite]
            for p in self._flat
            if p.real is not None and not p.failed and p.real.finite.any()
        ] or real
        if not sound:
            return 0.0, 1.0
        low = float(min(values.min() for values in sound))
        high = float(max(max(values[0], np.percentile(values, 99)) for values in sound))
        slack = 0.25 * (high - low)
        further = [c.value[c.finite] for _, _, c in self._lines if c.finite.any()]
        lowest, highest = (
            float(min(values.min() for values in further)),
            float(max(values.max() for values in further)),
        )
        low, high = max(lowest, low - slack), min(highest, high + slack)
        margin = 0.06 * (high - low) or 0.5
        return low - margin, high + margin

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the grid into ``figure``, or into a new one that grows with the grid."""
        with style.drawing():
            rows, columns = len(self.panels), len(self.panels[0])
            figure = figure or style.new_figure(rows, columns, panel=(3.1, 2.5))
            tokens = max(
                1,
                *(panel.planned_tokens for panel in self._flat),
                *(curve.last_step or 0 for _, _, curve in self._lines),
            )
            unit = style.token_unit(tokens)
            grid = figure.subplots(rows, columns, squeeze=False)
            for axes, panel in zip(grid.flat, self._flat, strict=True):
                axes.set_xlim(-0.03 * tokens / unit.divisor, 1.03 * tokens / unit.divisor)
                axes.set_ylim(*self.loss_range)
                axes.xaxis.set_major_locator(style.round_ticks(5))
                axes.yaxis.set_major_locator(style.round_ticks(6))
                panel.plot(axes, unit)
        return figure

    def points(self) -> pl.DataFrame:
        """Every plotted point, see ``Display.points``."""
        bands = [curve for panel in self._flat for curve in panel.band]
        return collect_points(self.name, [*self._lines, *bands])


def _panel(tracked: Tracked, cell: PretrainingCell, title: str) -> LossPanel:
    real = tracked.curve(cell.run_id, tracked.loss_metric)
    remark = None
    if not cell.finished:
        remark = _STATUS.get(cell.status, cell.status)
        remark += f" at {style.token_count(real.last_step or 0)} tokens"
        if cell.failure:
            remark += "\n" + style.wrapped(cell.failure, 34)
    return LossPanel(
        title=title,
        real=real,
        predicted=tracked.predicted(cell),
        interval=tracked.predicted_interval(cell),
        held_out=tracked.held_out(cell),
        blind=tracked.blind(cell),
        remark=remark,
        failed=cell.status == "FAILED",
        planned_tokens=cell.tokens,
    )
