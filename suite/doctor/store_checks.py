"""Checks of the tracking store: whether it answers, is whole, and has the schema of MLflow."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import polars as pl
import sqlalchemy as sa

from suite.doctor import server
from suite.doctor.database import copy_with_journal, damage, newest_backup, settle, state_of
from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.inventory import size_text
from suite.doctor.revisions import head_revision, revision_order
from suite.doctor.stored import is_server
from suite.doctor.upgrade import upgrade
from suite.errors import SuiteError
from suite.tracking.reader import open_reader, without_password

NOT_READ = "not looked at: the tracking store cannot be read"


def check_store(exam: Examination) -> Iterator[Finding]:
    """Open the store for all checks that follow."""
    uri = exam.home.tracking_uri
    if is_server(uri):
        lost = server.find_unreachable(uri)
        if lost:
            yield lost
            return
    else:
        file = sqlite_file(uri)
        if file is not None:
            usable = yield from _check_file(exam, file)
            if not usable:
                return
    home = replace(exam.home, tracking_uri=exam.reading_uri)
    try:
        reader = open_reader(home)
    except SuiteError as error:
        yield Finding(
            severity="error",
            what=str(error),
            remedy="what runs log meanwhile waits in the home's spool, and is kept",
        )
        return
    exam.reader = reader
    exam.schema_fits = is_server(uri)  # its server sees to that; of a database the next check
    studies = exam.runs.filter(pl.col("kind").is_not_null())["study"].unique().to_list()
    exam.hold(studies)
    yield ok(f"{without_password(uri)}: {exam.runs.height:,} runs; {len(studies)} studies")


def sqlite_file(uri: str) -> Path | None:
    """The file of a sqlite store; none for other stores."""
    try:
        url = sa.make_url(uri)
    except sa.exc.ArgumentError:
        return None
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database)


def _check_file(exam: Examination, file: Path) -> Generator[Finding, None, bool]:
    """Find where the database can be read from.

    Returns:
        Whether it can be read at all.
    """
    if not file.exists():
        yield _without_database(exam, file)
        return False
    if file.stat().st_size == 0:
        yield _empty(exam, file)
        return False
    state, said = state_of(file)
    if state in ("cut off", "write-ahead"):
        leftover = _leftover(exam, file, state)
        if leftover is not None:
            yield leftover
        state, said = state_of(file)
    if state == "in use":
        yield note(f"{file} is locked by a process that writes to it ({said}); look again later")
        return False
    if state in ("cut off", "write-ahead"):
        if not exam.fix:
            folder = exam.open_until_closed.enter_context(tempfile.TemporaryDirectory())
            file = copy_with_journal(file, Path(folder))
            exam.reading_uri = f"sqlite:///{file}"
        settle(file)
    wrong = [said] if state == "damaged" else damage(file)
    if wrong:
        yield _damaged(exam, wrong)
        return False
    yield ok(f"the database is whole, {size_text(file.stat().st_size)}")
    return True


def _without_database(exam: Examination, file: Path) -> Finding:
    if not _holds_work(exam):
        return note(f"{exam.home.root} holds no runs yet; start with `suite run STUDY`")
    return Finding(
        severity="error",
        what=f"{file} is not there, although the home holds work of runs",
        where=_backups(exam),
        remedy="put a copy of it back; or, if the runs are in another store, set "
        "MLFLOW_TRACKING_URI to that",
    )


def _empty(exam: Examination, file: Path) -> Finding:
    if _holds_work(exam) or not exam.home.owns_database:
        return Finding(
            severity="error",
            what=f"{file} is empty, although the home holds work of runs",
            where=_backups(exam),
            remedy="put a copy of it back; without one, remove the empty file, and runs start "
            "afresh",
        )
    return exam.mendable(
        f"{file} is empty; a process was ended before it had made a schema",
        remedy="moves it away; the next run makes a new one",
        mend=lambda: f"moved to {exam.set_aside(file)}",
    )


def _holds_work(exam: Examination) -> bool:
    home = exam.home
    return any(
        folder.is_dir() and any(folder.iterdir())
        for folder in (home.artifacts, home.checkpoints, home.spool)
    )


def _leftover(exam: Examination, file: Path, state: str) -> Finding | None:
    beside = file.with_name(file.name + ("-journal" if state == "cut off" else "-wal"))
    if not beside.exists() or beside.stat().st_size == 0:
        return None
    where = f"{beside}, {size_text(beside.stat().st_size)}"
    if state == "cut off":
        what = "a process was ended while it wrote to the database"
        remedy = "lets sqlite undo the half of it that is there, as the next run would"
    else:
        what = "what was written last lies beside the database, in its write-ahead log"
        remedy = "lets sqlite take it in, as the next run would"
    if not exam.home.owns_database:
        return note(what, where, remedy="it is not the home's own, so it is left alone")

    def mend() -> str:
        settle(file)
        return "sqlite has put the database in order"

    return exam.mendable(what, where, remedy=remedy, mend=mend)


def _damaged(exam: Examination, wrong: list[str]) -> Finding:
    return Finding(
        severity="error",
        what="the database is damaged; no command that needs it will work, and --fix leaves it",
        where=(*wrong, *_backups(exam)),
        remedy="end every process that uses the home, keep a copy of the file, and put a backup "
        "in its place; without one, `sqlite3 mlflow.db .recover` saves what can be read",
    )


def _backups(exam: Examination) -> tuple[str, ...]:
    newest = newest_backup(exam.home) if exam.home.owns_database else None
    return () if newest is None else (f"newest backup: {newest}",)


def check_schema(exam: Examination) -> Iterator[Finding]:
    """Whether the installed MLflow can work with the schema of the store."""
    uri = exam.home.tracking_uri
    if exam.reader is None:
        yield note(NOT_READ)
        return
    if is_server(uri):
        yield ok("the server sees to its own schema")
        return
    version = f"MLflow {metadata.version('mlflow')}"
    revision, head = stored_revision(exam.reading_uri), head_revision()
    if revision == head:
        exam.schema_fits = True
        yield ok(f"schema {head}, as {version} has it")
    elif revision not in revision_order():
        yield Finding(
            severity="error",
            what=f"the schema {revision or 'without a revision'} is not known to {version}, which "
            f"has {head}; a newer MLflow has made it",
            remedy="install that MLflow, or a newer one (`pip install -U mlflow`); a schema "
            "cannot be taken back, and --fix leaves it",
        )
    else:
        steps = revision_order().index(head) - revision_order().index(revision)
        yield _behind(exam, revision, f"the schema {revision} is {steps} step(s) behind {version}")
        exam.schema_fits = stored_revision(exam.reading_uri) == head


def _behind(exam: Examination, revision: str, what: str) -> Finding:
    home = exam.home
    if not home.owns_database:
        return Finding(
            severity="error",
            what=what,
            remedy="this database is not the home's own, and others may work with it; make a "
            f"backup, and run `mlflow db upgrade {without_password(home.tracking_uri)}`",
        )
    return exam.mendable(
        what,
        severity="error",
        remedy=f"keeps a copy in {home.root / 'backups'}, and upgrades the database as "
        "`mlflow db upgrade` does",
        mend=lambda: upgrade(home, revision),
    )


def stored_revision(uri: str) -> str | None:
    """The schema revision that a database says it has; none where it says nothing."""
    engine = sa.create_engine(uri)
    try:
        if not sa.inspect(engine).has_table("alembic_version"):
            return None
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    finally:
        engine.dispose()
