"""A sqlite database as a file, looked at without leaving a trace."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from suite.errors import SuiteError
from suite.tracking.home import Home

State = Literal["clean", "cut off", "write-ahead", "in use", "damaged"]
BUSY_SECONDS = 5.0
_WRITE_AHEAD_BYTE, _WRITE_AHEAD = 18, 2  # of the file's header


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; errors come with the first query."""
    address = f"file:{quote(str(path))}?mode=ro"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)


def state_of(path: Path) -> tuple[State, str]:
    """How a database that has some bytes stands, and what sqlite says of it; writes nothing.

    Returns:
        ``cut off``: a process died within a transaction, which the next to open it undoes.
        ``write-ahead``: part of it lies in a second file; to look into it is to write.
        ``in use``: a process has been writing to it for seconds.
        ``damaged``: sqlite cannot read it.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if header[_WRITE_AHEAD_BYTE : _WRITE_AHEAD_BYTE + 1] == bytes([_WRITE_AHEAD]):
        return "write-ahead", ""
    try:
        with closing(open_to_read(path)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_READONLY_ROLLBACK":
            return "cut off", str(error)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return "in use", str(error)
        return "damaged", str(error)
    return "clean", ""


def copy_with_journal(path: Path, folder: Path) -> Path:
    """Copy a database with what belongs to it, so that it can be opened without a trace.

    Raises:
        SuiteError: if a process wrote to it meanwhile.
    """
    before = _stamps(path)
    for name in before:
        if not name.endswith("-shm"):  # of this machine's memory; sqlite makes its own
            shutil.copyfile(path.with_name(name), folder / name)
    if _stamps(path) != before:
        raise SuiteError(f"a process writes to {path}; look again when it is done")
    return folder / path.name


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    names = [path.name + end for end in ("", "-journal", "-wal", "-shm")]
    found = {}
    for name in names:
        file = path.with_name(name)
        if file.exists():
            found[name] = (file.stat().st_size, file.stat().st_mtime_ns)
    return found


def settle(path: Path) -> None:
    """Let sqlite undo, or take in, what a process that died has left beside a database.

    Raises:
        SuiteError: if it cannot.
    """
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise SuiteError(f"sqlite cannot open {path} ({error})") from error


def damage(path: Path) -> list[str]:
    """What sqlite's own check finds wrong with a database; empty where it is whole."""
    try:
        with closing(open_to_read(path)) as connection:
            rows = connection.execute("PRAGMA quick_check(5)").fetchall()
    except sqlite3.Error as error:
        return [str(error)]
    return [line for (line,) in rows if line != "ok"]


def newest_backup(home: Home) -> Path | None:
    """The last backup of the home's database."""
    found = sorted((home.root / "backups").glob("mlflow-*.db"), key=lambda path: path.name)
    return found[-1] if found else None
