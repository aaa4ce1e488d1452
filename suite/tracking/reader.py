"""Back in from the store: typed polars frames of runs, params, tags and curves."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import polars as pl
import sqlalchemy as sa

from suite.errors import InputError
from suite.tracking.curves import POINT_SCHEMA, attempts_from_tags, live, mark_superseded
from suite.tracking.home import Home

__all__ = ["Reader", "SqlReader", "live", "open_reader"]

Schema = Mapping[str, type[pl.DataType]]

RUN_SCHEMA: Schema = {
    "run_id": pl.String,
    "name": pl.String,
    "kind": pl.String,
    "cell": pl.String,
    "status": pl.String,
    "start_time": pl.Int64,
    "end_time": pl.Int64,
    "parent_run_id": pl.String,
}
TEXT_SCHEMA: Schema = {"run_id": pl.String, "key": pl.String, "value": pl.String}
_LARGEST = sys.float_info.max
_CHUNK = 500  # run ids a query; sqlite allows 32,766 bound values


class Reader(Protocol):
    """What reports, laws and searches may ask of a tracking store; deleted runs never appear."""

    def runs(self, study: str) -> pl.DataFrame:
        """Runs of a study, sorted by start_time and run_id; empty when there are none."""
        ...

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """Frame of run_id, key, value."""
        ...

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """Frame of run_id, key, value."""
        ...

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        """Points with run_id, key, step, value, timestamp (ms), attempt, superseded."""
        ...


def open_reader(home: Home) -> SqlReader:
    """The reader of a home's store.

    Raises:
        InputError: if the store is a server (not readable yet), does not exist, or is no MLflow
            database.
    """
    if home.tracking_uri.startswith(("http:", "https:")):
        raise InputError(
            f"the tracking store {home.tracking_uri} is a server; reports read a database URI "
            "such as postgresql://... or the home's own sqlite file"
        )
    if home.owns_database and not home.database.exists():
        raise InputError(f"{home.root} holds no runs yet; start with `suite run STUDY`")
    reader = SqlReader(home.tracking_uri)
    reader.check()
    return reader


class SqlReader:
    """Reader of an MLflow database, by SQL.

    Args:
        uri: SQLAlchemy URI, as in MLflow's ``sqlite:///...`` or ``postgresql://...``.
    """

    def __init__(self, uri: str) -> None:
        self._engine = sa.create_engine(uri)

    def check(self) -> None:
        """See that there is an MLflow database.

        Raises:
            InputError: if there is none.
        """
        url, shown = self._engine.url, self._engine.url.render_as_string(hide_password=True)
        file = url.database if url.get_backend_name() == "sqlite" else None
        try:
            # opening a sqlite file that is not there would make it
            if (file and not Path(file).exists()) or not sa.inspect(self._engine).has_table("runs"):
                raise InputError(f"{shown} holds no MLflow runs yet; start with `suite run STUDY`")
        except sa.exc.DBAPIError as error:
            raise InputError(
                f"{shown} cannot be read as an MLflow database: {error.orig}"
            ) from error

    def _frame(self, query: str, schema: Schema, **values: object) -> pl.DataFrame:
        statement = sa.text(query)
        for name, value in values.items():
            if isinstance(value, list):
                statement = statement.bindparams(sa.bindparam(name, expanding=True))
        with self._engine.connect() as connection:
            rows = connection.execute(statement, values).fetchall()
        return pl.DataFrame([tuple(row) for row in rows], schema=schema, orient="row", strict=True)

    def _by_run(
        self,
        query: str,
        schema: Schema,
        run_ids: Sequence[str],
        **values: object,
    ) -> pl.DataFrame:
        ids = sorted(set(run_ids))
        frames = [
            self._frame(query, schema, run_ids=ids[start : start + _CHUNK], **values)
            for start in range(0, len(ids), _CHUNK)
        ]
        return pl.concat(frames) if frames else pl.DataFrame(schema=schema)

    def runs(self, study: str) -> pl.DataFrame:
        """See ``Reader.runs``."""
        return self._frame(
            """
            SELECT r.run_uuid, r.name, kind.value, cell.value, r.status, r.start_time, r.end_time,
                   parent.value
            FROM runs r
            JOIN experiments e ON e.experiment_id = r.experiment_id
            LEFT JOIN tags kind ON kind.run_uuid = r.run_uuid AND kind.key = 'suite.kind'
            LEFT JOIN tags cell ON cell.run_uuid = r.run_uuid AND cell.key = 'suite.cell'
            LEFT JOIN tags parent
                   ON parent.run_uuid = r.run_uuid AND parent.key = 'mlflow.parentRunId'
            WHERE e.name = :study AND r.lifecycle_stage = 'active'
            """,
            RUN_SCHEMA,
            study=study,
        ).sort("start_time", "run_id")

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.params``."""
        return self._by_run(
            "SELECT run_uuid, key, value FROM params WHERE run_uuid IN :run_ids",
            TEXT_SCHEMA,
            run_ids,
        ).sort("run_id", "key")

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.tags``."""
        return self._by_run(
            "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN :run_ids", TEXT_SCHEMA, run_ids
        ).sort("run_id", "key")

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        """See ``Reader.curves``."""
        query = """
            SELECT run_uuid, key, step, CASE WHEN is_nan THEN NULL ELSE value END, timestamp
            FROM metrics WHERE run_uuid IN :run_ids
            """
        if keys is None:
            points = self._by_run(query, POINT_SCHEMA, run_ids)
        else:
            points = self._by_run(f"{query} AND key IN :keys", POINT_SCHEMA, run_ids, keys=[*keys])
        value = pl.col("value")
        restored = (
            pl.when(value.is_null())
            .then(float("nan"))
            .when(value.abs() >= _LARGEST)  # MLflow stores the infinities as the largest double
            .then(value.sign() * float("inf"))
            .otherwise(value)
        )
        return mark_superseded(points.with_columns(value=restored), self._attempts(run_ids))

    def _attempts(self, run_ids: Sequence[str]) -> pl.DataFrame:
        tags = self._by_run(
            "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN :run_ids "
            "AND key LIKE 'suite.attempt.%'",
            TEXT_SCHEMA,
            run_ids,
        )
        rows = [
            (run_id, attempt.number, attempt.started, attempt.resumed_from)
            for (run_id,), group in tags.group_by("run_id", maintain_order=True)
            for attempt in attempts_from_tags(
                dict(zip(group["key"].to_list(), group["value"].to_list(), strict=True))
            )
        ]
        return pl.DataFrame(
            rows,
            schema={
                "run_id": pl.String,
                "number": pl.Int64,
                "started": pl.Int64,
                "resumed_from": pl.Int64,
            },
            orient="row",
        )
