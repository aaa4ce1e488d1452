"""Check of the clock: a run that starts now must be newer than those that are on record."""

from __future__ import annotations

import time
from collections.abc import Iterator

from suite.doctor import server
from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.store_checks import NOT_READ
from suite.doctor.stored import Newest, is_server, newest_time

_ALLOWED = 5.0  # seconds; more than clocks that are kept in time differ, or a slow answer takes


def check_clock(exam: Examination) -> Iterator[Finding]:
    """Compare the clock with the newest time on record, and with that of a server."""
    if exam.reader is None:
        yield note(NOT_READ)
        return
    newest = _newest(exam)
    if newest is None:
        yield ok("nothing is on record yet")
    else:
        ahead = newest.at / 1_000 - time.time()
        if ahead > _ALLOWED:
            yield Finding(
                severity="warning",
                what=f"the newest time on record is {duration(ahead)} in the future of this "
                "machine's clock",
                where=(f"run {newest.run_id}",),
                remedy="set the clock of this machine, or of the one that made the run, by a time "
                "server; runs that start before then sort before that one",
            )
        else:
            yield ok(f"the newest time on record is {duration(max(-ahead, 0.0))} ago")
    if is_server(exam.home.tracking_uri):
        yield _of_server(exam.home.tracking_uri)


def _newest(exam: Examination) -> Newest | None:
    rows = exam.runs.select("run_id", "start_time", "end_time").iter_rows()
    times = [(max(start or 0, end or 0), run_id) for run_id, start, end in rows]
    if not is_server(exam.reading_uri):
        last = newest_time(exam.reading_uri)
        times += [] if last is None else [(last.at, last.run_id)]
    return Newest(run_id=max(times)[1], at=max(times)[0]) if times else None


def _of_server(uri: str) -> Finding:
    answer = server.ask(uri)
    named = f"the server (MLflow {answer.version})" if answer.version else "the server"
    if answer.ahead is None:
        return note(f"{named} does not tell its time")
    if abs(answer.ahead) > _ALLOWED:
        side = "ahead of" if answer.ahead > 0 else "behind"
        return Finding(
            severity="warning",
            what=f"the clock of {named} is {duration(abs(answer.ahead))} {side} this machine's",
            remedy="set both by a time server",
        )
    return ok(f"the clock of {named} agrees with this machine's")


def duration(seconds: float) -> str:
    """A time for a person, such as ``3.5 hours``."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"
