"""The tables of the report, but for those of the law."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.reports import entries
from suite.reports.entries import NOTHING, Entry, Table
from suite.reports.error_grid import ERROR_FORMULA, ERROR_METRIC, MATRICES
from suite.reports.error_looks import niter_order
from suite.reports.law_tables import law_tables
from suite.reports.pareto import finished_trials
from suite.reports.points import Curve
from suite.reports.records import LawRun, PretrainingCell, Tracked


def build_tables(tracked: Tracked) -> tuple[Table, ...]:
    """All tables that the tracked data fill, in the order of the page."""
    tables = [*law_tables(tracked), _cell_table(tracked)]
    tables += [_error_table(tracked, matrix) for matrix in MATRICES]
    tables.append(_front_table(tracked))
    return tuple(table for table in tables if table.rows)


def _cell_table(tracked: Tracked) -> Table:
    cells = sorted(tracked.pretraining, key=lambda c: (c.parameters, c.size, c.recurrence))
    metrics = ("train/total_loss", "val/total_loss", "val/bits_per_byte")
    return Table(
        name="cells",
        title="Pretraining cells",
        caption="Losses in nats a token, at the last tracked step; tokens are those reached.",
        columns=(
            "size",
            "N",
            "Tm",
            "tokens",
            "planned",
            *metrics,
            "law",
            "status",
            "attempts",
            "run",
        ),
        rows=tuple(
            (
                entries.setting(cell, "size.name", cell.size),
                entries.setting(
                    cell, "parameters.total", str(cell.parameters), f"{cell.parameters:,}"
                ),
                entries.setting(cell, "recurrence", str(cell.recurrence), str(cell.recurrence)),
                Entry(
                    text=f"{tracked.curve(cell.run_id, tracked.loss_metric).last_step or 0:,}",
                    kind="number",
                ),
                entries.setting(cell, "tokens", str(cell.tokens), f"{cell.tokens:,}"),
                *(entries.number(tracked.curve(cell.run_id, metric)) for metric in metrics),
                entries.label(_role(tracked.law, cell)),
                entries.status(cell),
                entries.attempts(cell),
                entries.run_id(cell),
            )
            for cell in cells
        ),
        labels=tuple(f"{cell.size} Tm={cell.recurrence}" for cell in cells),
    )


def _role(law: LawRun | None, cell: PretrainingCell) -> str:
    if law is not None and cell.cell in law.held_out:
        return "held out"
    return "fitted" if law is not None and cell.cell in law.inputs else NOTHING


def _error_table(tracked: Tracked, matrix: str) -> Table:
    cells = sorted(
        tracked.calibration, key=lambda c: (c.model, c.calibrate_on, niter_order(c.niter))
    )
    lines = [(cell, corpus) for cell in cells for corpus in cell.evaluate_on]
    lines.sort(key=lambda line: (line[0].model, line[0].calibrate_on, line[1]))
    curves = [
        tracked.curve(cell.run_id, f"{matrix}/{ERROR_METRIC}/{corpus}") for cell, corpus in lines
    ]
    budgets = sorted({int(step) for curve in curves for step in curve.step})
    return Table(
        name=f"{matrix} errors",
        title=f"{matrix.title()} reconstruction errors",
        caption=f"{ERROR_FORMULA}, at each budget of calibration tokens.",
        columns=(
            "model",
            "calibrated on",
            "evaluated on",
            "niter",
            "rank",
            *(f"{budget:,}" for budget in budgets),
            "status",
            "run",
        ),
        rows=tuple(
            (
                entries.setting(cell, "model.label", cell.model),
                entries.setting(cell, "calibrate_on", cell.calibrate_on),
                entries.label(corpus),
                entries.setting(cell, "niter", cell.niter),
                entries.setting(cell, "rank", str(cell.rank), f"{cell.rank:,}"),
                *(entries.number(curve, budget) for budget in budgets),
                entries.status(cell),
                entries.run_id(cell),
            )
            for (cell, corpus), curve in zip(lines, curves, strict=True)
        ),
        labels=tuple(
            f"{cell.model}: {cell.calibrate_on} → {corpus} niter={cell.niter}"
            for cell, corpus in lines
        ),
    )


def _front_table(tracked: Tracked) -> Table:
    lines = [
        (search, point)
        for search in tracked.searches
        for point in finished_trials(tracked, search)
        if point.on_front
    ]
    objectives = list(dict.fromkeys(name for search, _ in lines for name in search.objectives))
    lines.sort(key=lambda line: (line[0].search, *line[1].values, line[1].trial.number))
    return Table(
        name="front",
        title="Front of the searches",
        caption="Trials that no other trial beats; errors as ratios, calibration_seconds in s.",
        columns=("search", "trial", "niter", "tokens", "rank", *objectives, "run"),
        rows=tuple(
            (
                entries.setting(search, "name", search.search),
                entries.setting(p.trial, "trial.number", str(p.trial.number), str(p.trial.number)),
                entries.setting(p.trial, "niter", p.trial.niter),
                entries.setting(p.trial, "tokens", str(p.trial.tokens), f"{p.trial.tokens:,}"),
                entries.setting(p.trial, "rank", str(p.trial.rank), f"{p.trial.rank:,}"),
                *_objective_entries(objectives, search.objectives, p.objectives),
                entries.run_id(p.trial),
            )
            for search, p in lines
        ),
        labels=tuple(f"{search.search} trial {point.trial.number}" for search, point in lines),
    )


def _objective_entries(
    columns: Sequence[str], names: Sequence[str], curves: Sequence[Curve]
) -> Iterable[Entry]:
    known = dict(zip(names, curves, strict=True))
    for name in columns:
        yield entries.number(known[name]) if name in known else Entry(text=NOTHING, kind="number")
