"""Who says that he works on which study, read without touching a lock."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from suite.tracking.home import Home

_CLOCK_STEP = 2.0  # seconds by which a process may seem younger than what it wrote


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What a file beside a study's lock says.

    Attributes:
        study: name of the study.
        path: the file.
        who: the process, in words.
        alive: whether that process runs; none where it cannot be told from here.
    """

    study: str
    path: Path
    who: str
    alive: bool | None

    @property
    def may_work(self) -> bool:
        """Whether the study must be left alone."""
        return self.alive is not False


def read_holders(home: Home) -> tuple[Holder, ...]:
    """The holders that a home's locks name; a file that cannot be read names nobody."""
    return tuple(_read(path) for path in sorted((home.root / "locks").glob("*.json")))


def _read(path: Path) -> Holder:
    try:
        document = json.loads(path.read_bytes())
        host, pid = str(document["host"]), int(document["pid"])
        written = path.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        # a process that has just begun writes it within a moment; a crash may leave it empty
        return Holder(study=path.stem, path=path, who="a process that is not named", alive=None)
    alive = _wrote(pid, written) if host == socket.gethostname() else None
    return Holder(study=path.stem, path=path, who=f"process {pid} on {host}", alive=alive)


def _wrote(pid: int, written: float) -> bool:
    """Whether the process with an id is the one that wrote a file at a time."""
    import psutil

    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return not ended and process.create_time() <= written + _CLOCK_STEP
    except psutil.Error:
        return False
