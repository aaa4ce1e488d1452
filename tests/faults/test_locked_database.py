"""Another process holds the database's lock: nothing is lost, and logging does not wait."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.tracking.patience import TrackerAwayError
from suite.tracking.store import Store
from tests.faults.homes import own_store
from tests.faults.server import Logged, Server, begin

LOCKER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"BEGIN {sys.argv[2]}")
print("held", flush=True)
sys.stdin.readline()
database.execute("COMMIT")
"""


@contextlib.contextmanager
def locked(database: Path, kind: str) -> Iterator[Callable[[], None]]:
    """Let another process hold a lock; gives what releases it."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(database), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

        def release() -> None:
            process.communicate(b"\n")

        try:
            yield release
        finally:
            process.kill()


@pytest.fixture
def store(new_home: Callable[[str], Path]) -> Iterator[Store]:
    with contextlib.closing(Store(own_store(new_home("home")), patience=60.0)) as store:
        yield store


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_locked_database_is_waited_for(store: Store, kind: str) -> None:
    recorder, logged = begin(store, "locked"), Logged()
    logged.log(recorder, range(500))
    with locked(store.home.database, kind) as release:
        logged.log(recorder, range(500, 1_000))  # comes back while the lock is held
        order: list[str] = []

        def later() -> None:
            order.append("released")
            release()

        threading.Timer(1.0, later).start()
        recorder.end("FINISHED")
        order.append("ended")
    assert order == ["released", "ended"]
    assert logged.complaints(Server(port=0, root=store.home.root), recorder.run_id) == []


@pytest.mark.slow
def test_a_database_that_stays_locked_is_given_up_and_nothing_is_lost(store: Store) -> None:
    recorder, logged = begin(store, "locked"), Logged()
    logged.log(recorder, range(100))
    store.patience = 0.0
    with locked(store.home.database, "EXCLUSIVE"):
        with pytest.raises(TrackerAwayError, match="database is locked"):
            recorder.flush()
        logged.log(recorder, range(100, 200))
    store.patience = 60.0
    recorder.end("FINISHED")
    assert logged.complaints(Server(port=0, root=store.home.root), recorder.run_id) == []
