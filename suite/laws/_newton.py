"""Newton's method with a trust region, for many starts of one fit at the same time.

The Huber loss with a small threshold is almost a sum of absolute values: full of kinks, and
slow going for every method from afar. So each start first solves the problem with a wide
threshold, which is plain least squares, and follows the solution while the threshold shrinks
to the one that was asked for. The last stage ends when Newton's own estimate of what is left
to gain falls to rounding error; no tolerance on the progress of the last step can stop it
early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from suite.laws._problem import Problem
from suite.laws._terms import Array

Mask = NDArray[np.bool_]

_WIDEST = 1.0  # threshold of the first stage, in nats of log loss
_NARROWING = 0.25  # from one stage to the next
_STAGE_TOLERANCE = 1e-2  # gain left, as a share of the objective, at the end of a stage
_TOLERANCE = 1e-13  # the same at the end of the last stage
_NEARLY = 1e-9  # the same for a start that ended at a limit and is still good to nine digits
_EXACT = 1e-24  # objective a point below which a fit is exact: residuals of 1e-12 nats
_ROUNDING = 1e-13  # relative noise of the objective
_FIRST_RADIUS = 1.0
_STAGE_RADIUS = 0.1  # least radius at the beginning of a later stage
_SMALLEST_RADIUS = 1e-12
_MAX_ITERATIONS = 500
_LANE_POINTS = 50_000  # starts times points that are evaluated at once: what caches hold
_ACTIVE_SET_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class Minima:
    """Where the starts ended.

    Attributes:
        theta: search coordinates [starts, size].
        objective: sum of Huber terms [starts].
        converged: starts [starts] with less than 1e-9 of the objective left to gain.
    """

    theta: Array
    objective: Array
    converged: Mask


@dataclass(frozen=True)
class RunWeights:
    """How often each start counts the points of each run: one resample a start.

    Attributes:
        of_run: weights [starts, runs], not negative.
        run: run of each point [points].
    """

    of_run: Array
    run: NDArray[np.intp]

    def of_points(self, starts: NDArray[np.intp]) -> Array:
        """Weights of the points [starts, points]; those of all starts may not fit in memory."""
        return self.of_run[np.ix_(starts, self.run)]


@dataclass(kw_only=True)
class _Lanes:
    """The starts at work; every field has them in front.

    ``weights`` [lanes, points] has no points where every point counts once.
    """

    start: NDArray[np.intp]
    weights: Array
    theta: Array
    delta: Array
    radius: Array
    iterations: NDArray[np.intp]
    value: Array
    gradient: Array
    hessian: Array

    def only(self, mask: Mask) -> _Lanes:
        return _Lanes(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    def joined(self, other: _Lanes) -> _Lanes:
        return _Lanes(
            **{
                f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)])
                for f in fields(self)
            }
        )

    def evaluate(self, problem: Problem, theta: Array) -> tuple[Array, Array, Array]:
        """The objective of each lane at coordinates [lanes, size], with its derivatives."""
        weights = self.weights if self.weights.shape[1] else None
        return problem.objective(theta, self.delta, weights)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A proposed step: where it leads, and what the quadratic model promises of it.

    Attributes:
        theta: new coordinates [lanes, size].
        length: its length in straight coordinates [lanes].
        promised: decrease of the objective that the model predicts [lanes].
        left: decrease that a full Newton step would give: what is left to gain [lanes].
    """

    theta: Array
    length: Array
    promised: Array
    left: Array


def minimise(
    problem: Problem,
    theta: Array,
    delta: float,
    on_finished: Callable[[int], None] | None = None,
    *,
    weights: RunWeights | None = None,
    widest: float = _WIDEST,
) -> Minima:
    """Minimise the objective from every start.

    A start's path depends on no other start. Finished starts make room for waiting ones.

    Args:
        problem: the fit.
        theta: starts [starts, size], inside the box.
        delta: threshold of the Huber loss; infinity means least squares.
        on_finished: called with the number of starts that ended since the last call.
        weights: resample that each start fits; none counts every point once.
        widest: threshold of the first stage. Starts that are good already need no wide one.
    """
    found = Minima(
        theta=theta.copy(),
        objective=np.full(len(theta), np.inf),
        converged=np.zeros(len(theta), dtype=bool),
    )
    capacity = max(8, _LANE_POINTS // len(problem.target))
    exact = _EXACT * len(problem.target)
    entered = min(capacity, len(theta))

    def enter(rows: NDArray[np.intp]) -> _Lanes:
        return _enter(problem, theta, rows, max(delta, widest), weights)

    lanes = enter(np.arange(entered))
    while len(lanes.start):
        step = _propose(problem, lanes)
        _advance(problem, lanes, step)
        last = lanes.delta <= delta
        tolerance = np.where(last, _TOLERANCE, _STAGE_TOLERANCE)
        settled = step.left <= tolerance * lanes.value + exact
        ended = settled | (lanes.radius < _SMALLEST_RADIUS) | (lanes.iterations > _MAX_ITERATIONS)
        _narrow(problem, lanes, ended & ~last, delta)
        finished = ended & last
        if finished.any():
            rows = lanes.start[finished]
            found.theta[rows] = lanes.theta[finished]
            found.objective[rows] = lanes.value[finished]
            nearly = step.left <= _NEARLY * lanes.value + exact
            found.converged[rows] = (settled | nearly)[finished]
            lanes = lanes.only(~finished)
            room = min(capacity - len(lanes.start), len(theta) - entered)
            if room:
                waiting = np.arange(entered, entered + room)
                lanes = lanes.joined(enter(waiting))
                entered += room
            if on_finished:
                on_finished(len(rows))
    return found


def _enter(
    problem: Problem,
    theta: Array,
    rows: NDArray[np.intp],
    delta: float,
    weights: RunWeights | None,
) -> _Lanes:
    wide = np.full(len(rows), delta)
    of_points = weights.of_points(rows) if weights else None
    value, gradient, hessian = problem.objective(theta[rows], wide, of_points)
    return _Lanes(
        start=rows,
        weights=np.empty((len(rows), 0)) if of_points is None else of_points,
        theta=theta[rows],
        delta=wide,
        radius=np.full(len(rows), _FIRST_RADIUS),
        iterations=np.zeros(len(rows), dtype=np.intp),
        value=value,
        gradient=gradient,
        hessian=hessian,
    )


def _narrow(problem: Problem, lanes: _Lanes, ready: Mask, delta: float) -> None:
    """Begin the next stage of the lanes that are ready for it."""
    rows = np.flatnonzero(ready)
    if len(rows):
        lanes.delta[rows] = np.maximum(delta, _NARROWING * lanes.delta[rows])
        lanes.radius[rows] = np.maximum(lanes.radius[rows], _STAGE_RADIUS)
        narrowed = lanes.only(ready)
        lanes.value[rows], lanes.gradient[rows], lanes.hessian[rows] = narrowed.evaluate(
            problem, narrowed.theta
        )


def _propose(problem: Problem, lanes: _Lanes) -> _Step:
    """Minimise the quadratic model within the trust region and the box.

    Coordinates that the step would carry over a bound are put on it, and the step of the
    others is found again; merely clipping it makes iterates zigzag along the bound.
    """
    theta, hessian = lanes.theta, lanes.hessian
    tangent = problem.tangent(theta)
    shift = np.zeros_like(theta)  # part of the step that is decided already
    at_floor = (theta[:, 0] <= problem.floor) & (lanes.gradient[:, 0] > 0)
    if not problem.has_constant:
        at_floor[:] = True
    fixed = np.zeros(theta.shape, dtype=bool)
    for attempt in range(_ACTIVE_SET_ROUNDS):
        basis = tangent.copy()
        basis[at_floor, 0] = 0.0
        slope = _apply(basis.transpose(0, 2, 1), lanes.gradient + _apply(hessian, shift))
        if attempt == 0:
            below = (theta <= problem.lower) & (slope > 0)
            above = (theta >= problem.upper) & (slope < 0)
            fixed = below | above
            fixed[:, 0] = False  # the first straight coordinate is the level, which is free
        basis[np.broadcast_to(fixed[:, None], basis.shape)] = 0.0
        slope = np.where(fixed, 0.0, slope)
        bowl = basis.transpose(0, 2, 1) @ hessian @ basis
        bends, axes = np.linalg.eigh(bowl)
        along = _apply(axes.transpose(0, 2, 1), slope)
        step = _apply(axes, _within_radius(bends, along, lanes.radius))
        wanted = theta + step
        across = ((wanted < problem.lower) | (wanted > problem.upper)) & ~fixed
        across[:, 0] = False
        whole = np.where(fixed, shift, step)
        moved = problem.move(theta, whole, at_floor)
        below_floor = moved[:, 0] < problem.floor
        if attempt == _ACTIVE_SET_ROUNDS - 1 or not (across.any() or below_floor.any()):
            break
        fixed |= across
        shift = np.where(across, np.clip(wanted, problem.lower, problem.upper) - theta, shift)
        shift[below_floor, 0] = problem.floor - theta[below_floor, 0]
        at_floor |= below_floor
    moved[:, 0] = np.maximum(moved[:, 0], problem.floor)
    change = shift + _apply(basis, step)
    promised = -(lanes.gradient * change + 0.5 * change * _apply(hessian, change)).sum(axis=1)
    left = 0.5 * (along**2 / np.maximum(np.abs(bends), _floor(bends))).sum(axis=1)
    shifted = np.abs(shift).max(axis=1) > 0
    return _Step(
        theta=moved,
        length=np.sqrt((whole**2).sum(axis=1)),
        promised=promised,
        left=np.where(shifted, np.maximum(left, np.abs(promised)), left),
    )


def _advance(problem: Problem, lanes: _Lanes, step: _Step) -> None:
    """Accept or refuse the step, and adapt the radius to how well the model foretold it."""
    value, gradient, hessian = lanes.evaluate(problem, step.theta)
    gained = lanes.value - value
    quality = gained / np.maximum(np.abs(step.promised), np.finfo(np.float64).tiny)
    # So close to the optimum the gain drowns in rounding; the Newton step is right anyway.
    close = (step.left < 100 * _ROUNDING * lanes.value) & (gained > -_ROUNDING * lanes.value)
    accepted = ((gained > 0) & (quality > 1e-4)) | close
    smaller = 0.3 * np.minimum(lanes.radius, step.length)
    larger = 2.5 * lanes.radius
    grows = (quality > 0.75) & (step.length > 0.8 * lanes.radius)
    radius = np.where(quality >= 0.25, np.where(grows, larger, lanes.radius), smaller)
    lanes.radius = np.where(close, lanes.radius, radius)
    lanes.iterations += 1
    lanes.theta = np.where(accepted[:, None], step.theta, lanes.theta)
    lanes.value = np.where(accepted, value, lanes.value)
    lanes.gradient = np.where(accepted[:, None], gradient, lanes.gradient)
    lanes.hessian = np.where(accepted[:, None, None], hessian, lanes.hessian)


def _within_radius(bends: Array, along: Array, radius: Array) -> Array:
    """Step of the trust-region problem in the eigenbasis, by bisection on the multiplier.

    Args:
        bends: eigenvalues of the Hessian, ascending [lanes, size].
        along: gradient in its eigenbasis [lanes, size].
        radius: longest step [lanes].
    """
    radius = radius[:, None]

    def length(multiplier: Array) -> Array:
        squares: Array = ((along / (bends + multiplier)) ** 2).sum(axis=1, keepdims=True)
        return np.sqrt(squares)

    least = np.maximum(0.0, -bends[:, :1]) * (1 + 1e-12) + _floor(bends)
    most = np.sqrt((along**2).sum(axis=1, keepdims=True)) / radius - bends[:, :1]
    low, high = np.log(least), np.log(np.maximum(least, most))
    for _ in range(25):
        middle = 0.5 * (low + high)
        too_long = length(np.exp(middle)) > radius
        low, high = np.where(too_long, middle, low), np.where(too_long, high, middle)
    multiplier = np.where(length(least) <= radius, least, np.exp(high))
    return -along / (bends + multiplier)


def _floor(bends: Array) -> Array:
    """Curvature below which an eigenvalue is rounding error, [lanes, 1]."""
    floor: Array = 1e-14 * np.abs(bends).max(axis=1, keepdims=True) + 1e-300
    return floor


def _apply(matrices: Array, vectors: Array) -> Array:
    """Matrices [lanes, i, j] times vectors [lanes, j]."""
    product: Array = (matrices @ vectors[:, :, None])[:, :, 0]
    return product
