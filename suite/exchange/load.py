"""An export into another home or a server: checked whole, then written run by run."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import polars as pl

from suite.errors import SuiteError
from suite.exchange.artifacts import keep
from suite.exchange.folder import ExportFolder
from suite.exchange.layout import ARTIFACTS, REPORT, checked_name
from suite.exchange.records import ExportedRun, read_runs
from suite.exchange.target import (
    Target,
    check_room,
    files_there,
    look_at_target,
    refuse_other_report,
)
from suite.progress import Display
from suite.tracking.home import Home
from suite.tracking.origins import (
    RUN_ID_TAG,
    WHOLE_TAG,
    former_ids,
    origin_tags,
    translate,
)
from suite.tracking.patience import patiently
from suite.tracking.reader import Reader, open_reader
from suite.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Run

_MOST_POINTS = 1_000  # a request; MLflow takes no more
_MOST_BYTES = 800_000  # of JSON a request; an MLflow server takes a million
_TERMINAL = {"FINISHED", "FAILED", "KILLED"}
_LAST_TAGS = {"suite.kind", "suite.cell"}
"""What makes a run count in reports and stages; a run gets it when all else is there."""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import has done.

    Attributes:
        study: the name that the study has now.
        new: number of runs that it wrote.
        known: number of runs that an earlier import had written.
        points: number of points of the new runs' curves.
        artifacts: number of artifacts of the new runs.
        report: the study's report folder, if the export has a report.
    """

    study: str
    new: int
    known: int
    points: int
    artifacts: int
    report: Path | None


def import_study(
    folder: Path, home: Home, *, name: str | None = None, display: Display | None = None
) -> Imported:
    """Bring an exported study into a home, or to the server that the home names.

    Every run gets a new id; the tag ``suite.imported.run_id`` keeps the one that it had, and
    what the runs say of each other follows. An import that was cut off goes on where it was;
    one that was finished changes nothing.

    Args:
        folder: what ``suite export`` has written.
        home: where the study is to be.
        name: name that the study is to have there; by default its own.
        display: where progress is shown.

    Raises:
        InputError: if the folder is not a whole export, or the study has other runs in the home;
            nothing was written.
        SuiteError: if another process works on the study, or the store does not give back what
            was written to it.
    """
    source = ExportFolder.open(folder.absolute())
    runs = read_runs(source)
    study = source.contents.study if name is None else checked_name(name, "--name")
    with (
        home.hold(study),
        display or Display() as shown,
        contextlib.closing(Store(home)) as store,
    ):
        reader = open_reader(home)
        target = look_at_target(reader, study, runs, source)
        missing = [run for run in runs if run.first_id not in target.whole]
        report = home.reports / study
        has_report = any(path.startswith(f"{REPORT}/") for path in source.contents.files)
        if missing:
            check_room(home, source)
        if has_report and not target.begun:
            refuse_other_report(report, source)
        _Import(store, reader, source, study).write(runs, target, missing, shown)
        if has_report and not files_there(report):
            _place_report(source.path / REPORT, report)
    return Imported(
        study=study,
        new=len(missing),
        known=len(target.whole),
        points=sum(run.points for run in missing),
        artifacts=sum(len(run.artifacts) for run in missing),
        report=report if has_report else None,
    )


class _Import:
    """Writes the runs of one export.

    Args:
        store: where they go.
        reader: reads the same store.
        source: the export.
        study: the name that the study has there.
    """

    def __init__(self, store: Store, reader: Reader, source: ExportFolder, study: str) -> None:
        self._store = store
        self._reader = reader
        self._source = source
        self._study = study

    def write(
        self,
        runs: tuple[ExportedRun, ...],
        target: Target,
        missing: list[ExportedRun],
        display: Display,
    ) -> None:
        """Create the runs that are not there, then fill those that are not whole."""
        if not missing:
            return
        experiment = self._store.experiment(self._study)
        ids: dict[str, str] = {}
        for run in runs:
            here = target.begun.get(run.first_id) or self._create(experiment, run)
            ids |= dict.fromkeys((*former_ids(run.tags), run.run_id), here)
        with display.task(f"import {self._study}", len(missing)) as advance:
            for done, run in enumerate(missing, start=1):
                self._fill(run, ids)
                advance(done, run.name)

    def _create(self, experiment: str, run: ExportedRun) -> str:
        """Create a run under its name, unless a request whose answer was lost has done so."""
        client = self._store.client
        origin = origin_tags(run.run_id, self._source.contents.study, run.tags)
        user = {key: value for key, value in run.tags.items() if key == "mlflow.user"}
        asked = False

        def create() -> str:
            nonlocal asked
            if asked:
                query = f"tags.`{RUN_ID_TAG}` = '{run.first_id}'"
                if found := client.search_runs([experiment], query, max_results=1):
                    return str(found[0].info.run_id)
            asked = True
            made = client.create_run(
                experiment,
                start_time=run.start_time,
                run_name=run.name,
                tags={**user, **origin},
            )
            return str(made.info.run_id)

        return patiently(create, seconds=self._store.patience)

    def _fill(self, run: ExportedRun, ids: Mapping[str, str]) -> None:
        """Write all of a run; what an earlier import has written of it may be written again."""
        store, here = self._store, ids[run.run_id]
        made = store.run(here)
        self._set_status(made, run)
        tags = self._tags(run, ids)
        last = {key: tags.pop(key) for key in _LAST_TAGS & tags.keys()}
        for part in _parts(tags):
            store.set_tags(here, part)
        for part in _parts(run.params):
            store.log_params(here, part)
        if run.inputs:
            inputs = [one.to_mlflow() for one in run.inputs]
            patiently(
                lambda: store.client.log_inputs(here, datasets=inputs), seconds=store.patience
            )
        curve = self._source.curve(run.run_id)
        for batch in _batches(curve):
            store.log_points(here, batch)
        for path in run.artifacts:
            file = self._source.path / ARTIFACTS / run.run_id / path
            keep(store, here, made.info.artifact_uri or "", file, path)
        self._read_back(run, here, curve)
        store.set_tags(here, {**last, WHOLE_TAG: run.digest})

    def _tags(self, run: ExportedRun, ids: Mapping[str, str]) -> dict[str, str]:
        """A run's tags as they read here."""
        origin = origin_tags(run.run_id, self._source.contents.study, run.tags)
        tags = {key: translate(value, ids) for key, value in run.tags.items()}
        for key in ("mlflow.runName", WHOLE_TAG):  # set with the name, and when all is there
            tags.pop(key, None)
        if "suite.study" in tags:
            tags["suite.study"] = self._study
        return {**tags, **origin}

    def _set_status(self, made: Run, run: ExportedRun) -> None:
        store, here = self._store, made.info.run_id
        if run.end_time is not None:
            ended = run.status if run.status in _TERMINAL else "KILLED"
            store.end_run(here, ended, run.end_time)
        if run.end_time is None or run.status not in _TERMINAL:
            patiently(
                lambda: store.client.update_run(here, status=run.status), seconds=store.patience
            )

    def _read_back(self, run: ExportedRun, here: str, curve: pl.DataFrame) -> None:
        """See that the store gives back what was written.

        Raises:
            SuiteError: if not.
        """
        columns = ["key", "step", "timestamp", "value"]
        stored = self._reader.curves([here]).select(columns).sort(columns)
        params = dict(self._reader.params([here]).select("key", "value").iter_rows())
        if not stored.equals(curve.select(columns)) or params != run.params:
            raise SuiteError(
                f"the store does not give back run {run.run_id} ({run.name}) as it was written: "
                f"{stored.height} points for {curve.height}, {len(params)} parameters for "
                f"{len(run.params)}; its run {here} is incomplete, and is not shown in reports"
            )


def _batches(curve: pl.DataFrame) -> Iterator[list[tuple[str, float, int, int]]]:
    """Points as requests of a size that a server takes."""
    batch: list[tuple[str, float, int, int]] = []
    size = 0
    for point in curve.select("key", "value", "timestamp", "step").iter_rows():
        more = 6 * len(point[0]) + 150
        if len(batch) == _MOST_POINTS or (batch and size + more > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(point)
        size += more
    if batch:
        yield batch


def _parts(texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Tags or parameters as requests of a size that a server takes."""
    part: dict[str, str] = {}
    size = 0
    for key, value in texts.items():
        more = len(json.dumps([key, value])) + 50
        if part and size + more > _MOST_BYTES:
            yield part
            part, size = {}, 0
        part[key] = value
        size += more
    if part:
        yield part


def _place_report(source: Path, target: Path) -> None:
    """Copy a report folder, which is whole or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{uuid4().hex}.part")
    try:
        shutil.copytree(source, staging, symlinks=True)
        if target.exists():
            target.rmdir()
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
