"""How figures look: colours, sizes, units and text, so that every panel speaks alike."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import style as mpl_style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, RED, GREEN = "#1f77b4", "#ff7f0e", "#d62728", "#2ca02c"
FURTHER_COLOURS = ("#9467bd", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#393b79")
DARK_ORANGE = "#b35900"  # orange that can be read as small letters
GREY = "#8a8a8a"
INK = "#333333"

_MAX_PIXELS = 16_000  # per side; Agg refuses images of 2**16 and browsers slow down earlier
_DPI = 150
_STYLE: dict[str, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.framealpha": 0.9,
    # Names come from users: a dollar sign in one is a dollar sign, not mathematics.
    "text.parse_math": False,
    "svg.hashsalt": "suite.reports",
    "svg.fonttype": "path",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw and save in the report's style, whatever the user's matplotlibrc says."""
    with mpl_style.context(_STYLE, after_reset=True):
        yield


def new_figure(rows: int, columns: int, *, panel: tuple[float, float]) -> Figure:
    """A figure for a grid of panels.

    Args:
        rows: panels down.
        columns: panels across.
        panel: width and height of one panel, in inches; a lone panel gets twice the area.
    """
    scale = 1.4 if rows * columns == 1 else 1.0
    width, height = panel
    return Figure(
        figsize=(width * columns * scale, height * rows * scale),
        layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09),
    )


def round_ticks(count: int, *, integer: bool = False) -> MaxNLocator:
    """At most ``count`` intervals between ticks at steps of 1, 2, 2.5 or 5."""
    return MaxNLocator(count, steps=[1, 2, 2.5, 5, 10], integer=integer)


def save(figure: Figure, png: Path, svg: Path) -> None:
    """Write a figure twice; equal figures give equal bytes (no date, no random ids)."""
    dpi = min(float(_DPI), _MAX_PIXELS / max(figure.get_size_inches()))
    with drawing():
        figure.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
        # The first drawing has placed the axes; the second file has them at the same places.
        figure.set_layout_engine("none")
        figure.savefig(svg, format="svg", dpi=dpi, metadata={"Date": None, "Creator": None})


@dataclass(frozen=True, kw_only=True)
class TokenUnit:
    """A unit for token axes: values are divided by ``divisor`` under the axis ``label``."""

    divisor: float
    label: str


def token_unit(largest: int) -> TokenUnit:
    """The unit in which ``largest`` tokens is at least one: B, M, K, or tokens."""
    for divisor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if largest >= divisor:
            return TokenUnit(divisor=divisor, label=f"Tokens({letter})")
    return TokenUnit(divisor=1.0, label="Tokens")


def parameter_count(count: int) -> str:
    """Parameters as figures title them: 1.36B, 53M, 173K, 512."""
    if count >= 999_500_000:
        return f"{count / 1e9:.2f}B"
    if count >= 999_500:
        return f"{count / 1e6:.0f}M"
    if count >= 1_000:
        return f"{count / 1e3:.0f}K"
    return str(count)


def token_count(count: int) -> str:
    """Tokens with three significant digits: 123K, 1.05M, 20B."""
    for divisor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= divisor:
            scaled = count / divisor
            digits = 2 if scaled < 10 else 1 if scaled < 100 else 0
            text = f"{scaled:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if digits else text) + letter
    return str(count)


def significant(value: float) -> str:
    """Four significant digits, with NaN and infinities as words."""
    return f"{value:.4g}" if math.isfinite(value) else str(value).replace("nan", "NaN")


def percent(ratio: float) -> str:
    """A deviation with its sign, a true minus, and two decimals; NaN and infinities as words."""
    if not math.isfinite(ratio):
        return significant(ratio)
    return f"{100 * ratio:+.2f} %".replace("-", "\u2212")


def mark(blind: bool) -> str:
    """What panels say of a cell that the law was not fitted to."""
    return "predicted blind" if blind else "held out"


def plain(text: str, limit: int = 60) -> str:
    """A user's text for a figure: one line, no control characters, at most ``limit`` long."""
    hidden = {"Cc", "Cs", "Zl", "Zp"}
    directions = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    shown = "".join(
        "\ufffd" if unicodedata.category(c) in hidden or c in directions else c for c in text
    )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def wrapped(text: str, width: int) -> str:
    """A user's text for a title: at most two lines of at most ``width`` characters."""
    return "\n".join(textwrap.wrap(plain(text, 400), width, max_lines=2, placeholder="…"))
