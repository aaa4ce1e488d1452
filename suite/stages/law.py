"""The law stage: fit the study's law to the tracked curves, and record what it predicts."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import polars as pl

from suite.cells import Cell, pretraining_cells
from suite.laws.fit import Fit, fit
from suite.laws.forms import get_form
from suite.laws.goodness import goodness
from suite.laws.points import FitPoints, evenly_spaced, prepare_points
from suite.stages.context import StageContext
from suite.study import LawSpec
from suite.tracking.curves import live
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import MAX_TAG_LENGTH


def run_law(context: StageContext) -> None:
    """Fit the law unless these cells were fitted with these settings before."""
    spec = context.study.law
    if spec is None:
        return
    cells = finished_cells(context, spec)
    cell = law_cell(context, spec, cells)
    found = context.tracked("law").get(cell.fingerprint)
    if found is not None and found.settled:
        return
    recorder = context.begin(cell, found)

    def work() -> None:
        curves = live(context.reader.curves(cells["run_id"].to_list(), [spec.metric]))
        points = prepare_points(cells, curves, spec)
        with context.display.task(cell.name, spec.starts) as advance:
            fitted = points.held_out == 0
            result = fit(
                get_form(spec.form),
                points.variables(fitted),
                points.loss[fitted],
                huber_delta=spec.huber_delta,
                starts=spec.starts,
                seed=context.study.seed,
                on_start=lambda done: advance(done, "starts"),
            )
        _record(recorder, spec, cells, curves, points, result)

    if context.attempt(cell, recorder, work):
        context.display.note(f"done    {cell.name}")


def finished_cells(context: StageContext, spec: LawSpec) -> pl.DataFrame:
    """The study's finished pretraining cells.

    Returns:
        Frame with run_id, cell, parameters (N as the law counts it), recurrence, held_out.
    """
    planned = pretraining_cells(context.materials)
    tracked = context.tracked("pretraining")
    rows = []
    for (size, recurrence), cell in planned.items():
        found = tracked.get(cell.fingerprint)
        if found is None or found.status != "FINISHED":
            continue
        counts = cell.labels["parameters"]
        assert isinstance(counts, dict)
        held_out = size in spec.hold_out.sizes or recurrence in spec.hold_out.recurrences
        rows.append((found.run_id, cell.fingerprint, counts[spec.parameters], recurrence, held_out))
    return pl.DataFrame(
        rows,
        schema={
            "run_id": pl.String,
            "cell": pl.String,
            "parameters": pl.Int64,
            "recurrence": pl.Int64,
            "held_out": pl.Boolean,
        },
        orient="row",
    )


def law_cell(context: StageContext, spec: LawSpec, cells: pl.DataFrame) -> Cell:
    """The cell of one fit: its settings and the cells that it reads."""
    settings = asdict(spec)
    hold_out = settings.pop("hold_out")
    inputs = cells.sort("cell").select("cell", "held_out").rows()
    return Cell(
        kind="law",
        name=f"law {spec.form}",
        settings={
            **settings,
            "seed": context.study.seed,
            "cells": json.dumps([cell for cell, _ in inputs]),
            "held_out": json.dumps([cell for cell, held_out in inputs if held_out]),
        },
        labels={"hold_out": hold_out},
    )


def _record(
    recorder: RunRecorder,
    spec: LawSpec,
    cells: pl.DataFrame,
    curves: pl.DataFrame,
    points: FitPoints,
    result: Fit,
) -> None:
    quality = goodness(points.loss, result.predict(points.variables()), points.held_out)
    measured = {
        **{f"law/{symbol}": value for symbol, value in result.parameters.items()},
        "law/objective": result.objective,
        "law/agreeing_share": result.agreeing_share,
        "law/condition_number": result.condition_number,
        "law/r2/all": quality.r2_all,
        "law/r2/fitted": quality.r2_fitted,
        "law/r2/held_out": quality.r2_held_out,
        "law/mean_relative_error/fitted": quality.mean_relative_error_fitted,
        "law/mean_relative_error/held_out": quality.mean_relative_error_held_out,
    }
    recorder.log({key: value for key, value in measured.items() if value is not None}, 0)
    used = cells.filter(pl.col("run_id").is_in(list(points.run_ids)))
    for row in used.iter_rows(named=True):
        steps = curves.filter(pl.col("run_id") == row["run_id"], pl.col("step") > 0)["step"]
        tokens = steps.to_numpy().astype(np.float64)
        tokens = tokens[evenly_spaced(tokens, spec.points_per_curve)]
        predicted = result.predict(
            {
                "parameters": np.full_like(tokens, row["parameters"]),
                "recurrence": np.full_like(tokens, row["recurrence"]),
                "tokens": tokens,
            }
        )
        for step, loss in zip(tokens, predicted, strict=True):
            recorder.log({f"predicted/{row['cell']}": float(loss)}, int(step))
    recorder.log_params({"num_points": result.num_points})
    recorder.set_tags(
        {
            **{
                f"suite.{'held_out' if row['held_out'] else 'input'}.{row['cell']}": row["run_id"]
                for row in used.iter_rows(named=True)
            },
            "suite.law.warnings": _as_tag([*result.warnings, *points.warnings]),
        }
    )


def _as_tag(sentences: list[str]) -> str:
    """Sentences as a JSON list that fits a tag; the last one counts those left out."""
    kept = list(sentences)
    while len(text := json.dumps(kept)) > MAX_TAG_LENGTH:
        left_out = len(sentences) - len(kept) + 2
        kept = [*sentences[: len(sentences) - left_out], f"{left_out} more are not shown here"]
    return text
