"""From the reader to the judgement: which held-out curves of a study were predicted blind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from suite.errors import SuiteError
from suite.reports.blind import (
    Clock,
    HeldOutCurve,
    OtherRun,
    PredictedCurve,
    Prediction,
    judge,
)
from suite.reports.deleted import DeletedRuns
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
    others: Mapping[str, tuple[OtherRun, ...]],
    deleted: DeletedRuns,
) -> dict[str, Blindness]:
    """Judge cells that the law held out.

    Args:
        cells: the cells.
        law: the law that is drawn.
        predictions: prediction runs, oldest first.
        curves: live curves of all these runs.
        clocks: clocks of the study's runs, by run id.
        others: other runs that may have told the outcome of a cell, by the cell's run id.
        deleted: the deleted runs of the store.

    Returns:
        Judgements by run id.
    """
    recorded = [
        Prediction(
            run=run,
            last_point=clocks[run.run_id].last_point,
            law=parameters_of(curves, run.run_id),
            curves={cell: PredictedCurve.of(curves, run.run_id, cell) for cell in run.predicts},
        )
        for run in predictions
    ]
    fitted = parameters_of(curves, law.run_id)
    all_clocks = {**deleted.clocks, **clocks}
    return {
        cell.run_id: judge(
            HeldOutCurve(
                cell=cell.cell,
                run_id=cell.run_id,
                other_runs=others.get(cell.run_id, ()),
                predicted=PredictedCurve.of(curves, law.run_id, cell.cell),
                law=fitted,
                unidentified=frozenset(law.unidentified),
            ),
            [*deleted.predictions, *recorded],
            all_clocks,
        )
        for cell in cells
    }


def foretold(
    predictions: Iterable[PredictionRun], runs: pl.DataFrame, deleted: pl.DataFrame
) -> dict[str, str]:
    """Status of the newest run of each cell that a finished prediction names, by fingerprint.

    Args:
        predictions: the study's predictions.
        runs: cell and status of the study's runs, oldest first.
        deleted: cell of the study's deleted runs; one whose every run was deleted is told so.
    """
    status = dict.fromkeys(deleted["cell"].drop_nulls(), "deleted")
    status |= dict(runs.filter(pl.col("cell").is_not_null()).select("cell", "status").iter_rows())
    named = {cell for run in predictions if run.finished for cell in run.predicts}
    return {cell: status.get(cell, "not begun") for cell in sorted(named)}


def read_other_runs(
    cells: Iterable[PretrainingCell],
    study: str,
    everywhere: pl.DataFrame,
    params: Mapping[str, Mapping[str, str]],
    deleted: DeletedRuns,
) -> dict[str, tuple[OtherRun, ...]]:
    """Other runs that may have told the outcome of a cell, by the cell's run id.

    They are the runs of the same cell in any study of the store, and those of the own study at
    the same size and T_m with other settings; those that were deleted among them.

    Args:
        cells: the cells.
        study: name of the study.
        everywhere: run_id, study, kind, cell and start_time of every run of the store.
        params: parameters of the study's runs, by run id.
        deleted: the deleted runs of the store.
    """
    rows = [
        (*row, gone)
        for frame, gone in ((everywhere, False), (deleted.runs, True))
        for row in frame.filter(pl.col("kind") == "pretraining")
        .select("run_id", "study", "cell", "start_time")
        .iter_rows()
    ]
    settings = {**params, **deleted.params}
    found: dict[str, tuple[OtherRun, ...]] = {}
    for cell in cells:
        others = []
        place = {"size.name": cell.size, "recurrence": str(cell.recurrence)}
        for run_id, owner, fingerprint, start, gone in rows:
            if run_id == cell.run_id:
                continue
            if fingerprint == cell.cell:
                words = "the same cell" + ("" if owner == study else f" in the study {owner!r}")
            elif owner == study and place.items() <= settings.get(run_id, {}).items():
                words = "the same size and T_m with other settings"
            else:
                continue
            others.append(OtherRun(run_id=run_id, start=start, measured=words, deleted=gone))
        found[cell.run_id] = tuple(others)
    return found


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
