from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa

import suite.tracking.sql_reader
from suite.errors import SuiteError
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.sql_reader import SqlReader

RUN = "a" * 32
OTHER = "b" * 32


def insert(database: Path, *runs: str, points: int = 3, keys: int = 1) -> None:
    """Runs with metrics ``x0``, ``x1``, ... by plain SQL, in a study named demo."""
    with closing(sqlite3.connect(database)) as db, db:
        db.execute(
            "INSERT OR IGNORE INTO experiments (experiment_id, name, lifecycle_stage)"
            " VALUES (7, 'demo', 'active')"
        )
        for run in runs:
            db.execute(
                "INSERT INTO runs (run_uuid, name, status, start_time, lifecycle_stage,"
                " experiment_id) VALUES (?, 'r', 'FINISHED', 5, 'active', 7)",
                (run,),
            )
            db.execute("INSERT INTO params (run_uuid, key, value) VALUES (?, 'p', 'v')", (run,))
            db.execute("INSERT INTO tags (run_uuid, key, value) VALUES (?, 't', 'v')", (run,))
            db.executemany(
                "INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan)"
                " VALUES (?, ?, ?, ?, ?, 0)",
                [(run, f"x{k}", step / 2, 100 + step, step) for k in range(keys)
                 for step in range(points)],
            )  # fmt: skip


def loosen(db: sqlite3.Connection, table: str) -> None:
    """Make the table again without its rules, as tools for editing databases do."""
    db.execute(f"ALTER TABLE {table} RENAME TO strict")
    db.execute(f"CREATE TABLE {table} AS SELECT * FROM strict")
    db.execute("DROP TABLE strict")


def read_all(home: Home, runs: list[str], *, deleted: bool = False) -> None:
    reader = SqlReader(f"{home.tracking_uri}?timeout=0.05")
    reader = reader.deleted() if deleted else reader
    reader.runs("demo")
    reader.params(runs)
    reader.tags(runs)
    reader.curves(runs)
    reader.latest_timestamp(runs[-1])


@pytest.mark.parametrize(
    ("edit", "column", "value", "belongs"),
    [
        ("UPDATE metrics SET value = 'low' WHERE step = 1", "metrics.value", "'low'", "a number"),
        (
            "UPDATE metrics SET value = X'00' WHERE step = 1",
            "metrics.value",
            "b'\\x00'",
            "a number",
        ),
        ("UPDATE metrics SET value = NULL WHERE step = 1", "metrics.value", "None", "a number"),
        ("UPDATE metrics SET step = 1.5 WHERE step = 1", "metrics.step", "1.5", "a whole number"),
        (
            "UPDATE metrics SET step = 1e20 WHERE step = 1",
            "metrics.step",
            "1e+20",
            "a whole number",
        ),
        ("UPDATE metrics SET step = NULL WHERE step = 1", "metrics.step", "None", "a whole number"),
        ("UPDATE metrics SET timestamp = '' WHERE step = 1", "metrics.timestamp", "''", "a whole"),
        ("UPDATE metrics SET key = X'ff' WHERE step = 1", "metrics.key", "b'\\xff'", "a text"),
        ("UPDATE metrics SET key = NULL WHERE step = 1", "metrics.key", "None", "a text"),
        ("UPDATE metrics SET is_nan = 7 WHERE step = 1", "metrics.is_nan", "7", "0 or 1"),
        ("UPDATE metrics SET is_nan = 'x' WHERE step = 1", "metrics.is_nan", "'x'", "0 or 1"),
        ("UPDATE params SET value = X'ff'", "params.value", "b'\\xff'", "a text"),
        ("UPDATE params SET key = NULL", "params.key", "None", "a text"),
        ("UPDATE tags SET value = NULL", "tags.value", "None", "a text"),
        ("UPDATE runs SET status = NULL", "runs.status", "None", "a text"),
        ("UPDATE runs SET name = X'00'", "runs.name", "b'\\x00'", "a text"),
        ("UPDATE runs SET start_time = 'now'", "runs.start_time", "'now'", "a whole number"),
        ("UPDATE runs SET start_time = 1e30", "runs.start_time", "1e+30", "a whole number"),
        ("UPDATE runs SET start_time = -1", "runs.start_time", "-1", "a time in ms from 1970"),
        (
            "UPDATE runs SET end_time = 253402300800000",
            "runs.end_time",
            "253402300800000",
            "a time in ms from 1970 to 9999",
        ),
    ],
)
def test_an_odd_value_is_named_with_its_column_and_run(
    home: Home, edit: str, column: str, value: str, belongs: str
) -> None:
    insert(home.database, OTHER, RUN)
    with closing(sqlite3.connect(home.database)) as db, db:
        loosen(db, column.split(".")[0])
        if " WHERE " not in edit:
            edit += " WHERE TRUE"
        # the rules are gone, but not the types: sqlite takes any value in any column
        changed = db.execute(f"{edit} AND run_uuid = '{RUN}'").rowcount
    assert changed == 1
    with pytest.raises(SuiteError) as caught:
        read_all(home, [OTHER, RUN])
    assert str(caught.value).startswith(
        f"the column {column} of the tracking store holds {value} for the run '{RUN}', where "
        f"{belongs}"
    )
    assert str(caught.value).endswith(
        "it was edited outside the suite; restore the store from a backup, or delete the run for "
        "good (`mlflow gc`)"
    )
    with closing(sqlite3.connect(home.database)) as db, db:  # no cure: it may be restored
        db.execute(f"UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = '{RUN}'")
    with pytest.raises(SuiteError, match=re.escape(f"the column {column} of")):
        read_all(home, [OTHER, RUN], deleted=True)
    with closing(sqlite3.connect(home.database)) as db, db:  # the cure: gone for good
        for table in ("metrics", "params", "tags", "runs"):
            db.execute(f"DELETE FROM {table} WHERE run_uuid = '{RUN}'")
    for deleted in (False, True):
        read_all(home, [OTHER, RUN], deleted=deleted)


@pytest.mark.parametrize("table", ["runs", "experiments", "params", "tags", "metrics"])
def test_a_table_that_is_gone_is_named(home: Home, table: str) -> None:
    insert(home.database, RUN)
    with closing(sqlite3.connect(home.database)) as db, db:
        db.execute(f"DROP TABLE {table}")
    with pytest.raises(SuiteError, match=f"no such table: {table}.*; if it was edited, restore"):
        read_all(home, [RUN])


@pytest.mark.parametrize(
    ("table", "column"),
    [("runs", "start_time"), ("tags", "value"), ("params", "key"), ("metrics", "value"),
     ("metrics", "is_nan"), ("metrics", "timestamp")],
)  # fmt: skip
def test_a_column_that_is_gone_is_named(home: Home, table: str, column: str) -> None:
    insert(home.database, RUN)
    with closing(sqlite3.connect(home.database)) as db, db:
        loosen(db, table)
        db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    named = rf"the table \w+ of sqlite:.*no such column: {table}.*\.{column}\); if it was edited"
    with pytest.raises(SuiteError, match=f"{named}.*`suite doctor --fix`") as caught:
        read_all(home, [RUN])
    assert "\n" not in str(caught.value)


def test_text_that_is_no_text_is_named(home: Home) -> None:
    insert(home.database, RUN)
    with closing(sqlite3.connect(home.database)) as db, db:
        db.execute("UPDATE params SET value = CAST(X'66ff66' AS TEXT)")
    with pytest.raises(SuiteError, match=r"the table params of .*Could not decode to UTF-8 column"):
        read_all(home, [RUN])


def test_a_database_that_another_process_keeps_says_so(home: Home) -> None:
    insert(home.database, RUN)
    with closing(sqlite3.connect(home.database, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SuiteError, match=r"database is locked\); another process keeps it"):
            read_all(home, [RUN])
    read_all(home, [RUN])


def test_a_damaged_file_says_so(home: Home) -> None:
    insert(home.database, RUN, points=2_000)
    size = home.database.stat().st_size
    with home.database.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 2))
    with pytest.raises(SuiteError, match=r"malformed\); if it was edited, restore it from"):
        read_all(home, [RUN])


def test_what_is_read_in_pieces_is_what_is_read_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [f"{n:032x}" for n in range(5)]
    insert(home.database, *runs, points=4, keys=2)
    reader = open_reader(home)
    whole = (reader.params(runs), reader.tags(runs), reader.curves(runs))
    monkeypatch.setattr(suite.tracking.sql_reader, "_RUNS_A_QUERY", 2)
    monkeypatch.setattr(suite.tracking.sql_reader, "_ROWS_A_FETCH", 3)
    pieces = (reader.params(runs), reader.tags(runs), reader.curves([*runs[::-1], *runs]))
    assert [len(frame) for frame in whole] == [5, 5, 40]
    assert all(a.equals(b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("keys", [None, ["x0"], ["x0", "x1"]])
def test_curves_cost_no_more_among_many_other_runs(home: Home, keys: list[str] | None) -> None:
    """Counted in steps of sqlite's machine: left to itself it goes through all runs of a key."""
    insert(home.database, RUN, points=200, keys=3)
    reader = SqlReader(home.tracking_uri)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    @sa.event.listens_for(reader._engine, "connect")
    def watch(connection: sqlite3.Connection, record: object) -> None:
        connection.set_progress_handler(count, 20)

    def cost() -> int:
        nonlocal steps
        steps = 0
        assert len(reader.curves([RUN], keys)) == 200 * len(keys or "xyz")
        return steps

    cost()  # with what sqlite does once for a connection
    alone = cost()
    assert alone > 100
    insert(home.database, *(f"{n:032x}" for n in range(40)), points=200, keys=3)
    assert cost() == pytest.approx(alone, rel=0.01)


def test_a_point_belongs_to_an_attempt_that_begins_while_it_is_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts are read after the points: theirs would else count as an earlier attempt's."""
    insert(home.database, RUN)
    reader = SqlReader(home.tracking_uri)
    tag = (
        '{"number": %d, "started": %d, "resumed_from": %d, "host": "h", "pid": 1, "device": "cpu"}'
    )
    read_texts = SqlReader._texts

    def texts(self: SqlReader, table: sa.TableClause, *more: object) -> pl.DataFrame:
        with closing(sqlite3.connect(home.database)) as db, db:
            db.executemany(
                "INSERT INTO tags (run_uuid, key, value) VALUES (?, ?, ?)",
                [(RUN, f"suite.attempt.{n}", tag % start) for n, start in
                 enumerate([(1, 100, -1), (2, 102, 0)], start=1)],
            )  # fmt: skip
        return read_texts(self, table, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlReader, "_texts", texts)
    curves = reader.curves([RUN])
    assert curves.select("step", "attempt", "superseded").rows() == [
        (0, 1, False),
        (1, 1, True),
        (2, 2, False),
    ]


def test_messages_hide_passwords() -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL: its driver psycopg is not installed")
    reader = SqlReader("postgresql://me:secret@127.0.0.1:1/runs")
    with pytest.raises(SuiteError, match=re.escape("me:***@127.0.0.1:1/runs")) as caught:
        reader.runs(None)
    assert "secret" not in str(caught.value)
