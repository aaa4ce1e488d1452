"""A real MLflow server, and whether it has what was logged."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.tracking.recorder import RunRecorder
from suite.tracking.store import DatasetRecord, Store
from suite.ui import server_command, server_environment
from tests.faults.homes import own_store
from tests.faults.jobs import until
from tests.faults.proxy import free_port


@dataclass(frozen=True, kw_only=True)
class Server:
    """A real MLflow server.

    Attributes:
        port: where it listens.
        root: its own home, whose database tells what it has been told.
    """

    port: int
    root: Path

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(self.root / "mlflow.db")) as database:
            return database.execute(query, values).fetchall()


@contextlib.contextmanager
def running_server(root: Path) -> Iterator[Server]:
    """A server on the home at ``root``, which has a database already."""
    port = free_port()
    environment = server_environment() | {"OMP_NUM_THREADS": "1"}
    log = root / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            server_command(own_store(root), port=port),
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        until(lambda: _answers(port), seconds=240, what=log.read_text)
        yield Server(port=port, root=root)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def begin(store: Store, study: str, *, run_id: str | None = None) -> RunRecorder:
    return RunRecorder.begin(
        store,
        study=study,
        name="n",
        kind="pretraining",
        cell="0",
        run_id=run_id,
        settings={"rate": 0.1},
        datasets=[
            DatasetRecord(name="c", digest="d", source="s", context="training", profile={"n": 1})
        ],
    )


class Logged:
    """Points as they were logged, with the time before and after each call."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, float, int, int]] = []

    def log(self, recorder: RunRecorder, steps: range) -> None:
        for step in steps:
            values = {"loss": 1 / (step + 3), "rate": 1e-3, "grad": special(step)}
            before = time.time_ns() // 1_000_000
            recorder.log(values, step)
            after = time.time_ns() // 1_000_000
            self.points += [(key, step, value, before, after) for key, value in values.items()]

    def complaints(self, server: Server, run_id: str) -> list[str]:
        """How the tracker's rows differ from what was logged."""
        rows = server.rows(
            "SELECT key, step, value, is_nan, timestamp FROM metrics WHERE run_uuid = ? ", run_id
        )
        found = []
        if len(rows) != len(self.points):
            found.append(f"{len(rows)} rows for {len(self.points)} points")
        by_point = {(key, step): (value, nan, at) for key, step, value, nan, at in rows}
        for key, step, value, before, after in self.points:
            stored, nan, at = by_point.get((key, step), (None, None, -1))
            assert isinstance(at, int)
            if bool(nan) != math.isnan(value) or (not nan and stored != as_stored(value)):
                found.append(f"{key} at {step} is {stored}, not {value}")
            if not before <= at <= after:
                found.append(f"{key} at {step} is dated {at}, not {before} to {after}")
        return found


def special(step: int) -> float:
    return {5: math.nan, 6: math.inf, 7: -math.inf}.get(step, float(step))


def as_stored(value: float) -> float:
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value
