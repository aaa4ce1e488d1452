"""Figures of a fit: parity, residuals, curves of groups, and the law itself.

In: an ``Outcome``. Out: displays whose arrays can be read, and figures of them. A display is
absent where a table has nothing for it to show.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from suite.tables.figures.contours import ContourDisplay
from suite.tables.figures.curves import CurveDisplay
from suite.tables.figures.line import LineDisplay
from suite.tables.figures.parity import ParityDisplay
from suite.tables.figures.residuals import ResidualDisplay
from suite.tables.outcome import Outcome

Display = ParityDisplay | ResidualDisplay | CurveDisplay | ContourDisplay | LineDisplay

_DISPLAYS: dict[str, type[Display]] = {
    "parity": ParityDisplay,
    "residuals": ResidualDisplay,
    "curves": CurveDisplay,
    "contours": ContourDisplay,
    "law": LineDisplay,
}


def displays(outcome: Outcome) -> dict[str, Display]:
    """Displays by name, those that this table and this law have something for."""
    found = {name: display.from_outcome(outcome) for name, display in _DISPLAYS.items()}
    return {name: display for name, display in found.items() if display is not None}


def draw(outcome: Outcome) -> dict[str, Figure]:
    """Figures by name."""
    return {name: display.plot() for name, display in displays(outcome).items()}
