"""Checks of work under way and work cut off: who holds which study, spools, runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.holders import Holder
from suite.doctor.store_checks import NOT_READ
from suite.tracking.curves import attempts_from_tags
from suite.tracking.recovery import CutOffRun, cut_off_runs, end_cut_off


def check_studies(exam: Examination) -> Iterator[Finding]:
    """Who works on which study; names that a process has left behind."""
    for study, who in sorted(exam.busy.items()):
        told = "works" if _is_alive(exam, study) else "says that it works"
        yield ok(f"{who} {told} on {study!r}; it is left alone")
    stale = [holder for holder in exam.holders if holder.study not in exam.busy]
    for holder in stale:
        yield Finding(
            severity="warning",
            what=f"{holder.who} is named as working on {holder.study!r}, but has ended",
            where=(str(holder.path),),
            remedy="removes the name; the lock itself has ended with the process",
            mend=_remover(holder),
        )
    if not exam.busy and not stale:
        yield ok("nobody works in this home now")


def _is_alive(exam: Examination, study: str) -> bool:
    return exam.fix or any(h.study == study and h.alive for h in exam.holders)


def _remover(holder: Holder) -> Callable[[], str]:
    def mend() -> str:
        holder.path.unlink(missing_ok=True)
        return "removed"

    return mend


def check_cut_off(exam: Examination) -> Iterator[Finding]:
    """Runs that say RUNNING: whether somebody works on them."""
    if exam.reader is None:
        yield note(NOT_READ)
        return
    lost = cut_off_runs(exam.reader, None)
    studies = dict(exam.runs.select("run_id", "study").iter_rows())
    for run in lost:
        yield _cut_off(exam, run, studies.get(run.run_id, ""))
    working = exam.runs.filter(
        pl.col("status") == "RUNNING",
        pl.col("kind").is_not_null(),
        ~pl.col("run_id").is_in([run.run_id for run in lost]),
    )
    tags = exam.reader.tags(working["run_id"].to_list())
    for run_id, name in working.select("run_id", "name").iter_rows():
        mine = dict(tags.filter(pl.col("run_id") == run_id).select("key", "value").iter_rows())
        attempts = attempts_from_tags(mine)
        if attempts:
            yield ok(f"{attempts[-1].process} works on {name!r}, run {run_id}; it is left alone")
    if not lost:
        yield ok(f"none of {exam.runs.height:,} runs is RUNNING without a process")


def _cut_off(exam: Examination, run: CutOffRun, study: str) -> Finding:
    what = f"{run.name!r} says RUNNING, but its process is gone"
    where = f"run {run.run_id} of {study!r}"
    if not exam.schema_fits:
        return Finding(
            severity="warning",
            what=what,
            where=(where,),
            remedy="it can be ended when MLflow can write to the store",
        )

    def mend() -> str:
        end_cut_off([run], lambda: exam.store, lambda text: None)
        exam.forget()
        return "ended as KILLED, when it was last heard of"

    remedy = "ends it as KILLED; `suite run` goes on with it"
    return exam.mendable(what, where, remedy=remedy, mend=mend, study=study)
