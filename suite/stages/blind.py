"""Blind predictions: what the law says of held-out cells, on record before any of them begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from suite.cells import Cell
from suite.fingerprint import fingerprint
from suite.stages.context import StageContext
from suite.stages.law import law_cell
from suite.stages.law_fit import FittedLaw, fit_law, fit_settings, log_prediction
from suite.stages.law_points import (
    LawPoints,
    columns_at,
    law_grid,
    planned_tokens,
    read_points,
)
from suite.study import LawSpec
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import flatten

PREDICTS_TAG = "suite.predicts."
"""Followed by the fingerprint of a cell that a prediction run predicts."""


def predict_held_out(context: StageContext) -> None:
    """Fit the law to the cells that it may see, and record what it says of those held out.

    A cell that has begun is not predicted any more, because that would not be blind. Nor is any
    where a cell that the law is fitted to did not finish: the report's law may be another then.
    What was predicted before by the same law stands, and is not predicted again.
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
    before = predicted_before(context, settings)
    left = grid.filter(pl.col("held_out"), ~pl.col("cell").is_in(list(before)))
    begun, due = left.filter(pl.col("begun")), left.filter(~pl.col("begun"))
    unfinished = grid.filter(~pl.col("held_out"), pl.col("run_id").is_null())
    if len(begun) and not _is_fitted(context, law, grid):
        context.display.note(
            f"note    no prediction is made of {_names(begun)}: it would not be blind, because "
            "they had begun before it"
        )
    if len(due) and len(unfinished):
        context.display.note(
            f"note    no prediction is made of {_names(due)}: the law is fitted to "
            f"{_names(unfinished)} too, which did not finish"
        )
    elif len(due):
        _predict(context, law, settings, inputs, due)


def predicted_before(context: StageContext, settings: Mapping[str, object]) -> set[str]:
    """Fingerprints of the cells that finished prediction runs with these settings predict."""
    runs = [
        cell.run_id for cell in context.tracked("prediction").values() if cell.status == "FINISHED"
    ]
    params: dict[str, dict[str, str]] = {run_id: {} for run_id in runs}
    for run_id, key, value in context.reader.params(runs).iter_rows():
        params[run_id][key] = value
    same = [run_id for run_id in runs if flatten(settings).items() <= params[run_id].items()]
    keys = context.reader.tags(same)["key"]
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
) -> None:
    cell = prediction_cell(law, settings, due)
    recorder = context.begin(cell, context.tracked("prediction").get(cell.fingerprint))

    def work() -> None:
        points = read_points(context, law, inputs)
        fitted = fit_law(context, cell.name, law, points)
        _record(context, recorder, law, points, fitted, due)

    if context.attempt(cell, recorder, work):
        context.display.note(f"done    {cell.name}: {_names(due)}")


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
    for row in due.iter_rows(named=True):
        log_prediction(recorder, row["cell"], tokens, fitted.kept.predict(columns_at(row, tokens)))
    used = points.cells.select("cell", "run_id").iter_rows()
    recorder.set_tags(
        {
            **{f"suite.input.{cell}": run_id for cell, run_id in used},
            **{f"{PREDICTS_TAG}{cell}": "true" for cell in due["cell"]},
        }
    )


def _is_fitted(context: StageContext, law: LawSpec, grid: pl.DataFrame) -> bool:
    """Whether the law stage has nothing left to do for the cells as they are."""
    finished = grid.filter(pl.col("run_id").is_not_null())
    found = context.tracked("law").get(law_cell(context, law, finished).fingerprint)
    return found is not None and found.settled


def _names(cells: pl.DataFrame) -> str:
    return ", ".join(repr(name) for name in cells["name"])
