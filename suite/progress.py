"""What a person sees while a study runs: bars on a terminal, a line per event elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import IO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from suite.terminal import LastingStream, shown

Advance = Callable[[int, str], None]
"""Takes the amount done so far and a short remark."""


class Display:
    """Progress of a study on one console; work goes on when the terminal is closed.

    Args:
        console: where to write; default standard error, so that output stays clean.
    """

    def __init__(self, console: Console | None = None) -> None:
        if console is None:
            stream = cast(IO[str], LastingStream(sys.stderr))
            console = Console(file=stream, highlight=False)
        self.console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remark]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """One line that stays."""
        self.console.print(shown(text), markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        """A bar for one piece of work, for as long as the block lasts."""
        task = self._progress.add_task(shown(description), total=total, remark="")
        if not self.console.is_terminal:
            self.note(f"start   {description}")

        def advance(done: int, remark: str = "") -> None:
            self._progress.update(task, completed=done, remark=shown(remark))

        try:
            yield advance
        finally:
            self._progress.remove_task(task)
