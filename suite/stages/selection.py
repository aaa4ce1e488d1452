"""Which run stands for a grid point when earlier settings have left others there."""

from __future__ import annotations

import polars as pl

from suite.reports.tracked import SELECTED_TAG, selection_times
from suite.stages.context import StageContext
from suite.tracking.store import now_ms


def select_runs(context: StageContext) -> None:
    """Make the report show the study as it stands now.

    A report takes the run of a grid point that was selected last, and a run counts as selected
    when it starts. Only a study that goes back to earlier settings therefore needs a mark: its
    settled runs are older than those of the settings in between.
    """
    frame = context.reader.runs(context.study.name)
    if frame.is_empty():
        return
    times = selection_times(frame, context.reader.tags(frame["run_id"].to_list()))
    slots: dict[tuple[str, str], list[str]] = {}
    for row in frame.filter(pl.col("kind") != "trial").iter_rows(named=True):
        name = row["name"] if row["kind"] != "law" else ""
        slots.setdefault((row["kind"], name), []).append(row["run_id"])
    selected = set(context.selected)
    for runs in slots.values():
        chosen = [run for run in runs if run in selected]
        others = [times[run] for run in runs if run not in selected]
        if chosen and others and max(times[run] for run in chosen) <= max(others):
            context.store.set_tags(chosen[-1], {SELECTED_TAG: str(now_ms())})
