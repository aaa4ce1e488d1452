"""Runs whose process is gone: found by their attempts, and never left RUNNING."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import polars as pl

from suite.tracking.curves import Attempt, attempts_from_tags
from suite.tracking.processes import STALE_AFTER
from suite.tracking.reader import Reader
from suite.tracking.recorder import cut_off, last_heartbeat
from suite.tracking.store import Store, now_ms


@dataclass(frozen=True, kw_only=True)
class CutOffRun:
    """A run that says RUNNING although nobody works on it.

    Attributes:
        run_id: the run.
        name: its name.
        attempt: its last attempt, with when it was last heard of as its end; none if it has
            none and is older than a process takes to record one.
        ended: when it was last heard of, in ms.
    """

    run_id: str
    name: str
    attempt: Attempt | None
    ended: int


def cut_off_runs(reader: Reader, study: str | None) -> list[CutOffRun]:
    """Runs of a study, or of all, that are RUNNING without a living process.

    Only runs that the suite made are looked at: it cannot know who works on others.
    """
    running = reader.runs(study).filter(pl.col("status") == "RUNNING", pl.col("kind").is_not_null())
    tags: dict[str, dict[str, str]] = {run_id: {} for run_id in running["run_id"]}
    for run_id, key, value in reader.tags([*tags]).iter_rows():
        tags[run_id][key] = value
    found = []
    for row in running.iter_rows(named=True):
        run_id, name, started = row["run_id"], row["name"] or "", row["start_time"] or 0
        attempts = attempts_from_tags(tags[run_id])
        if not attempts:  # a process that is about to put its attempt on record
            if now_ms() - started > STALE_AFTER * 1_000:
                found.append(CutOffRun(run_id=run_id, name=name, attempt=None, ended=started))
            continue
        last, heartbeat = attempts[-1], last_heartbeat(tags[run_id])
        alive = last.process.is_alive(heartbeat=heartbeat, now=now_ms())
        working = last.outcome is None and alive
        if not working:
            attempt = last if last.outcome else cut_off(last, heartbeat=heartbeat)
            ended = attempt.ended or attempt.started
            found.append(CutOffRun(run_id=run_id, name=name, attempt=attempt, ended=ended))
    return found


def end_cut_off(
    runs: Iterable[CutOffRun], store: Callable[[], Store], note: Callable[[str], object]
) -> None:
    """End runs as KILLED, with their last attempt cut off; the study resumes them.

    Args:
        runs: as ``cut_off_runs`` has found them.
        store: opens the tracker; called only if there is one.
        note: is told of each.
    """
    for run in runs:
        if run.attempt is not None:
            store().set_tags(run.run_id, dict([run.attempt.to_tag()]))
        store().end_run(run.run_id, "KILLED", run.ended)
        note(f"note    {run.name!r} was cut off; its run {run.run_id} is no longer RUNNING")
