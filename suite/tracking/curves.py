"""Curves that know of attempts: which tracked points a later attempt has overtaken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import polars as pl

from suite.errors import SuiteError
from suite.tracking.processes import WorkingProcess

ATTEMPT_TAG = "suite.attempt."
POINT_SCHEMA: Mapping[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "key": pl.String,
    "step": pl.Int64,
    "value": pl.Float64,
    "timestamp": pl.Int64,
}
CURVE_SCHEMA: Mapping[str, type[pl.DataType]] = {
    **POINT_SCHEMA,
    "attempt": pl.Int64,
    "superseded": pl.Boolean,
}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process's work on a run.

    Attributes:
        number: 1 for the first.
        started: ms since the epoch, later than every point of earlier attempts.
        resumed_from: tokens that it went on from; -1 when it started afresh, so that step 0
            of an earlier attempt is overtaken too.
        host: machine.
        pid: process.
        device: what computed.
        process_started: when the process started, in seconds since the epoch.
        settings: what it worked with that does not decide a result: devices, workers.
        ended: ms since the epoch; none while it works.
        outcome: status that it ended with, ``CUT_OFF`` when its process was found gone, or none
            while it works.
    """

    number: int
    started: int
    resumed_from: int
    host: str
    pid: int
    device: str
    process_started: float | None = None
    settings: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    ended: int | None = None
    outcome: str | None = None

    @property
    def process(self) -> WorkingProcess:
        """The process that worked."""
        return WorkingProcess(host=self.host, pid=self.pid, started=self.process_started)

    def to_tag(self) -> tuple[str, str]:
        """Key and value of the run tag that holds this attempt."""
        return f"{ATTEMPT_TAG}{self.number}", json.dumps(asdict(self), sort_keys=True)


def attempts_from_tags(tags: Mapping[str, str]) -> tuple[Attempt, ...]:
    """Attempts of one run, from its tags, in order.

    Raises:
        SuiteError: if a tag was edited into something else.
    """
    found = [_attempt(key, value) for key, value in tags.items() if key.startswith(ATTEMPT_TAG)]
    return tuple(sorted(found, key=lambda attempt: attempt.number))


def _attempt(key: str, value: str) -> Attempt:
    try:
        return Attempt(**json.loads(value))
    except (TypeError, ValueError) as error:
        raise SuiteError(
            f"the tag {key} does not describe an attempt: {value[:200]!r}; it was edited outside "
            "the suite, so its points cannot be told apart; restore it, or delete the run"
        ) from error


def mark_superseded(points: pl.DataFrame, attempts: pl.DataFrame) -> pl.DataFrame:
    """Say of each point which attempt logged it and whether a later one has overtaken it.

    A point belongs to the last attempt that started no later than its timestamp (to the first,
    where it is older than all). It is superseded when a later attempt resumed from fewer
    tokens than its step.

    Args:
        points: frame of ``POINT_SCHEMA``.
        attempts: run_id, number, started, resumed_from.

    Returns:
        Frame of ``CURVE_SCHEMA`` sorted by run_id, key, step, timestamp.
    """
    ranges = (
        attempts.sort("run_id", "number", descending=[False, True])
        .with_columns(
            # the least resume point among the attempts that came after
            overtaken_above=pl.col("resumed_from").cum_min().shift(1).over("run_id")
        )
        .select("run_id", "started", attempt="number", overtaken_above="overtaken_above")
        .sort("started")
    )
    joined = points.sort("timestamp").join_asof(
        ranges,
        left_on="timestamp",
        right_on="started",
        by="run_id",
        strategy="backward",
        check_sortedness=False,
    )
    first = ranges.filter(pl.col("attempt") == 1).select(
        "run_id", first_attempt="attempt", first_overtaken="overtaken_above"
    )
    return (
        joined.join(first, on="run_id", how="left")
        .with_columns(
            overtaken_above=pl.when(pl.col("attempt").is_null())
            .then(pl.col("first_overtaken"))
            .otherwise(pl.col("overtaken_above")),
            attempt=pl.coalesce("attempt", "first_attempt", pl.lit(1)).cast(pl.Int64),
        )
        .with_columns(superseded=(pl.col("step") > pl.col("overtaken_above")).fill_null(False))
        .select(list(CURVE_SCHEMA))
        .sort("run_id", "key", "step", "timestamp", "value")
    )


def live(curves: pl.DataFrame) -> pl.DataFrame:
    """Points that count: not superseded, and one (the newest) for each run, key and step."""
    point = pl.struct("run_id", "key", "step")
    return (
        curves.filter(~pl.col("superseded"))
        .sort("run_id", "key", "step", "timestamp", maintain_order=True)
        .filter((point != point.shift(-1)).fill_null(True))
        .select(list(POINT_SCHEMA))
    )
