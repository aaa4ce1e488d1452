"""The law stage: fit the study's law to the tracked curves, and record what it predicts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.cells import Cell, pretraining_cells
from suite.fingerprint import fingerprint
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
    if not context.needs_work(cell, found):
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
        Frame with run_id, cell, parameters (N as the law counts it), looped (those of them in
        the loop), recurrence, held_out.
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
        rows.append(
            (
                found.run_id,
                cell.fingerprint,
                counts[spec.parameters],
                counts["looped"],
                recurrence,
                held_out,
            )
        )
    return pl.DataFrame(
        rows,
        schema={
            "run_id": pl.String,
            "cell": pl.String,
            "parameters": pl.Int64,
            "looped": pl.Int64,
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
            "cells_digest": fingerprint(dict(inputs)),
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
    used = cells.filter(pl.col("run_id").is_in(list(points.run_ids)))
    judged = [_predict(recorder, spec, row, curves, result) for row in used.iter_rows(named=True)]
    quality = goodness(
        np.concatenate([cell.real for cell in judged]),
        np.concatenate([cell.predicted for cell in judged]),
        np.concatenate([np.full(len(cell.real), cell.held_out) for cell in judged]),
    )
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Judged:
    """Tracked and predicted losses of one cell in the window of the fit, not smoothed.

    Attributes:
        real: [points].
        predicted: [points].
        held_out: whether the law did not see the cell.
    """

    real: NDArray[np.float64]
    predicted: NDArray[np.float64]
    held_out: bool


def _predict(
    recorder: RunRecorder, spec: LawSpec, row: dict[str, Any], curves: pl.DataFrame, result: Fit
) -> _Judged:
    """Log the predicted curve of a cell at tracked steps; what parity draws is judged."""
    curve = curves.filter(pl.col("run_id") == row["run_id"], pl.col("step") > 0)
    tokens = curve["step"].to_numpy().astype(np.float64)
    real = curve["value"].to_numpy()
    kept = evenly_spaced(tokens, spec.points_per_curve)
    last, tokens, real = tokens[-1], tokens[kept], real[kept]
    predicted = result.predict(
        {
            "parameters": np.full_like(tokens, row["parameters"]),
            "parameters_once": np.full_like(tokens, row["parameters"] - row["looped"]),
            "parameters_recurrent": np.full_like(tokens, row["looped"]),
            "recurrence": np.full_like(tokens, row["recurrence"]),
            "tokens": tokens,
        }
    )
    for step, loss in zip(tokens, predicted, strict=True):
        recorder.log({f"predicted/{row['cell']}": float(loss)}, int(step))
    judged = np.isfinite(real) & (tokens >= spec.fit_from * last)
    return _Judged(real=real[judged], predicted=predicted[judged], held_out=row["held_out"])


def _as_tag(sentences: list[str]) -> str:
    """Sentences as a JSON list that fits a tag; the last one counts those left out."""
    kept = list(sentences)
    while len(text := json.dumps(kept)) > MAX_TAG_LENGTH:
        left_out = len(sentences) - len(kept) + 2
        kept = [*sentences[: len(sentences) - left_out], f"{left_out} more are not shown here"]
    return text
