"""From the spool to the tracker: in order, in batches, as often as it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from suite.errors import SuiteError
from suite.tracking.patience import TrackerAwayError, first_line
from suite.tracking.processes import this_process
from suite.tracking.spool import (
    Artifact,
    End,
    Params,
    Points,
    Record,
    SpoolFile,
    Tags,
    spools,
    sweep,
)
from suite.tracking.store import now_ms

if TYPE_CHECKING:
    from suite.tracking.store import Store

_BATCH = 1_000  # metrics a request; MLflow takes no more
_REFUSED = "refused"
_UNKNOWN = {"RESOURCE_DOES_NOT_EXIST", "ENDPOINT_NOT_FOUND", "NOT_FOUND"}
_OPENING = 60_000  # ms in which whoever has made a spool has certainly written its first line


class BusyError(TrackerAwayError):
    """Another process is sending the same spool."""


class RefusedError(SuiteError):
    """The tracker will never take a spool: its run is gone, or something in it is not allowed."""


class UnknownRunError(RefusedError):
    """The tracker does not know the run: it was begun in another store, or is gone for good."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What is sent at once, and how far the spool is sent then."""

    points: list[tuple[str, float, int, int]]
    record: Tags | Params | Artifact | End | None
    damaged: bytes | None
    offset: int


def drain(spool: SpoolFile, store: Store, *, closed: bool = False) -> None:
    """Send what the tracker does not have yet.

    Every record may be sent again: MLflow drops a metric that it has with the same key, time,
    step and value, and takes the same tag, parameter, file and end twice. A spool whose end was
    sent is removed. Lines that cannot be read are kept in a file beside it.

    Args:
        spool: the file; one that is gone has been drained by another process.
        store: the tracker.
        closed: whether its process is gone, so that nothing will be appended.

    Raises:
        TrackerAwayError: if the tracker does not answer, or another process has been draining
            the same spool for as long as the store is patient; what was sent is remembered.
        RefusedError: if the tracker refuses a record for good, or does not know the run.
    """
    from filelock import FileLock, Timeout

    try:
        with FileLock(str(spool.lock), timeout=store.patience):
            if spool.path.exists():
                _drain_held(spool, store, closed=closed)
            else:
                spool.lock.unlink(missing_ok=True)
    except Timeout as error:
        raise BusyError(
            f"another process is still sending {spool.path.name}", store.patience
        ) from error


def _drain_held(spool: SpoolFile, store: Store, *, closed: bool) -> None:
    ended = False
    if not store.home.owns_database:
        _refuse_overtaken(spool, store)
    for step in _steps(spool):
        try:
            _send(spool, store, step)
        except (TrackerAwayError, OSError):
            raise
        except Exception as error:
            if getattr(error, "error_code", None) in _UNKNOWN:
                raise UnknownRunError(
                    f"run {spool.run_id} is not in this store ({first_line(error)}); what it has "
                    f"to say is kept in {spool.path}: set MLFLOW_TRACKING_URI to the store that "
                    "it was begun in, and run again, or remove the file"
                ) from error
            raise RefusedError(
                f"the tracker refuses what run {spool.run_id} has to say ({first_line(error)}); "
                f"it is kept in {spool.path}"
            ) from error
        spool.mark_sent(step.offset)
        ended = isinstance(step.record, End)
    if ended or closed:
        spool.delete()


def _refuse_overtaken(spool: SpoolFile, store: Store) -> None:
    """See that no other home of the same server has gone on in the run meanwhile.

    Raises:
        RefusedError: if one has: the later attempt repeats what this one did, and points of this
            one that are newer than its start would pass for its own.
    """
    try:
        attempts = store.run(spool.run_id).data.tags.get("suite.attempts", "")
    except TrackerAwayError:
        raise
    except Exception:  # a run that is not there is told by what is sent to it
        return
    if attempts.isdecimal() and int(attempts) > spool.attempt:
        raise RefusedError(
            f"attempt {attempts} has gone on in run {spool.run_id} while attempt "
            f"{spool.attempt} was not heard of; what that has to say is kept in {spool.path}"
        )


def _steps(spool: SpoolFile) -> Iterator[_Step]:
    """The records that wait, points of neighbouring ones together."""
    points: list[tuple[str, float, int, int]] = []
    offset = spool.sent
    for record, behind in spool.records(offset):
        if isinstance(record, Points):
            new = [(key, value, record.at, record.step) for key, value in record.values.items()]
            if len(points) + len(new) > _BATCH:
                yield _Step(points=points, record=None, damaged=None, offset=offset)
                points = []
            points += new
        else:
            if points:
                yield _Step(points=points, record=None, damaged=None, offset=offset)
                points = []
            yield _of_other(record, behind)
        offset = behind
    if points:
        yield _Step(points=points, record=None, damaged=None, offset=offset)


def _of_other(record: Record | bytes, offset: int) -> _Step:
    assert not isinstance(record, Points)
    if isinstance(record, bytes):
        return _Step(points=[], record=None, damaged=record, offset=offset)
    return _Step(points=[], record=record, damaged=None, offset=offset)


def _send(spool: SpoolFile, store: Store, step: _Step) -> None:
    run_id = spool.run_id
    if step.damaged is not None:
        with spool.damaged.open("ab") as aside:
            aside.write(step.damaged)
    for start in range(0, len(step.points), _BATCH):  # one record may hold more than a batch
        store.log_points(run_id, step.points[start : start + _BATCH])
    match step.record:
        case Tags(values):
            store.set_tags(run_id, values)
        case Params(values):
            store.log_params(run_id, values)
        case Artifact(file, folder):
            store.log_artifact(run_id, _inside(spool.files, file), folder)
        case End(status, at):
            store.end_run(run_id, status, at)


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise RefusedError(f"the spooled artifact {name!r} is not in {folder}")
    return path


def replay(
    folder: Path, store: Callable[[], Store], note: Callable[[str], object], *, run_id: str = ""
) -> int:
    """Send what processes that are gone have left in a home's spool.

    A spool that the tracker refuses for good is set aside in the folder ``refused``, so that
    it does not stand in the way of later runs, and is said. One of a run that the tracker does
    not know stays for the store that knows it.

    Args:
        folder: the home's spool.
        store: opens the tracker; called only if there is something to send.
        note: is told what was found.
        run_id: leave other runs alone, because this one is to be gone on with; all by default.

    Returns:
        Number of spools that were sent.

    Raises:
        TrackerAwayError: if the tracker does not answer.
        SuiteError: if the one run has a spool that another process may still write.
    """
    sent = 0
    sweep(folder)
    for spool in spools(folder):
        if run_id and spool.run_id != run_id:
            continue
        written = _written(spool)
        if not spool.begun and written and now_ms() - written < _OPENING:
            continue
        owner = spool.owner()
        gone = owner is None or not owner.is_alive(heartbeat=written, now=now_ms())
        if not gone and owner != this_process():  # what this one left open, it has given up
            if run_id:
                raise SuiteError(
                    f"{owner} may still work on run {run_id}: {spool.path} was written to a short "
                    "time ago; end that process, or run again in a few minutes"
                )
            continue
        waiting = spool.waiting()
        try:
            drain(spool, store(), closed=True)
        except UnknownRunError as error:
            note(f"note    {error}")
            continue
        except RefusedError as error:
            note(f"note    {error}; it is set aside in {set_aside(spool).parent}")
            continue
        sent += 1
        if waiting:
            note(f"note    sent {waiting:,} values of run {spool.run_id} that had been left unsent")
    return sent


def set_aside(spool: SpoolFile) -> Path:
    """Move a spool that is of no more use to the tracker out of the way; where it then lies."""
    target = spool.path.parent / _REFUSED / spool.path.name
    target.parent.mkdir(exist_ok=True)
    if spool.files.exists():  # before the spool: files without one are swept away
        spool.files.replace(target.with_suffix(spool.files.suffix))
    spool.path.replace(target)
    spool.delete()
    return target


def _written(spool: SpoolFile) -> int | None:
    """When it was last appended to, in ms: all that tells of a process on another machine."""
    try:
        return spool.path.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
