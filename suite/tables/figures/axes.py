"""What the figures of a fit share: names of axes, log scales, the two kinds of points."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from suite.laws.forms import VARIABLES
from suite.reports import style
from suite.tables.columns import Array

RASTER_ABOVE = 2_000  # points; beyond, single markers make SVG files of many megabytes
_LOG_ABOVE = 20.0  # largest over least value, beyond which an axis is logarithmic
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def kinds(held_out: NDArray[np.bool_]) -> Iterable[tuple[str, str, str, NDArray[np.bool_]]]:
    """(series, colour, marker, points) of fitted and held-out points, those there are."""
    for series, colour, marker, chosen in (
        ("Fitted", style.BLUE, "o", ~held_out),
        ("Held out", style.ORANGE, "^", held_out),
    ):
        if chosen.any():
            yield series, colour, marker, chosen


def variable_label(name: str, column: str) -> str:
    """Axis label of a variable: its letter, and the column that it was read from."""
    letter = VARIABLES[name].letter
    return letter if column == letter else f"{letter} ({style.plain(column, 40)})"


def short(value: float) -> str:
    """A count with its unit: 1.4B, 53M, 250K, 8, 0.25."""
    for divisor, letter in _SUFFIXES:
        if abs(value) >= divisor:
            return f"{value / divisor:.3g}{letter}"
    return f"{value:.3g}"


def scale_axis(ax: Axes, which: str, values: Array) -> None:
    """Make the axis ``x`` or ``y`` logarithmic where values spread, and label it in counts."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    if values.max() > _LOG_ABOVE * values.min() > 0:
        (ax.set_xscale if which == "x" else ax.set_yscale)("log")
        decades = np.log10(values.max() / values.min())
        steps = (1.0, 2.0, 5.0) if decades < 2 else (1.0, 3.0) if decades < 3 else (1.0,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=12))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(style.round_ticks(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
