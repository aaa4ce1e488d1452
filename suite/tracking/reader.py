"""Back in from the store: typed polars frames of runs, params, tags and curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import polars as pl

from suite.errors import InputError
from suite.tracking.curves import live
from suite.tracking.home import Home

__all__ = [
    "RUN_SCHEMA",
    "TEXT_SCHEMA",
    "Reader",
    "Schema",
    "live",
    "open_reader",
    "without_password",
]

Schema = Mapping[str, type[pl.DataType]]

RUN_SCHEMA: Schema = {
    "run_id": pl.String,
    "study": pl.String,
    "name": pl.String,
    "kind": pl.String,
    "cell": pl.String,
    "status": pl.String,
    "start_time": pl.Int64,
    "end_time": pl.Int64,
    "parent_run_id": pl.String,
}
"""``study`` is the name of the run's experiment; times are ms since 1970."""
TEXT_SCHEMA: Schema = {"run_id": pl.String, "key": pl.String, "value": pl.String}


class Reader(Protocol):
    """What reports, laws and searches may ask of a tracking store.

    Every store gives equal frames for equal content. Runs that were deleted, or whose experiment
    was, never appear, not even by their id, but in what ``deleted`` gives; an id that no run has
    gives no rows.

    Raises:
        SuiteError: from every method, if the store cannot be read, or holds values that MLflow
            does not write.
    """

    def runs(self, study: str | None) -> pl.DataFrame:
        """Runs of a study, or of all, sorted by start_time and run_id; ``RUN_SCHEMA``."""
        ...

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """Params sorted by run_id and key; ``TEXT_SCHEMA``."""
        ...

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """Tags sorted by run_id and key; ``TEXT_SCHEMA``."""
        ...

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        """Points of all metrics, or of some, with their attempts; ``CURVE_SCHEMA``.

        NaN and the infinities are what they were when they were logged. Sorted by run_id, key,
        step, timestamp and value.
        """
        ...

    def latest_timestamp(self, run_id: str) -> int:
        """Time of the newest point of a run, in ms since 1970; 0 when it has none."""
        ...

    def deleted(self) -> Reader:
        """A reader of the same store that gives the deleted runs and no others.

        MLflow keeps them until they are removed for good, as ``mlflow gc`` does.
        """
        ...


def without_password(uri: str) -> str:
    """An address as messages show it: what stands before an @ may be a password."""
    return re.sub(r"(?<=://)[^/]*@", "", uri)


def open_reader(home: Home) -> Reader:
    """The reader of a home's store: by SQL of a database, through MLflow's client of a server.

    Raises:
        InputError: if there is no such store, or nothing in it that MLflow has made.
        SuiteError: if a server is there but fails.
    """
    if home.is_server:
        from suite.tracking.client_reader import ClientReader

        server = ClientReader(home.tracking_uri)
        server.check()
        return server
    from suite.tracking.sql_reader import SqlReader

    if home.owns_database and not home.database.exists():
        raise InputError(f"{home.root} holds no runs yet; start with `suite run STUDY`")
    database = SqlReader(home.tracking_uri)
    database.check()
    return database
