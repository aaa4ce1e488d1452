"""Checks of artifacts and reports: whether what finished runs say they have is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.store_checks import NOT_READ
from suite.doctor.stored import StoredRun, is_server, look_up
from suite.errors import SuiteError
from suite.exchange.artifacts import local_folder
from suite.reports.manifest import MANIFEST_NAME

_BASES = ("basis/key.safetensors", "basis/value.safetensors")
_LONG_PARAM = re.compile(r"sha256:[0-9a-f]{64} of \d+ characters in the artifact (params/\S+)")


def check_artifacts(exam: Examination) -> Iterator[Finding]:
    """Bases of calibrations, files of reports and long parameters of finished runs."""
    if exam.reader is None:
        yield note(NOT_READ)
        return
    if is_server(exam.home.tracking_uri):
        yield note("not looked at: the server keeps the artifacts of its runs")
        return
    finished = exam.runs.filter(pl.col("status") == "FINISHED", pl.col("kind").is_not_null())
    kinds = dict(finished.select("run_id", "kind").iter_rows())
    promised = {run_id: [*_BASES] for run_id, kind in kinds.items() if kind == "calibration"}
    for run_id, name in _long_params(exam, list(kinds)):
        promised.setdefault(run_id, []).append(name)
    for run_id, kind in kinds.items():
        if kind == "report":
            promised.setdefault(run_id, []).append(f"report/{MANIFEST_NAME}")
    missing: list[str] = []
    num_files = 0
    for run_id, run in look_up(exam.reading_uri, promised).items():
        try:
            folder = local_folder(exam.home, run.artifact_uri)
        except SuiteError as error:
            yield Finding(
                severity="error",
                what=str(error),
                where=(f"run {run_id}",),
                remedy="the store was edited outside the suite; restore it from a backup, or "
                "delete the run",
            )
            continue
        if folder is None:  # a place that MLflow knows how to reach
            continue
        names = [*promised[run_id], *_drawn(folder, kinds[run_id])]
        num_files += len(names)
        missing += [_told(run, name) for name in names if not (folder / name).is_file()]
    if not missing:
        yield ok(f"{num_files:,} artifacts of {len(promised):,} finished runs are there")
        return
    yield _missing(exam, missing, num_files)


def _long_params(exam: Examination, run_ids: list[str]) -> Iterator[tuple[str, str]]:
    assert exam.reader is not None
    long = exam.reader.params(run_ids).filter(pl.col("value").str.starts_with("sha256:"))
    for run_id, value in long.select("run_id", "value").iter_rows():
        if found := _LONG_PARAM.fullmatch(value):
            yield run_id, found[1]


def _drawn(folder: Path, kind: str) -> list[str]:
    """Files of a kept report, as its own manifest names them."""
    if kind != "report":
        return []
    try:
        names = json.loads((folder / "report" / MANIFEST_NAME).read_bytes())["artifacts"]
        return [f"report/{name}" for name in sorted(names) if Path(name).name == name]
    except (OSError, ValueError, KeyError, TypeError):  # missing; or edited, as verify tells
        return []


def _told(run: StoredRun, name: str) -> str:
    return f"{name} of run {run.run_id} of {run.study!r}"


def _missing(exam: Examination, missing: list[str], num_files: int) -> Finding:
    what = f"{len(missing):,} of {num_files:,} artifacts of finished runs are not there"
    if not exam.home.owns_database:
        return note(what, *missing, remedy="they may be in another home that shares the store")
    return Finding(
        severity="warning",
        what=what,
        where=tuple(missing),
        remedy="put them back from a copy of the home; or delete the runs in MLflow, and `suite "
        "run` makes them again. Curves and reports do not need them",
    )


def check_reports(exam: Examination) -> Iterator[Finding]:
    """Which studies have no report; whether one still holds is for `suite verify`."""
    if exam.reader is None:
        yield note(NOT_READ)
        return
    done = exam.runs.filter(pl.col("status") == "FINISHED", pl.col("kind").is_not_null())
    studies = done["study"].unique().sort().to_list()
    without = [s for s in studies if not (exam.home.reports / s / MANIFEST_NAME).is_file()]
    if without:
        yield note(
            f"{len(without)} of {len(studies)} studies with finished runs have no report here",
            *without,
            remedy="`suite report STUDY` builds it",
        )
    else:
        yield ok(f"{len(studies)} of {len(studies)} studies with finished runs have a report")
