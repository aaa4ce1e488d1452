from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from suite.doctor.database import copy_with_journal, damage, settle, state_of
from suite.errors import SuiteError

Digest = Callable[[Path], dict[str, tuple[str, int]]]

_WRITE_HALF = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 5")  # too small for the change, so that half is on disk
connection.execute("UPDATE t SET x = 'new' || x")
print(flush=True)
input()
"""
_WRITE_AHEAD = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode = wal")
connection.execute("UPDATE t SET x = 'new' || x")
connection.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a b#ü.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [("y" * 500,)] * 2_000)
        connection.commit()
    return path


@contextmanager
def half_written(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process within a transaction, some of which is in the file already."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITE_HALF, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        yield writer
        writer.kill()


def num_new(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM t WHERE x LIKE 'new%'").fetchone()[0])


def test_a_whole_database_is_clean(database: Path) -> None:
    assert state_of(database) == ("clean", "")
    assert damage(database) == []


def test_a_transaction_that_was_cut_off_is_seen_without_undoing_it(
    database: Path, digest: Digest
) -> None:
    with half_written(database):
        pass
    before = digest(database.parent)
    assert state_of(database)[0] == "cut off"
    assert digest(database.parent) == before
    settle(database)
    assert state_of(database) == ("clean", "")
    assert num_new(database) == 0


def test_a_copy_can_be_read_although_a_transaction_was_cut_off(
    database: Path, tmp_path: Path, digest: Digest
) -> None:
    with half_written(database):
        pass
    before = digest(database.parent)
    aside = tmp_path.parent / f"{tmp_path.name}-aside"
    aside.mkdir()
    copy = copy_with_journal(database, aside)
    settle(copy)
    assert (num_new(copy), damage(copy)) == (0, [])
    assert digest(database.parent) == before


def test_a_database_that_is_being_written_is_in_use(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.doctor.database.BUSY_SECONDS", 0.05)
    with half_written(database):
        assert state_of(database)[0] == "in use"


def test_what_lies_in_a_write_ahead_log_is_read_from_a_copy(
    database: Path, tmp_path: Path, digest: Digest
) -> None:
    subprocess.run([sys.executable, "-c", _WRITE_AHEAD, str(database)], check=False)
    before = digest(database.parent)
    assert state_of(database)[0] == "write-ahead"
    aside = tmp_path.parent / f"{tmp_path.name}-aside"
    aside.mkdir()
    copy = copy_with_journal(database, aside)
    settle(copy)
    assert num_new(copy) == 2_000
    assert digest(database.parent) == before


def test_a_copy_made_while_a_process_writes_is_refused(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()

    def copy_and_write(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())
        with closing(sqlite3.connect(source)) as connection:
            connection.execute("INSERT INTO t VALUES ('more')")
            connection.commit()

    monkeypatch.setattr("shutil.copyfile", copy_and_write)
    with pytest.raises(SuiteError, match="a process writes to"):
        copy_with_journal(database, aside)


@pytest.mark.parametrize(
    ("spoil", "state", "said"),
    [
        (lambda content: b"no database at all" * 100, "damaged", "file is not a database"),
        (lambda content: content[: len(content) // 2], "damaged", "malformed"),
        (lambda content: content[:50_000] + b"\xff" * 300_000 + content[350_000:], "clean", "t"),
    ],
)
def test_damage_is_found(database: Path, spoil: object, state: str, said: str) -> None:
    assert callable(spoil)
    database.write_bytes(spoil(database.read_bytes()))
    found, reason = state_of(database)
    assert found == state
    assert any(said in line for line in [reason, *damage(database)])
    assert damage(database)
