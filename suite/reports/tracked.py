"""From the reader to records: which runs of a study count, and what they say.

A study's store may hold more runs than its figures have room for: an older configuration of a
grid point, a second fit of a law, a run that died before it wrote its settings. The newest run
wins, and each run that is not drawn is named with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import polars as pl

from suite.reports.deleted import DeletedRuns, read_deleted
from suite.reports.points import Curve
from suite.reports.predictions import foretold, judge_cells, read_clocks, read_other_runs
from suite.reports.records import (
    PREDICTS_TAG,
    Blindness,
    CalibrationCell,
    LawRun,
    LeftOut,
    PredictionRun,
    PretrainingCell,
    Search,
    Tracked,
    TrackedRun,
    Trial,
)
from suite.reports.run_text import RunText, UnreadableError, read_text
from suite.tracking.reader import Reader, live

LOSS_METRICS = ("train/total_loss", "val/total_loss", "val/bits_per_byte")
SELECTED_TAG = "suite.selected"
_KINDS = ("pretraining", "calibration", "law", "prediction", "search", "trial")
_RunT = TypeVar("_RunT", bound=TrackedRun)


def _pretraining(run: RunText) -> PretrainingCell:
    return PretrainingCell(
        **run.run,
        cell=run.cell,
        size=run.text("size.name"),
        recurrence=run.integer("recurrence"),
        parameters=run.integer("parameters.total"),
        non_embedding=read_text(
            "parameters.non_embedding", run.params.get("parameters.non_embedding", "0"), int
        ),
        tokens=run.integer("tokens"),
        objective=", beta ".join(
            run.params[key] for key in ("objective.form", "objective.beta") if key in run.params
        ),
    )


def _calibration(run: RunText) -> CalibrationCell:
    return CalibrationCell(
        **run.run,
        cell=run.cell,
        model=run.text("model.label"),
        calibrate_on=run.text("calibrate_on"),
        evaluate_on=run.names("evaluate_on"),
        niter=run.text("niter"),
        rank=run.integer("rank"),
        budgets=run.integers("budgets"),
    )


def _law(run: RunText) -> LawRun:
    own = ("form", "metric", "parameters", "fit_from")
    return LawRun(
        **run.run,
        form=run.text("form"),
        metric=run.text("metric"),
        parameters=run.text("parameters"),
        fit_from=run.number("fit_from"),
        settings=tuple(sorted(item for item in run.params.items() if item[0] not in own)),
        inputs=run.tagged("suite.input."),
        held_out=run.tagged("suite.held_out."),
        warnings=run.sentences("suite.law.warnings"),
        unidentified=run.sentences("suite.law.unidentified"),
        caveats=run.sentences_by_name("suite.law.caveats"),
    )


def _prediction(run: RunText) -> PredictionRun:
    return PredictionRun(
        **run.run,
        end_time=run.row["end_time"],
        inputs=run.tagged("suite.input."),
        predicts=frozenset(run.tagged(PREDICTS_TAG)),
    )


def _trial(run: RunText) -> Trial:
    return Trial(
        **run.run,
        number=run.integer("trial.number"),
        niter=run.text("niter"),
        tokens=run.integer("tokens"),
        rank=run.integer("rank"),
    )


def _search(run: RunText, trials: Iterable[Trial]) -> Search:
    return Search(
        **run.run,
        search=run.text("name"),
        objectives=run.names("objectives"),
        model=run.text("model.label"),
        calibrate_on=run.text("calibrate_on"),
        evaluate_on=run.text("evaluate_on"),
        trials=tuple(sorted(trials, key=lambda trial: (trial.number, trial.run_id))),
    )


class _Selection:
    """Reads runs into records and keeps account of those that are left out."""

    def __init__(self, runs: Iterable[RunText]) -> None:
        self._by_kind: dict[str, list[RunText]] = {}
        for run in runs:
            self._by_kind.setdefault(run.row["kind"], []).append(run)
        self.left_out: list[LeftOut] = []

    def leave_out(self, run: TrackedRun, reason: str) -> None:
        self.left_out.append(LeftOut(run_id=run.run_id, name=run.name, reason=reason))

    def read(self, kind: str, record: Callable[[RunText], _RunT]) -> list[tuple[RunText, _RunT]]:
        """Records of one kind, oldest first."""
        found = []
        for run in self._by_kind.get(kind, []):
            try:
                found.append((run, record(run)))
            except UnreadableError as reason:
                row = run.row
                self.left_out.append(
                    LeftOut(
                        run_id=row["run_id"],
                        name=row["name"] or row["run_id"],
                        reason=f"{row['status'].lower()} {kind} run: {reason}",
                    )
                )
        return found

    def newest(
        self, kind: str, record: Callable[[RunText], _RunT], point: Callable[[_RunT], Hashable]
    ) -> tuple[_RunT, ...]:
        """The run of each grid point that was selected last, oldest point first."""
        chosen: dict[Hashable, _RunT] = {}
        for _, run in self.read(kind, record):
            older = chosen.pop(point(run), None)
            if older is not None:
                self.leave_out(older, f"run {run.run_id} is newer at the same grid point")
            chosen[point(run)] = run
        return tuple(sorted(chosen.values(), key=lambda run: (run.start_time, run.run_id)))


def selection_times(runs: pl.DataFrame, tags: pl.DataFrame) -> dict[str, int]:
    """When each run was last selected, in ms since 1970: at its start, or as its tag says.

    Args:
        runs: with run_id and start_time.
        tags: with run_id, key and value.
    """
    marks = tags.filter(pl.col("key") == SELECTED_TAG).select("run_id", "value")
    marked = {run_id: int(value) for run_id, value in marks.iter_rows() if value.isdecimal()}
    started = runs.select("run_id", "start_time").iter_rows()
    return {run_id: max(start or 0, marked.get(run_id, 0)) for run_id, start in started}


def read_tracked(reader: Reader, study: str) -> Tracked:
    """Everything that a report may show of ``study``; empty if nothing is tracked.

    Args:
        reader: a tracking store.
        study: name of the study, which is the name of its MLflow experiment.
    """
    frame = reader.runs(study).filter(pl.col("kind").is_in(_KINDS))
    ids = frame["run_id"].to_list()
    tag_frame = reader.tags(ids)
    params, tags = _texts(reader.params(ids)), _texts(tag_frame)
    times = selection_times(frame, tag_frame)
    rows = sorted(frame.iter_rows(named=True), key=lambda r: (times[r["run_id"]], r["run_id"]))
    selection = _Selection(
        RunText(row, params.get(row["run_id"], {}), tags.get(row["run_id"], {})) for row in rows
    )
    pretraining = selection.newest("pretraining", _pretraining, lambda c: (c.size, c.recurrence))
    calibration = selection.newest(
        "calibration", _calibration, lambda c: (c.model, c.calibrate_on, c.niter)
    )
    law = _newest_law(selection)
    predictions = [run for _, run in selection.read("prediction", _prediction)]
    trials: dict[str | None, list[Trial]] = {}
    for run, trial in selection.read("trial", _trial):
        trials.setdefault(run.row["parent_run_id"], []).append(trial)
    searches = selection.newest(
        "search", lambda run: _search(run, trials.get(run.row["run_id"], ())), lambda s: s.search
    )
    whole = [*calibration, *([law] if law else []), *(t for s in searches for t in s.trials)]
    loss_keys = sorted({*LOSS_METRICS, *([law.metric] if law else [])})
    fitted = {run_id for prediction in predictions for run_id in prediction.inputs.values()}
    losses = reader.curves(sorted({cell.run_id for cell in pretraining} | fitted), loss_keys)
    recorded = reader.curves([run.run_id for run in predictions])
    curves = {
        **_curves(losses),
        **_curves(recorded),
        **_curves(reader.curves([run.run_id for run in whole])),
    }
    held_out = [cell for cell in pretraining if law is not None and cell.cell in law.held_out]
    deleted = read_deleted(reader, study) if held_out or predictions else DeletedRuns()
    own_deleted = deleted.runs.filter(pl.col("study") == study)
    blindness: Mapping[str, Blindness] = {}
    if law is not None and held_out:
        clocks = read_clocks(frame, tags, pl.concat([losses, recorded]))
        others = read_other_runs(held_out, study, reader.runs(None), params, deleted)
        blindness = judge_cells(held_out, law, predictions, curves, clocks, others, deleted)
    return Tracked(
        study=study,
        pretraining=pretraining,
        calibration=calibration,
        law=law,
        blindness=blindness,
        foretold=foretold(predictions, frame, own_deleted),
        searches=searches,
        left_out=tuple(selection.left_out),
        notes=tuple(_notes(pretraining, law)),
        curves=curves,
    )


def _newest_law(selection: _Selection) -> LawRun | None:
    fits = [law for _, law in selection.read("law", _law)]
    finished = [law for law in fits if law.finished]
    chosen = finished[-1] if finished else None
    for law in fits:
        if law is not chosen:
            newer = chosen is not None and law.finished
            reason = (
                f"run {chosen.run_id} is a newer fit"
                if newer and chosen
                else f"law run with status {law.status}"
            )
            selection.leave_out(law, reason)
    return chosen


def _notes(cells: Iterable[PretrainingCell], law: LawRun | None) -> Iterable[str]:
    cells = tuple(cells)
    forms = sorted({cell.objective for cell in cells if cell.objective})
    if len(forms) > 1:
        yield f"The cells track their total loss in different forms: {'; '.join(forms)}."
    if law is None:
        return
    fitted = {**law.inputs, **law.held_out}
    for cell in cells:
        run_id = fitted.get(cell.cell)
        if run_id is None:
            yield (
                f"The law neither fitted nor held out the cell {cell.name} "
                f"({cell.status}, run {cell.run_id})."
            )
        elif run_id != cell.run_id:
            yield f"The law read the cell {cell.name} from run {run_id}, not from {cell.run_id}."


def _texts(frame: pl.DataFrame) -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = {}
    for run_id, key, value in frame.select("run_id", "key", "value").iter_rows():
        texts.setdefault(run_id, {})[key] = value
    return texts


def _curves(points: pl.DataFrame) -> dict[tuple[str, str], Curve]:
    grouped = (
        live(points)
        .sort("run_id", "key", "step")
        .group_by("run_id", "key", maintain_order=True)
        .agg("step", "value")
    )
    return {
        (run_id, key): Curve(run_id=run_id, key=key, step=step.to_numpy(), value=value.to_numpy())
        for run_id, key, step, value in zip(
            *(grouped[column] for column in ("run_id", "key", "step", "value")), strict=True
        )
    }
