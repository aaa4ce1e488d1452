"""Held-out tests of a law within the cells that it is fitted to, and of it without each term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from suite.errors import InputError
from suite.laws.fit import unidentified_symbols
from suite.laws.forms import Form, get_form
from suite.laws.held_out import (
    Comparison,
    FitSettings,
    ablations,
    check_fitted,
    compare_splits,
)
from suite.laws.splits import Split, SplitPoints, by_level, leave_one_run_out
from suite.stages.context import StageContext
from suite.stages.law_points import LawPoints, first_share
from suite.study import LawSpec, LawTest

_SHARES = (0.25, 0.5, 0.75)
_FIRST_SHARE = "each side smoothed and thinned by itself"
_CELL_DIGITS = 12
_HELD_OUT_VARIABLES: Mapping[LawTest, frozenset[str]] = {
    "size": frozenset({"parameters", "parameters_once", "parameters_recurrent"}),
    "recurrence": frozenset({"recurrence", "step"}),
    "first": frozenset({"tokens"}),
    "cell": frozenset(),  # of which no variable is the one
}


@dataclass(frozen=True, kw_only=True)
class HeldOutErrors:
    """What held-out tests said.

    Attributes:
        metrics: errors by the names of metrics.
        left_out: tests that this grid or window does not allow, with the reason, in sentences.
    """

    metrics: dict[str, float]
    left_out: tuple[str, ...]


def held_out_errors(
    context: StageContext, name: str, law: LawSpec, points: LawPoints
) -> HeldOutErrors:
    """Make the tests that the study asks for, of the law and of it without each of its terms.

    Only points that the law is fitted to take part: cells of ``law.hold_out`` stay unseen.

    Args:
        context: the stage's.
        name: what the bar is called.
        law: settings.
        points: what the law is fitted to.

    Raises:
        StopRequested: a signal has asked to stop.
    """
    forms = laws_to_test(get_form(law.form), ablate=law.ablations)
    settings = FitSettings(
        huber_delta=law.huber_delta, starts=law.test_starts, seed=context.study.seed
    )
    left_out: list[str] = []
    splits: dict[LawTest, tuple[SplitPoints, ...]] = {}
    for kind in law.tests:
        try:
            found, without = split_points(kind, law, points)
            left_out += without
            check_identified(kind, get_form(law.form), found)
        except InputError as error:
            left_out.append(_left_out(kind, error))
        else:
            splits |= {kind: found} if found else {}
    metrics: dict[str, float] = {}
    done = 0
    if not splits:
        return HeldOutErrors(metrics=metrics, left_out=tuple(left_out))
    with context.display.task(name, len(forms) * sum(map(len, splits.values()))) as advance:

        def on_test(tests: int) -> None:
            context.stop.check()
            advance(done + tests, "tests")

        for kind, of_kind in splits.items():
            try:
                errors = compare_splits(list(forms.values()), of_kind, settings, on_test=on_test)
            except InputError as error:
                left_out.append(_left_out(kind, error))
            else:
                metrics |= dict(_metrics(kind, list(forms), errors))
            done += len(forms) * len(of_kind)
    return HeldOutErrors(metrics=metrics, left_out=tuple(left_out))


def preparation(law: LawSpec) -> dict[str, object]:
    """How the points of held-out tests are made, as settings of a law that makes such tests.

    Laws that were finished before it changed told other errors under the same settings.
    """
    return {"first_share": _FIRST_SHARE} if "first" in law.tests else {}


def laws_to_test(form: Form, *, ablate: bool) -> dict[str, Form]:
    """The law as ``full``, then as ``without_<variable>`` and ``without_constant``."""
    if not ablate or len(form.terms) < 2:
        return {"full": form}
    names = ["full", *(f"without_{_variable(term.variables)}" for term in form.terms)]
    if form.constant:
        names.append("without_constant")
    return dict(zip(names, ablations(form), strict=True))


def _variable(variables: tuple[str, ...]) -> str:
    """What a term is about: one variable, or parameters within and outside the loop."""
    return "parameters" if "parameters_once" in variables else variables[0]


def split_points(
    kind: LawTest, law: LawSpec, points: LawPoints
) -> tuple[tuple[SplitPoints, ...], tuple[str, ...]]:
    """Points of the tests of a kind, whose splits are named as their metrics are.

    Returns:
        The points, and which tests of the kind they do not allow, with the reason, in sentences.

    Raises:
        InputError: the points do not allow tests of this kind.
    """
    if kind == "first":
        return _first_shares(law, points)
    splits = tuple(
        SplitPoints(variables=points.variables, loss=points.loss, split=split)
        for split in _whole_runs(kind, points)
    )
    return splits, ()


def _first_shares(
    law: LawSpec, points: LawPoints
) -> tuple[tuple[SplitPoints, ...], tuple[str, ...]]:
    """One test for each share: where a short beginning cannot be fitted, a longer one may be."""
    found, left_out = [], []
    for share in _SHARES:
        try:
            part = first_share(points, law, share)
            check_fitted(get_form(law.form), part)
        except InputError as error:
            left_out.append(
                f"the held-out test by the first {share:.0%} of tokens was left out: {error}"
            )
        else:
            found.append(part)
    return tuple(found), tuple(left_out)


def _whole_runs(kind: LawTest, points: LawPoints) -> tuple[Split, ...]:
    """Splits of the fitted points that hold out whole runs."""
    fitted = points.fitted
    row = {run_id: number for number, run_id in enumerate(fitted["run_id"])}
    run = np.array([row[run_id] for run_id in points.run], dtype=np.intp)
    if kind == "cell":
        names = [f"cell:{cell[:_CELL_DIGITS]}" for cell in fitted["cell"]]
        return leave_one_run_out(run, names)
    values = fitted[kind].cast(pl.String).to_numpy().astype(str)
    levels, level = np.unique(values, return_inverse=True)
    found = by_level(f"pretraining.{kind}s", level[run].astype(np.float64))
    return tuple(
        replace(split, name=f"{kind}:{name}") for split, name in zip(found, levels, strict=True)
    )


def check_identified(kind: LawTest, form: Form, splits: Sequence[SplitPoints]) -> None:
    """See that what is left to fit tells the law's terms of the variable that is held out.

    Where it does not, the law passes through the levels that are left in many ways, and its error
    on the level that is held out says nothing of it.

    Raises:
        InputError: the points left do not identify such a term in any of the splits.
    """
    symbols = {
        symbol.name
        for term in form.terms
        if _HELD_OUT_VARIABLES[kind] & set(term.variables)
        for symbol in term.symbols
    }
    lost = [symbols & set(unidentified_symbols(form, part.fitted())) for part in splits]
    if splits and all(lost):
        names = ", ".join(sorted(set().union(*lost)))
        raise InputError(
            f"the points that each of them leaves do not identify {names}; more {kind}s than such "
            "a term has parameters must be left to fit"
        )


def _metrics(kind: str, laws: list[str], found: Comparison) -> Iterator[tuple[str, float]]:
    for row, law in enumerate(laws):
        for column, split in enumerate(found.splits):
            prefix = f"law/held_out/{split}/{law}"
            yield f"{prefix}/mean_relative_error", float(found.error_held_out[row, column])
            yield f"{prefix}/r2_all", float(found.r2_all[row, column])
        yield f"law/held_out/{kind}/{law}/pooled_error", float(found.pooled_error[row])


def _left_out(kind: str, error: InputError) -> str:
    return f"held-out tests by {kind} were left out: {error}"
