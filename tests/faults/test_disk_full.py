"""The disk of the home fills up: a clear message, nothing corrupted, and it goes on later."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.homes import TRAINING, WHOLE, complaints, write_study
from tests.faults.jobs import Preloaded, said

# What is about to be written when the disk is full; in the order of a study.
MOMENTS = {
    "a run": ("suite.tracking.store:Store.create_run", "before", 1),
    "a spool": ("suite.tracking.recorder:SpoolWriter", "before", 1),
    "points": ("suite.tracking.spool:SpoolWriter.append", "before", 20),
    "a checkpoint": ("lightning.pytorch:Trainer.save_checkpoint", "before", 2),
    "a model": ("transformers:PreTrainedModel.save_pretrained", "before", 1),
    "the end of an attempt": ("suite.tracking.recorder:RunRecorder.end", "before", 1),
    "points to the store": ("suite.tracking.store:Store.log_points", "before", 1),
    "how far a spool is sent": ("suite.tracking.spool:SpoolFile.mark_sent", "before", 1),
    "a prediction": ("suite.stages.law:_predict", "before", 1),
    "moments": ("lightning_modules.kv.pair:MomentsPair.save", "before", 2),
    "a basis": ("suite.tracking.recorder:RunRecorder.log_artifact", "before", 6),
    "a trial": ("optuna.storages.journal:JournalFileBackend.append_logs", "before", 4),
    "a report": ("suite.stages.report:build_report", "before", 1),
    "a report's copy": ("suite.stages.report:build_report", "after", 1),
}


@pytest.fixture
def small_disk(tmp_path: Path, blank_database: Path) -> Iterator[Path]:
    """A home on a file system of its own, which is small."""
    home = tmp_path / "disk"
    home.mkdir()
    if sys.platform != "linux":
        pytest.skip("a small disk needs Linux's tmpfs")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copyfile(blank_database, home / "mlflow.db")
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A study, and a home in which nothing stood in its way."""

    study: str
    home: Path


def undisturbed(preloaded: Preloaded, database: Path, folder: Path, text: str) -> Undisturbed:
    home = folder / "undisturbed"
    home.mkdir()
    shutil.copyfile(database, home / "mlflow.db")
    study = write_study(folder, text)
    job = preloaded.run("run", study, "--home", str(home))
    assert job.code() == 0, said(job)
    return Undisturbed(study=study, home=home)


def stored(home: Path, scratch: Path) -> tuple[str, set[tuple[object, ...]]]:
    """What sqlite says of the store's state, and its points; of a copy, which has space."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for file in home.glob("mlflow.db*"):
        shutil.copyfile(file, scratch / file.name)
    with sqlite3.connect(scratch / "mlflow.db") as database:
        (state,) = database.execute("PRAGMA integrity_check").fetchone()
        points = database.execute("SELECT run_uuid, key, step, value, timestamp FROM metrics")
        return state, set(points)


def fill_and_free(
    preloaded: Preloaded, reference: Undisturbed, home: Path, names: Sequence[str]
) -> None:
    study = reference.study
    chance = random.Random(7)
    problems, before = [], set()
    for name in names:
        at, when, call = MOMENTS[name]
        full = {"at": at, "when": when, "call": call, "leave": 4_096 * chance.randrange(4)}
        job = preloaded.run(
            "run",
            study,
            "--home",
            str(home),
            faults={"fill": full},
            SUITE_TRACKER_PATIENCE="1",
        )
        assert (home / "filler").exists(), f"{name} was not reached: {said(job)}"
        state, points = stored(home, home.parent / "scratch")
        if job.code() != 1 or "Traceback" in said(job):
            problems.append(f"{name}: exit {job.code()}: {said(job)}")
        if not re.search(r"No space left|disk is full|disk has space", said(job)):
            problems.append(f"{name}: the disk is not named: {said(job)}")
        if state != "ok" or not points >= before:
            problems.append(f"{name}: store {state}, {len(before - points)} points lost")
        before = points
        (home / "filler").unlink()
    job = preloaded.run("run", study, "--home", str(home))
    assert job.code() == 0, said(job)
    assert not problems, "\n".join(problems)
    assert complaints(home, reference.home) == []
    job = preloaded.run("verify", study, "--home", str(home))
    assert job.code() == 0, said(job)


def test_a_full_disk_is_named_and_training_goes_on_when_it_has_space(
    preloaded: Preloaded, blank_database: Path, small_disk: Path, tmp_path: Path
) -> None:
    reference = undisturbed(preloaded, blank_database, tmp_path, TRAINING)
    fill_and_free(preloaded, reference, small_disk, ("points", "a checkpoint"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_disk_that_is_full_at_any_moment_costs_nothing_but_time(
    preloaded: Preloaded, blank_database: Path, small_disk: Path, tmp_path: Path
) -> None:
    reference = undisturbed(preloaded, blank_database, tmp_path, WHOLE)
    fill_and_free(preloaded, reference, small_disk, list(MOMENTS))
