from __future__ import annotations

import math

import numpy as np
import pytest

from suite.laws.goodness import goodness, mean_relative_error, r_squared


@pytest.mark.parametrize(
    ("real", "predicted", "expected"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], 0.0),
        ([1.0, 2.0, 3.0], [1.5, 2.0, 2.5], 0.75),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -3.0),
        # Held-out losses that hardly differ make a small bias look catastrophic.
        ([3.0, 3.01], [3.1, 3.11], 1 - 2 * 0.1**2 / (2 * 0.005**2)),
    ],
)
def test_r_squared_by_hand(real: list[float], predicted: list[float], expected: float) -> None:
    assert r_squared(np.array(real), np.array(predicted)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("real", [[3.0], [2.5, 2.5], [0.1] * 7])
def test_r_squared_of_losses_that_do_not_vary_has_no_meaning(real: list[float]) -> None:
    assert math.isnan(r_squared(np.array(real), np.array(real) + 0.1))


def test_r_squared_of_a_least_squares_line_is_the_squared_correlation() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    real = 3 + x + rng.standard_normal(50)
    line = np.polyval(np.polyfit(x, real, 1), x)
    assert r_squared(real, line) == pytest.approx(np.corrcoef(x, real)[0, 1] ** 2, rel=1e-12)


def test_mean_relative_error_by_hand() -> None:
    assert mean_relative_error(np.array([2.0, 4.0]), np.array([2.2, 3.0])) == pytest.approx(0.175)


def test_held_out_errors_are_those_of_held_out_points_only() -> None:
    real = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    predicted = np.array([1.0, 2.0, 3.0, 4.5, 4.5])
    held_out = np.array([False, False, False, True, True])
    found = goodness(real, predicted, held_out)
    assert found.r2_fitted == 1.0
    assert found.mean_relative_error_fitted == 0.0
    assert found.r2_held_out == pytest.approx(0.0)
    assert found.mean_relative_error_held_out == pytest.approx((0.5 / 4 + 0.5 / 5) / 2)
    assert found.r2_all == pytest.approx(1 - 0.5 / 10)


def test_nothing_held_out_has_no_held_out_error() -> None:
    real = np.array([1.0, 2.0])
    found = goodness(real, real, np.zeros(2, dtype=bool))
    assert (found.r2_held_out, found.mean_relative_error_held_out) == (None, None)


@pytest.mark.parametrize(("real", "predicted"), [([1.0, 2.0], [1.0]), ([], [])])
def test_losses_that_do_not_pair_are_refused(real: list[float], predicted: list[float]) -> None:
    for error in (r_squared, mean_relative_error):
        with pytest.raises(ValueError, match="do not pair"):
            error(np.array(real), np.array(predicted))
