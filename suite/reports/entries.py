"""Tables of the report as data: every number in them is a tracked value with its origin."""

from __future__ import annotations

from dataclasses import dataclass

from suite.reports import style
from suite.reports.points import Curve
from suite.reports.records import TrackedRun

NOTHING = "\u2013"


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
        origin: where it comes from; None for labels, and for what other entries give.
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


def label(text: str) -> Entry:
    """A name that stands for no value."""
    return Entry(text=text)


def number(curve: Curve, step: int | None = None) -> Entry:
    """The value at ``step``, or the last one; a dash where there is none."""
    at = curve.last_step if step is None else step
    value = None if at is None else curve.at(at)
    if at is None or value is None:
        return Entry(text=NOTHING, kind="number")
    origin = Origin(run_id=curve.run_id, key=curve.key, step=at, value=value)
    return Entry(text=style.significant(value), origin=origin, kind="number")


def derived(text: str | None) -> Entry:
    """A number that other entries of the row give; a dash for None."""
    return Entry(text=NOTHING if text is None else text, kind="number")


def setting(run: TrackedRun, key: str, value: str, shown: str | None = None) -> Entry:
    """A parameter of a run; one that is ``shown`` otherwise is a number."""
    origin = Origin(run_id=run.run_id, key=f"param:{key}", step=None, value=value)
    return Entry(text=shown or value, origin=origin, kind="number" if shown else "text")


def told(run_id: str, key: str, text: str, kind: str = "text") -> Entry:
    """A text that follows from what is tracked with a run, under a name for it."""
    origin = Origin(run_id=run_id, key=key, step=None, value=text)
    return Entry(text=text, origin=origin, kind=kind)


def status(run: TrackedRun) -> Entry:
    """How a run ended, and why where that is known."""
    text = f"{run.status}: {run.failure}" if run.failure and not run.finished else run.status
    kinds = {"FINISHED": "text", "FAILED": "bad"}
    return told(run.run_id, "run:status", text, kinds.get(run.status, "unfinished"))


def attempts(run: TrackedRun) -> Entry:
    """How many processes worked on a run."""
    # Not an origin: a resumed run is the same measurement, and verify compares measurements.
    return Entry(text=str(run.attempts), kind="number")


def run_id(run: TrackedRun) -> Entry:
    """The id of a run."""
    return Entry(text=run.run_id, kind="run")
