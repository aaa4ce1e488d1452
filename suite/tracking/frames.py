"""What a store answers, as typed frames: nothing is inferred, and nothing odd passes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import polars as pl

from suite.errors import SuiteError
from suite.tracking.curves import attempts_from_tags, mark_superseded
from suite.tracking.reader import RUN_SCHEMA, Schema

ORIGINS: Mapping[str, str] = {
    "run_id": "runs.run_uuid",
    "study": "experiments.name",
    "name": "runs.name",
    "kind": "tags.value",
    "cell": "tags.value",
    "status": "runs.status",
    "start_time": "runs.start_time",
    "end_time": "runs.end_time",
    "parent_run_id": "tags.value",
}
"""Table and column of MLflow's database behind each column of ``RUN_SCHEMA``."""
_NULLABLE = ("name", "kind", "cell", "start_time", "end_time", "parent_run_id")
_NAMES: Mapping[type[pl.DataType], str] = {
    pl.String: "a text",
    pl.Int64: "a whole number of 64 bits",
    pl.Int8: "0 or 1",
    pl.Float64: "a number",
}
_LARGEST = sys.float_info.max
_END_OF_TIME = 253_402_300_800_000  # the year 10000, in ms; no calendar of Python's goes further
_ATTEMPT_SCHEMA: Schema = {
    "run_id": pl.String,
    "number": pl.Int64,
    "started": pl.Int64,
    "resumed_from": pl.Int64,
}


def odd_value(origin: str, value: object, run_id: object, expected: str) -> SuiteError:
    """The error for a value that MLflow does not write."""
    return SuiteError(
        f"the column {origin} of the tracking store holds {_shorten(value)} for the run "
        f"{_shorten(run_id)}, where {expected} belongs; it was edited outside the suite; restore "
        "the store from a backup, or delete the run for good (`mlflow gc`)"
    )


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def origins_in(table: str, columns: Iterable[str]) -> dict[str, str]:
    """Table and column behind each name, where one table has them all."""
    return {name: f"{table}.{'run_uuid' if name == 'run_id' else name}" for name in columns}


def typed_frame(
    rows: Sequence[Sequence[object]],
    schema: Schema,
    origins: Mapping[str, str],
    nullable: Collection[str] = (),
    *,
    run_id: str | None = None,
) -> pl.DataFrame:
    """Rows as a frame of ``schema``.

    Args:
        rows: as many values each as the schema has columns.
        schema: names and types.
        origins: table and column behind each name, for messages.
        nullable: names of columns that may be empty.
        run_id: the run of all rows; none where each begins with its own.

    Raises:
        SuiteError: for a value of another type, or an empty one; it names the column and run.
    """
    if not rows:
        return pl.DataFrame(schema=schema)
    series = []
    for number, (name, dtype) in enumerate(schema.items()):
        values = [row[number] for row in rows]
        try:
            column = pl.Series(name, values, dtype=dtype, strict=True)
        except (TypeError, OverflowError, UnicodeError, pl.exceptions.PolarsError) as error:
            at = next((at for at, value in enumerate(values) if not _fits(value, dtype)), 0)
            raise odd_value(
                origins[name], values[at], run_id or rows[at][0], _NAMES[dtype]
            ) from error
        if name not in nullable and column.null_count():
            at = column.is_null().arg_max() or 0
            raise odd_value(origins[name], None, run_id or rows[at][0], _NAMES[dtype])
        series.append(column)
    return pl.DataFrame(series)


def _fits(value: object, dtype: type[pl.DataType]) -> bool:
    try:
        pl.Series([value], dtype=dtype, strict=True)
    except (TypeError, OverflowError, UnicodeError, pl.exceptions.PolarsError):
        return False
    return True


def run_frame(rows: Sequence[Sequence[object]]) -> pl.DataFrame:
    """Runs as a frame of ``RUN_SCHEMA``, in order.

    Raises:
        SuiteError: for an odd value, among them a time that no calendar has.
    """
    frame = typed_frame(rows, RUN_SCHEMA, ORIGINS, _NULLABLE)
    for name in ("start_time", "end_time"):
        outside = frame.filter(~pl.col(name).is_between(0, _END_OF_TIME, closed="left"))
        if not outside.is_empty():
            run_id, value = outside.select("run_id", name).row(0)
            raise odd_value(ORIGINS[name], value, run_id, "a time in ms from 1970 to 9999")
    return frame.sort("start_time", "run_id")


def with_infinities(points: pl.DataFrame) -> pl.DataFrame:
    """Points with the infinities that MLflow stores as the largest double of their sign."""
    value = pl.col("value")
    return points.with_columns(
        value=pl.when(value.is_finite() & (value.abs() >= _LARGEST))
        .then(value.sign() * float("inf"))
        .otherwise(value)
    )


def curve_frame(points: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """Points with their attempts, of ``CURVE_SCHEMA``.

    Args:
        points: of ``POINT_SCHEMA``.
        tags: of ``TEXT_SCHEMA``, read after the points: a point is then never newer than the
            last attempt that is known, which would pass it off as an earlier attempt's.

    Raises:
        SuiteError: if a tag of an attempt was edited.
    """
    texts: dict[str, dict[str, str]] = {}
    for run_id, key, value in tags.iter_rows():
        texts.setdefault(run_id, {})[key] = value
    rows = [
        (run_id, attempt.number, attempt.started, attempt.resumed_from)
        for run_id, of_run in texts.items()
        for attempt in attempts_from_tags(of_run)
    ]
    return mark_superseded(points, pl.DataFrame(rows, schema=_ATTEMPT_SCHEMA, orient="row"))


def in_chunks(run_ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """Distinct ids in order, some at a time, so that no request or answer grows too large."""
    ids = sorted(set(run_ids))
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def concatenated(frames: Iterable[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    """All frames under each other; an empty one of ``schema`` where there are none."""
    return pl.concat([pl.DataFrame(schema=schema), *frames], rechunk=False)
