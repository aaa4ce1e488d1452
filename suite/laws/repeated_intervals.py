"""Intervals of the data-constrained law by resampling runs, as ``intervals.bootstrap`` makes them.

Its fit is no batch of sums of terms, so the resamples are fitted one after the other, each from
the optimum of the original points and from every other end of their starts that may win in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from suite.laws._drawn_levels import MANY_LOST, lost_warnings
from suite.laws._newton import RunWeights
from suite.laws._percentiles import few_resamples
from suite.laws._repeated_search import RepeatedSearch, search_repeated
from suite.laws._resampled import RIVAL, ResampledFit, check_runs, draw_runs
from suite.laws._robust_descent import End, follow
from suite.laws._terms import Array
from suite.laws._untold import left_open
from suite.laws.repeated_data import describe_repeated


def bootstrap_repeated(
    variables: Mapping[str, Array],
    loss: Array,
    run: NDArray[np.generic],
    *,
    plain: Mapping[str, float] | None = None,
    huber_delta: float = 1e-3,
    starts: int = 64,
    resamples: int = 500,
    seed: int = 0,
    on_start: Callable[[int], None] | None = None,
    on_resample: Callable[[int], None] | None = None,
) -> ResampledFit:
    """Fit ``data_constrained``, and fit it again to resampled runs.

    Neither the order of the points nor the names of the runs change the result. A plain law
    that is fixed stays so in every resample: the intervals of R_D and R_N then tell nothing of
    how well that law is known.

    Args:
        variables: columns [points]: ``parameters``, ``tokens``, ``unique_tokens``.
        loss: losses [points] in nats.
        run: which run each point belongs to: numbers or names [points].
        plain: as for ``fit_repeated``.
        huber_delta: threshold of the Huber loss, in nats of log loss.
        starts: starts of the fit of the original points.
        resamples: resamples of the runs.
        seed: seed of the starts and of the resamples.
        on_start: called with the number of starts that have ended so far.
        on_resample: called with the number of resamples fitted so far.

    Raises:
        InputError: as ``fit_repeated``; or ``run`` does not pair with the losses, or there are
            fewer than 5 runs, or fewer than 100 resamples.
    """
    run = np.asarray(run)
    num_runs = check_runs(run, loss, resamples)
    found = search_repeated(
        variables,
        loss,
        plain=plain,
        huber_delta=huber_delta,
        starts=starts,
        seed=seed,
        on_start=on_start,
    )
    weights = draw_runs(
        found.problem.columns, found.loss, run[found.order], resamples=resamples, seed=seed
    )
    ends = _fit_resamples(found, weights, on_resample)
    parameters = [found.natural(end.theta) for end in ends]
    symbols = tuple(parameters[0])
    unknown = found.untold
    open_in = left_open(
        found.problem.form,
        found.repetition,
        found.problem.columns,
        plain=found.plain,
        drawn=weights.of_run > 0,
        run=weights.run,
    )
    lost = {
        name: float(open_.mean())
        for name, open_ in open_in.items()
        if open_.any() and name not in unknown
    }
    return ResampledFit(
        fit=describe_repeated(found),
        num_runs=num_runs,
        symbols=symbols,
        parameters=np.array([[row[name] for name in symbols] for row in parameters]),
        unidentified=(*unknown, *(name for name, share in lost.items() if share > MANY_LOST)),
        lost=lost,
        converged_share=float(np.mean([end.converged for end in ends])),
        warnings=(*lost_warnings(lost), *few_resamples(num_runs, resamples)),
    )


def _fit_resamples(
    found: RepeatedSearch, weights: RunWeights, on_resample: Callable[[int], None] | None
) -> list[End]:
    ends = []
    for number in range(len(weights.of_run)):
        of_points = weights.of_points(np.array([number]))[0]
        problem = found.problem.sum(of_points)
        tried = [follow(problem, theta, found.huber_delta) for theta in found.descent.rivals(RIVAL)]
        ends.append(min(tried, key=lambda end: end.objective))
        if on_resample:
            on_resample(number + 1)
    return ends
