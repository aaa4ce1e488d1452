"""The law stage: fit the study's law to the tracked curves, and record what it predicts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from suite.cells import Cell
from suite.fingerprint import fingerprint
from suite.laws.goodness import Goodness, goodness
from suite.laws.kept import ARTIFACT, KeptLaw
from suite.laws.points import evenly_spaced
from suite.stages.context import StageContext, TrackedCell
from suite.stages.law_fit import (
    FittedLaw,
    caveat_tag,
    fit_law,
    fit_settings,
    log_prediction,
    untrusted,
)
from suite.stages.law_points import (
    HELD_OUT_TAG,
    INPUT_TAG,
    Array,
    LawPoints,
    columns_at,
    law_cells,
    read_now,
    read_points,
)
from suite.stages.law_tests import HeldOutErrors, held_out_errors, preparation
from suite.study import LawSpec
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import MAX_TAG_LENGTH


def run_law(context: StageContext) -> None:
    """Fit the law unless these runs of the cells were fitted with these settings before."""
    law = context.study.law
    if law is None:
        return
    cells = law_cells(context, law)
    cell = law_cell(context, law, cells)
    found = tracked_law(context, cell, cells)
    if not context.needs_work(cell, found):
        return
    recorder = context.begin(cell, found)

    def work() -> None:
        points = read_points(context, law, cells)
        fitted = fit_law(context, cell.name, law, points)
        errors = held_out_errors(context, f"{cell.name}: held-out tests", law, points)
        for sentence in errors.left_out:
            context.display.note(f"note    {sentence}")
        _record(recorder, law, points, fitted, errors)

    if context.attempt(cell, recorder, work):
        context.display.note(f"done    {cell.name}")


def law_cell(context: StageContext, law: LawSpec, cells: pl.DataFrame) -> Cell:
    """The cell of one fit: its settings and the cells that it reads."""
    inputs = cells.sort("cell").select("cell", "held_out").rows()
    return Cell(
        kind="law",
        name=f"law {law.form}",
        settings={
            **fit_settings(context, law),
            "tests": sorted(law.tests),
            "ablations": law.ablations,
            "test_starts": law.test_starts,
            **preparation(law),
            "cells_digest": fingerprint(dict(inputs)),
        },
        labels={"hold_out": asdict(law.hold_out)},
    )


def tracked_law(context: StageContext, cell: Cell, cells: pl.DataFrame) -> TrackedCell | None:
    """What the store knows of a fit, unless that has read runs which its cells have no more."""
    found = context.tracked("law").get(cell.fingerprint)
    return found if found and read_now(context, [found.run_id], cells) else None


def _record(
    recorder: RunRecorder,
    law: LawSpec,
    points: LawPoints,
    fitted: FittedLaw,
    errors: HeldOutErrors,
) -> None:
    fit, kept = fitted.fit, fitted.kept
    judged = [
        _predict(recorder, law, row, points.curves, kept)
        for row in points.cells.iter_rows(named=True)
    ]
    measured = {
        **fitted.metrics(),
        "law/objective": fit.objective,
        "law/agreeing_share": fit.agreeing_share,
        "law/condition_number": fit.condition_number,
        "law/resamples": float(len(kept.resamples)),
        "law/converged_share": fitted.converged_share,
        **_errors(_quality(judged)),
        **errors.metrics,
    }
    recorder.log({key: value for key, value in measured.items() if value is not None}, 0)
    recorder.log_params({"num_points": fit.num_points})
    recorder.set_tags(
        {
            **{
                f"{HELD_OUT_TAG if row['held_out'] else INPUT_TAG}{row['cell']}": row["run_id"]
                for row in points.cells.iter_rows(named=True)
            },
            "suite.law.warnings": _as_tag([*fitted.warnings, *errors.left_out]),
            "suite.law.unidentified": json.dumps(kept.unidentified),
            **caveat_tag(
                {
                    cell: found.doubts
                    for cell, found in zip(points.cells["cell"], judged, strict=True)
                }
            ),
        }
    )
    place = PurePosixPath(ARTIFACT)
    recorder.keep_text(str(place.parent), place.name, kept.to_json().encode())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Judged:
    """Tracked and predicted losses of one cell in the window of the fit, not smoothed.

    Attributes:
        real: [points].
        predicted: [points].
        held_out: whether the law did not see the cell.
        doubts: why its prediction is not to be trusted, see ``untrusted``.
    """

    real: NDArray[np.float64]
    predicted: NDArray[np.float64]
    held_out: bool
    doubts: tuple[str, ...]


def _predict(
    recorder: RunRecorder, law: LawSpec, row: dict[str, Any], curves: pl.DataFrame, kept: KeptLaw
) -> _Judged:
    """Log the predicted curve of a cell at tracked steps; what parity draws is judged."""
    curve = curves.filter(pl.col("run_id") == row["run_id"], pl.col("step") > 0)
    tokens: Array = curve["step"].to_numpy().astype(np.float64)
    real = curve["value"].to_numpy()
    thinned = evenly_spaced(tokens, law.points_per_curve)
    last, tokens, real = tokens[-1], tokens[thinned], real[thinned]
    band = kept.predict(columns_at(row, tokens))
    doubts = untrusted(kept, row, tokens) if row["held_out"] else ()
    log_prediction(recorder, row["cell"], tokens, band, trusted=not doubts)
    judged = np.isfinite(real) & (tokens >= law.fit_from * last)
    return _Judged(
        real=real[judged],
        predicted=band.estimate[judged],
        held_out=row["held_out"],
        doubts=doubts,
    )


def _quality(judged: list[_Judged]) -> Goodness:
    return goodness(
        np.concatenate([cell.real for cell in judged]),
        np.concatenate([cell.predicted for cell in judged]),
        np.concatenate([np.full(len(cell.real), cell.held_out) for cell in judged]),
    )


def _errors(quality: Goodness) -> dict[str, float | None]:
    return {
        "law/r2/all": quality.r2_all,
        "law/r2/fitted": quality.r2_fitted,
        "law/r2/held_out": quality.r2_held_out,
        "law/mean_relative_error/fitted": quality.mean_relative_error_fitted,
        "law/mean_relative_error/held_out": quality.mean_relative_error_held_out,
    }


def _as_tag(sentences: list[str]) -> str:
    """Sentences as a JSON list that fits a tag; the last one counts those left out."""
    kept = list(sentences)
    while len(text := json.dumps(kept)) > MAX_TAG_LENGTH:
        left_out = len(sentences) - len(kept) + 2
        kept = [*sentences[: len(sentences) - left_out], f"{left_out} more are not shown here"]
    return text
