"""Another process holds the database's lock: nothing is lost, and logging does not wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.tracking.patience import TrackerAwayError
from suite.tracking.store import Store
from tests.faults.homes import own_store
from tests.faults.server import Logged, Server, begin

LOCKER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"BEGIN {sys.argv[2]}")
print("held", flush=True)
time.sleep(float(sys.argv[3]))
database.execute("COMMIT")
"""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Callable[[Path, str, float], None]]:
    """Lets another process hold a lock on a database for some seconds."""
    processes = []

    def lock(database: Path, kind: str, seconds: float) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCKER, str(database), kind, str(seconds)],
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

    yield lock
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_locked_database_is_waited_for(
    new_home: Callable[[str], Path], locked: Callable[[Path, str, float], None], kind: str
) -> None:
    root = new_home("home")
    store = Store(own_store(root), patience=60.0)
    own = Server(port=0, root=root)
    recorder, logged = begin(store, "locked"), Logged()
    logged.log(recorder, range(500))
    locked(root / "mlflow.db", kind, 2.0)
    began = time.monotonic()
    logged.log(recorder, range(500, 1_000))
    assert time.monotonic() - began < 1.5, "logging does not wait for the database"
    recorder.end("FINISHED")
    assert time.monotonic() - began > 1.0, "there was a lock to wait for"
    assert logged.complaints(own, recorder.run_id) == []


@pytest.mark.slow
def test_a_database_that_stays_locked_is_given_up_and_nothing_is_lost(
    new_home: Callable[[str], Path], locked: Callable[[Path, str, float], None]
) -> None:
    root = new_home("home")
    store = Store(own_store(root), patience=0.0)
    own = Server(port=0, root=root)
    recorder, logged = begin(store, "locked"), Logged()
    logged.log(recorder, range(100))
    locked(root / "mlflow.db", "EXCLUSIVE", 45.0)
    with pytest.raises(TrackerAwayError, match="database is locked"):
        recorder.flush()
    logged.log(recorder, range(100, 200))
    store.patience = 120.0
    recorder.end("FINISHED")
    assert logged.complaints(own, recorder.run_id) == []
