"""Stores for benchmarks, filled by plain SQL: MLflow's client would take an hour."""

from __future__ import annotations

import math
import os
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

Points = Sequence[tuple[str, float, int]]  # key, value, step


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, as its rows."""

    run_id: str
    name: str
    points: Points
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


Fill = Callable[[Path, str, Iterable[Run]], list[str]]
Unrelated = Callable[..., Iterable[Run]]


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("blank") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments(max_results=1)
    return path


@pytest.fixture
def fill() -> Fill:
    """Adds runs of one study to a database; returns their ids."""
    return _fill


@pytest.fixture
def curves_of() -> Unrelated:
    """Makes runs that have nothing but curves."""
    return _runs


@pytest.fixture
def run_record() -> type[Run]:
    """The record that ``fill`` takes."""
    return Run


def _fill(database: Path, study: str, runs: Iterable[Run]) -> list[str]:
    ids = []
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        indices = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'metrics'"
            " AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indices:
            db.execute(f"DROP INDEX {name}")
        experiment = db.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage)"
            " VALUES (?, 'mlflow-artifacts:/x', 'active') RETURNING experiment_id",
            (study,),
        ).fetchone()[0]
        for number, run in enumerate(runs):
            ids.append(run.run_id)
            start = 1_790_000_000_000 + 60_000 * number
            db.execute(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, source_version,"
                " entry_point_name, user_id, status, start_time, end_time, lifecycle_stage,"
                " artifact_uri, experiment_id)"
                " VALUES (?, ?, 'LOCAL', '', '', '', 'u', 'FINISHED', ?, ?, 'active', 'x', ?)",
                (run.run_id, run.name, start, start + 50_000, experiment),
            )
            for table, texts in (("params", run.params), ("tags", run.tags)):
                db.executemany(
                    f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)",
                    [(run.run_id, *item) for item in texts.items()],
                )
            db.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan)"
                " VALUES (?, ?, ?, ?, ?, 0)",
                [
                    (key, value, start + at, run.run_id, step)
                    for at, (key, value, step) in enumerate(run.points)
                ],
            )
            latest = {key: (key, value, start, step, run.run_id) for key, value, step in run.points}
            db.executemany(
                "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid)"
                " VALUES (?, ?, ?, ?, 0, ?)",
                latest.values(),
            )
        for _, sql in indices:
            db.execute(sql)
    return ids


def _runs(count: int, keys: Sequence[str], points: int, seed: int = 0) -> Iterable[Run]:
    made = random.Random(seed)
    for number in range(count):
        yield Run(
            run_id=f"{made.getrandbits(128):032x}",
            name=f"run {number}",
            # as they are logged: all metrics of a step, and then the next step
            points=[
                (key, math.sin(number + step + place), 4_096 * step)
                for step in range(points)
                for place, key in enumerate(keys)
            ],
            tags={"suite.kind": "pretraining", **dict([_attempt()])},
        )


def _attempt() -> tuple[str, str]:
    return "suite.attempt.1", (
        '{"device": "cpu", "ended": null, "host": "h", "number": 1, "outcome": null, "pid": 1, '
        '"resumed_from": -1, "started": 1}'
    )
