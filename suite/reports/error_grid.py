"""The error grid: reconstruction error against calibration tokens, keys over values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from suite.reports import style
from suite.reports.error_looks import LineLook, Matrix, line_look, niter_order
from suite.reports.points import Curve, NoDataError, collect_points
from suite.reports.records import CalibrationCell, Tracked

ERROR_METRIC = "relative_error"
ERROR_FORMULA = "‖X \u2212 X̂‖_F / ‖X‖_F, uncentred"
MATRICES: tuple[Matrix, ...] = ("key", "value")
_MOST_INSIDE = 8  # entries of a legend inside the axes; more would hide the lines
_LONGEST_INSIDE = 44  # characters of an entry that leaves half of the axes free


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorLine:
    """One basis, evaluated on one corpus.

    Attributes:
        label: such as "Key FineWeb → OpenR1 niter=8".
        curve: relative error against calibration tokens.
        look: colour, marker and dashes.
    """

    label: str
    curve: Curve
    look: LineLook


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorPanel:
    """Keys or values of one model.

    Attributes:
        title: such as "(a) Llama 3.1 8B (Key)".
        lines: in the order of the legend.
        remarks: what became of runs that did not finish.
    """

    title: str
    lines: tuple[ErrorLine, ...]
    remarks: tuple[str, ...] = ()

    def plot(self, ax: Axes) -> None:
        """Draw the lines over calibration tokens in thousands."""
        ax.set_title(style.wrapped(self.title, 62), pad=6.0 + 11.0 * len(self.remarks))
        ax.set_xlabel("#Calibration Tokens (Thousands)")
        ax.set_ylabel("Relative Reconstruction Error")
        for line in self.lines:
            look, curve = line.look, line.curve
            ax.plot(
                curve.step / 1e3,
                np.where(curve.finite, curve.value, np.nan),
                color=look.colour,
                linestyle=look.dashes,
                linewidth=look.width,
                marker=look.marker or ("." if len(curve) < 2 else ""),
                markersize=5.5,
                markerfacecolor="white" if look.hollow else look.colour,
                zorder=1.5 if not look.marker else 2.0,
                label=style.plain(line.label, 80),
            )
        _set_budget_ticks(ax, sorted({int(s) for line in self.lines for s in line.curve.step}))
        ax.yaxis.set_major_locator(style.round_ticks(8))
        if columns := self._columns_below:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=7.0)
        elif self.lines:
            _make_room_for_legend(ax, self.lines)
            ax.legend(loc="upper right")
        if self.remarks:
            ax.annotate(
                "\n".join(self.remarks),
                (0.5, 1.0),
                xycoords="axes fraction",
                xytext=(0.0, 4.0),
                textcoords="offset points",
                ha="center",
                color=style.RED,
                fontsize=7.5,
            )

    @property
    def extra_height(self) -> float:
        """Inches that a legend below the axes takes."""
        columns = self._columns_below
        return 0.165 * -(-len(self.lines) // columns) if columns else 0.0

    @property
    def _columns_below(self) -> int:
        """Columns of a legend that is too large for the axes and stands below; else 0."""
        longest = max((len(line.label) for line in self.lines), default=0)
        if longest > _LONGEST_INSIDE:
            return 1
        return 2 if len(self.lines) > _MOST_INSIDE else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorGridDisplay:
    """Reconstruction errors of every calibrated model.

    Attributes:
        panels: a row of keys over a row of values; columns by model and calibration corpus.
        rank: components kept, as text.
        cut_up_to: the largest number of tokens drawn that allows no such rank; 0 if all do.
    """

    name: ClassVar[str] = "error_grid"

    panels: tuple[tuple[ErrorPanel, ...], ...]
    rank: str
    cut_up_to: int = 0

    @classmethod
    def from_tracked(cls, tracked: Tracked) -> ErrorGridDisplay:
        """Lay the calibration runs out.

        Raises:
            NoDataError: if no calibration run has logged an error.
        """
        cells = tracked.calibration
        if not any(len(curve) for cell in cells for curve in _errors(tracked, cell)):
            raise NoDataError(f"no calibration run of {tracked.study!r} has tracked an error yet")
        columns = list(dict.fromkeys((cell.model, cell.calibrate_on) for cell in cells))
        several = len({source for _, source in columns}) > 1
        niters = tuple({cell.niter for cell in cells})
        rows = []
        for row, matrix in enumerate(MATRICES):
            panels = []
            for column, (model, source) in enumerate(columns):
                letter = _letter(row * len(columns) + column)
                members = [c for c in cells if (c.model, c.calibrate_on) == (model, source)]
                origin = f" from {source}" if several else ""
                panels.append(
                    ErrorPanel(
                        title=f"({letter}) {model} ({matrix.title()}){origin}",
                        lines=tuple(_lines(tracked, members, matrix, niters)),
                        remarks=tuple(_remarks(tracked, members)),
                    )
                )
            rows.append(tuple(panels))
        ranks = sorted({cell.rank for cell in cells})
        cut = [
            int(step)
            for cell in cells
            for curve in _errors(tracked, cell)
            for step in curve.step[curve.step <= cell.rank]
        ]
        return cls(
            panels=tuple(rows),
            rank=", ".join(f"{rank:,}" for rank in ranks),
            cut_up_to=max(cut, default=0),
        )

    @property
    def title(self) -> str:
        """Heading of the panel."""
        return "Reconstruction error against calibration tokens"

    @property
    def caption(self) -> str:
        """What was measured."""
        text = (
            f"Relative reconstruction error {ERROR_FORMULA}, of the keys (before rotary embedding) "
            "and values of held-out text, "
            f"at rank {self.rank}, against the tokens that the PCA basis was calibrated on. "
            "“A → B” is a basis from corpus A measured on corpus B."
        )
        if self.cut_up_to:
            text += (
                f" Up to {self.cut_up_to:,} tokens are fewer than that rank needs: those bases "
                "have one component less than they have tokens."
            )
        if any(line.look.marker == "" for _, line in self._lines):
            text += (
                " Grey lines without markers are the exact basis, which no niter can beat on the "
                "calibration tokens themselves."
            )
        return text

    @property
    def _lines(self) -> Iterable[tuple[str, ErrorLine]]:
        for row in self.panels:
            for panel in row:
                for line in panel.lines:
                    yield panel.title, line

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw the grid into ``figure``, or into a new one that grows with the grid."""
        with style.drawing():
            rows, columns = len(self.panels), len(self.panels[0])
            extra = max(panel.extra_height for row in self.panels for panel in row)
            figure = figure or style.new_figure(rows, columns, panel=(5.0, 3.6 + extra))
            grid = figure.subplots(rows, columns, squeeze=False)
            for axes, panel in zip(grid.flat, (p for row in self.panels for p in row), strict=True):
                panel.plot(axes)
        return figure

    def points(self) -> pl.DataFrame:
        """Every plotted point, see ``Display.points``."""
        return collect_points(
            self.name, ((title, line.label, line.curve) for title, line in self._lines)
        )


def _errors(tracked: Tracked, cell: CalibrationCell) -> Iterable[Curve]:
    for matrix in MATRICES:
        for corpus in cell.evaluate_on:
            yield tracked.curve(cell.run_id, f"{matrix}/{ERROR_METRIC}/{corpus}")


def _lines(
    tracked: Tracked, cells: Sequence[CalibrationCell], matrix: Matrix, niters: tuple[str, ...]
) -> Iterable[ErrorLine]:
    """Lines of one panel: carried corpora before the own one, the exact bases last."""
    corpora = list(dict.fromkeys(corpus for cell in cells for corpus in cell.evaluate_on))
    carried = [corpus for corpus in corpora if corpus != cells[0].calibrate_on]
    order = {corpus: place for place, corpus in enumerate([*carried, cells[0].calibrate_on])}
    wanted = [(cell, corpus) for cell in cells for corpus in cell.evaluate_on]
    wanted.sort(key=lambda w: (w[0].niter == "exact", order[w[1]], niter_order(w[0].niter)))
    for cell, corpus in wanted:
        curve = tracked.curve(cell.run_id, f"{matrix}/{ERROR_METRIC}/{corpus}")
        if len(curve):
            target = carried.index(corpus) if corpus in carried else None
            iterations = "exact" if cell.niter == "exact" else f"niter={cell.niter}"
            yield ErrorLine(
                label=f"{matrix.title()} {cell.calibrate_on} → {corpus} {iterations}",
                curve=curve,
                look=line_look(matrix, cell.niter, target=target, niters=niters),
            )


def _remarks(tracked: Tracked, cells: Sequence[CalibrationCell]) -> Iterable[str]:
    for cell in cells:
        if not cell.finished:
            reached = max((curve.last_step or 0) for curve in _errors(tracked, cell))
            iterations = "exact" if cell.niter == "exact" else f"niter={cell.niter}"
            reason = f": {style.plain(cell.failure, 60)}" if cell.failure else ""
            yield f"{iterations} {cell.status} at {style.token_count(reached)} tokens{reason}"


def _letter(place: int) -> str:
    """Letters of a panel: a to z, then aa, ab and on."""
    letters = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        letters = ascii_lowercase[rest] + letters
    return letters


def _set_budget_ticks(ax: Axes, budgets: Sequence[int]) -> None:
    """Ticks at the budgets where they stand apart, else at round numbers."""
    gaps = np.diff(budgets)
    apart = not gaps.size or gaps.min() >= 0.06 * (budgets[-1] - budgets[0])
    ax.xaxis.set_major_locator(
        FixedLocator([budget / 1e3 for budget in budgets]) if apart else style.round_ticks(8)
    )
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _make_room_for_legend(ax: Axes, lines: Sequence[ErrorLine]) -> None:
    """Raise the top of the axes where lines would run under the legend.

    The legend takes the upper right: about a line of text for each entry, over the right 60 %
    of the axes. Drawing is not needed to know that, so the limits stay a function of the data.
    """
    values = np.concatenate([line.curve.value[line.curve.finite] for line in lines])
    steps = np.concatenate([line.curve.step[line.curve.finite] for line in lines])
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    span = (high - low) or abs(high) * 0.1 or 1.0
    under = values[steps >= steps.min() + 0.4 * (steps.max() - steps.min())]
    share = 0.06 + 0.058 * len(lines)
    bottom = low - 0.06 * span
    top = max(
        high + 0.06 * span,
        bottom + (float(under.max()) + 0.04 * span - bottom) / (1.0 - share),
    )
    ax.set_ylim(bottom, top)
