"""Minimise a Huber sum of residuals that no sum of independent terms gives, with few parameters.

Slower than ``_newton``, and for any smooth residual. Every start first solves the least-squares
problem; starts that end alike go on as one. The threshold then shrinks to the one asked for,
each stage being a quasi-Newton descent in coordinates that the weighted Jacobian makes round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
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
_EXACT = 1e-24  # objective a point below which a fit is exact


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Where the starts ended.

    Attributes:
        theta: the best coordinates [size].
        objective: sum of Huber losses there.
        agreeing: starts that ended within 1e-6 of it, relatively.
    """

    theta: Array
    objective: float
    agreeing: int


def descend(
    residual: Residual,
    starts: Array,
    lower: Array,
    upper: Array,
    delta: float,
    on_start: Callable[[int], None] | None = None,
) -> Descent:
    """Minimise the sum of Huber losses of a residual inside a box.

    Args:
        residual: residuals [points] and their Jacobian [size, points] at coordinates [size].
        starts: coordinates inside the box [starts, size].
        lower: least coordinates [size].
        upper: largest coordinates [size].
        delta: threshold of the Huber loss; infinity means least squares.
        on_start: called with the number of starts that have ended their first stage.
    """
    box = (lower, upper)
    ends: list[tuple[float, Array, int]] = []  # objective, coordinates, starts that ended there
    for number, start in enumerate(starts, start=1):
        theta = _least_squares(residual, start, box)
        value, _ = _objective(residual, theta, np.inf, box)
        floor = _EXACT * len(residual(theta)[0])
        for index, (other, at, count) in enumerate(ends):
            if abs(value - other) <= _ALIKE * other + floor:
                ends[index] = (other, at, count + 1)
                break
        else:
            ends.append((value, theta, 1))
        if on_start:
            on_start(number)
    ends.sort(key=lambda end: end[0])
    finals = [
        (*_narrow(residual, theta, delta, box), count) for _, theta, count in ends[:_MOST_ENDS]
    ]
    best, theta, _ = min(finals, key=lambda final: final[0])
    slack = _ALIKE * best + _EXACT * len(residual(theta)[0])
    agreeing = sum(count for value, _, count in finals if value <= best + slack)
    return Descent(theta=theta, objective=best, agreeing=agreeing)


def _least_squares(residual: Residual, start: Array, box: tuple[Array, Array]) -> Array:
    found = least_squares(
        lambda theta: residual(theta)[0],
        start,
        jac=lambda theta: residual(theta)[1].T,
        bounds=box,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-14,
        max_nfev=200,
    )
    theta: Array = found.x
    return theta


def _narrow(
    residual: Residual, theta: Array, delta: float, box: tuple[Array, Array]
) -> tuple[float, Array]:
    """Follow an end of least squares down to the threshold."""
    threshold = max(delta, _WIDEST)
    while True:
        value, theta = _stage(residual, theta, threshold, box)
        if threshold <= delta:
            return _polish(residual, value, theta, delta, box)
        threshold = max(delta, threshold * _NARROWING)


def _stage(
    residual: Residual, theta: Array, delta: float, box: tuple[Array, Array]
) -> tuple[float, Array]:
    value, _ = _objective(residual, theta, delta, box)
    for _ in range(_ROUNDS):
        before = value
        errors, jacobian = residual(theta)
        if value <= _EXACT * len(errors):
            break
        weighted = jacobian / np.maximum(np.abs(errors), min(delta, 1.0))
        bowl = weighted @ jacobian.T * min(delta, 1.0)
        bends, axes = np.linalg.eigh(bowl)
        step = axes / np.sqrt(np.maximum(bends, _RIDGE * bends[-1] + 1e-300))

        def scaled(
            at: Array, origin: Array = theta, step: Array = step, scale: float = value
        ) -> tuple[float, Array]:
            value, gradient = _objective(residual, origin + step @ at, delta, box)
            return value / scale, step.T @ gradient / scale

        options = {"ftol": 1e-15, "gtol": 1e-13, "maxiter": 300}
        found = minimize(scaled, np.zeros(len(theta)), jac=True, method="L-BFGS-B", options=options)
        if found.fun < 1.0:
            value, theta = found.fun * value, np.clip(theta + step @ found.x, *box)
        if before - value <= _SETTLED * before:
            break
    return value, theta


def _polish(
    residual: Residual, value: float, theta: Array, delta: float, box: tuple[Array, Array]
) -> tuple[float, Array]:
    """Newton steps to where the gradient is nothing but rounding.

    A descent stops when the objective no longer falls, which along flat directions is far from
    the optimum: its digits are twice those of the coordinates. Steps that do not lessen the
    gradient, as where residuals cross the threshold, are not taken.
    """
    gradient = _objective(residual, theta, delta, box)[1]
    for _ in range(_POLISHINGS):
        inner = np.flatnonzero((theta > box[0] + _APART) & (theta < box[1] - _APART))
        if value == 0.0 or not len(inner):
            break
        steps = _APART * np.eye(len(theta))[inner]
        hessian = np.stack(
            [
                _objective(residual, theta + step, delta, box)[1][inner]
                - _objective(residual, theta - step, delta, box)[1][inner]
                for step in steps
            ]
        ) / (2 * _APART)
        # Scaled to a diagonal of ones, which keeps rounding out of flat directions.
        size = np.sqrt(np.maximum(np.abs(np.diag(hessian)), np.finfo(np.float64).tiny))
        scaled = 0.5 * (hessian + hessian.T) / np.outer(size, size)
        bends, axes = np.linalg.eigh(scaled)
        if bends[0] <= _RIDGE:
            break
        moved = theta.copy()
        moved[inner] -= (axes @ ((axes.T @ (gradient[inner] / size)) / bends)) / size
        moved = np.clip(moved, *box)
        risen, slope = _objective(residual, moved, delta, box)
        closer = np.linalg.norm(slope[inner] / size) < np.linalg.norm(gradient[inner] / size)
        if not closer or risen > value * (1 + _SETTLED):
            break
        value, theta, gradient = risen, moved, slope
    return value, theta


def _objective(
    residual: Residual, theta: Array, delta: float, box: tuple[Array, Array]
) -> tuple[float, Array]:
    """Sum of Huber losses and its gradient; flat outside the box."""
    inside = np.clip(theta, *box)
    errors, jacobian = residual(inside)
    pull = np.clip(errors, -delta, delta)
    gradient = jacobian @ pull
    gradient[inside != theta] = 0.0
    return float((pull * (errors - 0.5 * pull)).sum()), gradient
