"""Minimise a Huber sum of residuals that no sum of independent terms gives, with few parameters.

Slower than ``_newton``, and for any smooth residual. Every start first solves the least-squares
problem; starts that end alike go on as one. The threshold then shrinks to the one asked for,
each stage being a quasi-Newton descent in coordinates that the weighted Jacobian makes round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize  # type: ignore[import-untyped]

from suite.laws._terms import Array

Residual = Callable[[Array], tuple[Array, Array]]

_WIDEST, _NARROWING = 0.1, 0.1  # thresholds of the Huber loss, in nats
_ALIKE = 1e-6  # objectives of least squares that differ by less, relatively, are one end
_MOST_ENDS = 4  # distinct ends of least squares that are followed further
_ROUNDS = 6  # of one stage, each with coordinates made round anew
_SETTLED = 1e-12
_RIDGE = 1e-12  # of the largest curvature: directions that no point tells of stay finite
_POLISHINGS = 10  # Newton steps at the end
_APART = 1e-6  # of the differences of the gradient that make the Hessian
_NEARLY = 1e-9  # share of the objective left to gain at an end that is good to nine digits
_EXACT = 1e-24  # objective a point below which a fit is exact


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Where the starts ended.

    Attributes:
        theta: the best coordinates [size].
        objective: sum of Huber losses there.
        agreeing: starts that ended within 1e-6 of it, relatively.
        ends: coordinates and objectives of the distinct ends, at most 4, the best first.
    """

    theta: Array
    objective: float
    agreeing: int
    ends: tuple[tuple[Array, float], ...]

    def rivals(self, factor: float) -> tuple[Array, ...]:
        """Coordinates of the ends whose objective is within a factor of the best, itself first."""
        return tuple(theta for theta, value in self.ends if value <= factor * self.objective)


@dataclass(frozen=True, kw_only=True)
class End:
    """Where one start ended.

    Attributes:
        theta: coordinates [size].
        objective: sum of Huber losses there.
        converged: less than 1e-9 of it is left to gain.
    """

    theta: Array
    objective: float
    converged: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Sum:
    """What is minimised: a sum over points, inside a box.

    Attributes:
        residual: residuals [points] and their Jacobian [size, points] at coordinates [size].
        lower: least coordinates [size].
        upper: largest coordinates [size].
        weights: how often each point counts [points].
    """

    residual: Residual
    lower: Array
    upper: Array
    weights: Array

    def within(self, theta: Array) -> Array:
        """The nearest coordinates inside the box."""
        inside: Array = np.clip(theta, self.lower, self.upper)
        return inside

    def objective(self, theta: Array, delta: float) -> tuple[float, Array]:
        """Sum of Huber losses and its gradient; flat outside the box."""
        inside = self.within(theta)
        errors, jacobian = self.residual(inside)
        pull = np.clip(errors, -delta, delta)
        gradient = jacobian @ (self.weights * pull)
        gradient[inside != theta] = 0.0
        return float((self.weights * pull * (errors - 0.5 * pull)).sum()), gradient

    @property
    def exact(self) -> float:
        """Objective below which a fit is exact."""
        return _EXACT * float(self.weights.sum())


def descend(
    problem: Sum, starts: Array, delta: float, on_start: Callable[[int], None] | None = None
) -> Descent:
    """Minimise from every start.

    Args:
        problem: the sum.
        starts: coordinates inside the box [starts, size].
        delta: threshold of the Huber loss; infinity means least squares.
        on_start: called with the number of starts that have ended their first stage.
    """
    ends: list[tuple[float, Array, int]] = []  # objective, coordinates, starts that ended there
    for number, start in enumerate(starts, start=1):
        theta = _least_squares(problem, start)
        value, _ = problem.objective(theta, np.inf)
        for index, (other, at, count) in enumerate(ends):
            if abs(value - other) <= _ALIKE * other + problem.exact:
                ends[index] = (other, at, count + 1)
                break
        else:
            ends.append((value, theta, 1))
        if on_start:
            on_start(number)
    ends.sort(key=lambda end: end[0])
    finals = [(*_narrow(problem, theta, delta), count) for _, theta, count in ends[:_MOST_ENDS]]
    finals.sort(key=lambda final: final[0])
    best, theta, _ = finals[0]
    slack = _ALIKE * best + problem.exact
    agreeing = sum(count for value, _, count in finals if value <= best + slack)
    distinct = [(theta, best)]
    for value, at, _ in finals:
        if value > distinct[-1][1] * (1 + _ALIKE) + problem.exact:
            distinct.append((at, value))
    return Descent(theta=theta, objective=best, agreeing=agreeing, ends=tuple(distinct))


def follow(problem: Sum, start: Array, delta: float) -> End:
    """Minimise from one start that is near the optimum, as that of a sum with other weights is.

    Args:
        problem: the sum.
        start: coordinates inside the box [size].
        delta: threshold of the Huber loss; infinity means least squares.
    """
    value, theta = _narrow(problem, start, delta)
    left = _left(problem, theta, delta)
    return End(theta=theta, objective=value, converged=left <= _NEARLY * value + problem.exact)


def _least_squares(problem: Sum, start: Array) -> Array:
    found = least_squares(
        lambda theta: problem.residual(theta)[0],
        start,
        jac=lambda theta: problem.residual(theta)[1].T,
        bounds=(problem.lower, problem.upper),
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-14,
        max_nfev=200,
    )
    theta: Array = found.x
    return theta


def _narrow(problem: Sum, theta: Array, delta: float) -> tuple[float, Array]:
    """Follow an end of least squares down to the threshold."""
    threshold = max(delta, _WIDEST)
    while True:
        value, theta = _stage(problem, theta, threshold)
        if threshold <= delta:
            return _polish(problem, value, theta, delta)
        threshold = max(delta, threshold * _NARROWING)


def _stage(problem: Sum, theta: Array, delta: float) -> tuple[float, Array]:
    value, _ = problem.objective(theta, delta)
    for _ in range(_ROUNDS):
        before = value
        if value <= problem.exact:
            break
        errors, jacobian = problem.residual(theta)
        weighted = problem.weights * jacobian / np.maximum(np.abs(errors), min(delta, 1.0))
        bowl = weighted @ jacobian.T * min(delta, 1.0)
        bends, axes = np.linalg.eigh(bowl)
        step = axes / np.sqrt(np.maximum(bends, _RIDGE * bends[-1] + 1e-300))

        def scaled(
            at: Array, origin: Array = theta, step: Array = step, scale: float = value
        ) -> tuple[float, Array]:
            value, gradient = problem.objective(origin + step @ at, delta)
            return value / scale, step.T @ gradient / scale

        options = {"ftol": 1e-15, "gtol": 1e-13, "maxiter": 300}
        found = minimize(scaled, np.zeros(len(theta)), jac=True, method="L-BFGS-B", options=options)
        if found.fun < 1.0:
            value, theta = found.fun * value, problem.within(theta + step @ found.x)
        if before - value <= _SETTLED * before:
            break
    return value, theta


def _polish(problem: Sum, value: float, theta: Array, delta: float) -> tuple[float, Array]:
    """Newton steps to where the gradient is nothing but rounding.

    A descent stops when the objective no longer falls, which along flat directions is far from
    the optimum: its digits are twice those of the coordinates. Steps that do not lessen the
    gradient, as where residuals cross the threshold, are not taken.
    """
    gradient = problem.objective(theta, delta)[1]
    for _ in range(_POLISHINGS):
        bowl = _bowl(problem, theta, delta)
        if value == 0.0 or bowl is None or bowl.bends[0] <= _RIDGE:
            break
        moved = theta.copy()
        moved[bowl.inner] -= (bowl.axes @ (bowl.along(gradient) / bowl.bends)) / bowl.size
        moved = problem.within(moved)
        risen, slope = problem.objective(moved, delta)
        before, after = (np.linalg.norm(bowl.scaled(each)) for each in (gradient, slope))
        if not after < before or risen > value * (1 + _SETTLED):
            break
        value, theta, gradient = risen, moved, slope
    return value, theta


def _left(problem: Sum, theta: Array, delta: float) -> float:
    """What a Newton step would still gain, by its own estimate."""
    bowl = _bowl(problem, theta, delta)
    if bowl is None:
        return 0.0
    along = bowl.along(problem.objective(theta, delta)[1])
    return float(0.5 * (along**2 / np.maximum(np.abs(bowl.bends), _RIDGE)).sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bowl:
    """Second derivatives of the objective by the coordinates that are inside the box.

    They are scaled to a diagonal of ones, which keeps rounding out of flat directions.

    Attributes:
        inner: positions of these coordinates [inner].
        size: their scales [inner].
        bends: eigenvalues, ascending [inner].
        axes: eigenvectors, in columns [inner, inner].
    """

    inner: NDArray[np.intp]
    size: Array
    bends: Array
    axes: Array

    def scaled(self, gradient: Array) -> Array:
        """A gradient [size] by the scaled coordinates [inner]."""
        slope: Array = gradient[self.inner] / self.size
        return slope

    def along(self, gradient: Array) -> Array:
        """A gradient [size] along the axes [inner]."""
        slope: Array = self.axes.T @ self.scaled(gradient)
        return slope


def _bowl(problem: Sum, theta: Array, delta: float) -> _Bowl | None:
    """The bowl at ``theta`` [size]; None where no coordinate is inside, or told of by a point."""
    inside = (theta > problem.lower + _APART) & (theta < problem.upper - _APART)
    told = (problem.weights * np.abs(problem.residual(theta)[1])).max(axis=1) > 0
    inner = np.flatnonzero(inside & told)
    if not len(inner):
        return None
    steps = _APART * np.eye(len(theta))[inner]
    hessian = np.stack(
        [
            problem.objective(theta + step, delta)[1][inner]
            - problem.objective(theta - step, delta)[1][inner]
            for step in steps
        ]
    ) / (2 * _APART)
    size = np.sqrt(np.maximum(np.abs(np.diag(hessian)), np.finfo(np.float64).tiny))
    bends, axes = np.linalg.eigh(0.5 * (hessian + hessian.T) / np.outer(size, size))
    return _Bowl(inner=inner, size=size, bends=bends, axes=axes)
