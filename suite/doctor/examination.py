"""The state of one examination: the home, who works in it, and its store once it is open."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from suite.doctor.findings import Finding, Severity, note
from suite.doctor.holders import Holder, read_holders
from suite.errors import SuiteError
from suite.tracking.home import Home
from suite.tracking.patience import patience
from suite.tracking.reader import Reader

if TYPE_CHECKING:
    from suite.tracking.store import Store

_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # what `suite run` takes for one
_PATIENCE = 10.0  # seconds that a person waits for each answer of an absent tracker
TRASH = "trash"


class Examination:
    """What checks share.

    While it mends it holds every study of the home that nobody works on, as a run of the study
    would, so that nobody begins to meanwhile; the others are left alone.

    Args:
        home: the home; it exists.
        fix: whether anything may be written.
    """

    def __init__(self, home: Home, *, fix: bool) -> None:
        self.home = home
        self.fix = fix
        self.holders: tuple[Holder, ...] = read_holders(home)
        """Who says that he works on a study, as it was at the start."""
        self.busy: dict[str, str] = {}
        """Studies that are worked on, with who does."""
        self.reader: Reader | None = None
        """Reads the store, once a check has found that it can be read."""
        self.reading_uri = home.tracking_uri
        """Where the store is read from: a copy, if to open the database would be to write.

        While it mends it is the store itself, since what is mended must be seen.
        """
        self.schema_fits = False
        """Whether the installed MLflow can write to the store."""
        self.open_until_closed = contextlib.ExitStack()
        self._held: set[str] = set()
        self._runs: pl.DataFrame | None = None
        self._store: Store | None = None
        if fix:
            self.hold(holder.study for holder in self.holders)
            self.hold(path.stem for path in (home.root / "locks").glob("*.lock"))
        else:
            self.busy = {h.study: h.who for h in self.holders if h.may_work}

    def close(self) -> None:
        """Let go of studies and of the store."""
        if self._store is not None:
            self._store.close()
        self.open_until_closed.close()

    def hold(self, studies: Iterable[str]) -> None:
        """Keep others from beginning to work on studies; those that are worked on are noted."""
        if not self.fix:
            return
        for study in sorted(set(studies) - self._held - self.busy.keys()):
            if not _STUDY_NAME.fullmatch(study):  # MLflow takes any name, such as one with "../"
                continue
            try:
                self.open_until_closed.enter_context(self.home.hold(study))
            except SuiteError:
                named = [holder.who for holder in self.holders if holder.study == study]
                self.busy[study] = named[0] if named else "another process"
            else:
                self._held.add(study)

    def at_work(self, study: str | None = None) -> str:
        """Who works on a study, or on any, for a sentence; empty if nobody does."""
        found = self.busy if study is None else {s: w for s, w in self.busy.items() if s == study}
        return ", ".join(f"{who} on {name!r}" for name, who in sorted(found.items()))

    def mendable(
        self,
        what: str,
        *where: str,
        remedy: str,
        mend: Callable[[], str],
        severity: Severity = "warning",
        study: str | None = None,
    ) -> Finding:
        """A finding that can be mended; while somebody works it is only noted, and left alone.

        Args:
            what: see ``Finding``.
            where: likewise.
            remedy: likewise.
            mend: likewise.
            severity: likewise.
            study: the study that it belongs to, if only work on that stands in the way.
        """
        if at_work := self.at_work(study):
            return note(what, *where, remedy=f"it is left alone while there is {at_work}")
        return Finding(severity=severity, what=what, where=where, remedy=remedy, mend=mend)

    @property
    def runs(self) -> pl.DataFrame:
        """Runs of all studies that were not deleted; ``RUN_SCHEMA``."""
        assert self.reader is not None
        if self._runs is None:
            self._runs = self.reader.runs(None)
        return self._runs

    def forget(self) -> None:
        """Read the store again when it is asked for next; something was mended."""
        self._runs = None

    @property
    def store(self) -> Store:
        """The write side; opening it writes, so only what mends may ask for it."""
        assert self.fix
        if self._store is None:
            from suite.tracking.store import Store

            self._store = Store(self.home, patience=min(patience(), _PATIENCE))
        return self._store

    def place_in_trash(self, path: Path) -> Path:
        """A free place in today's trash for something of the home; its folder is made."""
        day = self.home.root / TRASH / datetime.now().strftime("%Y-%m-%d")
        target = unused(day / path.relative_to(self.home.root))
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def set_aside(self, path: Path) -> Path:
        """Move something of the home into today's trash, where a person may take it from.

        Returns:
            Where it lies now; nothing that is there already is replaced.
        """
        return path.rename(self.place_in_trash(path))


def unused(path: Path) -> Path:
    """The path, or the first of ``name-2``, ``name-3``, ... where there is nothing yet."""
    candidate, number = path, 1
    while candidate.exists() or candidate.is_symlink():
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return candidate
