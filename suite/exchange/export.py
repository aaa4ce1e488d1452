"""A study out of its home: runs, curves, artifacts and report in one folder."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import polars as pl

import suite
from suite.errors import InputError, SuiteError
from suite.exchange.artifacts import fetch, record_of, regular_files
from suite.exchange.layout import (
    ARTIFACTS,
    CONTENTS_NAME,
    CURVE_SCHEMA,
    CURVES,
    REPORT,
    TABLES,
    Contents,
    checked_name,
    curve_file,
    table_file,
)
from suite.progress import Display
from suite.tracking.drain import replay
from suite.tracking.home import Home
from suite.tracking.origins import WHOLE_TAG
from suite.tracking.reader import Reader, open_reader
from suite.tracking.spool import spools
from suite.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import Run


_NOT_CARRIED = [WHOLE_TAG, "mlflow.runName"]  # of this store alone; the same as the name


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that was written.

    Attributes:
        study: name of the study.
        folder: where it lies.
        runs: number of runs.
        points: number of points of their curves, overtaken ones included.
        artifacts: number of artifacts.
        size: bytes of all files.
        report: whether it holds a report.
    """

    study: str
    folder: Path
    runs: int
    points: int
    artifacts: int
    size: int
    report: bool


def export_study(home: Home, study: str, out: Path, *, display: Display | None = None) -> Exported:
    """Write all that a store and a home hold of a study into a folder.

    The folder is made under another name beside ``out`` and renamed, so it is whole or not
    there. The same study gives the same bytes, but for the date in ``study.json``.

    Args:
        home: where the study is.
        study: its name.
        out: the folder; it must not exist, or be empty.
        display: where progress is shown.

    Raises:
        InputError: if the study has no runs, or ``out`` is in use, lies in
            the home, or cannot be written.
        SuiteError: if another process works on the study, values of it cannot be brought to the
            tracker, or an artifact is a link.
    """
    checked_name(study, "STUDY")
    out = out.absolute()
    _refuse_used(out)
    if out.resolve().is_relative_to(home.root.resolve()):
        raise InputError(f"{out} lies in the home that is exported; give --out another place")
    reader = open_reader(home)
    if reader.runs(study).is_empty():
        raise InputError(
            f"{study!r} has no runs in {home.root}, so there is nothing to export; `suite run` "
            "makes some"
        )
    with (
        home.hold(study),
        display or Display() as shown,
        contextlib.closing(Store(home)) as store,
        _staging(out) as staging,
    ):
        counts = _write(reader, store, study, staging, shown)
        contents = _describe(study, counts, staging)
        (staging / CONTENTS_NAME).write_text(contents.to_json(), encoding="utf-8", newline="\n")
        _publish(staging, out)
    return Exported(
        study=study,
        folder=out,
        runs=counts["runs"],
        points=counts["points"],
        artifacts=counts["artifacts"],
        size=sum(record.size for record in contents.files.values()),
        report=any(path.startswith(f"{REPORT}/") for path in contents.files),
    )


def _refuse_used(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"{out} is not a folder; give --out a folder that does not exist yet")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(
            f"the folder {out} is not empty; give --out one that is empty or does not exist yet"
        )


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder beside ``out`` that is gone when the block ends, unless it was renamed."""
    staging = out.with_name(f".{out.name}.{uuid4().hex}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
    except OSError as error:
        raise InputError(
            f"{out.parent} cannot be written ({error.strerror or error}); choose another --out"
        ) from error
    try:
        yield staging
    except OSError as error:
        raise SuiteError(
            f"the export to {out} failed ({error}); nothing of it is left; see that the disk has "
            "space and the tracker answers, and export again"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path) -> None:
    if out.exists():
        out.rmdir()  # fails if somebody has used it meanwhile
    staging.rename(out)


def _write(
    reader: Reader, store: Store, study: str, folder: Path, display: Display
) -> dict[str, int]:
    """Write tables, curves, artifacts and report; returns the counts of ``study.json``."""
    _bring_in_spools(reader, store, study, display)
    runs = reader.runs(study).with_columns(
        # a run without a name is shown by its id
        name=pl.when(pl.col("name") != "").then("name").otherwise("run_id")
    )
    ids = runs["run_id"].to_list()
    tables = {
        "runs": runs,
        "params": reader.params(ids),
        "tags": reader.tags(ids).filter(~pl.col("key").is_in(_NOT_CARRIED)),
    }
    inputs: list[tuple[str | None, ...]] = []
    points = artifacts = 0
    (folder / CURVES).mkdir()
    with display.task(f"export {study}", len(ids)) as advance:
        for done, (run_id, name) in enumerate(runs.select("run_id", "name").iter_rows(), start=1):
            run = store.run(run_id)
            inputs += _inputs(run)
            curve = reader.curves([run_id]).select(list(CURVE_SCHEMA))
            curve.write_parquet(folder / curve_file(run_id))
            points += curve.height
            kept = fetch(store, run_id, run.info.artifact_uri or "", folder / ARTIFACTS / run_id)
            artifacts += len(kept)
            advance(done, name)
    tables["inputs"] = pl.DataFrame(inputs, schema=TABLES["inputs"], orient="row")
    counts = {"points": points, "artifacts": artifacts}
    for table, frame in tables.items():
        frame.select(list(TABLES[table])).write_parquet(folder / table_file(table))
        counts[table] = frame.height
    _copy_report(store.home.reports / study, folder / REPORT)
    return counts


def _bring_in_spools(reader: Reader, store: Store, study: str, display: Display) -> None:
    """Send what killed attempts have left unsent, or refuse to export without it."""
    replay(store.home.spool, lambda: store, display.note)
    ids = set(reader.runs(study)["run_id"])
    waiting = [spool for spool in spools(store.home.spool) if spool.run_id in ids]
    if waiting:
        raise SuiteError(
            f"the tracker does not have all of run {waiting[0].run_id} yet: {waiting[0].path} "
            "waits to be sent; `suite doctor --fix` sends it once its process has ended"
        )


def _inputs(run: Run) -> list[tuple[str | None, ...]]:
    found = [] if run.inputs is None else run.inputs.dataset_inputs
    rows: list[tuple[str | None, ...]] = []
    for one in sorted(found, key=lambda one: (one.dataset.name, one.dataset.digest)):
        data = one.dataset
        tags = json.dumps({tag.key: tag.value for tag in one.tags}, sort_keys=True)
        of_data = (data.source_type, data.source, data.schema, data.profile)
        rows.append((run.info.run_id, data.name, data.digest, *of_data, tags))
    return rows


def _copy_report(report: Path, target: Path) -> None:
    try:
        paths = list(regular_files(report))
    except ValueError as error:
        raise SuiteError(f"the report cannot be exported: {error}; rename or remove it") from None
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(report / path, target / path, follow_symlinks=False)


def _describe(study: str, counts: dict[str, int], folder: Path) -> Contents:
    return Contents(
        study=study,
        suite_version=suite.__version__,
        exported=datetime.now(UTC).isoformat(timespec="seconds"),
        counts=dict(sorted(counts.items())),
        files={path: record_of(folder / path) for path in regular_files(folder)},
    )
