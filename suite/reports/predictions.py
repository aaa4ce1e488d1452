"""From the reader to the judgement: which held-out curves of a study were predicted blind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from suite.errors import SuiteError
from suite.reports.blind import Clock, HeldOutCurve, Prediction, judge
from suite.reports.law_metrics import parameters_of
from suite.reports.points import Curve
from suite.reports.records import Blindness, LawRun, PredictionRun, PretrainingCell
from suite.tracking.curves import attempts_from_tags

CurveMap = Mapping[tuple[str, str], Curve]


def judge_cells(
    cells: Iterable[PretrainingCell],
    law: LawRun,
    predictions: Sequence[PredictionRun],
    curves: CurveMap,
    clocks: Mapping[str, Clock],
    runs: pl.DataFrame,
) -> dict[str, Blindness]:
    """Judge every cell that the law held out.

    Args:
        cells: the cells that are drawn.
        law: the law that is drawn.
        predictions: prediction runs, oldest first.
        curves: live curves of all these runs.
        clocks: clocks of the study's runs, by run id.
        runs: run_id and cell of every run of the study.

    Returns:
        Judgements by run id.
    """
    recorded = [
        Prediction(
            run=run,
            last_point=clocks[run.run_id].last_point,
            law=parameters_of(curves, run.run_id),
            curves={
                cell: curves[run.run_id, key]
                for cell in run.predicts
                if (run.run_id, key := f"predicted/{cell}") in curves
            },
        )
        for run in predictions
    ]
    fitted = parameters_of(curves, law.run_id)
    return {
        cell.run_id: judge(
            HeldOutCurve(
                cell=cell.cell,
                run_id=cell.run_id,
                other_runs=tuple(
                    runs.filter(pl.col("cell") == cell.cell, pl.col("run_id") != cell.run_id)[
                        "run_id"
                    ]
                ),
                predicted=curves.get((law.run_id, f"predicted/{cell.cell}")),
                law=fitted,
            ),
            recorded,
            clocks,
        )
        for cell in cells
        if cell.cell in law.held_out
    }


def read_clocks(
    runs: pl.DataFrame, tags: Mapping[str, Mapping[str, str]], points: pl.DataFrame
) -> dict[str, Clock]:
    """When each run worked.

    Args:
        runs: run_id and start_time.
        tags: tags by run id.
        points: run_id and timestamp of points, overtaken ones included; of a run that is not
            among them, the clock has no points.
    """
    times = points.group_by("run_id").agg(
        first=pl.col("timestamp").min(), last=pl.col("timestamp").max()
    )
    ends = {run_id: (first, last) for run_id, first, last in times.iter_rows()}
    clocks = {}
    for run_id, start in runs.select("run_id", "start_time").iter_rows():
        first, last = ends.get(run_id, (None, None))
        clocks[run_id] = Clock(
            start=start,
            first_attempt=_first_attempt(tags.get(run_id, {})),
            first_point=first,
            last_point=last,
        )
    return clocks


def _first_attempt(tags: Mapping[str, str]) -> int | None:
    """When the earliest attempt began; None where no tag, or an edited one, tells it."""
    try:
        started = [attempt.started for attempt in attempts_from_tags(tags)]
    except (SuiteError, TypeError):  # numbers that do not compare
        return None
    return min(started) if started and all(type(at) is int for at in started) else None
