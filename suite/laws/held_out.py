"""Held-out tests: fit a law without some points, and judge it on these points only.

R² over all points, as papers report it, says little: leaving a term out may cost .005 of it
and double the error where the term was needed. Laws and terms are compared by what they
predict of points they did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from suite.errors import InputError
from suite.laws._search import checked_points
from suite.laws._terms import Array
from suite.laws.fit import Fit, fit
from suite.laws.forms import Form
from suite.laws.goodness import Goodness, goodness, mean_relative_error
from suite.laws.splits import Split, SplitPoints


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings that every fit of a test shares; see ``fit.fit``.

    Attributes:
        huber_delta: threshold of the Huber loss, in nats of log loss.
        starts: starts of the optimiser.
        seed: seed of the starts.
    """

    huber_delta: float = 1e-3
    starts: int = 64
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutTest:
    """One law fitted without the held-out points of one split.

    Attributes:
        split: what was held out.
        fit: the fit of the other points.
        predicted: predicted losses of all points [points].
        goodness: errors on fitted and on held-out points, apart, and R² over all.
    """

    split: Split
    fit: Fit
    predicted: Array
    goodness: Goodness


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Held-out errors of several laws on the same splits.

    Attributes:
        laws: names of the laws; the first is the one that others are compared with.
        splits: names of the splits.
        r2_all: R² over all points, for comparison with papers [laws, splits].
        r2_held_out: R² over held-out points, about their own mean [laws, splits].
        error_fitted: mean relative error over fitted points [laws, splits].
        error_held_out: mean relative error over held-out points [laws, splits].
        pooled_error: mean relative error over the held-out points of all splits [laws].
    """

    laws: tuple[str, ...]
    splits: tuple[str, ...]
    r2_all: Array
    r2_held_out: Array
    error_fitted: Array
    error_held_out: Array
    pooled_error: Array

    @property
    def best(self) -> str:
        """The law of the least pooled error; the first of those that are equal."""
        return self.laws[int(self.pooled_error.argmin())]

    @property
    def error_ratio(self) -> Array:
        """Pooled error of each law over that of the first [laws]."""
        ratio: Array = self.pooled_error / self.pooled_error[0]
        return ratio

    @property
    def first_wins(self) -> Array:
        """Share of the splits on which the first law errs less than each law [laws].

        Its own share is 0. A ratio that one split decides shows here.
        """
        wins: Array = (self.error_held_out[:1] < self.error_held_out).mean(axis=1)
        return wins


def check_fitted(form: Form, part: SplitPoints) -> None:
    """Refuse a split whose fitted points cannot determine the law, before it is fitted.

    Raises:
        InputError: as ``fit.fit``.
    """
    checked_points(form, part.fitted(), part.loss[~part.split.held_out])


def held_out_test(
    form: Form,
    variables: Mapping[str, Array],
    loss: Array,
    split: Split,
    settings: FitSettings | None = None,
) -> HeldOutTest:
    """Fit a law to the points that a split leaves, and judge it on the others.

    Args:
        form: the law.
        variables: columns [points] by name.
        loss: losses [points] in nats.
        split: what is held out.
        settings: settings of the fit; none for the usual ones.

    Raises:
        InputError: the points that are left cannot determine the law (the split is named), or
            as ``fit.fit``; nothing is held out.
    """
    settings = settings or FitSettings()
    loss = np.asarray(loss, dtype=np.float64)
    if split.held_out.shape != loss.shape:
        raise InputError(f"{split.name}: {len(split.held_out)} points split, {len(loss)} losses")
    if not split.held_out.any():
        raise InputError(f"{split.name}: no point is held out")
    columns = form.columns(variables)
    left = ~split.held_out
    try:
        fitted = fit(
            form,
            {name: values[left] for name, values in columns.items()},
            loss[left],
            huber_delta=settings.huber_delta,
            starts=settings.starts,
            seed=settings.seed,
        )
    except InputError as error:
        raise InputError(f"with {split.name} held out, {error}") from error
    predicted = fitted.predict(columns)
    return HeldOutTest(
        split=split,
        fit=fitted,
        predicted=predicted,
        goodness=goodness(loss, predicted, split.held_out),
    )


def compare(
    forms: Sequence[Form],
    variables: Mapping[str, Array],
    loss: Array,
    splits: Sequence[Split],
    settings: FitSettings | None = None,
    *,
    on_test: Callable[[int], None] | None = None,
) -> Comparison:
    """Held-out errors of each law on each split of the same points.

    Args:
        forms: the laws, the one that others are compared with first.
        variables: columns [points] by name, all that the laws read.
        loss: losses [points] in nats.
        splits: what is held out, test by test.
        settings: settings of the fits; none for the usual ones.
        on_test: called with the number of tests done so far, of laws times splits.

    Raises:
        InputError: no law or no split is given, or as ``held_out_test``.
    """
    loss = np.asarray(loss, dtype=np.float64)
    parts = [SplitPoints(variables=variables, loss=loss, split=split) for split in splits]
    return compare_splits(forms, parts, settings, on_test=on_test)


def compare_splits(
    forms: Sequence[Form],
    parts: Sequence[SplitPoints],
    settings: FitSettings | None = None,
    *,
    on_test: Callable[[int], None] | None = None,
) -> Comparison:
    """Held-out errors of each law on each split, where every split has points of its own.

    Args:
        forms: the laws, the one that others are compared with first.
        parts: what is fitted and what is held out, test by test.
        settings: settings of the fits; none for the usual ones.
        on_test: called with the number of tests done so far, of laws times splits.

    Raises:
        InputError: no law or no split is given, or as ``held_out_test``.
    """
    if not forms or not parts:
        raise InputError(f"{len(forms)} laws and {len(parts)} splits: one of each is needed")
    tests: list[HeldOutTest] = []
    for form in forms:
        for part in parts:
            tests.append(held_out_test(form, part.variables, part.loss, part.split, settings))
            if on_test:
                on_test(len(tests))

    def table(read: Callable[[Goodness], float | None]) -> Array:
        values = [read(test.goodness) for test in tests]
        return np.array(values, dtype=np.float64).reshape(len(forms), len(parts))

    real = np.concatenate([part.loss[part.split.held_out] for part in parts])
    rows = [tests[start : start + len(parts)] for start in range(0, len(tests), len(parts))]
    pooled = [
        mean_relative_error(
            real, np.concatenate([test.predicted[test.split.held_out] for test in row])
        )
        for row in rows
    ]
    return Comparison(
        laws=tuple(form.name for form in forms),
        splits=tuple(part.split.name for part in parts),
        r2_all=table(lambda quality: quality.r2_all),
        r2_held_out=table(lambda quality: quality.r2_held_out),
        error_fitted=table(lambda quality: quality.mean_relative_error_fitted),
        error_held_out=table(lambda quality: quality.mean_relative_error_held_out),
        pooled_error=np.array(pooled),
    )


def ablations(form: Form) -> tuple[Form, ...]:
    """The law itself, then the law without each of its terms and without its constant.

    ``compare`` them to see which term earns its parameters: one whose removal does not raise
    the held-out error was not measured by these points.

    Raises:
        InputError: the law has a single term.
    """
    if len(form.terms) < 2:
        raise InputError(f"the law {form.name!r} has one term; without it nothing is left")
    shorter = [
        replace(
            form,
            name=f"{form.name} without {term.formula}",
            terms=tuple(other for other in form.terms if other is not term),
        )
        for term in form.terms
    ]
    if form.constant:
        name = f"{form.name} without {form.constant.name}"
        shorter.append(replace(form, name=name, constant=None))
    return (form, *shorter)
