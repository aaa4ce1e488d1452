"""Fits of resampled runs, whatever fitted them, and the draws of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._newton import RunWeights
from suite.laws._percentiles import (
    FEWEST_RESAMPLES,
    FEWEST_RUNS,
    Band,
    Interval,
    percentile_band,
)
from suite.laws._terms import Array
from suite.laws.fit import Fit

RIVAL = 2.0
"""Optima whose objective is within this factor of the best may win in some resample."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledFit:
    """A fit, and the parameters of the fits of its resampled runs.

    Attributes:
        fit: the fit of the original points.
        num_runs: runs that were resampled.
        symbols: names of the parameters.
        parameters: parameters of the resamples, in natural units [resamples, symbols].
        unidentified: symbols of which the points determine only combinations, or more than 20 %
            of the resamples do.
        lost: for each symbol that the points identify, the share of the resamples whose runs do
            not; symbols that every resample identifies are left out.
        converged_share: share of the resamples whose fit converged.
        warnings: about the resamples, in plain sentences.
    """

    fit: Fit
    num_runs: int
    symbols: tuple[str, ...]
    parameters: Array
    unidentified: tuple[str, ...]
    lost: Mapping[str, float]
    converged_share: float
    warnings: tuple[str, ...]

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


def check_runs(run: NDArray[np.generic], loss: Array, resamples: int) -> int:
    """The number of runs, of which the points tell whose they are [points].

    Raises:
        InputError: ``run`` does not pair with the losses; there are fewer than 5 runs; or fewer
            than 100 resamples, too few for the tails of an interval.
    """
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
    return num_runs


def draw_runs(
    columns: Mapping[str, Array],
    loss: Array,
    run: NDArray[np.generic],
    *,
    resamples: int,
    seed: int,
) -> RunWeights:
    """How often each resample counts each run: as often as so many draws hit it.

    Args:
        columns: columns [points] by variable name, in canonical order.
        loss: losses [points] in that order.
        run: which run each of these points belongs to [points].
        resamples: resamples of the runs.
        seed: seed of the draws.
    """
    numbers = _number_runs(columns, loss, run)
    num_runs = int(numbers.max()) + 1
    draws = np.random.default_rng(seed).multinomial(
        num_runs, np.full(num_runs, 1.0 / num_runs), size=resamples
    )
    return RunWeights(draws.astype(np.float64), numbers)


def _number_runs(
    columns: Mapping[str, Array], loss: Array, run: NDArray[np.generic]
) -> NDArray[np.intp]:
    """Numbers of the runs [points] that depend on their points alone, not on names or order."""
    rows = np.stack([*columns.values(), loss], axis=1)
    names, index = np.unique(run, return_inverse=True)
    points = [tuple(map(tuple, rows[index == number])) for number in range(len(names))]
    rank = np.empty(len(names), dtype=np.intp)
    rank[sorted(range(len(names)), key=points.__getitem__)] = np.arange(len(names))
    return rank[index]
