"""Stopping on request: a signal sets a flag, and work stops at its next safe boundary."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import NoReturn

# An interrupt, a request to end, a terminal that closes, and Slurm's notice before a time limit.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_CLEAN_UP_SECONDS = 10.0


class StopRequested(Exception):  # noqa: N818 - not an error: the user asked for it
    """Raised at a safe boundary after a signal; everything is saved by then."""


class StopFlag:
    """Context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 set a flag and do nothing else.

    A signal that was ignored before stays so: that is how ``nohup`` and background jobs of a
    script ask to be left alone. An interrupt after the first request raises KeyboardInterrupt at
    once, for a user who will not wait for the boundary; one within seconds of that, or of the
    boundary, is taken for impatience with the clean-up, and does nothing.

    Attributes:
        requested: whether to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}
        self._leaving_since: float | None = None

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in _SIGNALS}
            self._before = {
                number: handler for number, handler in before.items() if handler != signal.SIG_IGN
            }
            self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}

    def install(self) -> None:
        """Put the handlers in place; again after a library has replaced them."""
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, self._receive)

    def check(self) -> None:
        """Raise ``StopRequested`` if a signal has come; call where everything is saved."""
        if self.requested:
            self.leave()

    def leave(self) -> NoReturn:
        """Raise ``StopRequested``, also where the signal came to another process of the job."""
        self._leaving_since = time.monotonic()
        raise StopRequested

    def _receive(self, number: int, frame: FrameType | None) -> None:
        first, self.requested = not self.requested, True
        if first or number != signal.SIGINT or self._cleans_up():
            return
        self._leaving_since = time.monotonic()
        raise KeyboardInterrupt

    def _cleans_up(self) -> bool:
        since = self._leaving_since
        return since is not None and time.monotonic() - since < _CLEAN_UP_SECONDS


def leave_signals_to_parent(worker: int) -> None:
    """Ignore the signals that the process above acts on; runs first in each loader worker.

    A signal to a whole process group reaches workers too. One that died of it would fail the
    step under way before it could be saved. Workers end when they are told to, or when the
    process above is gone.

    Args:
        worker: number of the worker, as ``DataLoader(worker_init_fn=...)`` gives it.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
