"""Percentile intervals of resampled values, and how many resamples they need."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit  # type: ignore[import-untyped]

from suite.errors import InputError
from suite.laws._terms import Array

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


def fewest_resamples(num_runs: int, level: float = _LEVEL) -> int:
    """Resamples of which two lie beyond each end of an interval over so many runs.

    With fewer, an end is the outermost resample or the next, and another seed moves it.
    """
    return max(FEWEST_RESAMPLES, math.ceil(_FEWEST_BEYOND / tail_share(num_runs, level)))


def tail_share(num_runs: int, level: float) -> float:
    """Share of the resamples beyond each end; see ``percentile_band``."""
    return float(ndtr(-stdtrit(num_runs - 1, 0.5 * (1 + level))))


def few_resamples(num_runs: int, resamples: int) -> list[str]:
    """The sentence that says that so many resamples are too few; none where they are enough."""
    needed = fewest_resamples(num_runs)
    if resamples >= needed:
        return []
    return [
        f"{resamples} resamples leave fewer than {_FEWEST_BEYOND} beyond each end of a "
        f"{_LEVEL:.0%} interval over {num_runs} runs, so its ends hang on single draws: take "
        f"at least {needed}"
    ]


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

    Of every parameter that the points identify, and of predictions, these tails covered
    95.0 - 98.0 % in 200 data sets of ``chinchilla`` (A and B, too) and 95.5 - 98.5 % in as many of
    ``looplm_total``, but for its A, t1 and alpha: these trade against each other, run into the
    bounds of their ranges, and were always covered.

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
    tail = tail_share(num_runs, level)
    lower, upper = np.quantile(values, [tail, 1 - tail], axis=0)
    return Band(estimate=estimate, lower=lower, upper=upper, level=level)
