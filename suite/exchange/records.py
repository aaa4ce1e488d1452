"""The runs of an export as records, each of which any MLflow store takes as it is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from suite.exchange.folder import ExportFolder
from suite.exchange.layout import (
    ARTIFACTS,
    CURVES,
    REPORT,
    RUN_ID,
    TABLES,
    curve_file,
    table_file,
)
from suite.exchange.rules import check_inputs, check_points, check_row, check_texts
from suite.tracking.origins import former_ids

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput


@dataclass(frozen=True, kw_only=True)
class Input:
    """A data set among the inputs of a run, in MLflow's words.

    Attributes:
        name: name of the corpus.
        digest: digest of its content.
        source_type: what kind of text ``source`` is.
        source: where it came from.
        schema: its columns, if it has any.
        profile: counts, as JSON.
        tags: such as what it was used for.
    """

    name: str
    digest: str
    source_type: str
    source: str
    schema: str | None
    profile: str | None
    tags: Mapping[str, str]

    def to_mlflow(self) -> DatasetInput:
        """The same as MLflow's entity."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        fields = asdict(self)
        tags = [InputTag(key, value) for key, value in fields.pop("tags").items()]
        return DatasetInput(dataset=Dataset(**fields), tags=tags)


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """One run of an export; its curves stay on disk.

    Attributes:
        run_id: its id where it was exported.
        name: its name.
        status: MLflow's status.
        start_time: ms since the epoch.
        end_time: likewise, if it has ended.
        tags: all tags.
        params: all parameters.
        inputs: data sets.
        artifacts: paths, relative to the run's folder of artifacts.
        points: how many points its curves have.
        digest: SHA-256 of all of this, the curves and the artifacts.
    """

    run_id: str
    name: str
    status: str
    start_time: int
    end_time: int | None
    tags: Mapping[str, str]
    params: Mapping[str, str]
    inputs: tuple[Input, ...]
    artifacts: tuple[str, ...]
    points: int
    digest: str

    @property
    def first_id(self) -> str:
        """Its id where it was made."""
        return (*former_ids(self.tags), self.run_id)[0]


def read_runs(folder: ExportFolder) -> tuple[ExportedRun, ...]:
    """All runs of an export, oldest first, after every rule that a store has was checked.

    Raises:
        InputError: for the first part that a store would refuse, or that contradicts another.
    """
    try:
        runs = _runs(folder)
    except ValueError as error:
        raise folder.unusable(str(error)) from error
    counts = {
        "runs": len(runs),
        **{name: folder.table(name).height for name in ("params", "tags", "inputs")},
        "points": sum(run.points for run in runs),
        "artifacts": sum(len(run.artifacts) for run in runs),
    }
    for what, count in counts.items():
        if folder.contents.counts[what] != count:
            raise folder.unusable(f"it has {count} {what}, not {folder.contents.counts[what]}")
    return runs


def _runs(folder: ExportFolder) -> tuple[ExportedRun, ...]:
    rows = folder.table("runs").sort("start_time", "run_id")
    known = rows["run_id"].to_list()
    for run_id in known:
        if run_id is None or not RUN_ID.fullmatch(run_id):
            raise ValueError(f"{run_id!r:.100} is no run id; that has 32 hexadecimal digits")
    if not known:
        raise ValueError("it has no runs")
    _refuse_repeats(known, "the run id {} twice")
    tags, params = _texts(folder, "tags", known), _texts(folder, "params", known)
    inputs = _inputs(folder, known)
    artifacts = _artifacts(folder, known)
    runs = tuple(
        _run(
            folder,
            row,
            tags.get(row["run_id"], {}),
            params.get(row["run_id"], {}),
            tuple(inputs.get(row["run_id"], ())),
            tuple(artifacts.get(row["run_id"], ())),
        )
        for row in rows.iter_rows(named=True)
    )
    claimed = [name for run in runs for name in (*former_ids(run.tags), run.run_id)]
    _refuse_repeats(claimed, "more than one run that is, or was, {}")
    return runs


def _refuse_repeats(names: list[str], what: str) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"it names {what.format(name)}")


def _texts(folder: ExportFolder, table: str, known: list[str]) -> dict[str, dict[str, str]]:
    frame = _of_known_runs(folder, table, known)
    texts: dict[str, dict[str, str]] = {}
    for run_id, key, value in frame.iter_rows():
        if key in texts.setdefault(run_id, {}):
            raise ValueError(f"{table_file(table)!r} has {key!r:.300} of run {run_id} twice")
        texts[run_id][key] = value
    return texts


def _of_known_runs(folder: ExportFolder, table: str, known: list[str]) -> pl.DataFrame:
    frame = folder.table(table)
    optional = {"schema", "profile"}
    if any(frame[column].has_nulls() for column in set(TABLES[table]) - optional):
        raise ValueError(f"{table_file(table)!r} leaves a field empty that must be set")
    strange = frame.filter(~pl.col("run_id").is_in(known))["run_id"]
    if len(strange):
        raise ValueError(f"{table_file(table)!r} names the run {strange[0]!r:.100}, which it lacks")
    return frame


def _inputs(folder: ExportFolder, known: list[str]) -> dict[str, list[Input]]:
    inputs: dict[str, list[Input]] = {}
    for row in _of_known_runs(folder, "inputs", known).iter_rows(named=True):
        tags = json.loads(row["tags"])
        if not isinstance(tags, dict) or not all(isinstance(tag, str) for tag in tags.values()):
            raise ValueError(f"the tags of an input are {row['tags']!r:.200}")
        inputs.setdefault(row.pop("run_id"), []).append(Input(**{**row, "tags": tags}))
    for run_id, group in inputs.items():
        _refuse_repeats(
            [f"{one.name} {one.digest}" for one in group], f"the input {{}} of run {run_id} twice"
        )
    return inputs


def _artifacts(folder: ExportFolder, known: list[str]) -> dict[str, list[str]]:
    """Artifacts by run, while every file is seen to belong to a part of the layout."""
    fixed = {table_file(table) for table in TABLES} | {curve_file(run_id) for run_id in known}
    runs = set(known)
    artifacts: dict[str, list[str]] = {}
    for path in sorted(folder.contents.files):
        match path.split("/"):
            case [part, run_id, _, *_] if part == ARTIFACTS and run_id in runs:
                artifacts.setdefault(run_id, []).append(path.removeprefix(f"{ARTIFACTS}/{run_id}/"))
            case [part, _, *_] if part == REPORT or path in fixed:
                pass
            case _ if path not in fixed:
                raise ValueError(f"{path!r:.300} belongs to none of its runs, tables or {CURVES}")
    return artifacts


def _run(
    folder: ExportFolder,
    row: dict[str, Any],
    tags: dict[str, str],
    params: dict[str, str],
    inputs: tuple[Input, ...],
    artifacts: tuple[str, ...],
) -> ExportedRun:
    run_id = row["run_id"]
    curve = folder.curve(run_id)
    try:
        check_row(row, tags)
        check_texts(tags, params)
        check_inputs([one.to_mlflow() for one in inputs])
        check_points(curve)
    except ValueError as error:
        raise ValueError(f"run {run_id}: {error}") from error
    fields = {name: row[name] for name in ("run_id", "name", "status", "start_time", "end_time")}
    prefix = f"{ARTIFACTS}/{run_id}/"
    kept = {path: folder.contents.files[prefix + path].sha256 for path in artifacts}
    described: list[object] = [fields, tags, params, [asdict(one) for one in inputs], kept]
    return ExportedRun(
        **fields,
        tags=tags,
        params=params,
        inputs=inputs,
        artifacts=artifacts,
        points=curve.height,
        digest=_digest(described, curve),
    )


def _digest(described: list[object], curve: pl.DataFrame) -> str:
    """SHA-256 that does not depend on how the files were compressed."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update("\n".join(curve["key"]).encode())
    for column in ("step", "timestamp", "value"):
        digest.update(curve[column].to_numpy().tobytes())
    return digest.hexdigest()
