"""Which process works on a run, and whether it still does."""

from __future__ import annotations

import functools
import socket
from dataclasses import dataclass
from os import getpid

HEARTBEAT_TAG = "suite.heartbeat"
"""Run tag with the time, in ms, at which its process was last known to work."""
HEARTBEAT_EVERY = 30.0
"""Seconds between two heartbeats of a run."""
STALE_AFTER = 300.0
"""Seconds without a heartbeat after which a process on another machine counts as gone."""
_SAME_START = 60.0  # seconds; a start time follows the clock, which may be set meanwhile


@dataclass(frozen=True, kw_only=True)
class WorkingProcess:
    """One process on one machine, told apart from a later one with the same id.

    Attributes:
        host: machine name.
        pid: process id.
        started: when it started, in seconds since the epoch; none where that is not known.
    """

    host: str
    pid: int
    started: float | None

    def is_alive(self, *, heartbeat: int | None, now: int) -> bool:
        """Whether the process still runs.

        On this machine the table of processes tells; of another machine only the heartbeat
        does.

        Args:
            heartbeat: its last heartbeat, in ms since the epoch, if there was one.
            now: the time, likewise.
        """
        if self.host == socket.gethostname() and self.started is not None:
            return _runs_here(self.pid, self.started)
        return heartbeat is not None and now - heartbeat < STALE_AFTER * 1_000

    def __str__(self) -> str:
        """Name it for a person."""
        return f"process {self.pid} on {self.host}"


@functools.cache
def _this_process(pid: int) -> WorkingProcess:
    import psutil

    return WorkingProcess(
        host=socket.gethostname(), pid=pid, started=psutil.Process(pid).create_time()
    )


def this_process() -> WorkingProcess:
    """The process that asks."""
    return _this_process(getpid())  # by id, because a fork inherits the cache


def _runs_here(pid: int, started: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return not ended and abs(process.create_time() - started) < _SAME_START
    except psutil.Error:
        return False
