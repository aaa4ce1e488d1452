"""What a panel draws, as data: curves of single runs, and the frame of plotted points.

A display never owns a bare number: each value that it draws belongs to a ``Curve``, which
names the run, the metric and the steps it came from. ``collect_points`` turns the curves of
a panel into the one frame that manifests are made of and compared by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from numpy.typing import NDArray

from suite.errors import InputError

POINT_SCHEMA = pl.Schema(
    {
        "panel": pl.String(),
        "axes": pl.String(),
        "series": pl.String(),
        "run_id": pl.String(),
        "key": pl.String(),
        "step": pl.Int64(),
        "value": pl.Float64(),
    }
)
POINT_IDENTITY = ("panel", "axes", "series", "run_id", "key", "step")


class NoDataError(InputError):
    """A panel was asked for whose data no run of the study has tracked."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric of one run against tokens, superseded points dropped.

    Attributes:
        run_id: the run that logged it.
        key: name of the metric.
        step: tokens, increasing, ``[points]``.
        value: the values as logged, NaN and infinities included, ``[points]``.
    """

    run_id: str
    key: str
    step: NDArray[np.int64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which points can be drawn, ``[points]``."""
        return np.isfinite(self.value)

    @property
    def last_step(self) -> int | None:
        """Tokens of the last point, or None for an empty curve."""
        return int(self.step[-1]) if len(self.step) else None

    @property
    def last_value(self) -> float | None:
        """Value of the last point, or None for an empty curve."""
        return float(self.value[-1]) if len(self.value) else None

    def at(self, step: int) -> float | None:
        """Value at exactly ``step`` tokens, or None where nothing was logged."""
        index = int(np.searchsorted(self.step, step))
        if index < len(self.step) and self.step[index] == step:
            return float(self.value[index])
        return None

    def select(self, index: NDArray[np.bool_] | NDArray[np.intp]) -> Curve:
        """The same curve at some of its points, by mask or by position."""
        return Curve(
            run_id=self.run_id, key=self.key, step=self.step[index], value=self.value[index]
        )


class Display(Protocol):
    """A panel of the report: computed from tracked data, readable as data, drawable."""

    name: ClassVar[str]

    @property
    def title(self) -> str:
        """Heading of the panel."""
        ...

    @property
    def caption(self) -> str:
        """What was measured, in sentences."""
        ...

    def plot(self, figure: Figure | None = None) -> Figure:
        """Draw into ``figure``, or into a new one of a fitting size."""
        ...

    def points(self) -> pl.DataFrame:
        """Every plotted point, with the columns of ``POINT_SCHEMA``, in canonical order."""
        ...


def collect_points(panel: str, curves: Iterable[tuple[str, str, Curve]]) -> pl.DataFrame:
    """Lay the curves of one panel out as rows.

    Args:
        panel: name of the panel.
        curves: (axes, series, curve) of everything that is drawn.

    Returns:
        The columns of ``POINT_SCHEMA``, sorted by all of them but the value, so that two
        equal panels give equal frames whatever the order of drawing was.
    """
    frames = [
        pl.DataFrame(
            {
                "panel": panel,
                "axes": axes,
                "series": series,
                "run_id": curve.run_id,
                "key": curve.key,
                "step": curve.step,
                "value": curve.value,
            },
            schema=POINT_SCHEMA,
        )
        for axes, series, curve in curves
        if len(curve)
    ]
    if not frames:
        return POINT_SCHEMA.to_frame()
    return pl.concat(frames).sort(POINT_IDENTITY)
