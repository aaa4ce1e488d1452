"""The home's own database, brought to the schema of the installed MLflow."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from suite.doctor.database import BUSY_SECONDS, damage, open_to_read
from suite.doctor.examination import unused
from suite.doctor.inventory import size_text
from suite.doctor.revisions import head_revision
from suite.errors import SuiteError
from suite.tracking.home import Home

_COUNTED = ("experiments", "runs", "metrics", "latest_metrics", "params", "tags", "experiment_tags")


def upgrade(home: Home, revision: str) -> str:
    """Bring the home's own database to the schema of the installed MLflow.

    MLflow's upgrade changes tables one after another, and cannot take up where it was cut off.
    It works on a copy therefore, which is checked and then written over the database in one
    transaction: whenever this is killed, the database is the old one or the new one.

    Args:
        home: a home that owns its database.
        revision: schema that the database has.

    Returns:
        What was done.

    Raises:
        SuiteError: if the disk has too little space, MLflow's upgrade fails, or a process writes
            meanwhile; the database is as it was.
    """
    from filelock import FileLock

    database = home.database
    size = database.stat().st_size
    free = shutil.disk_usage(home.root).free
    if free < 3 * size:  # the backup, the copy, and the journal of the last step
        raise SuiteError(
            f"{size_text(3 * size)} are needed for a backup and a copy, {size_text(free)} are free"
        )
    copy = database.with_name(f".{database.name}.{uuid4().hex}.part")
    with FileLock(str(home.root / "store.lock")), closing(open_to_read(database)) as watch:
        before = _version(watch)
        backup = back_up(home, revision)
        try:
            shutil.copyfile(backup, copy)
            counts = _counts(copy)
            _upgrade_with_mlflow(copy)
            _check_upgraded(copy, counts)
            if _version(watch) != before:
                raise SuiteError(f"a process wrote to {database} meanwhile; end it and try again")
            _write_over(copy, database)
        finally:
            for end in ("", "-journal"):
                copy.with_name(copy.name + end).unlink(missing_ok=True)
    return f"upgraded from {revision} to {head_revision()}; the old one is kept as {backup}"


def back_up(home: Home, revision: str) -> Path:
    """A copy of the home's database in ``backups``, made by sqlite; no other is replaced.

    Raises:
        SuiteError: if it cannot be read whole.
    """
    moment = datetime.now().strftime("%Y-%m-%dT%H%M%S")
    target = unused(home.root / "backups" / f"mlflow-{moment}-{revision}.db")
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_name(f".{target.name}.part")
    try:
        with closing(open_to_read(home.database)) as source:
            _copy_pages(source, fresh)
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        return fresh.rename(target)
    except sqlite3.Error as error:
        raise SuiteError(f"{home.database} cannot be copied ({error})") from error
    finally:
        fresh.unlink(missing_ok=True)


def _copy_pages(source: sqlite3.Connection, path: Path) -> None:
    """All pages in one transaction of the target, however long others read from it.

    Raises:
        SuiteError: if others do not let go of it.
    """
    deadline = time.monotonic() + 6 * BUSY_SECONDS

    def give_up(status: int, remaining: int, total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise SuiteError(f"a process does not let go of {path}; end it and try again")

    with closing(sqlite3.connect(path)) as target:
        source.backup(target, progress=give_up)


def _write_over(copy: Path, database: Path) -> None:
    try:
        with closing(open_to_read(copy)) as source:
            _copy_pages(source, database)
    except sqlite3.Error as error:
        raise SuiteError(f"{database} cannot be written ({error})") from error


def _version(connection: sqlite3.Connection) -> int:
    """A number that changes whenever another connection has written."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _counts(path: Path) -> dict[str, int]:
    """Rows of the tables that hold runs."""
    with closing(open_to_read(path)) as connection:
        names = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in _COUNTED
            if name in names
        }


def _upgrade_with_mlflow(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{path}"],
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise SuiteError(
            f"MLflow's upgrade fails ({lines[-1][:300]}); the database is as it was, and "
            "`mlflow db upgrade` on a copy of it shows all of the message"
        )


def _check_upgraded(path: Path, counts: dict[str, int]) -> None:
    wrong = damage(path)
    after = _counts(path)
    lost = [
        f"{name} {before:,} -> {after.get(name, 0):,}"
        for name, before in counts.items()
        if after.get(name, 0) != before
    ]
    if wrong or lost:
        raise SuiteError(
            f"the upgraded copy is not whole ({'; '.join([*wrong, *lost])}); the database is as "
            "it was"
        )
