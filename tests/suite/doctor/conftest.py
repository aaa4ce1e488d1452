"""Homes with something wrong, and an examination of them in one call."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.doctor import run as doctor
from suite.doctor.findings import Outcome
from suite.tracking.home import Home
from suite.tracking.processes import WorkingProcess, this_process
from suite.tracking.recorder import RunRecorder
from suite.tracking.spool import Points, SpoolFile, SpoolWriter
from suite.tracking.store import Store

GONE = WorkingProcess(host=this_process().host, pid=2**22 + 1, started=1.0)
"""A process that this machine cannot have: its ids end at 2^22."""


class Examined(dict[str, list[Outcome]]):
    """Outcomes of an examination by check, those of the environment left out."""

    def only(self, title: str) -> Outcome:
        """The one outcome of a check that is not as it should be."""
        (found,) = [outcome for outcome in self[title] if outcome.finding.severity != "ok"]
        return found

    def good(self, title: str) -> list[str]:
        """What a check found as it should be."""
        return [o.finding.what for o in self[title] if o.finding.severity == "ok"]

    @property
    def left(self) -> list[str]:
        """What is left to do, whatever check found it."""
        return [o.finding.what for outcomes in self.values() for o in outcomes if o.left]


@pytest.fixture
def examine() -> Callable[..., Examined]:
    """Examines a home, and mends it if ``fix``."""

    def look(home: Home, *, fix: bool = False) -> Examined:
        found = Examined()
        for title, outcome in doctor.examine(home, fix=fix):
            if title not in ("packages", "devices"):
                found.setdefault(title, []).append(outcome)
        return found

    return look


@pytest.fixture
def gone() -> WorkingProcess:
    """A process that has ended."""
    return GONE


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    opened = Store(home, patience=0.05)
    yield opened
    opened.close()


@pytest.fixture
def begin(store: Store) -> Callable[..., RunRecorder]:
    """Begins a run of a kind as this process would."""

    def begin(kind: str = "law", study: str = "demo", name: str = "n") -> RunRecorder:
        return RunRecorder.begin(store, study=study, name=name, kind=kind, cell="0", run_id=None)

    return begin


@pytest.fixture
def leave_spool(store: Store) -> Callable[..., SpoolFile]:
    """Leaves a spool of some values behind, by a process that is gone."""

    def leave(run_id: str, values: int = 3, owner: WorkingProcess = GONE) -> SpoolFile:
        spool = SpoolFile.of(store.home.spool, run_id, 1)
        writer = SpoolWriter(spool, owner)
        for step in range(values):
            writer.append(Points(step=step, at=1_000 + step, values={"loss": step / 4}))
        writer.close()
        return spool

    return leave


@pytest.fixture
def digest() -> Callable[[Path], dict[str, tuple[str, int]]]:
    """Content and time of change of everything below a folder, links as they are."""

    def of(root: Path) -> dict[str, tuple[str, int]]:
        found = {}
        for path in (root, *root.rglob("*")):
            if path.is_symlink():
                content = os.readlink(path).encode()
            else:
                content = b"folder" if path.is_dir() else path.read_bytes()
            name = str(path.relative_to(root))
            found[name] = hashlib.sha256(content).hexdigest(), path.lstat().st_mtime_ns
        return found

    return of


@pytest.fixture
def age() -> Callable[[Path], Path]:
    """Makes a file as if nobody had touched it for an hour."""

    def make_old(path: Path) -> Path:
        then = time.time() - 3_600
        os.utime(path, (then, then), follow_symlinks=False)
        return path

    return make_old
