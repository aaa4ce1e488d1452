"""Stopping on request: a signal sets a flag, and work stops at its next safe boundary."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequested(Exception):  # noqa: N818 - not an error: the user asked for it
    """Raised at a safe boundary after SIGINT or SIGTERM; everything is saved by then."""


class StopFlag:
    """Context in which SIGINT and SIGTERM set a flag and do nothing else.

    A second SIGINT interrupts at once, for a user who will not wait for the boundary.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
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

    def install(self) -> None:
        """Put the handlers in place; again after a library has replaced them."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._receive)

    def check(self) -> None:
        """Raise ``StopRequested`` if a signal has come; call where everything is saved."""
        if self.requested:
            raise StopRequested

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
