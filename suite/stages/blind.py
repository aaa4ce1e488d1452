"""Blind predictions: what the law says of held-out cells, on record before any of them begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from suite.cells import Cell
from suite.fingerprint import fingerprint
from suite.reports.records import PREDICTS_TAG
from suite.stages.context import StageContext
from suite.stages.law import law_cell, tracked_law
from suite.stages.law_fit import (
    FittedLaw,
    caveat_tag,
    fit_law,
    fit_settings,
    log_prediction,
    untrusted,
)
from suite.stages.law_points import (
    INPUT_TAG,
    LawPoints,
    columns_at,
    law_grid,
    planned_tokens,
    read_now,
    read_points,
)
from suite.study import LawSpec
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import flatten


def predict_held_out(context: StageContext) -> None:
    """Fit the law to the cells that it may see, and record what it says of those held out.

    A cell that has begun is not predicted any more, because that would not be blind. What was
    predicted before by the same law, fitted to the same runs, stands and is not predicted again.

    The law is fitted without cells that failed for good. Where one may still finish, or where
    the prediction itself fails, nothing is predicted yet: the cells that wait for it are held
    back, since no later prediction of a cell that has begun is blind, and the study fails.
    """
    law = context.study.law
    if law is None or context.study.pretraining is None:
        return
    grid = law_grid(context, law)
    if not grid["held_out"].any():
        return
    inputs = grid.filter(~pl.col("held_out"), pl.col("run_id").is_not_null())
    settings = {
        **fit_settings(context, law),
        "cells_digest": fingerprint({"cells": inputs["cell"].sort().to_list()}),
    }
    before = predicted_before(context, settings, inputs)
    left = grid.filter(pl.col("held_out"), ~pl.col("cell").is_in(list(before)))
    begun, due = left.filter(pl.col("begun")), left.filter(~pl.col("begun"))
    unfinished = grid.filter(~pl.col("held_out"), ~pl.col("settled"))
    if len(begun) and not _is_fitted(context, law, grid):
        context.display.note(
            f"note    no prediction is made of {_names(begun)}: it would not be blind, because "
            "they had begun before it"
        )
    if len(due) and len(unfinished):
        _hold_back(
            context, due, f"the law is fitted to {_names(unfinished)} too, which did not finish"
        )
    elif len(due) and not _predict(context, law, settings, inputs, due):
        _hold_back(context, due, "their prediction failed")


def _hold_back(context: StageContext, due: pl.DataFrame, reason: str) -> None:
    context.held_back.update(due["cell"])
    context.failures["held-out cells"] = (
        f"{_names(due)} did not begin, because no blind prediction of them is on record: {reason}; "
        "run the study again, or take them out of law.hold_out to train them without a prediction"
    )
    context.display.note(f"note    held back: {context.failures['held-out cells']}")


def predicted_before(
    context: StageContext, settings: Mapping[str, object], inputs: pl.DataFrame
) -> set[str]:
    """Fingerprints of the cells that finished prediction runs of these settings and runs predict.

    Args:
        context: the stage's.
        settings: of the prediction.
        inputs: cells that the law is fitted to, with cell and run_id.
    """
    runs = [
        cell.run_id for cell in context.tracked("prediction").values() if cell.status == "FINISHED"
    ]
    params: dict[str, dict[str, str]] = {run_id: {} for run_id in runs}
    for run_id, key, value in context.reader.params(runs).iter_rows():
        params[run_id][key] = value
    same = [run_id for run_id in runs if flatten(settings).items() <= params[run_id].items()]
    keys = context.reader.tags(sorted(read_now(context, same, inputs)))["key"]
    return {key.removeprefix(PREDICTS_TAG) for key in keys if key.startswith(PREDICTS_TAG)}


def prediction_cell(law: LawSpec, settings: Mapping[str, object], due: pl.DataFrame) -> Cell:
    """The cell of one prediction: the law's settings, the cells that it reads and predicts."""
    return Cell(
        kind="prediction",
        name=f"predict {law.form}",
        settings={
            **settings,
            "predicted_digest": fingerprint({"cells": due["cell"].sort().to_list()}),
        },
        labels={"hold_out": asdict(law.hold_out), "predicted": due["name"].to_list()},
    )


def _predict(
    context: StageContext,
    law: LawSpec,
    settings: Mapping[str, object],
    inputs: pl.DataFrame,
    due: pl.DataFrame,
) -> bool:
    """Record a prediction; whether it finished."""
    cell = prediction_cell(law, settings, due)
    found = context.tracked("prediction").get(cell.fingerprint)
    if found is not None and found.status == "FINISHED":  # it has read runs that are gone
        found = None
    recorder = context.begin(cell, found)

    def work() -> None:
        points = read_points(context, law, inputs)
        fitted = fit_law(context, cell.name, law, points)
        _record(context, recorder, law, points, fitted, due)

    finished = context.attempt(cell, recorder, work)
    if finished:
        context.display.note(f"done    {cell.name}: {_names(due)}")
    return finished


def _record(
    context: StageContext,
    recorder: RunRecorder,
    law: LawSpec,
    points: LawPoints,
    fitted: FittedLaw,
    due: pl.DataFrame,
) -> None:
    assert context.study.pretraining is not None
    recorder.log(fitted.metrics(), 0)
    tokens = planned_tokens(law, context.study.pretraining)
    doubts = {}
    for row in due.iter_rows(named=True):
        doubts[row["cell"]] = untrusted(fitted.kept, row, tokens)
        band = fitted.kept.predict(columns_at(row, tokens))
        log_prediction(recorder, row["cell"], tokens, band, trusted=not doubts[row["cell"]])
    used = points.cells.select("cell", "run_id").iter_rows()
    recorder.set_tags(
        {
            **{f"{INPUT_TAG}{cell}": run_id for cell, run_id in used},
            **{f"{PREDICTS_TAG}{cell}": "true" for cell in due["cell"]},
            **caveat_tag(doubts),
        }
    )


def _is_fitted(context: StageContext, law: LawSpec, grid: pl.DataFrame) -> bool:
    """Whether the law stage has nothing left to do for the cells as they are."""
    finished = grid.filter(pl.col("run_id").is_not_null())
    found = tracked_law(context, law_cell(context, law, finished), finished)
    return found is not None and found.settled


def _names(cells: pl.DataFrame) -> str:
    return ", ".join(repr(name) for name in cells["name"])
