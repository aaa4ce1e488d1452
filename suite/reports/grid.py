"""The grid that pretraining cells are laid out in: T_m down, N across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from suite.reports import style
from suite.reports.records import PretrainingCell


@dataclass(frozen=True)
class Place:
    """One place of the grid.

    Attributes:
        title: such as "Tm = 2, N = 53M".
        cell: the run there; None where the study has none.
    """

    title: str
    cell: PretrainingCell | None


def lay_out(cells: Sequence[PretrainingCell]) -> tuple[tuple[Place, ...], ...]:
    """Places in rows by increasing T_m and columns by increasing N, each with another title."""
    known = {(cell.recurrence, cell.size): cell for cell in cells}
    counts: dict[str, int] = {}
    for cell in cells:
        counts[cell.size] = max(cell.parameters, counts.get(cell.size, 0))
    sizes = sorted(counts, key=lambda size: (counts[size], size))
    shown = Counter(style.parameter_count(counts[size]) for size in sizes)
    rows = []
    for recurrence in sorted({cell.recurrence for cell in cells}):
        row = []
        for size in sizes:
            found = known.get((recurrence, size))
            number = style.parameter_count(found.parameters if found else counts[size])
            name = f" ({size})" if shown[style.parameter_count(counts[size])] > 1 else ""
            row.append(Place(f"Tm = {recurrence}, N = {number}{name}", found))
        rows.append(tuple(row))
    return tuple(rows)
