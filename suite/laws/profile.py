"""Profile likelihood of one parameter: how well a law fits with this parameter held.

A Huber sum is no likelihood, and points of one curve are not independent; so no table says how
far the objective may rise. The resamples of the runs do: hold the parameter at its estimate in
each of them, and see how much better the resample fits with it free. The interval is where the
original points would give up no more than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import ndtri, stdtrit  # type: ignore[import-untyped]

from suite.errors import InputError
from suite.laws._newton import minimise
from suite.laws._problem import Problem
from suite.laws._terms import Array
from suite.laws.intervals import Bootstrap

_RANDOM_STARTS = 4  # beside the warm one, at every held value
_WARM_WIDEST = 0.1  # first threshold of the resamples, which begin near their optimum
_FIRST_STEP = 1e-3  # of the search for an end, as a share of the way to the limit
_GROWTH = 3.0  # from one step to the next
_ROUNDING = 1e-9  # least rise, as a share of the objective: that of a flat profile
_PRECISION = 1e-7  # of an end, as a share of the way to the limit


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Objective along one parameter, every other one fitted, and the interval it gives.

    Attributes:
        symbol: the parameter.
        estimate: its value in the fit.
        lower: lower end; the limit of the parameter where the objective never rises so far.
        upper: upper end, likewise.
        lower_open: nothing below the estimate is ruled out.
        upper_open: nothing above it is.
        level: nominal coverage.
        rise: how far the objective may rise above its least value.
        values: values that were tried, ascending [values].
        objective: least objective at each of them [values].
    """

    symbol: str
    estimate: float
    lower: float
    upper: float
    lower_open: bool
    upper_open: bool
    level: float
    rise: float
    values: Array
    objective: Array


def profile(bootstrap: Bootstrap, symbol: str, level: float = 0.95) -> Profile:
    """Profile interval of the constant, an exponent or a shift.

    The allowed rise is the ``level`` quantile, over resamples, of what the resample's
    objective gains when the parameter is freed from the estimate; times t^2/z^2, the
    small-sample correction of ``intervals.percentile_band`` for a quantity that is quadratic
    in the parameter. With independent normal noise and an infinite delta that is z^2/2 times
    the variance of the noise, the threshold of the likelihood ratio.

    Where the parameter is not identified the resamples gain nothing, and the interval is the
    range over which the fit is as good as the best.

    A coefficient (A, B, C) has no profile: its value hangs on the units and the exponent.

    Args:
        bootstrap: the fit and its resamples.
        symbol: the parameter.
        level: nominal coverage.

    Raises:
        InputError: the law has no such constant, exponent or shift, or the level is not in
            (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must lie between 0 and 1, such as .95")
    along = _Along(bootstrap, symbol)
    rise = _rise(bootstrap, along, level)
    ends = [along.end(limit, rise) for limit in along.limits]
    values = np.array(sorted(along.tried))
    return Profile(
        symbol=symbol,
        estimate=along.estimate,
        lower=ends[0][0],
        upper=ends[1][0],
        lower_open=ends[0][1],
        upper_open=ends[1][1],
        level=level,
        rise=rise,
        values=values,
        objective=np.array([along.tried[value] for value in values]),
    )


class _Along:
    """Fits with one parameter held, value by value.

    Attributes:
        estimate: value of the parameter in the fit.
        limits: least and largest value that a fit may give it.
        tried: least objective by value.
    """

    def __init__(self, bootstrap: Bootstrap, symbol: str) -> None:
        found = bootstrap.search
        self._form, self._columns, self._loss = found.form, found.columns, found.loss
        self._best, self._delta = found.best, found.huber_delta
        shapes = [shape.name for term in found.best.terms for shape in term.symbols[1:]]
        constant = found.form.constant.name if found.form.constant else ""
        if symbol not in [constant, *shapes] or not symbol:
            raise InputError(
                f"{symbol!r} has no profile in {found.form.name!r}; there are "
                f"{', '.join(filter(None, [constant, *shapes]))}"
            )
        self._name = "" if symbol == constant else symbol
        self.estimate = bootstrap.fit.parameters[symbol]
        self.limits = self._best.problem.range_of(self._name, self._best.theta)
        self.tried = {self.estimate: bootstrap.fit.objective}
        self._thetas = {self.estimate: self._best.theta}

    def held(self, value: float) -> Problem:
        """The fit with the parameter held at a value."""
        return Problem(
            self._best.terms,
            self._columns,
            self._loss,
            has_constant=self._form.constant is not None,
            pinned=(self._name, value),
        )

    def objective(self, value: float) -> float:
        """Least objective with the parameter held, from the nearest fit and random starts."""
        if value not in self.tried:
            problem = self.held(value)
            nearest = min(self._thetas, key=lambda known: abs(known - value))
            warm = problem.inside(self._thetas[nearest][None])
            theta = np.concatenate([warm, problem.starts(_RANDOM_STARTS, seed=0)])
            minima = minimise(problem, theta, self._delta)
            at = int(minima.objective.argmin())
            self.tried[value] = float(minima.objective[at])
            self._thetas[value] = minima.theta[at]
        return self.tried[value]

    def gains(self, bootstrap: Bootstrap) -> Array:
        """What each resample's objective gains by freeing the parameter [resamples]."""
        problem, resamples = self.held(self.estimate), bootstrap.resamples
        warm = problem.inside(np.tile(self._best.theta, (len(resamples.objective), 1)))
        minima = minimise(
            problem, warm, self._delta, weights=resamples.weights, widest=_WARM_WIDEST
        )
        gains: Array = np.maximum(minima.objective - resamples.objective, 0.0)
        return gains

    def end(self, limit: float, rise: float) -> tuple[float, bool]:
        """Where the objective has risen by ``rise`` on the way to a limit.

        Returns:
            The value, or the limit; and whether the objective never rose so far.
        """
        least = self.tried[self.estimate]
        way = limit - self.estimate

        def excess(share: float) -> float:
            # The root of the rise is nearly straight, which the search for its zero likes.
            risen = self.objective(self.estimate + share * way) - least
            return math.sqrt(max(risen, 0.0)) - math.sqrt(rise)

        inner, outer = 0.0, _FIRST_STEP
        while excess(min(outer, 1.0)) < 0:
            if outer >= 1.0:
                return limit, True
            inner, outer = outer, _GROWTH * outer
        share = brentq(excess, inner, min(outer, 1.0), xtol=_PRECISION)
        return self.estimate + share * way, False


def _rise(bootstrap: Bootstrap, along: _Along, level: float) -> float:
    """How far the objective may rise; see ``profile``."""
    two_sided = 0.5 * (1 + level)
    correction = (stdtrit(bootstrap.num_runs - 1, two_sided) / ndtri(two_sided)) ** 2
    rise = float(correction * np.quantile(along.gains(bootstrap), level))
    return max(rise, _ROUNDING * bootstrap.fit.objective)
