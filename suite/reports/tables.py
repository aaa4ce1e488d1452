"""The tables of the report: every number in them is a tracked value with its origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.reports import style
from suite.reports.error_grid import ERROR_FORMULA, ERROR_METRIC, MATRICES
from suite.reports.error_looks import niter_order
from suite.reports.pareto import finished_trials
from suite.reports.points import Curve
from suite.reports.records import LawRun, PretrainingCell, Tracked, TrackedRun

NOTHING = "\u2013"
_LAW_SCORES = {
    "law/r2/all": "R², all points",
    "law/r2/held_out": "R², held-out cells only",
    "law/mean_relative_error/fitted": "mean relative error, fitted cells",
    "law/mean_relative_error/held_out": "mean relative error, held-out cells",
    "law/objective": "objective (sum of Huber losses on log loss)",
    "law/agreeing_share": "share of starts that agree",
}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a table's entry comes from.

    Attributes:
        run_id: the run.
        key: name of a metric, or "param:", "tag:" or "run:" and a name.
        step: tokens of a metric's point; None for anything else.
        value: the entry itself, unrounded.
    """

    run_id: str
    key: str
    step: int | None
    value: float | str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry as it is shown.

    Attributes:
        text: what the page shows.
        origin: where it comes from; None for labels.
        kind: how the page sets it.
    """

    text: str
    origin: Origin | None = None
    kind: str = "text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page.

    Attributes:
        name: name of the table in the manifest.
        title: heading.
        caption: what the entries are.
        columns: names of the columns.
        rows: entries, as many a row as there are columns.
        labels: a name for each row, unique in the table.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    labels: tuple[str, ...]


def build_tables(tracked: Tracked) -> tuple[Table, ...]:
    """All tables that the tracked data fill, in the order of the page."""
    tables = [_law_table(tracked), _cell_table(tracked)]
    tables += [_error_table(tracked, matrix) for matrix in MATRICES]
    tables.append(_front_table(tracked))
    return tuple(table for table in tables if table is not None and table.rows)


def _label(text: str) -> Entry:
    return Entry(text=text)


def _number(curve: Curve, step: int | None = None) -> Entry:
    """The value at ``step``, or the last one."""
    at = curve.last_step if step is None else step
    value = None if at is None else curve.at(at)
    if at is None or value is None:
        return Entry(text=NOTHING, kind="number")
    origin = Origin(run_id=curve.run_id, key=curve.key, step=at, value=value)
    return Entry(text=style.significant(value), origin=origin, kind="number")


def _setting(run: TrackedRun, key: str, value: str, shown: str | None = None) -> Entry:
    origin = Origin(run_id=run.run_id, key=f"param:{key}", step=None, value=value)
    return Entry(text=shown or value, origin=origin, kind="number" if shown else "text")


def _status(run: TrackedRun) -> Entry:
    text = f"{run.status}: {run.failure}" if run.failure and not run.finished else run.status
    origin = Origin(run_id=run.run_id, key="run:status", step=None, value=text)
    kinds = {"FINISHED": "text", "FAILED": "bad"}
    return Entry(text=text, origin=origin, kind=kinds.get(run.status, "unfinished"))


def _attempts(run: TrackedRun) -> Entry:
    # Not an origin: a resumed run is the same measurement, and verify compares measurements.
    return Entry(text=str(run.attempts), kind="number")


def _run(run: TrackedRun) -> Entry:
    return Entry(text=run.run_id, kind="run")


def _law_table(tracked: Tracked) -> Table | None:
    law = tracked.law
    if law is None:
        return None
    keys = sorted(key for run_id, key in tracked.curves if run_id == law.run_id)
    symbols = [
        key
        for key in keys
        if key.startswith("law/") and key.count("/") == 1 and key not in _LAW_SCORES
    ]
    rows: list[tuple[str, Entry]] = [
        (key.removeprefix("law/"), _number(tracked.curve(law.run_id, key))) for key in symbols
    ]
    rows += [
        (name, _number(tracked.curve(law.run_id, key)))
        for key, name in _LAW_SCORES.items()
        if key in keys
    ]
    rows += [(f"setting {key}", _setting(law, key, value)) for key, value in _law_settings(law)]
    rows.append(("run", _run(law)))
    return Table(
        name="law",
        title=f"Law: {law.form}",
        caption=(
            f"Fitted to {law.metric} of {len(law.inputs)} cells; {len(law.held_out)} cells were "
            f"held out. N is the {law.parameters.replace('_', '-')} parameter count."
        ),
        columns=("quantity", "value"),
        rows=tuple((_label(name), entry) for name, entry in rows),
        labels=tuple(name for name, _ in rows),
    )


def _law_settings(law: LawRun) -> Iterable[tuple[str, str]]:
    own = {
        "form": law.form,
        "metric": law.metric,
        "parameters": law.parameters,
        "fit_from": f"{law.fit_from:g}",
    }
    return sorted({**own, **dict(law.settings)}.items())


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
                _setting(cell, "size.name", cell.size),
                _setting(cell, "parameters.total", str(cell.parameters), f"{cell.parameters:,}"),
                _setting(cell, "recurrence", str(cell.recurrence), str(cell.recurrence)),
                Entry(
                    text=f"{tracked.curve(cell.run_id, tracked.loss_metric).last_step or 0:,}",
                    kind="number",
                ),
                _setting(cell, "tokens", str(cell.tokens), f"{cell.tokens:,}"),
                *(_number(tracked.curve(cell.run_id, metric)) for metric in metrics),
                _label(_role(tracked.law, cell)),
                _status(cell),
                _attempts(cell),
                _run(cell),
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
                _setting(cell, "model.label", cell.model),
                _setting(cell, "calibrate_on", cell.calibrate_on),
                _label(corpus),
                _setting(cell, "niter", cell.niter),
                _setting(cell, "rank", str(cell.rank), f"{cell.rank:,}"),
                *(_number(curve, budget) for budget in budgets),
                _status(cell),
                _run(cell),
            )
            for (cell, corpus), curve in zip(lines, curves, strict=True)
        ),
        labels=tuple(
            f"{cell.model}: {cell.calibrate_on} → {corpus} niter={cell.niter}"
            for cell, corpus in lines
        ),
    )


def _front_table(tracked: Tracked) -> Table | None:
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
                _setting(search, "name", search.search),
                _setting(p.trial, "trial.number", str(p.trial.number), str(p.trial.number)),
                _setting(p.trial, "niter", p.trial.niter),
                _setting(p.trial, "tokens", str(p.trial.tokens), f"{p.trial.tokens:,}"),
                _setting(p.trial, "rank", str(p.trial.rank), f"{p.trial.rank:,}"),
                *_objective_entries(objectives, search.objectives, p.objectives),
                _run(p.trial),
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
        yield _number(known[name]) if name in known else Entry(text=NOTHING, kind="number")
