"""What a law is fitted to: the finished cells of the study, and the points of their curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lightning_modules.schedule import PretrainingPlan
from suite.cells import pretraining_cells
from suite.laws.forms import get_form
from suite.laws.kept import LastPoint
from suite.laws.points import FitPoints, evenly_spaced, prepare_first_share, prepare_points
from suite.laws.splits import Split, SplitPoints
from suite.stages.context import StageContext
from suite.study import LawSpec, PretrainingSpec
from suite.tracking.curves import live

Array = NDArray[np.float64]

INPUT_TAG = "suite.input."
"""Followed by the fingerprint of a cell that a law was fitted to; its value is the run."""
HELD_OUT_TAG = "suite.held_out."
"""Likewise, of a cell that was kept from the fit."""

_GRID_SCHEMA = {
    "cell": pl.String,
    "name": pl.String,
    "size": pl.String,
    "parameters": pl.Int64,
    "looped": pl.Int64,
    "recurrence": pl.Int64,
    "held_out": pl.Boolean,
    "begun": pl.Boolean,
    "settled": pl.Boolean,
    "run_id": pl.String,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LawPoints:
    """Points of the fit, and the curves that the law is judged by.

    Attributes:
        cells: the cells that gave points, as ``law_cells`` has them.
        curves: live points of ``judged_metric``, of all cells.
        logged: live points of each metric that is fitted, by its key, of all cells.
        loop_step: the loop step of each such metric; None for a law that reads none.
        variables: columns [points] of the fitted points, as laws read them.
        loss: their smoothed losses in nats [points].
        run: run id of each fitted point [points].
        warnings: what was dropped or excluded, in plain sentences.
    """

    cells: pl.DataFrame
    curves: pl.DataFrame
    logged: Mapping[str, pl.DataFrame]
    loop_step: Mapping[str, int | None]
    variables: Mapping[str, Array]
    loss: Array
    run: NDArray[np.str_]
    warnings: tuple[str, ...]

    @property
    def fitted(self) -> pl.DataFrame:
        """The cells that are not held out."""
        return self.cells.filter(~pl.col("held_out"))

    def last_points(self) -> list[LastPoint]:
        """Where in the grid the law was fitted, and how far: the last point of each cell."""
        return [
            LastPoint(
                cell=row["cell"],
                size=row["size"],
                recurrence=row["recurrence"],
                parameters=float(row["parameters"]),
                tokens=float(self.variables["tokens"][self.run == row["run_id"]].max()),
                looped=float(row["looped"]),
            )
            for row in self.fitted.iter_rows(named=True)
        ]


def law_grid(context: StageContext, law: LawSpec) -> pl.DataFrame:
    """All pretraining cells of the study, in the order of its grid, as the law sees them.

    Returns:
        Frame with cell (fingerprint), name, size (its name), parameters (N as the law counts
        it), looped (those of them in the loop), recurrence, held_out; begun (whether the cell
        has a run), settled (whether nothing is left to do for it: it finished, or failed for
        good), run_id (that of a finished cell, else null).
    """
    tracked = context.tracked("pretraining")
    rows = []
    for (size, recurrence), cell in pretraining_cells(context.materials).items():
        found = tracked.get(cell.fingerprint)
        counts = cell.labels["parameters"]
        assert isinstance(counts, dict)
        rows.append(
            (
                cell.fingerprint,
                cell.name,
                size,
                counts[law.parameters],
                counts["looped"],
                recurrence,
                law.hold_out.covers(size, recurrence),
                found is not None,
                found is not None and found.settled,
                found.run_id if found is not None and found.status == "FINISHED" else None,
            )
        )
    return pl.DataFrame(rows, schema=_GRID_SCHEMA, orient="row")


def law_cells(context: StageContext, law: LawSpec) -> pl.DataFrame:
    """The finished cells of ``law_grid``."""
    return law_grid(context, law).filter(pl.col("run_id").is_not_null())


def read_now(
    context: StageContext, run_ids: Collection[str], cells: pl.DataFrame
) -> frozenset[str]:
    """Those runs of laws and predictions that have read no other runs than the cells have now.

    A fingerprint tells a cell's settings, not its run: one that was deleted and trained again has
    other points.

    Args:
        context: the stage's.
        run_ids: of laws and predictions; what one has read, its tags say.
        cells: with cell and run_id.
    """
    now = dict(cells.select("cell", "run_id").iter_rows())
    tags = context.reader.tags(list(run_ids)).select("run_id", "key", "value")
    stale = {
        run_id
        for run_id, key, value in tags.iter_rows()
        for prefix in (INPUT_TAG, HELD_OUT_TAG)
        if key.startswith(prefix) and now.get(key.removeprefix(prefix)) != value
    }
    return frozenset(run_ids) - stale


def reads_steps(law: LawSpec) -> bool:
    """Whether the law is one of the loop step."""
    return "step" in get_form(law.form).variables


def judged_metric(law: LawSpec, pretraining: PretrainingSpec) -> str:
    """Key of the tracked curve that the law predicts; of a law of the loop step, the last one's."""
    return f"{law.metric}/{pretraining.recurrences[0]}" if reads_steps(law) else law.metric


def read_points(context: StageContext, law: LawSpec, cells: pl.DataFrame) -> LawPoints:
    """Points of the cells from their tracked curves; see ``prepare_points``.

    Raises:
        InputError: a loss is not positive, or what is held out leaves too little to fit.
        SuiteError: no cell has a finite point to fit.
    """
    pretraining = context.study.pretraining
    assert pretraining is not None
    judged = judged_metric(law, pretraining)
    steps = range(1, pretraining.recurrences[0] + 1) if reads_steps(law) else ()
    keys: dict[str, int | None] = {f"{law.metric}/{step}": step for step in steps}
    keys = keys or {judged: None}
    curves = live(context.reader.curves(cells["run_id"].to_list(), [*keys]))
    logged = {key: curves.filter(pl.col("key") == key) for key in keys}
    parts = {key: prepare_points(cells, points, law) for key, points in logged.items()}
    used = {run_id for part in parts.values() for run_id in part.run_ids}
    columns = [_columns(part, keys[key], ~part.held_out) for key, part in parts.items()]
    return LawPoints(
        cells=cells.filter(pl.col("run_id").is_in(list(used))),
        curves=logged[judged],
        logged=logged,
        loop_step=keys,
        variables={name: np.concatenate([part[name] for part in columns]) for name in columns[0]},
        loss=np.concatenate([part.loss[~part.held_out] for part in parts.values()]),
        run=np.concatenate(
            [np.array(part.run_ids)[part.run[~part.held_out]] for part in parts.values()]
        ),
        warnings=tuple(dict.fromkeys(text for part in parts.values() for text in part.warnings)),
    )


def first_share(points: LawPoints, law: LawSpec, share: float) -> SplitPoints:
    """Points of the test that fits the first share of every fitted curve; see the split's name.

    They are prepared anew from the logged points, see ``prepare_first_share``.

    Raises:
        InputError: the share leaves nothing to fit or to predict.
    """
    parts = {
        key: prepare_first_share(points.fitted, logged, law, share)
        for key, logged in points.logged.items()
    }
    columns = [_columns(part, points.loop_step[key]) for key, part in parts.items()]
    held_out = np.concatenate([part.held_out for part in parts.values()])
    return SplitPoints(
        variables={name: np.concatenate([part[name] for part in columns]) for name in columns[0]},
        loss=np.concatenate([part.loss for part in parts.values()]),
        split=Split(f"first:{share:g}", held_out),
    )


def _columns(
    points: FitPoints, step: int | None, mask: NDArray[np.bool_] | None = None
) -> dict[str, Array]:
    """Columns of the points of one metric, which is that of a loop step or of none."""
    columns = points.variables(mask)
    if step is not None:
        columns["step"] = np.full_like(columns["tokens"], step)
    return columns


def columns_at(row: Mapping[str, Any], tokens: Array) -> dict[str, Array]:
    """Columns of a cell's judged curve as laws read them.

    Args:
        row: of ``law_grid``.
        tokens: where on the curve [points].
    """
    values = {
        "parameters": row["parameters"],
        "parameters_once": row["parameters"] - row["looped"],
        "parameters_recurrent": row["looped"],
        "recurrence": row["recurrence"],
        "step": row["recurrence"],
    }
    return {
        "tokens": tokens,
        **{name: np.full_like(tokens, value) for name, value in values.items()},
    }


def planned_tokens(law: LawSpec, pretraining: PretrainingSpec) -> Array:
    """Token counts [points] at which the law is compared with a cell that has not begun."""
    plan = PretrainingPlan.of(pretraining)
    every = plan.evaluate_every if law.metric.startswith("val/") else plan.log_every
    tokens = np.array(plan.points(every), dtype=np.float64)
    return tokens[evenly_spaced(tokens, law.points_per_curve)]
