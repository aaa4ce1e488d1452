"""How each line of the error grid looks: what its colour, marker and dashes stand for.

Colour tells niter and whether the basis met its own corpus; the marker tells niter and keys
from values; dashes and hollow markers tell a second and third corpus that it was carried to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suite.reports.style import BLUE, FURTHER_COLOURS, GREEN, GREY, ORANGE, RED

Matrix = Literal["key", "value"]

_COLOURS = {(8, True): BLUE, (1, True): ORANGE, (8, False): RED, (1, False): GREEN}
_MARKERS = {("key", 8): "o", ("key", 1): "s", ("value", 8): "v", ("value", 1): "^"}
_FURTHER_MARKERS = {"key": ("D", "p", "h", "8"), "value": ("<", ">", "d", "P")}
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, kw_only=True)
class LineLook:
    """Arguments of one line."""

    colour: str
    marker: str
    dashes: str
    hollow: bool
    width: float


def line_look(
    matrix: Matrix, niter: str, *, target: int | None, niters: tuple[str, ...]
) -> LineLook:
    """The look of one line.

    Args:
        matrix: keys or values.
        niter: power iterations as text, or "exact".
        target: position among the corpora that the basis was carried to, or None in domain.
        niters: every niter of the study.
    """
    carried = target is not None
    position = target or 0
    if niter == "exact":
        dashes = _DASHES[1 + position % 3] if carried else _DASHES[0]
        return LineLook(colour=GREY, marker="", dashes=dashes, hollow=False, width=0.9)
    known = int(niter)
    others = sorted(int(n) for n in niters if n not in ("exact", "1", "8"))
    place = others.index(known) if known in others else 0
    return LineLook(
        colour=_COLOURS.get((known, carried))
        or FURTHER_COLOURS[(2 * place + (not carried)) % len(FURTHER_COLOURS)],
        marker=_MARKERS.get((matrix, known))
        or _FURTHER_MARKERS[matrix][place % len(_FURTHER_MARKERS[matrix])],
        dashes=_DASHES[position % len(_DASHES)],
        hollow=position > 0,
        width=1.4,
    )


def niter_order(niter: str) -> tuple[bool, int]:
    """Sort key: most iterations first, the exact basis last."""
    return (True, 0) if niter == "exact" else (False, -int(niter))
