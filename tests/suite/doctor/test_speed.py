from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from suite.tracking.home import Home

_POINTS = 100
_KEYS = 5
_FILES = 4


def fill(home: Home, num_runs: int) -> None:
    """Finished runs of five metrics with a hundred points, and a few files each."""
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage) "
            "VALUES (7, 'demo', 'mlflow-artifacts:/demo', 'active')"
        )
        for number in range(num_runs):
            run = f"{number:032x}"
            connection.execute(
                "INSERT INTO runs (run_uuid, name, experiment_id, status, start_time, end_time, "
                "lifecycle_stage, artifact_uri) VALUES (?, 'n', 7, 'FINISHED', ?, ?, 'active', ?)",
                (run, 1_000 + number, 2_000 + number, f"mlflow-artifacts:/demo/{run}/artifacts"),
            )
            connection.executemany(
                "INSERT INTO tags (run_uuid, key, value) VALUES (?, ?, ?)",
                [(run, "suite.kind", "calibration"), (run, "suite.cell", run[-16:])]
                + [(run, f"suite.tag.{i}", "x" * 50) for i in range(20)],
            )
            connection.executemany(
                "INSERT INTO params (run_uuid, key, value) VALUES (?, ?, 'x')",
                [(run, f"param.{i}") for i in range(40)],
            )
            for key in range(_KEYS):
                connection.executemany(
                    "INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan) "
                    "VALUES (?, ?, ?, ?, ?, 0)",
                    [(run, f"key/{key}", i / 7, 1_500 + i, i) for i in range(_POINTS)],
                )
                connection.execute(
                    "INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan) "
                    "VALUES (?, ?, 1, 2500, ?, 0)",
                    (run, f"key/{key}", _POINTS - 1),
                )
            folder = home.artifacts / "demo" / run / "artifacts" / "basis"
            folder.mkdir(parents=True)
            for name in ("key.safetensors", "value.safetensors", "a", "b")[:_FILES]:
                (folder / name).write_bytes(b"x")
        connection.commit()


def timed(examine: Callable[..., Any], home: Home) -> float:
    began = time.perf_counter()
    assert examine(home).left == []
    return time.perf_counter() - began


@pytest.mark.benchmark
def test_the_time_that_an_examination_takes_grows_no_faster_than_the_runs(
    make_home: Callable[[str], Home], examine: Callable[..., Any]
) -> None:
    small, large = make_home("small"), make_home("large")
    fill(small, 100)
    fill(large, 1_000)
    timed(examine, small)  # what is loaded once
    seconds = {home.root.name: min(timed(examine, home) for _ in range(3))
               for home in (small, large)}  # fmt: skip
    ratio = seconds["large"] / seconds["small"]
    print(f"\n{'runs':>6} {'points':>10} {'seconds':>8}")
    for number, name in ((100, "small"), (1_000, "large")):
        print(f"{number:6,} {number * _KEYS * _POINTS:10,} {seconds[name]:8.2f}")
    print(f"10 times the runs take {ratio:.1f} times as long (at most 12)")
    assert ratio <= 12
