"""Runs back in from an MLflow database, by SQL."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import sqlalchemy as sa

from suite.errors import InputError, SuiteError
from suite.tracking.curves import ATTEMPT_TAG, CURVE_SCHEMA, POINT_SCHEMA
from suite.tracking.frames import (
    concatenated,
    curve_frame,
    in_chunks,
    odd_value,
    origins_in,
    run_frame,
    typed_frame,
    with_infinities,
)
from suite.tracking.patience import first_line
from suite.tracking.reader import TEXT_SCHEMA, Schema, without_password

_EXPERIMENTS = sa.table(
    "experiments", *map(sa.column, ("experiment_id", "name", "lifecycle_stage"))
)
_RUN_COLUMNS = ("run_uuid", "experiment_id", "name", "status", "start_time", "end_time")
_RUNS = sa.table("runs", *map(sa.column, _RUN_COLUMNS), sa.column("lifecycle_stage"))
_PARAMS, _TAGS = (
    sa.table(name, sa.column("run_uuid"), sa.column("key", sa.String), sa.column("value"))
    for name in ("params", "tags")
)
_METRICS = sa.table(
    "metrics",
    sa.column("key", sa.String),
    *map(sa.column, ("run_uuid", "step", "value", "timestamp", "is_nan")),
)
_STORED_SCHEMA: Schema = {**POINT_SCHEMA, "is_nan": pl.Int8}
_OF_A_RUN: Schema = {name: kind for name, kind in _STORED_SCHEMA.items() if name != "run_id"}
_RUNS_A_QUERY = 50  # their rows are in memory twice, before they are one frame
_ROWS_A_FETCH = 5_000  # small enough for a processor's cache


class SqlReader:
    """Reader of an MLflow database; see ``Reader``.

    Args:
        uri: SQLAlchemy URI, as in MLflow's ``sqlite:///...`` or ``postgresql://...``.

    Raises:
        InputError: if it is no URI of a database, or the driver for it is missing.
    """

    def __init__(self, uri: str) -> None:
        try:
            self._engine = sa.create_engine(uri)
        except (sa.exc.ArgumentError, ValueError) as error:
            raise InputError(
                f"the tracking store {without_password(uri)!r} is neither a database, such as "
                "sqlite:///... or postgresql://..., nor a server at http://... or https://...; set "
                "MLFLOW_TRACKING_URI to one, or unset it for the home's own"
            ) from error
        except ModuleNotFoundError as error:
            raise InputError(
                f"the database driver {error.name} is not installed; `pip install {error.name}`, "
                "or for PostgreSQL `pip install 'loopkv-suite[postgres]'`"
            ) from error
        self._shown = self._engine.url.render_as_string(hide_password=True)
        self._wanted = _active()

    def check(self) -> None:
        """See that there is an MLflow database.

        Raises:
            InputError: if there is none.
        """
        url = self._engine.url
        file = url.database if url.get_backend_name() == "sqlite" else None
        try:
            # opening a sqlite file that is not there would make it
            absent = file and not Path(file).exists()
            if absent or not sa.inspect(self._engine).has_table("runs"):
                raise InputError(
                    f"{self._shown} holds no MLflow runs yet; start with `suite run STUDY`"
                )
        except sa.exc.DBAPIError as error:
            raise InputError(
                f"{self._shown} cannot be read as an MLflow database: {_reason(error)}"
            ) from error

    def runs(self, study: str | None) -> pl.DataFrame:
        """See ``Reader.runs``."""
        named = {
            key: _TAGS.alias(f"tags ({key})")
            for key in ("suite.kind", "suite.cell", "mlflow.parentRunId")
        }
        kind, cell, parent = named.values()
        joined = _RUNS.join(_EXPERIMENTS, _EXPERIMENTS.c.experiment_id == _RUNS.c.experiment_id)
        for key, tag in named.items():
            joined = joined.outerjoin(
                tag, sa.and_(tag.c.run_uuid == _RUNS.c.run_uuid, tag.c.key == key)
            )
        run = _RUNS.c
        statement = (
            sa.select(
                run.run_uuid, _EXPERIMENTS.c.name, run.name, kind.c.value, cell.c.value,
                run.status, run.start_time, run.end_time, parent.c.value,
            )
            .select_from(joined)
            .where(self._wanted)
        )  # fmt: skip
        if study is not None:
            statement = statement.where(_EXPERIMENTS.c.name == study)
        return run_frame(self._rows(statement, "runs"))

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.params``."""
        return self._texts(_PARAMS, run_ids)

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.tags``."""
        return self._texts(_TAGS, run_ids)

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        """See ``Reader.curves``."""
        frames = []
        for ids in in_chunks(run_ids, _RUNS_A_QUERY):
            stored = concatenated(
                (self._points(run_id, keys) for run_id in self._present(ids)), _STORED_SCHEMA
            )
            odd = stored.filter(~pl.col("is_nan").is_in([0, 1]))
            if not odd.is_empty():
                run_id, value = odd.select("run_id", "is_nan").row(0)
                raise odd_value("metrics.is_nan", value, run_id, "0 or 1")
            value = pl.when(pl.col("is_nan") == 1).then(float("nan")).otherwise("value")
            points = stored.with_columns(value=value).select(list(POINT_SCHEMA))
            attempts = self._texts(_TAGS, ids, _TAGS.c.key.startswith(ATTEMPT_TAG))
            frames.append(curve_frame(with_infinities(points), attempts))
        return concatenated(frames, CURVE_SCHEMA)

    def latest_timestamp(self, run_id: str) -> int:
        """See ``Reader.latest_timestamp``."""
        statement = sa.select(sa.func.max(_METRICS.c.timestamp)).where(
            _METRICS.c.run_uuid.in_(self._present([run_id]))
        )
        ((newest,),) = self._rows(statement, "metrics")
        if newest is not None and not isinstance(newest, int):
            raise odd_value("metrics.timestamp", newest, run_id, "a whole number of 64 bits")
        return newest or 0

    def deleted(self) -> SqlReader:
        """See ``Reader.deleted``."""
        other = copy.copy(self)
        other._wanted = sa.not_(_active())
        return other

    def _points(self, run_id: str, keys: Sequence[str] | None) -> pl.DataFrame:
        """Points of one run, as they are stored: asked for so, none brings its run's id along."""
        metric = _METRICS.c
        statement = sa.select(
            metric.key, metric.step, metric.value, metric.timestamp, metric.is_nan
        ).where(metric.run_uuid == run_id)
        if keys is not None:
            # The empty text keeps sqlite from its index by key, which goes through that metric's
            # points of every run there is.
            statement = statement.where((metric.key + "").in_(list(keys)))
        parts = (
            typed_frame(rows, _OF_A_RUN, origins_in("metrics", _OF_A_RUN), run_id=run_id)
            for rows in self._fetch(statement, "metrics")
        )
        points = concatenated(parts, _OF_A_RUN)
        return points.select(pl.lit(run_id).alias("run_id"), *_OF_A_RUN)

    def _present(self, ids: Sequence[str]) -> list[str]:
        statement = (
            sa.select(_RUNS.c.run_uuid)
            .join(_EXPERIMENTS, _EXPERIMENTS.c.experiment_id == _RUNS.c.experiment_id)
            .where(_RUNS.c.run_uuid.in_(list(ids)), self._wanted)
        )
        return [run_id for (run_id,) in self._rows(statement, "runs")]

    def _texts(
        self, table: sa.TableClause, run_ids: Sequence[str], *only: sa.ColumnElement[bool]
    ) -> pl.DataFrame:
        frames = []
        for ids in in_chunks(run_ids, _RUNS_A_QUERY):
            statement = sa.select(table.c.run_uuid, table.c.key, table.c.value).where(
                table.c.run_uuid.in_(self._present(ids)), *only
            )
            rows = self._rows(statement, table.name)
            frames.append(typed_frame(rows, TEXT_SCHEMA, origins_in(table.name, TEXT_SCHEMA)))
        return concatenated(frames, TEXT_SCHEMA).sort("run_id", "key")

    def _rows(self, statement: sa.Select[Any], table: str) -> list[tuple[Any, ...]]:
        return [row for rows in self._fetch(statement, table) for row in rows]

    def _fetch(self, statement: sa.Select[Any], table: str) -> Iterator[Sequence[tuple[Any, ...]]]:
        """Rows, some at a time, as the driver gives them: its rows cost half of SQLAlchemy's."""
        with self._told(table), self._engine.connect() as connection:
            cursor = connection.execute(statement).cursor
            while rows := cursor.fetchmany(_ROWS_A_FETCH):
                yield rows

    @contextlib.contextmanager
    def _told(self, table: str) -> Iterator[None]:
        driver = self._engine.dialect.loaded_dbapi
        try:
            yield
        except (sa.exc.DBAPIError, driver.Error) as error:
            reason = _reason(error)
            cure = (
                "another process keeps it; try again when that is done"
                if "is locked" in reason
                else "if it was edited, restore it from a backup; if MLflow's schema has changed, "
                "`suite doctor --fix` brings it up to date"
            )
            raise SuiteError(
                f"the table {table} of {self._shown} cannot be read ({reason}); {cure}"
            ) from error


def _active() -> sa.ColumnElement[bool]:
    return sa.and_(_RUNS.c.lifecycle_stage == "active", _EXPERIMENTS.c.lifecycle_stage == "active")


def _reason(error: BaseException) -> str:
    return first_line(getattr(error, "orig", None) or error)
