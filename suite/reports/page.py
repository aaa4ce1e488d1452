"""The report as one HTML file that asks the network for nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import jinja2

from suite.reports import style
from suite.reports.entries import Table
from suite.reports.pareto import finished_trials
from suite.reports.records import Tracked, TrackedRun
from suite.terminal import shown

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("suite.reports", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    # escaping is for what HTML obeys; this for what terminals and writing directions do
    finalize=lambda value: shown(value) if isinstance(value, str) else value,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True, kw_only=True)
class FigureOnPage:
    """A figure with its words.

    Attributes:
        name: name of the panel.
        title: heading.
        caption: what was measured.
        png: the image.
    """

    name: str
    title: str
    caption: str
    png: bytes

    @property
    def data_uri(self) -> str:
        """The image as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def render_page(tracked: Tracked, figures: Sequence[FigureOnPage], tables: Sequence[Table]) -> str:
    """The page, a function of tracked data alone: it holds no clock and no path."""
    return _TEMPLATES.get_template("report.html.j2").render(
        study=tracked.study,
        headlines=tuple(headlines(tracked)),
        period=_period(tracked),
        figures=figures,
        tables=tables,
        warnings=tracked.law.warnings if tracked.law else (),
        notes=tracked.notes,
        left_out=tracked.left_out,
    )


def headlines(tracked: Tracked) -> Iterable[str]:
    """The findings, one sentence each, in tracked numbers."""
    if tracked.pretraining:
        yield _pretraining_headline(tracked)
    if tracked.law is not None:
        yield _law_headline(tracked)
        yield from _blindness_headline(tracked)
    if tracked.calibration:
        models = {cell.model for cell in tracked.calibration}
        budgets = [budget for cell in tracked.calibration for budget in cell.budgets]
        reach = f", up to {style.token_count(max(budgets))} tokens" if budgets else ""
        runs = _finished(tracked.calibration, "runs")
        yield f"Calibration: {runs}, on {_many(models, 'model')}{reach}."
    for search in tracked.searches:
        trials = finished_trials(tracked, search)
        best = sum(trial.on_front for trial in trials)
        yield (
            f"Search {search.search}: {len(trials)} of {len(search.trials)} trials have a result, "
            f"{best} of them on the front."
        )


def _pretraining_headline(tracked: Tracked) -> str:
    sizes = {cell.size for cell in tracked.pretraining}
    recurrences = {cell.recurrence for cell in tracked.pretraining}
    text = (
        f"Pretraining: {_finished(tracked.pretraining, 'cells')} ({_many(sizes, 'size')}, "
        f"{_many(recurrences, 'recurrence')})"
    )
    ends = [
        (value, cell)
        for cell in tracked.pretraining
        if cell.finished
        and (value := tracked.curve(cell.run_id, tracked.loss_metric).last_value) is not None
    ]
    if ends:
        value, cell = min(ends, key=lambda end: (end[0], end[1].recurrence, end[1].size))
        text += (
            f"; lowest final total loss {style.significant(value)} nats a token, "
            f"{cell.size} at Tm = {cell.recurrence}"
        )
    return text + "."


def _law_headline(tracked: Tracked) -> str:
    law = tracked.law
    assert law is not None
    parts = [
        f"{words} {style.significant(value)}"
        for key, words in (
            ("law/r2/all", "R² over all points"),
            ("law/r2/held_out", "R² over held-out cells only"),
            ("law/mean_relative_error/held_out", "their mean relative error"),
            ("law/agreeing_share", "share of starts that agree"),
        )
        if (value := tracked.curve(law.run_id, key).last_value) is not None
    ]
    return f"Law {law.form}, fitted to {_many(law.inputs, 'cell')}: {', '.join(parts)}."


def _blindness_headline(tracked: Tracked) -> Iterable[str]:
    held_out = [cell for cell in tracked.pretraining if tracked.held_out(cell)]
    if held_out:
        blind = sum(tracked.blind(cell) for cell in held_out)
        yield (
            f"Held-out cells: {blind} of {len(held_out)} predicted blind, with the prediction on "
            "record before the cell began."
        )


def _finished(runs: Sequence[TrackedRun], word: str) -> str:
    return f"{sum(run.finished for run in runs)} of {len(runs)} {word} finished"


def _many(things: Iterable[object], word: str) -> str:
    count = len(tuple(things))
    return f"{count} {word}{'' if count == 1 else 's'}"


def _period(tracked: Tracked) -> str:
    runs: list[TrackedRun] = [*tracked.pretraining, *tracked.calibration, *tracked.searches]
    runs += [tracked.law] if tracked.law else []
    times = sorted({_day(run.start_time) for run in runs})
    return times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).strftime("%Y-%m-%d")
