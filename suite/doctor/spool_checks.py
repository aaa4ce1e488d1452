"""Checks of the spool: values that the tracker does not have yet, or has refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.stored import StoredRun, look_up
from suite.errors import SuiteError
from suite.tracking.drain import replay
from suite.tracking.processes import this_process
from suite.tracking.reader import without_password
from suite.tracking.spool import SpoolFile, spools
from suite.tracking.store import now_ms


def check_spools(exam: Examination) -> Iterator[Finding]:
    """Spools that processes which are gone have left, those at work, and what was set aside."""
    found = spools(exam.home.spool)
    at_work = [spool for spool in found if _is_written(exam, spool)]
    for spool in at_work:
        owner = spool.owner() or "a process"
        yield ok(f"{owner} writes what run {spool.run_id} has to say; it is left alone")
    left = [spool for spool in found if spool not in at_work]
    known = _known(exam, {spool.run_id for spool in left})
    for run_id, of_run in groupby(left, key=lambda spool: spool.run_id):
        yield _unsent(exam, run_id, list(of_run), known)
    if not left:
        yield ok("nothing waits for the tracker")
    yield from _refused(exam)
    yield from _damaged(exam.home.spool)


def _is_written(exam: Examination, spool: SpoolFile) -> bool:
    """Whether the process that writes a spool still does, or may."""
    owner = spool.owner()
    if owner is None:  # damaged, or begun this very moment by somebody at work
        return bool(exam.at_work())
    return owner != this_process() and owner.is_alive(heartbeat=_written(spool), now=now_ms())


def _written(spool: SpoolFile) -> int | None:
    try:
        return spool.path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None


def _known(exam: Examination, run_ids: set[str]) -> dict[str, StoredRun] | None:
    """The runs as the store has them; none if it cannot be asked."""
    if exam.reader is None:
        return None
    return look_up(exam.reading_uri, run_ids) if run_ids else {}


def _unsent(
    exam: Examination, run_id: str, of_run: list[SpoolFile], known: dict[str, StoredRun] | None
) -> Finding:
    waiting = sum(spool.waiting() for spool in of_run)
    damaged = sum(_num_damaged(spool) for spool in of_run)
    what = f"{waiting:,} values of run {run_id} wait to be sent"
    if not waiting:
        what = f"run {run_id} has something left to say, no values"
    if damaged:
        what += f", and {damaged:,} line(s) cannot be read"
    where = tuple(str(spool.path) for spool in of_run)
    if known is None or not exam.schema_fits:
        return Finding(
            severity="warning",
            what=what,
            where=where,
            remedy="they are kept; when the store can be written again, `suite doctor --fix` or "
            "the next run of the study sends them",
        )
    if run_id not in known:
        return Finding(
            severity="warning",
            what=f"{what}, but {without_password(exam.home.tracking_uri)} does not know the run",
            where=where,
            remedy="set MLFLOW_TRACKING_URI to the store that it was begun in, and do this again; "
            "or remove the files",
        )
    remedy = "sends them"
    if known[run_id].deleted:
        what += ", but the run was deleted"
        remedy = f"sets them aside in {exam.home.spool / 'refused'}"
    return Finding(
        severity="warning",
        what=what,
        where=where,
        remedy=remedy,
        mend=_sender(exam, run_id, waiting),
    )


def _sender(exam: Examination, run_id: str, waiting: int) -> Callable[[], str]:
    def mend() -> str:
        said: list[str] = []
        sent = replay(exam.home.spool, lambda: exam.store, said.append, run_id=run_id)
        exam.forget()
        left = [spool for spool in spools(exam.home.spool) if spool.run_id == run_id]
        if left:
            raise SuiteError(f"{left[0].path} is being written again; it is left alone")
        if sent:
            return f"sent {waiting:,} values"
        return "; ".join(text.removeprefix("note").strip() for text in said) or "sent by another"

    return mend


def _num_damaged(spool: SpoolFile) -> int:
    try:
        return sum(isinstance(record, bytes) for record, _ in spool.records(spool.sent))
    except FileNotFoundError:  # sent meanwhile by the process beside its worker
        return 0


def _refused(exam: Examination) -> Iterator[Finding]:
    refused = spools(exam.home.spool / "refused")
    known = _known(exam, {spool.run_id for spool in refused})
    for spool in refused:
        run = None if known is None else known.get(spool.run_id)
        what = (
            f"the tracker has refused {spool.waiting():,} values of run {spool.run_id}, which "
            "are set aside"
        )
        if known is not None and (run is None or run.deleted):
            state = "is not in the store" if run is None else "was deleted"
            yield note(
                f"{what}; the run {state}",
                str(spool.path),
                remedy="if the run is restored, move the file back into the folder above it and "
                "do this again; else it may be removed",
            )
        else:
            yield Finding(
                severity="warning",
                what=what,
                where=(str(spool.path),),
                remedy="move the file back into the folder above it and do this again to hear "
                "why; remove it if its values are not wanted",
            )


def _damaged(folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.glob("*.damaged")):
        lines = path.read_bytes().count(b"\n")
        yield Finding(
            severity="warning",
            what=f"{lines:,} line(s) of a spool could not be read, so values of run "
            f"{path.name.split('.')[0]} may be missing",
            where=(str(path),),
            remedy="look at the file; remove it when you have",
        )
