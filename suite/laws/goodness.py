"""How well predicted losses match measured ones, with held-out points apart.

Papers quote R² over all points, most of which were fitted. It says little about prediction:
a law without any recurrence term reaches .99 on a grid where recurrence matters. What counts
is the error on points that the fit did not see.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Goodness:
    """Errors of one fit; the held-out ones are None where nothing is held out.

    Attributes:
        r2_all: R² over fitted and held-out points, for comparison with papers.
        r2_fitted: R² over fitted points.
        r2_held_out: R² over held-out points, about their own mean.
        mean_relative_error_fitted: over fitted points.
        mean_relative_error_held_out: over held-out points.
    """

    r2_all: float
    r2_fitted: float
    r2_held_out: float | None
    mean_relative_error_fitted: float
    mean_relative_error_held_out: float | None


def r_squared(real: Array, predicted: Array) -> float:
    """Share of the variance of the real losses that the prediction explains.

    1 - sum (real - predicted)^2 / sum (real - mean(real))^2, the mean being that of the points
    given. On points that were not fitted it can be negative without limit: a prediction worse
    than their mean, which happens to be easy when held-out losses differ little.

    Args:
        real: measured losses [points].
        predicted: predicted losses [points].

    Returns:
        At most 1; NaN where the real losses do not vary, and R² has no meaning.

    Raises:
        ValueError: the shapes differ, or there is no point.
    """
    _check(real, predicted)
    total = float(((real - real.mean()) ** 2).sum())
    # Equal losses leave a variance of rounding error, not of exactly zero.
    if total <= len(real) * (np.finfo(np.float64).eps * float(np.abs(real).max())) ** 2:
        return float("nan")
    return 1.0 - float(((real - predicted) ** 2).sum()) / total


def mean_relative_error(real: Array, predicted: Array) -> float:
    """Mean of |predicted - real| / real, a pure number.

    Args:
        real: measured losses [points], positive.
        predicted: predicted losses [points].

    Raises:
        ValueError: the shapes differ, or there is no point.
    """
    _check(real, predicted)
    return float((np.abs(predicted - real) / real).mean())


def goodness(real: Array, predicted: Array, held_out: NDArray[np.bool_]) -> Goodness:
    """Errors over all, fitted and held-out points.

    Args:
        real: measured losses [points].
        predicted: predicted losses [points].
        held_out: whether each point was kept from the fit [points].

    Raises:
        ValueError: the shapes differ, or no point was fitted.
    """
    fitted = ~held_out
    some = bool(held_out.any())
    return Goodness(
        r2_all=r_squared(real, predicted),
        r2_fitted=r_squared(real[fitted], predicted[fitted]),
        r2_held_out=r_squared(real[held_out], predicted[held_out]) if some else None,
        mean_relative_error_fitted=mean_relative_error(real[fitted], predicted[fitted]),
        mean_relative_error_held_out=(
            mean_relative_error(real[held_out], predicted[held_out]) if some else None
        ),
    )


def _check(real: Array, predicted: Array) -> None:
    if real.shape != predicted.shape or real.size == 0:
        raise ValueError(f"real {real.shape} and predicted {predicted.shape} losses do not pair")
