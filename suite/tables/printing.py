"""A fit as a person reads it on a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape

from suite.grids import print_grid
from suite.laws.fit import Fit
from suite.laws.intervals import Interval
from suite.tables.outcome import Outcome
from suite.terminal import shown


def print_outcome(outcome: Outcome, console: Console | None = None) -> None:
    """Show parameters, objective, agreement, errors and warnings."""
    console = console or Console(highlight=False)
    fit = outcome.fit
    console.print(_text(fit.form.formula), soft_wrap=True)
    console.print(f"{_text(fit.form.name)} on {_text(outcome.table.name)}", soft_wrap=True)
    _print_parameters(console, outcome)
    for label, text in _facts(outcome):
        console.print(f"{label:<18}{_text(text)}", soft_wrap=True)
    for sentence in [*_profiles(outcome), *_comparison(outcome), *_answers(outcome)]:
        console.print(_text(sentence), soft_wrap=True)
    for warning in outcome.warnings:
        console.print(f"warning: {_text(warning)}", soft_wrap=True)


def _print_parameters(console: Console, outcome: Outcome) -> None:
    fit, intervals = outcome.fit, outcome.intervals
    level = f"{intervals.level:.0%} interval" if intervals else "interval"
    rows = []
    for symbol in fit.form.symbols:
        ends = ""
        if intervals:
            low, high = intervals.ends[symbol.name]
            known = math.isfinite(low) and math.isfinite(high)
            unknown = "" if symbol.name in outcome.request.fixed else "not identified"
            ends = f"{number(low)} to {number(high)}" if known else unknown
        note = "bound" if symbol.name in fit.at_bounds else ""
        if symbol.name in outcome.request.fixed:
            note = "fixed"
        rows.append([symbol.name, number(fit.parameters[symbol.name]), ends, symbol.unit, note])
    names = ("symbol", "value", level, "unit", "")
    print_grid(console, names, rows, left=("symbol", "unit", ""), wrapped="unit")


def _facts(outcome: Outcome) -> list[tuple[str, str]]:
    fit, points, errors = outcome.fit, outcome.points, outcome.goodness
    groups = f" of {len(set(points.group.tolist()))} groups" if points.grouped else ""
    held_out = int(points.held_out.sum())
    facts = [
        (
            "points",
            f"{fit.num_points} fitted" + (f", {held_out} held out" if held_out else "") + groups,
        ),
        ("objective", f"{fit.objective:.10g} (Huber, delta {outcome.request.huber_delta:g})"),
        ("starts agreeing", _agreement(fit)),
        ("condition number", f"{fit.condition_number:.3g}"),
        (
            "errors",
            f"fitted: mean relative {errors.mean_relative_error_fitted:.3%}, "
            f"R² {errors.r2_fitted:.4f}",
        ),
    ]
    if errors.mean_relative_error_held_out is not None and errors.r2_held_out is not None:
        facts.append(
            (
                "",
                f"held out: mean relative {errors.mean_relative_error_held_out:.3%}, "
                f"R² {errors.r2_held_out:.4f}",
            )
        )
    return facts


def _agreement(fit: Fit) -> str:
    agreeing = f"{fit.agreeing_share:.1%} of {fit.num_tried}"
    if fit.num_tried == fit.num_starts:
        return agreeing
    elsewhere = fit.num_starts - fit.num_tried
    return f"{agreeing} in the best direction ({elsewhere} of {fit.num_starts} went in others)"


def _profiles(outcome: Outcome) -> list[str]:
    sentences = []
    for found in outcome.profiles:
        ends = [
            f"{number(end)}{' (not ruled out beyond)' if is_open else ''}"
            for end, is_open in ((found.lower, found.lower_open), (found.upper, found.upper_open))
        ]
        sentences.append(
            f"profile of {found.symbol}: {number(found.estimate)}, {found.level:.0%} interval "
            f"{' to '.join(ends)}"
        )
    return sentences


def _comparison(outcome: Outcome) -> list[str]:
    found = outcome.comparison
    if found is None:
        return []
    errors = zip(found.laws, found.pooled_error, strict=True)
    return [
        f"held-out error, {', '.join(found.splits)}:",
        *(f"  {law}: mean relative {error:.3%}" for law, error in errors),
    ]


def _answers(outcome: Outcome) -> list[str]:
    answers, request = outcome.answers, outcome.request
    sentences = []
    for place, interval in answers.predictions:
        values = ", ".join(f"{request.column(name)} {value:.10g}" for name, value in place.items())
        sentences.append(f"loss at {values}: {_with_ends(interval, '.7g')}")
    if answers.allocation is not None:
        best = answers.allocation.best
        sentences.append(
            f"best use of {answers.allocation.flops:.3g} FLOPs, taking C = 6 N D: "
            f"N {_with_ends(best.parameters, '.4g')}, D {_with_ends(best.tokens, '.4g')}, "
            f"loss {_with_ends(best.loss, '.7g')}"
        )
    return sentences


def _with_ends(interval: Interval, digits: str) -> str:
    value = f"{interval.estimate:{digits}}"
    if not interval.identified:
        return value
    ends = f"{interval.lower:{digits}} to {interval.upper:{digits}}"
    return f"{value} ({interval.level:.0%} interval {ends})"


def _text(text: str) -> str:
    """Text of others, which neither marks up what is printed nor commands the terminal."""
    return escape(shown(text))


def number(value: float) -> str:
    """Six significant digits."""
    return f"{value:.6g}"
