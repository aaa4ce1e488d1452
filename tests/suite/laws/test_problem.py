from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from suite.laws._problem import Problem
from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED, FORMS, LOOPLM_TOTAL, Form

Columns = dict[str, np.ndarray]
FORM_DIRECTIONS = [
    pytest.param(form, index, id=f"{form.name}-{index}")
    for form in FORMS.values()
    if form is not DATA_CONSTRAINED  # no sum of independent terms, and fitted elsewhere
    for index in range(len(form.directions))
]


@pytest.fixture(scope="module")
def points(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    columns = grid([5e7, 1.3e8, 4e8, 1.4e9], [2, 4, 8], np.linspace(1e9, 2e10, 5))
    once = 2e7 + 0.1 * columns["parameters"]
    columns |= {
        "step": columns["recurrence"] - 1.0,
        "x": columns["tokens"],
        "parameters_once": once,
        "parameters_recurrent": columns["parameters"] - once,
    }
    rng = np.random.default_rng(0)
    loss = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    return columns, loss * np.exp(0.02 * rng.standard_normal(len(loss)))


def build(form: Form, direction: int, points: tuple[Columns, np.ndarray]) -> Problem:
    return Problem(form.directions[direction], *points, has_constant=True)


def differences(
    function: Callable[[np.ndarray], np.ndarray], theta: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """Fourth-order central differences along every coordinate, [size, ...]."""
    rows = []
    for axis in np.eye(theta.shape[1]) * step:
        near = function(theta + axis) - function(theta - axis)
        far = function(theta + 2 * axis) - function(theta - 2 * axis)
        rows.append((8 * near - far)[0] / (12 * step))
    return np.array(rows)


@pytest.mark.parametrize(("form", "direction"), FORM_DIRECTIONS)
def test_scaled_prediction_is_the_natural_one(
    form: Form, direction: int, points: tuple[Columns, np.ndarray]
) -> None:
    problem = build(form, direction, points)
    for theta in problem.starts(5, seed=1):
        scaled, _ = problem.log_prediction(theta[None])
        natural = problem.natural(theta) | {"E": problem.constant(theta)}
        expected = form.log_prediction(natural, points[0]) - np.log(problem.loss_scale)
        np.testing.assert_allclose(scaled[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("form", "direction"), FORM_DIRECTIONS)
def test_jacobian_matches_differences(
    form: Form, direction: int, points: tuple[Columns, np.ndarray]
) -> None:
    problem = build(form, direction, points)
    for theta in problem.starts(5, seed=2)[:, None]:
        jacobian = problem.log_prediction(theta)[1][0]
        expected = differences(lambda at: problem.log_prediction(at)[0], theta)
        np.testing.assert_allclose(jacobian, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("delta", [np.inf, 0.3])
@pytest.mark.parametrize(("form", "direction"), FORM_DIRECTIONS)
def test_gradient_and_hessian_match_differences(
    form: Form, direction: int, delta: float, points: tuple[Columns, np.ndarray]
) -> None:
    problem = build(form, direction, points)
    deltas = np.array([delta])
    for theta in problem.starts(5, seed=3)[:, None]:
        value, gradient, hessian = problem.objective(theta, deltas)
        scale = float(value[0])
        slope = differences(lambda at: problem.objective(at, deltas)[0], theta)
        np.testing.assert_allclose(gradient[0], slope, rtol=1e-6, atol=1e-8 * scale)
        # A step that carries a point over a kink spoils differences; a small one seldom does.
        bend = differences(lambda at: problem.objective(at, deltas)[1], theta, step=1e-7)
        np.testing.assert_allclose(hessian[0], bend, rtol=1e-5, atol=1e-5 * np.abs(bend).max())


def test_objective_is_the_sum_of_huber_terms(points: tuple[Columns, np.ndarray]) -> None:
    problem = build(CHINCHILLA, 0, points)
    theta = problem.starts(3, seed=4)
    residual = problem.log_prediction(theta)[0] - problem.target
    size = np.abs(residual)
    huber = np.where(size <= 0.1, 0.5 * residual**2, 0.1 * (size - 0.05))
    value, _, _ = problem.objective(theta, np.full(3, 0.1))
    np.testing.assert_allclose(value, huber.sum(axis=1), rtol=1e-13)


def test_a_step_off_the_level_keeps_the_loss_at_the_reference(
    points: tuple[Columns, np.ndarray],
) -> None:
    problem = build(LOOPLM_TOTAL, 0, points)
    theta = problem.starts(4, seed=5)
    theta[:, 0] += 1.0  # room for E to give way
    step = np.random.default_rng(0).uniform(-0.05, 0.05, theta.shape)
    step[:, 0] = [0.0, 0.0, 0.1, -0.1]
    moved = problem.move(theta, step, np.zeros(4, dtype=bool))

    def log_level(at: np.ndarray) -> np.ndarray:
        # The level is the first straight coordinate, and its tangent is the loss itself.
        return np.log(problem.tangent(at)[:, 0, 0])

    np.testing.assert_allclose(log_level(moved) - log_level(theta), step[:, 0], atol=1e-12)


def test_tangent_matches_differences_of_the_move(points: tuple[Columns, np.ndarray]) -> None:
    problem = build(LOOPLM_TOTAL, 1, points)
    theta = problem.starts(1, seed=6) + 0.2
    free = np.zeros(1, dtype=bool)
    tangent = problem.tangent(theta)[0]
    expected = differences(
        lambda step: problem.move(theta, step, free), np.zeros_like(theta), step=1e-4
    )
    np.testing.assert_allclose(tangent, expected.T, rtol=1e-8, atol=1e-10)


def test_starts_lie_in_the_box_and_do_not_depend_on_their_number(
    points: tuple[Columns, np.ndarray],
) -> None:
    problem = build(LOOPLM_TOTAL, 0, points)
    many = problem.starts(200, seed=7)
    assert np.all((many >= problem.lower) & (many <= problem.upper))
    np.testing.assert_array_equal(problem.starts(9, seed=7), many[:9])


def test_weights_count_points_as_if_they_were_repeated(
    points: tuple[Columns, np.ndarray],
) -> None:
    problem = build(LOOPLM_TOTAL, 0, points)
    theta, delta = problem.starts(3, seed=8), np.full(3, 0.1)
    times = np.random.default_rng(1).integers(0, 4, (3, 60)).astype(float)
    alone = [problem.objective(theta, delta, np.tile(point, (3, 1))) for point in np.eye(60)]
    weighted = problem.objective(theta, delta, times)
    for part, found in enumerate(weighted):
        of_point = np.stack([derivatives[part] for derivatives in alone], axis=1)
        expected = np.einsum("sp,sp...->s...", times, of_point)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_weights_of_one_change_no_bit(points: tuple[Columns, np.ndarray]) -> None:
    problem = build(LOOPLM_TOTAL, 0, points)
    theta, delta = problem.starts(3, seed=8), np.full(3, 0.1)
    weighted = problem.objective(theta, delta, np.ones((3, 60)))
    for found, plain in zip(weighted, problem.objective(theta, delta), strict=True):
        np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 0.3), ("gamma", 2.0), ("t1", 3e7), ("t2", 2e7), ("", 1.25)]
)
def test_a_pinned_parameter_stays_where_it_is_held(
    name: str, value: float, points: tuple[Columns, np.ndarray]
) -> None:
    columns, loss = points
    problem = Problem(LOOPLM_TOTAL.terms, columns, loss, has_constant=True, pinned=(name, value))
    theta = problem.starts(4, seed=9)
    step = np.random.default_rng(2).uniform(-0.5, 0.5, theta.shape)
    held = np.full(4, not problem.has_constant)
    for moved in problem.move(theta, step, held):
        natural = problem.natural(moved) | {"": problem.constant(moved)}
        assert natural[name] == pytest.approx(value, rel=1e-12)


def test_a_parameter_is_not_pinned_out_of_its_range(points: tuple[Columns, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="alpha = 11"):
        Problem(CHINCHILLA.terms, *points, has_constant=True, pinned=("alpha", 11.0))
    problem = build(CHINCHILLA, 0, points)
    assert problem.range_of("alpha", problem.starts(1, seed=0)[0]) == pytest.approx((1e-3, 10.0))
