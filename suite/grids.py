"""Tables on a person's terminal, in which every number is whole however narrow it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from suite.terminal import shown

_EMPTY = ("", "-")
_NARROWEST = 12  # of a column of words that may be wrapped


def print_grid(
    console: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[str] = (),
    wrapped: str | None = None,
) -> None:
    """Print a table, or where it is wider than the terminal a line for each of its cells.

    Columns in which no row has anything are left out.

    Args:
        console: where to.
        names: heads of the columns.
        rows: cells by column, as plain text.
        left: heads of the columns that are set to the left, as words are; numbers go right.
        wrapped: head of a column of words that may take several lines.
    """
    kept = [at for at in range(len(names)) if any(row[at] not in _EMPTY for row in rows)]
    names = [shown(names[at]) for at in kept]
    rows = [[shown(row[at]) for at in kept] for row in rows]
    widths = [max(cell_len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    needed = sum(
        min(width, _NARROWEST) if name == wrapped else width
        for name, width in zip(names, widths, strict=True)
    )
    if needed + 3 * len(names) + 1 > console.width:
        for row in rows:
            for position, (name, cell) in enumerate(zip(names, row, strict=True)):
                if cell:
                    line = f"{'' if position == 0 else '  '}{name} {cell}".rstrip()
                    console.print(escape(line), soft_wrap=True)
        return
    grid = Table()
    for name in names:
        grid.add_column(
            escape(name),
            justify="left" if name in left else "right",
            no_wrap=name != wrapped,
            overflow="fold",
        )
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print(grid)
