"""An MLflow server over HTTP: whether it answers, and what its clock says."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from suite.doctor.findings import Finding
from suite.tracking.reader import without_password

_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server said of itself.

    Attributes:
        version: version of MLflow; empty if it did not say.
        ahead: seconds by which its clock is ahead of this machine's; none if it did not say.
    """

    version: str
    ahead: float | None


def ask(uri: str) -> Answer:
    """Ask a server for its version.

    Raises:
        OSError: if nothing answers within seconds; an answer that refuses is one.
    """
    address = f"{without_password(uri).rstrip('/')}/version"  # urllib takes a password for a port
    before = time.time()
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as response:
            date, body = response.headers.get("Date"), response.read(100)
    except urllib.error.HTTPError as error:
        date, body = error.headers.get("Date"), b""
    except http.client.HTTPException as error:
        raise OSError(f"it does not speak HTTP: {type(error).__name__}") from error
    middle = (before + time.time()) / 2
    text = body.decode(errors="replace").strip()
    return Answer(version=text if text[:1].isdigit() else "", ahead=_seconds_ahead(date, middle))


def _seconds_ahead(date: str | None, now: float) -> float | None:
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except ValueError:
        return None


def find_unreachable(uri: str) -> Finding | None:
    """The finding that nothing answers at a tracking URI; none if something does.

    It is asked before MLflow is loaded, which waits longer and says less.
    """
    try:
        ask(uri)
    except OSError as error:
        reason = getattr(error, "reason", error)
        if "CERTIFICATE" in str(reason):  # MLflow has its own settings for whom to trust
            return None
        return Finding(
            severity="error",
            what=f"the MLflow server {without_password(uri)} does not answer ({reason})",
            remedy="start it, or set MLFLOW_TRACKING_URI to one that runs; what runs log "
            "meanwhile waits in the home's spool, and is kept",
        )
    return None
