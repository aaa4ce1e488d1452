"""The tables of the law: parameters, diagnostics, held-out cells, held-out tests, ablation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from suite.reports import entries, style
from suite.reports.blind import time_of
from suite.reports.entries import NOTHING, Entry, Table
from suite.reports.law_metrics import (
    KINDS,
    SCORES,
    Split,
    laws_of,
    pooled,
    splits_of,
    symbols_of,
    words_of_law,
)
from suite.reports.pairs import Pair, pair_cells
from suite.reports.points import NoDataError
from suite.reports.records import Blindness, LawRun, PretrainingCell, Tracked

_HELD_OUT = {"size": "sizes", "recurrence": "Tm", "first": "later tokens", "cell": "cells"}


def law_tables(tracked: Tracked) -> tuple[Table, ...]:
    """Every table of the law, in the order of the page; none without a law."""
    law = tracked.law
    if law is None:
        return ()
    keys = sorted(key for run_id, key in tracked.curves if run_id == law.run_id)
    return (
        _parameter_table(tracked, law, symbols_of(keys)),
        _diagnostics_table(tracked, law),
        _held_out_cells_table(tracked, law),
        _held_out_tests_table(tracked, law, splits_of(keys)),
        _ablation_table(tracked, law, laws_of(keys)),
    )


def _parameter_table(tracked: Tracked, law: LawRun, symbols: Iterable[str]) -> Table:
    rows = [
        (
            entries.label(symbol),
            *(
                entries.number(tracked.curve(law.run_id, f"law/{symbol}{end}"))
                for end in ("", "/lower", "/upper")
            ),
            _remark(law, symbol),
        )
        for symbol in symbols
    ]
    return Table(
        name="law parameters",
        title=f"Parameters of the law {law.form}",
        caption=(
            "Read each value with its 95 % interval, from a bootstrap over runs; one that is not "
            "identified means nothing by itself, since quite other values fit as well."
        ),
        columns=("parameter", "value", "lower 95 %", "upper 95 %", "remark"),
        rows=tuple(rows),
        labels=tuple(symbols),
    )


def _remark(law: LawRun, symbol: str) -> Entry:
    if symbol not in law.unidentified:
        return entries.label(NOTHING)
    return entries.told(law.run_id, "tag:suite.law.unidentified", "not identified", "bad")


def _diagnostics_table(tracked: Tracked, law: LawRun) -> Table:
    rows: list[tuple[str, Entry]] = [
        (name, entries.number(curve))
        for key, name in SCORES.items()
        if len(curve := tracked.curve(law.run_id, key))
    ]
    rows += [(f"setting {key}", entries.setting(law, key, value)) for key, value in _settings(law)]
    rows.append(("run", entries.run_id(law)))
    return Table(
        name="law",
        title="Diagnostics and settings of the fit",
        caption=(
            f"The law was fitted to {law.metric} of {len(law.inputs)} cells without "
            f"{len(law.held_out)} held-out ones, N being the {law.parameters.replace('_', '-')} "
            "parameter count; trust the fit where many starts agree on the same optimum, and its "
            "single parameters where the condition number is small."
        ),
        columns=("quantity", "value"),
        rows=tuple((entries.label(name), entry) for name, entry in rows),
        labels=tuple(name for name, _ in rows),
    )


def _settings(law: LawRun) -> Iterable[tuple[str, str]]:
    own = {
        "form": law.form,
        "metric": law.metric,
        "parameters": law.parameters,
        "fit_from": f"{law.fit_from:g}",
    }
    return sorted({**own, **dict(law.settings)}.items())


def _held_out_cells_table(tracked: Tracked, law: LawRun) -> Table:
    cells = sorted(
        (
            cell
            for cell in tracked.pretraining
            if tracked.held_out(cell) or cell.cell in tracked.foretold
        ),
        key=lambda c: (c.parameters, c.size, c.recurrence),
    )
    drawn = {cell.cell for cell in cells}
    others = {cell: text for cell, text in tracked.foretold.items() if cell not in drawn}
    try:
        _, pairs = pair_cells(tracked)
    except NoDataError:
        pairs = {}
    return Table(
        name="held-out cells",
        title="Held-out cells",
        caption=(
            "Loss in nats a token at the last step that was measured and predicted, with the "
            "interval of the law (not of a single batch); the error is predicted over measured "
            "less 1, cells that a prediction names are listed however they ended, and a blind "
            "prediction was complete and on record before anything of the cell was measured, by "
            "all runs that the store still has (deleted ones too, but not what was removed for "
            "good, as by mlflow gc)."
        ),
        columns=(
            "cell",
            "status",
            "tokens",
            "measured",
            "predicted",
            "lower 95 %",
            "upper 95 %",
            "error",
            "mean |error|",
            "prediction",
            "prediction complete",
            "cell began",
            "prediction run",
            "run",
            "remark",
        ),
        rows=(
            *(_held_out_row(tracked, law, cell, pairs.get(cell.run_id)) for cell in cells),
            *(_undrawn_row(cell, text) for cell, text in others.items()),
        ),
        labels=(
            *(f"{cell.size} Tm={cell.recurrence}" for cell in cells),
            *(f"cell {cell}" for cell in others),
        ),
    )


def _undrawn_row(cell: str, status: str) -> tuple[Entry, ...]:
    """A cell that was predicted, and of which the report has no run."""
    ends = (entries.label(text) for text in ("predicted", *[NOTHING] * 5))
    return (
        entries.label(f"cell {cell}"),
        entries.label(status),
        *[entries.derived(None)] * 7,
        *ends,
    )


def _held_out_row(
    tracked: Tracked, law: LawRun, cell: PretrainingCell, pair: Pair | None
) -> tuple[Entry, ...]:
    read = "was fitted to" if cell.cell in law.inputs else "has not read"
    unjudged = Blindness(blind=False, words=f"the law of this report {read} the cell")
    judged = tracked.blindness.get(cell.run_id, unjudged)
    name = entries.label(f"{cell.size} Tm={cell.recurrence}")
    numbers = [entries.derived(None)] * 7
    if pair is not None:
        step, residual = pair.real.last_step, pair.residual
        sizes = np.abs(residual[np.isfinite(residual)])
        interval = tracked.predicted_interval(cell)
        bounds = [entries.number(end, step) for end in interval or ()]
        numbers = [
            entries.derived(f"{step:,}"),
            entries.number(pair.real),
            entries.number(pair.predicted),
            *(bounds or [entries.derived(None)] * 2),
            entries.derived(style.percent(float(residual[-1]))),
            entries.derived(f"{100 * sizes.mean():.2f} %" if sizes.size else None),
        ]
    mark = judged.words if judged.blind else f"not blind: {judged.words}"
    return (
        name,
        entries.status(cell),
        *numbers,
        entries.told(cell.run_id, "run:blind", mark),
        _time(judged.prediction, "run:recorded", judged.recorded),
        _time(cell.run_id, "run:began", judged.began),
        Entry(text=judged.prediction or NOTHING, kind="run"),
        entries.run_id(cell),
        _caveat(law, cell),
    )


def _caveat(law: LawRun, cell: PretrainingCell) -> Entry:
    sentences = law.caveats.get(cell.cell)
    if not sentences:
        return entries.label(NOTHING)
    return entries.told(law.run_id, "tag:suite.law.caveats", "; ".join(sentences), "bad")


def _time(run_id: str | None, key: str, milliseconds: int | None) -> Entry:
    if run_id is None or milliseconds is None:
        return entries.label(NOTHING)
    return entries.told(run_id, key, time_of(milliseconds))


def _held_out_tests_table(tracked: Tracked, law: LawRun, splits: Iterable[Split]) -> Table:
    names = {cell.cell[:12]: f"{cell.size} Tm={cell.recurrence}" for cell in tracked.pretraining}
    tested = [(_split_label(split, names), split) for split in splits]
    return Table(
        name="held-out tests",
        title="Held-out tests of the law",
        caption=(
            "Each row fits the law again without some points: what counts is the error on those "
            "points only, since R² over all points, most of which were fitted, can be high for a "
            "law that predicts badly."
        ),
        columns=("held out", "mean relative error, held-out points only", "R², all points"),
        rows=tuple(
            (
                entries.label(name),
                *(
                    entries.number(tracked.curve(law.run_id, f"{split.metric}/{number}"))
                    for number in ("mean_relative_error", "r2_all")
                ),
            )
            for name, split in tested
        ),
        labels=tuple(name for name, _ in tested),
    )


def _split_label(split: Split, cells: Mapping[str, str]) -> str:
    match split.kind:
        case "size":
            return f"size {split.name}"
        case "recurrence":
            return f"Tm = {split.name}"
        case "first":
            return f"tokens after the first {split.name} of each curve"
        case _:
            return f"cell {cells.get(split.name, split.name)}"


def _ablation_table(tracked: Tracked, law: LawRun, laws: Sequence[str]) -> Table:
    errors = {
        (kind, name): tracked.curve(law.run_id, pooled(kind, name))
        for kind in KINDS
        for name in laws
    }
    kinds = [kind for kind in KINDS if any(len(errors[kind, name]) for name in laws)]

    def cells(name: str) -> Iterable[Entry]:
        yield entries.label(words_of_law(name))
        for kind in kinds:
            error = errors[kind, name].last_value
            full = tracked.curve(law.run_id, pooled(kind, "full")).last_value
            yield entries.number(errors[kind, name])
            yield entries.derived(f"{error / full:.2f}" if error is not None and full else None)

    return Table(
        name="ablation",
        title="The law without each of its terms",
        caption=(
            "Mean relative error over the points held out in all tests of a kind, and its ratio to "
            "that of the full law: a term whose removal leaves the ratio near or below 1 was not "
            "measured by these runs."
        ),
        columns=(
            "law",
            *(f"{_HELD_OUT[kind]}: {what}" for kind in kinds for what in ("error", "ratio")),
        ),
        rows=tuple(tuple(cells(name)) for name in laws),
        labels=tuple(map(words_of_law, laws)),
    )
