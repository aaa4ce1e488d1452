"""The fit of a table's points: law, predictions, errors and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from suite.laws.fit import Fit, fit
from suite.laws.forms import Form
from suite.laws.goodness import Goodness, goodness
from suite.laws.held_out import Comparison
from suite.laws.intervals import Bootstrap
from suite.laws.profile import Profile, profile
from suite.laws.repeated_data import fit_repeated
from suite.tables.answers import Answers, answer
from suite.tables.columns import Array
from suite.tables.comparison import compare_forms
from suite.tables.points import TablePoints, points_of
from suite.tables.request import FitRequest
from suite.tables.resampling import Intervals, fit_with_intervals
from suite.tables.sources import Table

OnDone = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Everything that one ``suite fit`` found.

    Attributes:
        table: where the points come from.
        request: the settings.
        points: what was fitted and held out.
        fit: the law.
        predicted: predicted losses [points].
        goodness: errors on fitted and held-out points.
        intervals: of the parameters, where they were asked for.
        answers: what the law says where it was asked.
        profiles: profile intervals, of the parameters that they were asked for.
        comparison: held-out errors of this law and others, where others are named.
        warnings: about the points, the fit, the intervals and the answers, in plain sentences.
    """

    table: Table
    request: FitRequest
    points: TablePoints
    fit: Fit
    predicted: Array
    goodness: Goodness
    intervals: Intervals | None
    answers: Answers
    profiles: tuple[Profile, ...]
    comparison: Comparison | None
    warnings: tuple[str, ...]

    @property
    def form(self) -> Form:
        """The law's form."""
        return self.fit.form

    @property
    def parameters(self) -> Mapping[str, float]:
        """Natural parameters by symbol."""
        return self.fit.parameters


def fit_table(table: Table, request: FitRequest, on_done: OnDone | None = None) -> Outcome:
    """Fit the law that a request names to the points that it chooses.

    Args:
        table: the numbers.
        request: what is what, and how to fit.
        on_done: called with the number of starts, or of resamples, that have ended so far.

    Raises:
        InputError: as ``points_of``; or a setting makes no sense.
    """
    form = request.law()
    points = points_of(table, request, form)
    comparison = compare_forms(table, points, request)
    intervals: Intervals | None = None
    profiles: tuple[Profile, ...] = ()
    if request.bootstrap:
        found, intervals = fit_with_intervals(form, points, request, on_done)
        result, answers = found.fit, answer(found, points, request)
        if isinstance(found, Bootstrap):
            profiles = tuple(profile(found, symbol) for symbol in request.profile)
    else:
        result = _fit(form, points, request, on_done)
        answers = answer(result, points, request)
    predicted = result.predict(points.variables)
    return Outcome(
        table=table,
        request=request,
        points=points,
        fit=result,
        predicted=predicted,
        goodness=goodness(points.loss, predicted, points.held_out),
        intervals=intervals,
        answers=answers,
        profiles=profiles,
        comparison=comparison,
        warnings=(
            *points.warnings,
            *result.warnings,
            *(intervals.warnings if intervals else ()),
            *answers.warnings,
        ),
    )


def _fit(form: Form, points: TablePoints, request: FitRequest, on_start: OnDone | None) -> Fit:
    kept = ~points.held_out
    if form.name == "data_constrained":
        return fit_repeated(
            points.fitted(),
            points.loss[kept],
            plain=request.fixed or None,
            huber_delta=request.huber_delta,
            starts=request.starts,
            seed=request.seed,
            on_start=on_start,
        )
    return fit(
        form,
        points.fitted(),
        points.loss[kept],
        huber_delta=request.huber_delta,
        starts=request.starts,
        seed=request.seed,
        on_start=on_start,
    )


def residuals(outcome: Outcome) -> Array:
    """Predicted over measured loss, less 1, [points]."""
    relative: Array = outcome.predicted / outcome.points.loss - 1.0
    return np.asarray(relative, dtype=np.float64)
