"""Many processes start at once on a home that does not exist yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.faults.homes import TRAINING, frames_of, repeatable, untrue_attempts, write_study
from tests.faults.jobs import Preloaded, said, until, wait


def start_different_studies(preloaded: Preloaded, folder: Path, number: int) -> None:
    home = folder / "home"
    names = [f"study-{n}" for n in range(number)]
    jobs = [
        preloaded.start("run", write_study(folder, TRAINING, name=name), "--home", str(home))
        for name in names
    ]
    for job in jobs:
        assert wait(job) == 0, said(job)
    with sqlite3.connect(home / "mlflow.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(database.execute("SELECT * FROM alembic_version").fetchall()) == 1
        found = database.execute("SELECT name FROM experiments WHERE name <> 'Default'").fetchall()
    assert sorted(found) == [(name,) for name in names]
    curves = []
    for name in names:
        runs, tags, _ = frames_of(home, name)
        assert sorted(runs.select("kind", "status").iter_rows()) == [
            ("pretraining", "FINISHED"),
            ("report", "FINISHED"),
        ]
        assert untrue_attempts(runs, tags) == []
        curves.append(repeatable(home, name))
    assert not curves[0].is_empty()
    assert all(each.equals(curves[0]) for each in curves)
    assert list((home / "spool").iterdir()) == []


def start_one_study(preloaded: Preloaded, folder: Path, home: Path, number: int) -> None:
    """While one process is held at its first point, the others have to give way."""
    pace = folder / "pace"
    pace.write_text("0")
    study = write_study(folder, TRAINING)
    jobs = [
        preloaded.start("run", study, "--home", str(home), faults={"pace": str(pace)})
        for _ in range(number)
    ]
    until(lambda: sum(job.code() is not None for job in jobs) == number - 1, seconds=240)
    (holder,) = [job for job in jobs if job.code() is None]
    for job in jobs:
        if job is not holder:
            assert job.code() == 1, said(job)
            assert f"(process {holder.pid} on " in said(job) or "(just started)" in said(job)
            assert "Traceback" not in said(job)
    pace.write_text(str(10**9))
    assert wait(holder) == 0, said(holder)
    runs, tags, curves = frames_of(home)
    assert sorted(runs["kind"]) == ["pretraining", "report"]
    assert untrue_attempts(runs, tags) == []
    attempts = tags.filter(pl.col("key") == "suite.attempts")["value"]
    assert attempts.to_list() == ["1", "1"]
    assert curves.select("run_id", "key", "step").is_unique().all()


def test_three_studies_start_on_a_fresh_home(preloaded: Preloaded, tmp_path: Path) -> None:
    start_different_studies(preloaded, tmp_path, 3)


def test_of_three_processes_on_one_study_one_works(
    preloaded: Preloaded, tmp_path: Path, new_home: Callable[[str], Path]
) -> None:
    start_one_study(preloaded, tmp_path, new_home("home"), 3)


@pytest.mark.slow
def test_eight_studies_start_on_a_fresh_home(preloaded: Preloaded, tmp_path: Path) -> None:
    start_different_studies(preloaded, tmp_path, 8)


@pytest.mark.slow
def test_of_eight_processes_on_one_study_one_works(preloaded: Preloaded, tmp_path: Path) -> None:
    start_one_study(preloaded, tmp_path, tmp_path / "home", 8)
