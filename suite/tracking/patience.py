"""Waiting for a tracker that does not answer: what passes, what does not, and for how long."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from suite.errors import InputError, SuiteError

T = TypeVar("T")

PATIENCE_VARIABLE = "SUITE_TRACKER_PATIENCE"
DEFAULT_PATIENCE = 120.0
"""Seconds that work waits for the tracker where it cannot go on without an answer."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_LASTING = frozenset(
    {
        "ALREADY_EXISTS",
        "CUSTOMER_UNAUTHORIZED",
        "ENDPOINT_NOT_FOUND",
        "FEATURE_DISABLED",
        "INVALID_PARAMETER_VALUE",
        "INVALID_STATE",
        "MALFORMED_REQUEST",
        "NOT_FOUND",
        "NOT_IMPLEMENTED",
        "PERMISSION_DENIED",
        "RESOURCE_ALREADY_EXISTS",
        "RESOURCE_DOES_NOT_EXIST",
        "UNAUTHENTICATED",
    }
)
"""MLflow's codes of answers that asking again does not change."""


class TrackerAwayError(SuiteError):
    """The tracker did not answer in time; what was to be written waits in the spool.

    Args:
        reason: what happened instead of an answer.
        waited: seconds.
    """

    def __init__(self, reason: str, waited: float) -> None:
        super().__init__(
            f"the tracker does not answer ({reason}); waited {waited:.0f} s for it "
            f"({PATIENCE_VARIABLE} sets how long); what was logged waits in the home's spool, and "
            "is sent when the same command is run again"
        )
        self.reason = reason


def patience() -> float:
    """Seconds to wait for the tracker, from ``SUITE_TRACKER_PATIENCE``.

    Raises:
        InputError: if the variable holds no number of seconds.
    """
    text = os.environ.get(PATIENCE_VARIABLE, "")
    if not text:
        return DEFAULT_PATIENCE
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InputError(f"{PATIENCE_VARIABLE} = {text!r} is not a number of seconds")
    return seconds


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later: an outage, a lock, a server's own error.

    The rest are answers, such as that a run was deleted.
    """
    if isinstance(error, OSError):  # connections refused, timeouts; requests' errors are some
        return True
    if isinstance(error, TrackerAwayError):
        return True
    if isinstance(error, SuiteError):  # a reader's words for what has happened
        return error.__cause__ is not None and passes(error.__cause__)
    code = getattr(error, "error_code", None)
    if code is None:
        return _is_outage(error)
    if code == "BAD_REQUEST":  # MLflow's word for a database error that it does not know
        return _is_database_error(error.__cause__)
    return code not in _LASTING


def _is_outage(error: BaseException) -> bool:
    from sqlalchemy.exc import InterfaceError, OperationalError

    return isinstance(error, (InterfaceError, OperationalError))


def _is_database_error(error: BaseException | None) -> bool:
    from sqlalchemy.exc import DBAPIError, IntegrityError

    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError)


def patiently(action: Callable[[], T], *, seconds: float) -> T:
    """Do what needs the tracker, again and again with growing pauses while it is away.

    Args:
        action: may be called several times.
        seconds: how long to go on trying.

    Raises:
        TrackerAwayError: if it did not answer in that time.
    """
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while True:
        try:
            return action()
        except Exception as error:
            if not passes(error):
                raise
            left = deadline - time.monotonic()
            if left <= 0:
                raise TrackerAwayError(first_line(error), seconds) from error
        time.sleep(min(left, pause * random.uniform(0.5, 1.0)))
        pause = min(2 * pause, _LONGEST_PAUSE)


def first_line(error: BaseException) -> str:
    """What an error says, short enough for a sentence."""
    # SQLAlchemy puts advice before what the database says
    said = getattr(error.__cause__, "orig", None) or error
    lines = str(said).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:199]}…"
