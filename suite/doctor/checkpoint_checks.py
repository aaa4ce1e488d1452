"""Checks of checkpoints and models: whose they are, and whether those that should be are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from suite.doctor.examination import TRASH, Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.inventory import folder_size, size_text
from suite.doctor.store_checks import NOT_READ
from suite.doctor.stored import StoredRun, look_up
from suite.tracking.origins import RUN_ID_TAG
from suite.tracking.reader import without_password

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def check_checkpoints(exam: Examination) -> Iterator[Finding]:
    """Folders whose run is gone, states that a finished run no longer needs, models."""
    # The folders first: a run is in the store before its folder is made.
    folders = _folders(exam.home.checkpoints)
    if exam.reader is None:
        yield note(NOT_READ)
        return
    status = dict(exam.runs.select("run_id", "status").iter_rows())
    unknown = [run_id for run_id in folders if run_id not in status]
    known = look_up(exam.reading_uri, unknown)
    deleted = {run_id: known[run_id] for run_id in unknown if run_id in known}
    absent = [run_id for run_id in unknown if run_id not in known]
    yield ok(
        f"{len(folders):,} folder(s) of checkpoints, "
        f"{sum(status.get(run_id) == 'FINISHED' for run_id in folders):,} of finished runs"
    )
    for run_id, run in deleted.items():
        yield _of_deleted(exam, folders[run_id], run)
    if absent:
        yield _of_absent(exam, [folders[run_id] for run_id in absent], len(folders))
    for run_id, folder in folders.items():
        if status.get(run_id) == "FINISHED":
            yield from _spent_states(exam, folder)
    yield from _taken_back(exam, folders, status)
    yield from _models(exam)


def _folders(parent: Path) -> dict[str, Path]:
    found = sorted(parent.iterdir()) if parent.is_dir() else []
    return {path.name: path for path in found if _RUN_ID.fullmatch(path.name) and path.is_dir()}


def _of_deleted(exam: Examination, folder: Path, run: StoredRun) -> Finding:
    what = f"run {run.run_id} of {run.study!r} was deleted; its checkpoints are still here"
    where = f"{folder}, {size_text(folder_size(folder))}"
    return exam.mendable(
        what,
        where,
        remedy=f"moves them to {exam.home.root / TRASH}, and back if the run is restored",
        mend=_mover(exam, [folder]),
        study=run.study,
    )


def _of_absent(exam: Examination, folders: list[Path], total: int) -> Finding:
    uri = without_password(exam.home.tracking_uri)
    what = f"{len(folders):,} folder(s) of checkpoints belong to runs that {uri} does not have"
    where = tuple(f"{folder}, {size_text(folder_size(folder))}" for folder in folders)
    if len(folders) == total and not exam.at_work():
        return Finding(
            severity="warning",
            what=f"{what}, and there are no others",
            where=where,
            remedy="they look like those of another store: set MLFLOW_TRACKING_URI to that, and "
            f"do this again; or move them to {exam.home.root / TRASH}",
        )
    remedy = f"moves them to {exam.home.root / TRASH}"
    return exam.mendable(what, *where, remedy=remedy, mend=_mover(exam, folders))


def _mover(exam: Examination, folders: list[Path]) -> Callable[[], str]:
    def mend() -> str:
        moved = [exam.set_aside(folder) for folder in folders]
        return f"moved to {moved[0].parent}"

    return mend


def _spent_states(exam: Examination, folder: Path) -> Iterator[Finding]:
    states = sorted(folder.glob("tokens-*.ckpt"))
    if not states or not is_whole_model(folder / "model"):
        return
    what = f"run {folder.name} is finished, but keeps {len(states)} state(s) to resume from"
    where = f"{folder}, {size_text(sum(path.stat().st_size for path in states))}"

    def mend() -> str:
        for path in states:
            path.unlink(missing_ok=True)
        return "removed; the model stays"

    remedy = "removes the states, as the end of the run would have; the model stays"
    yield exam.mendable(what, where, remedy=remedy, mend=mend)


def _taken_back(
    exam: Examination, folders: dict[str, Path], status: dict[str, str]
) -> Iterator[Finding]:
    """Checkpoints in the trash whose run was restored since."""
    for day in sorted((exam.home.root / TRASH).glob("*/checkpoints"), reverse=True):
        for run_id, folder in _folders(day).items():
            if run_id not in status or run_id in folders:
                continue
            target = exam.home.checkpoints / run_id
            folders[run_id] = target  # of several, the one that was moved last

            def mend(folder: Path = folder, target: Path = target) -> str:
                target.parent.mkdir(exist_ok=True)
                return f"moved to {folder.rename(target)}"

            yield exam.mendable(
                f"run {run_id} was restored, but its checkpoints are in the trash",
                f"{folder}, {size_text(folder_size(folder))}",
                remedy="moves them back",
                mend=mend,
            )


def _models(exam: Examination) -> Iterator[Finding]:
    """Models of finished pretraining runs that are not there, or not whole."""
    finished = exam.runs.filter(pl.col("kind") == "pretraining", pl.col("status") == "FINISHED")
    folders = {row["run_id"]: exam.home.checkpoints / row["run_id"] / "model"
               for row in finished.iter_rows(named=True)}  # fmt: skip
    lacking = [run_id for run_id, folder in folders.items() if not is_whole_model(folder)]
    if not lacking:
        yield ok(f"the models of {len(folders):,} finished pretraining runs are there")
        return
    assert exam.reader is not None
    tags = exam.reader.tags(lacking).filter(pl.col("key") == RUN_ID_TAG)
    imported = set(tags["run_id"].to_list())
    elsewhere = [run_id for run_id in lacking if run_id in imported]
    missing = [run_id for run_id in lacking if run_id not in imported]
    if elsewhere:
        yield note(
            f"{len(elsewhere):,} imported pretraining run(s) have no model here; an export holds "
            "none"
        )
    if not missing:
        return
    what = f"the models of {len(missing):,} finished pretraining run(s) are not there, or not whole"
    where = [f"{folders[run_id]}" for run_id in missing]
    if not exam.home.owns_database:
        yield note(what, *where, remedy="they may be in another home that shares the store")
        return
    yield Finding(
        severity="warning",
        what=what,
        where=tuple(where),
        remedy="put them back from a backup or from `trash`; or delete the runs in MLflow, and "
        "`suite run` trains them again",
    )


def is_whole_model(folder: Path) -> bool:
    """Whether a folder has a configuration, and weights whose files are not cut short."""
    from safetensors import SafetensorError, safe_open

    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / "config.json").is_file():
        return False
    try:
        for file in weights:
            with safe_open(file, framework="np"):
                pass
    except (SafetensorError, OSError):
        return False
    return True
