"""Intervals of a fit by resampling runs.

Points of one curve are not independent: they share the run's offset, and noise that lasts for
many steps. So whole runs are resampled, never points. A run that is drawn twice counts twice
in the objective; every resample is fitted to convergence, all of them as one batch, each from
the optimum of the original points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

from suite.errors import InputError
from suite.laws._diagnosis import unidentified
from suite.laws._drawn_levels import MANY_LOST, lost_shares, lost_warnings
from suite.laws._newton import Minima, RunWeights, minimise
from suite.laws._search import Attempt, Search, natural, search
from suite.laws._terms import Array
from suite.laws.fit import Fit, describe
from suite.laws.forms import Form

# First threshold of the Huber loss, in nats: resamples begin near their optimum, and need no
# wider one. Found by measurement to end where random starts end, in the least time.
_WARM_WIDEST = 0.1
# Directions whose objective is within this factor of the best may win in some resample.
_RIVAL = 2.0
_LEVEL = 0.95
_FEWEST_BEYOND = 2  # resamples beyond an end, below which one draw decides where it lies
FEWEST_RUNS = 5
FEWEST_RESAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval of one number.

    Attributes:
        estimate: its value in the fit of the original points.
        lower: lower end; NaN where the points do not identify the parameter.
        upper: upper end, likewise.
        level: nominal coverage, such as .95.
    """

    estimate: float
    lower: float
    upper: float
    level: float

    @property
    def identified(self) -> bool:
        """Whether the points say anything about it."""
        return bool(np.isfinite(self.lower) and np.isfinite(self.upper))


@dataclass(frozen=True, kw_only=True, eq=False)
class Band:
    """Intervals of several numbers, each on its own (not simultaneous).

    Attributes:
        estimate: values in the fit of the original points [values].
        lower: lower ends [values].
        upper: upper ends [values].
        level: nominal coverage of each.
    """

    estimate: Array
    lower: Array
    upper: Array
    level: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Resamples:
    """Where the resamples' fits ended, in search coordinates.

    Attributes:
        weights: how often each counts each run.
        objective: objective of each resample [resamples].
        attempt: direction that each ended in [resamples].
        theta: search coordinates in it [resamples, size].
        converged: resamples that ended at a stationary point [resamples].
    """

    weights: RunWeights
    objective: Array
    attempt: NDArray[np.intp]
    theta: Array
    converged: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Bootstrap:
    """A fit, and the fits of its resampled runs.

    Attributes:
        fit: the fit of the original points.
        num_runs: runs that were resampled.
        symbols: names of the parameters.
        parameters: parameters of the resamples, in natural units [resamples, symbols].
        unidentified: symbols of which the points determine only combinations, or more than 20 %
            of the resamples do.
        lost: for each symbol that the points identify, the share of the resamples whose runs do
            not; symbols that every resample identifies are left out.
        warnings: about the resamples, in plain sentences.
        search: what the starts of ``fit`` found.
        resamples: the same for the resamples.
    """

    fit: Fit
    num_runs: int
    symbols: tuple[str, ...]
    parameters: Array
    unidentified: tuple[str, ...]
    lost: Mapping[str, float]
    warnings: tuple[str, ...]
    search: Search
    resamples: Resamples

    @property
    def converged_share(self) -> float:
        """Share of the resamples whose fit converged."""
        return float(self.resamples.converged.mean())

    def interval(self, symbol: str, level: float = 0.95) -> Interval:
        """Interval of a parameter; NaN where the points, or many resamples, do not identify it.

        Raises:
            InputError: the law has no such parameter, or the level is not in (0, 1).
        """
        if symbol not in self.symbols:
            raise InputError(
                f"{symbol!r} is no parameter of {self.fit.form.name!r}; there are "
                f"{', '.join(self.symbols)}"
            )
        estimate = self.fit.parameters[symbol]
        values = self.parameters[:, [self.symbols.index(symbol)]]
        band = percentile_band(np.array([estimate]), values, self.num_runs, level)
        known = symbol not in self.unidentified
        return Interval(
            estimate=estimate,
            lower=float(band.lower[0]) if known else np.nan,
            upper=float(band.upper[0]) if known else np.nan,
            level=level,
        )

    def predict(self, variables: Mapping[str, Array], level: float = 0.95) -> Band:
        """Intervals of the law's loss in nats at given variables.

        They are those of the law, not of a new run: a run's own noise is not in them.

        Args:
            variables: columns [values] by name.
            level: nominal coverage of each interval.

        Raises:
            InputError: as ``Form.columns``, or the level is not in (0, 1).
        """
        columns = self.fit.form.columns(variables)
        return self.band_of(lambda parameters: self.fit.form.predict(parameters, columns), level)

    def band_of(
        self, quantity: Callable[[Mapping[str, float]], Array], level: float = 0.95
    ) -> Band:
        """Intervals of anything that follows from the parameters.

        Such as the difference of the losses at two recurrences, which is identified where the
        parameters of the recurrence term are not.

        Args:
            quantity: from natural parameters by symbol to numbers [values].
            level: nominal coverage of each interval.

        Raises:
            InputError: the level is not in (0, 1).
        """
        values = np.stack(
            [quantity(dict(zip(self.symbols, row, strict=True))) for row in self.parameters]
        )
        estimate = np.asarray(quantity(self.fit.parameters), dtype=np.float64)
        return percentile_band(estimate, values, self.num_runs, level)


def bootstrap(
    form: Form,
    variables: Mapping[str, Array],
    loss: Array,
    run: NDArray[np.generic],
    *,
    huber_delta: float = 1e-3,
    starts: int = 64,
    resamples: int = 500,
    seed: int = 0,
    on_start: Callable[[int], None] | None = None,
    on_resample: Callable[[int], None] | None = None,
) -> Bootstrap:
    """Fit a law, and fit it again to resampled runs.

    Neither the order of the points nor the names of the runs change the result. With one
    point a run this is the ordinary bootstrap over points.

    Args:
        form: the law.
        variables: columns [points] by name.
        loss: losses [points] in nats.
        run: which run each point belongs to: numbers or names [points].
        huber_delta: threshold of the Huber loss, in nats of log loss.
        starts: starts of the fit of the original points.
        resamples: resamples of the runs.
        seed: seed of the starts and of the resamples.
        on_start: called with the number of starts that have ended so far.
        on_resample: called with the number of resamples fitted so far.

    Raises:
        InputError: as ``fit.fit``; ``run`` does not pair with the losses; there are fewer than
            5 runs; or fewer than 100 resamples, too few for the tails of an interval.
    """
    run = np.asarray(run)
    if run.shape != np.shape(loss):
        raise InputError(f"there are {len(run)} runs' points and {np.size(loss)} losses")
    num_runs = len(np.unique(run))
    if num_runs < FEWEST_RUNS:
        raise InputError(
            f"there are {num_runs} runs; intervals over runs need at least {FEWEST_RUNS}"
        )
    if resamples < FEWEST_RESAMPLES:
        raise InputError(
            f"resamples is {resamples}; the tails of an interval need at least {FEWEST_RESAMPLES}"
        )
    found = search(
        form,
        variables,
        loss,
        huber_delta=huber_delta,
        starts=starts,
        seed=seed,
        on_start=on_start,
    )
    numbers = _number_runs(found, run[found.order])
    draws = np.random.default_rng(seed).multinomial(
        num_runs, np.full(num_runs, 1.0 / num_runs), size=resamples
    )
    weights = RunWeights(draws.astype(np.float64), numbers)
    ends = _fit_resamples(found, weights, on_resample)
    parameters = [
        natural(form, found.attempts[attempt].problem, theta)
        for attempt, theta in zip(ends.attempt, ends.theta, strict=True)
    ]
    symbols = tuple(symbol.name for symbol in form.symbols)
    spent = unidentified(form, found.best.terms, found.columns)
    unknown = dict.fromkeys(name for _, names in spent.values() for name in names)
    lost = lost_shares(form, found.best.terms, found.columns, weights)
    lost = {name: share for name, share in lost.items() if name not in unknown}
    return Bootstrap(
        fit=describe(found),
        num_runs=num_runs,
        symbols=symbols,
        parameters=np.array([[row[name] for name in symbols] for row in parameters]),
        unidentified=(*unknown, *(name for name, share in lost.items() if share > MANY_LOST)),
        lost=lost,
        warnings=tuple(_warnings(lost, num_runs, resamples)),
        search=found,
        resamples=ends,
    )


def fewest_resamples(num_runs: int, level: float = _LEVEL) -> int:
    """Resamples of which two lie beyond each end of an interval over so many runs.

    With fewer, an end is the outermost resample or the next, and another seed moves it.
    """
    return max(FEWEST_RESAMPLES, math.ceil(_FEWEST_BEYOND / _tail(num_runs, level)))


def _tail(num_runs: int, level: float) -> float:
    """Share of the resamples beyond each end; see ``percentile_band``."""
    return float(ndtr(-stdtrit(num_runs - 1, 0.5 * (1 + level))))


def _warnings(lost: Mapping[str, float], num_runs: int, resamples: int) -> list[str]:
    sentences = lost_warnings(lost)
    needed = fewest_resamples(num_runs)
    if resamples < needed:
        sentences.append(
            f"{resamples} resamples leave fewer than {_FEWEST_BEYOND} beyond each end of a "
            f"{_LEVEL:.0%} interval over {num_runs} runs, so its ends hang on single draws: take "
            f"at least {needed}"
        )
    return sentences


def percentile_band(estimate: Array, values: Array, num_runs: int, level: float) -> Band:
    """Percentile intervals of resampled values, with tails for few runs.

    The percentiles are those at which the normal distribution has the quantiles of Student's t
    with n - 1 degrees of freedom, n being the runs: with 15 runs the 95 % interval lies between
    the percentiles 1.6 and 98.4, with 240 between 2.5 and 97.5. Like plain percentiles they give
    a parameter and its logarithm the same interval (Hesterberg, "What Teachers Should Know
    about the Bootstrap", The American Statistician 69, 2015, whose further factor
    sqrt(n/(n - 1)) is left out: resamples of few, unequal runs already vary more than they
    should).

    Chosen by simulation (tests/suite/laws/test_interval_coverage.py): 200 data sets of 15
    curves, 5 sizes by 3 T_m, with offsets of .4 % and lasting step noise of 1 %.
    What 95 % intervals covered, least and most of six quantities of ``chinchilla`` (E, alpha,
    beta, predictions), of 200 more of its data sets, and of five of ``looplm_total``
    (predictions, differences between T_m):

    ======================  ============  =============  =============
    tails                   chinchilla    more of it     looplm_total
    ======================  ============  =============  =============
    plain percentiles       92.5 - 97.5   90.5 - 96.5    94.5 - 96.5
    Student's (these)       95.0 - 98.0   92.5 - 97.5    95.5 - 97.5
    and sqrt(n/(n - 1))     95.5 - 99.0   93.0 - 98.0    96.0 - 99.0
    ======================  ============  =============  =============

    On the second column's data, smooth (Dirichlet) weights of the runs covered 88 - 95.5 %,
    2 theta - percentiles 88.5 - 94.5 % and the delete-one-run jackknife with Student's t
    91.5 - 95.5 %. Where offsets drown the step noise (1 % and .3 %) these tails covered 94 - 98 %
    of E, alpha and predictions, plain ones 91 - 97.5 %; both always covered beta, too wide.

    Args:
        estimate: values in the fit of the original points [values].
        values: the same in the resamples [resamples, values].
        num_runs: runs that were resampled.
        level: nominal coverage.

    Raises:
        InputError: the level is not in (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; it must lie between 0 and 1, such as .95")
    tail = _tail(num_runs, level)
    lower, upper = np.quantile(values, [tail, 1 - tail], axis=0)
    return Band(estimate=estimate, lower=lower, upper=upper, level=level)


def _number_runs(found: Search, run: NDArray[np.generic]) -> NDArray[np.intp]:
    """Numbers of the runs [points] that depend on their points alone, not on names or order."""
    rows = np.stack([*found.columns.values(), found.loss], axis=1)
    names, index = np.unique(run, return_inverse=True)
    points = [tuple(map(tuple, rows[index == number])) for number in range(len(names))]
    rank = np.empty(len(names), dtype=np.intp)
    rank[sorted(range(len(names)), key=points.__getitem__)] = np.arange(len(names))
    return rank[index]


def _fit_resamples(
    found: Search, weights: RunWeights, on_resample: Callable[[int], None] | None
) -> Resamples:
    """Fit every resample in every direction that may win in it, from the optimum there."""
    count = len(weights.of_run)
    ceiling = _RIVAL * found.best.objective
    rivals = [at for at, attempt in enumerate(found.attempts) if attempt.objective <= ceiling]
    ended = 0

    def report(finished: int) -> None:
        nonlocal ended
        ended += finished
        if on_resample:
            on_resample(ended // len(rivals))

    def refit(attempt: Attempt) -> Minima:
        theta = np.tile(attempt.theta, (count, 1))
        return minimise(
            attempt.problem,
            theta,
            found.huber_delta,
            report,
            weights=weights,
            widest=_WARM_WIDEST,
        )

    minima = [refit(found.attempts[at]) for at in rivals]
    objective = np.stack([ends.objective for ends in minima])
    won, lane = objective.argmin(axis=0), np.arange(count)
    return Resamples(
        weights=weights,
        objective=objective[won, lane],
        attempt=np.array(rivals, dtype=np.intp)[won],
        theta=np.stack([ends.theta for ends in minima])[won, lane],
        converged=np.stack([ends.converged for ends in minima])[won, lane],
    )
