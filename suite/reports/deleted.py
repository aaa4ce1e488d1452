"""What the judgement of blind predictions asks of runs that were deleted, and may be restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from suite.reports.blind import Clock, Prediction
from suite.reports.records import PREDICTS_TAG, PredictionRun
from suite.tracking.reader import RUN_SCHEMA, Reader


@dataclass(frozen=True, kw_only=True, eq=False)
class DeletedRuns:
    """The deleted runs of a store; none of what these say is drawn.

    Attributes:
        runs: those of every study, with the columns of ``RUN_SCHEMA``.
        params: parameters of the study's pretraining runs, by run id.
        predictions: the study's prediction runs, oldest first.
    """

    runs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RUN_SCHEMA))
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    predictions: tuple[Prediction, ...] = ()

    @property
    def clocks(self) -> dict[str, Clock]:
        """When each of them began, by run id."""
        started = self.runs.select("run_id", "start_time").iter_rows()
        return {run_id: Clock(start=start, deleted=True) for run_id, start in started}


def read_deleted(reader: Reader, study: str) -> DeletedRuns:
    """Read what the store still has of deleted runs.

    Of a prediction only the cells that it names and its times are read: a tag of it that was
    edited keeps nobody from the report.

    Args:
        reader: the store.
        study: name of the study.
    """
    gone = reader.deleted()
    runs = gone.runs(None)
    own = runs.filter(pl.col("study") == study)
    params: dict[str, dict[str, str]] = {}
    trained = own.filter(pl.col("kind") == "pretraining")["run_id"].to_list()
    for run_id, key, value in gone.params(trained).iter_rows():
        params.setdefault(run_id, {})[key] = value
    predicted = own.filter(pl.col("kind") == "prediction")
    named: dict[str, set[str]] = {}
    for run_id, key, _ in gone.tags(predicted["run_id"].to_list()).iter_rows():
        if key.startswith(PREDICTS_TAG):
            named.setdefault(run_id, set()).add(key.removeprefix(PREDICTS_TAG))
    predictions = tuple(
        Prediction(
            run=PredictionRun(
                run_id=row["run_id"],
                name=row["name"] or row["run_id"],
                status=row["status"],
                failure=None,
                attempts=1,
                start_time=row["start_time"] or 0,
                end_time=row["end_time"],
                inputs={},
                predicts=frozenset(named.get(row["run_id"], ())),
            ),
            last_point=gone.latest_timestamp(row["run_id"]),
            law={},
            curves={},
            deleted=True,
        )
        for row in predicted.iter_rows(named=True)
    )
    return DeletedRuns(runs=runs, params=params, predictions=predictions)
