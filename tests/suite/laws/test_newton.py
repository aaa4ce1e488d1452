from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import least_squares

from suite.laws import _newton
from suite.laws._newton import RunWeights, minimise
from suite.laws._problem import Problem
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL

Columns = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def problem(grid: Callable[..., Columns]) -> Problem:
    columns = grid([5e7, 1.3e8, 4e8, 1.4e9], [2, 4, 8], np.linspace(1e9, 2e10, 6))
    rng = np.random.default_rng(0)
    loss = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    loss = loss + 0.5 / columns["recurrence"]
    noise = np.exp(0.02 * rng.standard_normal(len(loss)))
    return Problem(LOOPLM_TOTAL.terms, columns, loss * noise, has_constant=True)


def test_a_start_ends_where_it_would_end_alone(problem: Problem) -> None:
    theta = problem.starts(4, seed=0)
    together = minimise(problem, theta, 1e-3)
    for row in range(4):
        alone = minimise(problem, theta[row : row + 1], 1e-3)
        assert alone.objective[0] == pytest.approx(together.objective[row], rel=1e-12)


def test_a_start_given_twice_ends_in_one_place_and_moves_no_other(problem: Problem) -> None:
    theta = problem.starts(4, seed=0)
    once = minimise(problem, theta, 1e-3)
    twice = minimise(problem, np.concatenate([theta, theta[::-1]]), 1e-3)
    np.testing.assert_allclose(twice.theta[:4], once.theta, rtol=1e-8)
    np.testing.assert_allclose(twice.theta[4:], once.theta[::-1], rtol=1e-8)
    np.testing.assert_allclose(twice.objective[:4], once.objective, rtol=1e-12)


def test_starts_that_wait_for_room_are_not_lost(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    theta = problem.starts(18, seed=1)
    at_once = minimise(problem, theta, 1e-3)
    monkeypatch.setattr(_newton, "_LANE_POINTS", 0)  # room for eight
    ended: list[int] = []
    in_turn = minimise(problem, theta, 1e-3, ended.append)
    np.testing.assert_allclose(in_turn.objective, at_once.objective, rtol=1e-12)
    assert sum(ended) == 18
    assert len(ended) > 3


@pytest.mark.parametrize("delta", [1e-3, 0.05, np.inf])
def test_minima_are_stationary_points_of_the_box(problem: Problem, delta: float) -> None:
    found = minimise(problem, problem.starts(8, seed=2), delta)
    assert found.converged.all()
    assert np.all((found.theta >= problem.lower) & (found.theta <= problem.upper))
    value, gradient, _ = problem.objective(found.theta, np.full(8, delta))
    np.testing.assert_allclose(value, found.objective, rtol=1e-14)
    inside = (found.theta > problem.lower) & (found.theta < problem.upper)
    # Residuals of .02 pull with at most min(delta, .02) each, 72 of them.
    assert np.abs(np.where(inside, gradient, 0.0)).max() < 1e-6 * 72 * min(delta, 0.02)
    assert np.all(gradient[found.theta <= problem.lower] > -1e-8)


def test_the_floor_of_the_constant_is_kept(grid: Callable[..., Columns]) -> None:
    columns = grid([1e6, 1e7, 1e8], [1], np.linspace(1e8, 1e9, 6))
    # Power laws in log-log with a curvature that only a negative E could give.
    loss = 20 / columns["parameters"] ** 0.1 + 20 / columns["tokens"] ** 0.1 - 1.0
    problem = Problem(CHINCHILLA.terms, columns, loss, has_constant=True)
    found = minimise(problem, problem.starts(8, seed=3), 1e-3)
    best = found.theta[found.objective.argmin()]
    assert best[0] == 0.0
    assert found.converged.all()


def test_a_law_without_constant_keeps_none(problem: Problem, grid: Callable[..., Columns]) -> None:
    columns = grid([1e6, 1e7, 1e8, 1e9], [1], np.linspace(1e8, 1e9, 6))
    loss = 20 / columns["parameters"] ** 0.1 + 20 / columns["tokens"] ** 0.15
    without = Problem(CHINCHILLA.terms, columns, loss, has_constant=False)
    found = minimise(without, without.starts(6, seed=4), 1e-3)
    assert np.all(found.theta[:, 0] == 0.0)
    natural = without.natural(found.theta[found.objective.argmin()])
    expected = {"A": 20.0, "alpha": 0.1, "B": 20.0, "beta": 0.15}
    assert natural == pytest.approx(expected, rel=1e-6)


def test_resampled_lanes_end_where_fits_of_the_repeated_rows_end(
    grid: Callable[..., Columns],
) -> None:
    columns = grid([5e7, 1.3e8, 4e8, 1.4e9], [2, 4, 8], np.linspace(1e9, 2e10, 6))
    rng = np.random.default_rng(5)
    loss = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    loss = loss * np.exp(0.02 * rng.standard_normal(len(loss)))
    run = np.repeat(np.arange(12), 6)
    problem = Problem(CHINCHILLA.terms, columns, loss, has_constant=True)
    draws = rng.multinomial(12, np.full(12, 1 / 12), size=5)
    weights = RunWeights(draws.astype(float), run)
    warm = minimise(problem, problem.starts(5, seed=1), 1e-3)
    start = np.tile(warm.theta[warm.objective.argmin()], (5, 1))
    found = minimise(problem, start, 1e-3, weights=weights, widest=0.1)
    assert found.converged.all()
    for lane, counts in enumerate(draws):
        rows = np.repeat(np.arange(72), counts[run])
        repeated = Problem(
            CHINCHILLA.terms,
            {name: values[rows] for name, values in columns.items()},
            loss[rows],
            has_constant=True,
        )
        cold = minimise(repeated, repeated.starts(8, seed=2), 1e-3)
        best = cold.objective.argmin()
        assert found.objective[lane] == pytest.approx(cold.objective[best], rel=1e-10)
        natural = problem.natural(found.theta[lane])
        assert natural == pytest.approx(repeated.natural(cold.theta[best]), rel=1e-6)


def test_a_held_constant_is_fitted_around(grid: Callable[..., Columns]) -> None:
    columns = grid([1e7, 1e8, 1e9], [1], np.linspace(1e9, 1e10, 6))
    rng = np.random.default_rng(6)
    exact = 1.8 + 400 / columns["parameters"] ** 0.34 + 2000 / columns["tokens"] ** 0.37
    loss = exact * np.exp(0.01 * rng.standard_normal(len(exact)))
    held = Problem(CHINCHILLA.terms, columns, loss, has_constant=True, pinned=("", 1.7))
    found = minimise(held, held.starts(4, seed=0), np.inf)

    def residual(x: np.ndarray) -> np.ndarray:
        first = np.exp(x[0]) / (columns["parameters"] / 1e8) ** x[1]
        second = np.exp(x[2]) / (columns["tokens"] / 3e9) ** x[3]
        return np.log(1.7 + first + second) - np.log(loss)

    other = least_squares(residual, [-0.5, 0.3, -0.5, 0.3], xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert found.objective.min() == pytest.approx(other.cost, rel=1e-9)
    assert held.constant(found.theta[0]) == pytest.approx(1.7, rel=1e-14)
