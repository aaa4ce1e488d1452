"""Intervals of a fit by resampling runs.

Points of one curve are not independent: they share the run's offset, and noise that lasts for
many steps. So whole runs are resampled, never points. A run that is drawn twice counts twice
in the objective; every resample is fitted to convergence, all of them as one batch, each from
the optimum of the original points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.laws._diagnosis import unidentified
from suite.laws._drawn_levels import MANY_LOST, lost_shares, lost_warnings
from suite.laws._newton import Minima, RunWeights, minimise
from suite.laws._percentiles import (
    FEWEST_RESAMPLES,
    FEWEST_RUNS,
    Band,
    Interval,
    few_resamples,
    fewest_resamples,
    percentile_band,
)
from suite.laws._resampled import RIVAL, ResampledFit, check_runs, draw_runs
from suite.laws._search import Attempt, Search, natural, search
from suite.laws._terms import Array
from suite.laws.fit import describe
from suite.laws.forms import Form

# First threshold of the Huber loss, in nats: resamples begin near their optimum, and need no
# wider one. Found by measurement to end where random starts end, in the least time.
_WARM_WIDEST = 0.1


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
class Bootstrap(ResampledFit):
    """The fit of a sum of terms, and the fits of its resampled runs.

    Attributes:
        search: what the starts of ``fit`` found.
        resamples: the same for the resamples.
    """

    search: Search
    resamples: Resamples


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
    num_runs = check_runs(run, loss, resamples)
    found = search(
        form,
        variables,
        loss,
        huber_delta=huber_delta,
        starts=starts,
        seed=seed,
        on_start=on_start,
    )
    weights = draw_runs(found.columns, found.loss, run[found.order], resamples=resamples, seed=seed)
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
        converged_share=float(ends.converged.mean()),
        warnings=(*lost_warnings(lost), *few_resamples(num_runs, resamples)),
        search=found,
        resamples=ends,
    )


def _fit_resamples(
    found: Search, weights: RunWeights, on_resample: Callable[[int], None] | None
) -> Resamples:
    """Fit every resample in every direction that may win in it, from the optimum there."""
    count = len(weights.of_run)
    ceiling = RIVAL * found.best.objective
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


__all__ = [
    "FEWEST_RESAMPLES",
    "FEWEST_RUNS",
    "Band",
    "Bootstrap",
    "Interval",
    "ResampledFit",
    "Resamples",
    "bootstrap",
    "fewest_resamples",
    "percentile_band",
]
