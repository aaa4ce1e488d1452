"""Answers as a person reads them on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from suite.amounts import shown_amount
from suite.answers.question import Place
from suite.grids import print_grid
from suite.laws.allocation import Allocation
from suite.laws.intervals import Band, Interval
from suite.laws.kept import KeptLaw
from suite.laws.next_cell import Ranked
from suite.terminal import shown

_SHOWN = 5  # rows of a ranking
_WORTH = 0.1  # of the variance; cheap cells that remove less are not worth their place


def print_law(console: Console, study: str, run_id: str, law: KeptLaw) -> None:
    """Which law answers, from how many cells, and its parameters."""
    console.print(text(law.law.formula), soft_wrap=True)
    _title(console, f"{law.form} of {study}, run {run_id}")
    rows = []
    for symbol in law.law.symbols:
        found = law.interval(symbol.name)
        missing = "not identified" if symbol.name in law.unidentified else "-"
        ends = f"{found.lower:.4g} to {found.upper:.4g}" if found.identified else missing
        rows.append([symbol.name, f"{found.estimate:.6g}", ends, symbol.unit])
    names = ("symbol", "value", "95% interval", "unit")
    print_grid(console, names, rows, left=("symbol", "unit"), wrapped="unit")
    console.print(
        f"fitted to {law.num_runs} cells, {len(law.resamples)} resamples; a run scatters about "
        f"the law by {law.noise['cell']:.2%}",
        soft_wrap=True,
    )


def print_losses(
    console: Console, places: Sequence[Place], band: Band, flops: Sequence[float]
) -> None:
    """The loss to expect at each place, and what each would cost."""
    first = places[0]
    _title(
        console,
        f"loss to expect of {first.label} (N = {shown_amount(first.parameters)}) after "
        f"D = {shown_amount(first.tokens)} tokens",
    )
    rows = []
    for row, place in enumerate(places):
        interval = Interval(
            estimate=float(band.estimate[row]),
            lower=float(band.lower[row]),
            upper=float(band.upper[row]),
            level=band.level,
        )
        rows.append(
            [
                str(place.recurrence),
                f"{interval.estimate:.4f}",
                _ends(interval),
                f"{flops[row]:.3g}",
            ]
        )
    print_grid(console, ("T_m", "loss", f"{band.level:.0%} interval", "FLOPs"), rows)


def print_allocation(console: Console, found: Allocation, *, loops: bool = True) -> None:
    """The best N and D at each recurrence; without ``loops`` there is only one choice."""
    _title(console, f"compute-optimal for {found.flops:.3g} FLOPs")
    names = ["N", "its interval", "D", "its interval", "loss", "its interval"]
    rows = []
    for choice in found.choices:
        marked = "*" if loops and choice is found.best else ""
        share = "-" if math.isnan(choice.best_share) else f"{choice.best_share:.0%}"
        row = [
            shown_amount(choice.parameters.estimate) + (" at end" if choice.at_end else ""),
            _amounts(choice.parameters),
            shown_amount(choice.tokens.estimate),
            _amounts(choice.tokens),
            f"{choice.loss.estimate:.4f}",
            _ends(choice.loss),
        ]
        if loops:
            row = [f"{marked}{choice.recurrence:g}", *row, share]
        rows.append(row)
    print_grid(console, ["T_m", *names, "best in"] if loops else names, rows)
    if any(choice.at_end for choice in found.choices):
        console.print(
            "at end: the loss falls beyond the declared sizes without end; N is the outermost of "
            "them, and no optimum",
            soft_wrap=True,
        )


def print_ranking(console: Console, target: Place, why: str, ranked: Sequence[Ranked]) -> None:
    """The cells that would tell most, and those that would for what they cost."""
    _title(
        console,
        f"next cell, by the variance that it removes of the loss at N = "
        f"{shown_amount(target.parameters)}, T_m {target.recurrence}, D = "
        f"{shown_amount(target.tokens)} ({why})",
    )
    telling = [found for found in ranked if found.removed >= _WORTH] or list(ranked)
    telling.sort(key=lambda found: -found.removed_per_flop)
    for title, rows in (
        ("the most in all:", ranked),
        (f"the most for its FLOPs, of cells that remove {_WORTH:.0%} or more:", telling),
    ):
        console.print(title, soft_wrap=True)
        names = ("size", "T_m", "D", "FLOPs", "variance removed", "left", "")
        cells = [
            [
                found.candidate.size,
                f"{found.candidate.recurrence:g}",
                shown_amount(found.candidate.tokens),
                f"{found.candidate.flops:.3g}",
                f"{found.removed:.1%}",
                f"± {1.96 * found.deviation_left:.2%}",
                found.candidate.known,
            ]
            for found in rows[:_SHOWN]
        ]
        print_grid(console, names, cells, left=("size", ""))
    console.print(
        "fitted: such a cell was, and this repeats it with another seed; held out: it was run, and "
        "kept from the fit",
        soft_wrap=True,
    )


def print_warnings(console: Console, sentences: Sequence[str]) -> None:
    """One line each, none twice."""
    for sentence in dict.fromkeys(sentences):
        console.print(f"warning: {text(sentence)}", soft_wrap=True)


def text(words: str) -> str:
    """Text of others, which neither marks up what is printed nor commands the terminal."""
    return escape(shown(words))


def _title(console: Console, words: str) -> None:
    console.print(f"\n{text(words)}", soft_wrap=True)


def _ends(interval: Interval) -> str:
    return f"{interval.lower:.4f} to {interval.upper:.4f}" if interval.identified else "-"


def _amounts(interval: Interval) -> str:
    if not interval.identified:
        return "-"
    return f"{shown_amount(interval.lower)} to {shown_amount(interval.upper)}"
