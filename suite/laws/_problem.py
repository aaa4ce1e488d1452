"""The fit as a smooth problem: scaled points, objective, gradient and Hessian for many starts.

The search coordinates ``theta`` of a law with n terms are

    [E, s_1 ... s_n, z_1 ..., ... z_n ...]

E in units of the geometric mean loss, s and z as in ``_terms``. Every array has the starts
in front, so that all of them are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.laws._terms import Array, SearchBox, Term

# The constant starts somewhere below the lowest loss; log-slopes span the useful decades.
_CONSTANT_START = (0.1, 0.95)
_SLOPE = SearchBox(lower=-20.0, upper=5.0, start=(-5.0, 0.0))

# A step may change the level at the reference point by at most this factor, as a logarithm.
_LARGEST_LEVEL_STEP = 5.0

_HALVINGS = 60  # of the range in which the coordinate of a pinned parameter is looked for


@dataclass(frozen=True, kw_only=True)
class _Levels:
    """The distinct settings of one term's variables, and which point has which.

    Attributes:
        x: scaled values [variables, levels].
        of_point: level of each point; none where nearly every point has its own level, and
            ``x`` is then given by point.
        order: points sorted by level.
        first: where each level begins in ``order``.
    """

    x: Array
    of_point: NDArray[np.intp] | None
    order: NDArray[np.intp]
    first: NDArray[np.intp]

    @classmethod
    def of(cls, values: Array) -> _Levels:
        """Find the levels of values [variables, points]."""
        levels, of_point = np.unique(values, axis=1, return_inverse=True)
        of_point = of_point.reshape(-1)
        order = np.argsort(of_point, kind="stable")
        if 2 * levels.shape[1] > values.shape[1]:
            return cls(x=values, of_point=None, order=order, first=order[:0])
        first = np.searchsorted(of_point[order], np.arange(levels.shape[1]))
        return cls(x=levels, of_point=of_point, order=order, first=first)

    def spread(self, values: Array) -> Array:
        """Values by level [..., levels] to values by point [..., points]."""
        return values if self.of_point is None else np.take(values, self.of_point, axis=-1)

    def gather(self, values: Array) -> Array:
        """Sums over the points of each level: [starts, points] to [starts, levels]."""
        if self.of_point is None:
            return values
        return np.add.reduceat(np.take(values, self.order, axis=1), self.first, axis=1)


@dataclass(frozen=True, kw_only=True)
class _Forward:
    """One evaluation of the law.

    Attributes:
        total: predicted loss, scaled [starts, points].
        shares: each term's share of it [terms][starts, points].
        slopes: gradient of each log shape [terms][starts, shapes, levels].
    """

    total: Array
    shares: list[Array]
    slopes: list[Array]


class Problem:
    """Points of one fit in scaled units, with the objective and its derivatives.

    Args:
        terms: terms of the law.
        has_constant: the law has a constant E; else E stays 0.
        columns: columns [points] by variable name, positive.
        loss: losses [points], positive.
        pinned: one of ``names``, not that of a coefficient, and the natural value that this
            parameter is held at.

    Attributes:
        size: search coordinates.
        floor: least E in scaled units; the only one where ``has_constant`` is false.
        names: natural parameter that each coordinate carries; empty for E.
        lower: least values of the coordinates [size].
        upper: largest values [size].
        target: log losses less their mean [points].
    """

    def __init__(
        self,
        terms: Sequence[Term],
        columns: Mapping[str, Array],
        loss: Array,
        *,
        has_constant: bool,
        pinned: tuple[str, float] | None = None,
    ) -> None:
        self.terms = tuple(terms)
        self.has_constant = has_constant
        self.floor = 0.0
        log_loss = np.log(loss)
        self.loss_scale = float(np.exp(log_loss.mean()))
        self.target = log_loss - log_loss.mean()
        self.scales: list[Array] = []
        self.levels: list[_Levels] = []
        self.shapes: list[slice] = []
        boxes: list[SearchBox] = [_SLOPE] * len(self.terms)
        for term in self.terms:
            values = np.stack([columns[name] for name in term.variables])
            self.scales.append(term.scales(values))
            self.levels.append(_Levels.of(values / self.scales[-1][:, None]))
            self.shapes.append(slice(1 + len(boxes), 1 + len(boxes) + len(term.boxes)))
            boxes.extend(term.boxes)
        self.size = 1 + len(boxes)
        shape_names = [symbol.name for term in self.terms for symbol in term.symbols[1:]]
        self.names = ("", *(term.symbols[0].name for term in self.terms), *shape_names)
        self.lower = np.array([0.0] + [box.lower for box in boxes])
        self.upper = np.array([np.inf] + [box.upper for box in boxes])
        self._starts = np.array([_CONSTANT_START] + [box.start for box in boxes])
        if pinned:
            self._pin(*pinned)

    def _pin(self, name: str, value: float) -> None:
        """Hold one parameter at a natural value, by closing the box around it.

        Raises:
            ValueError: the value lies outside the range of the search.
        """
        if name == "":
            self.has_constant, self.floor = False, value / self.loss_scale
            return
        at = self.names.index(name)
        theta = np.clip(self._starts[:, 0], self.lower, self.upper)
        least, most = self.range_of(name, theta)
        if not least <= value <= most:
            raise ValueError(f"{name} = {value} is outside {least} to {most}")
        low, high = float(self.lower[at]), float(self.upper[at])
        rises = self._shape_at(at, theta, low) < self._shape_at(at, theta, high)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if (self._shape_at(at, theta, middle) < value) == rises:
                low = middle
            else:
                high = middle
        self.lower[at] = self.upper[at] = 0.5 * (low + high)

    def range_of(self, name: str, theta: Array) -> tuple[float, float]:
        """Least and largest natural value of the constant or of a shape parameter.

        Args:
            name: one of ``names``, not that of a coefficient.
            theta: search coordinates [size] that the others are held at.

        Returns:
            The ends of the box; for the constant, 0 and the largest loss.
        """
        if name == "":
            return 0.0, float(np.exp(self.target.max())) * self.loss_scale
        at = self.names.index(name)
        ends = [self._shape_at(at, theta, float(end[at])) for end in (self.lower, self.upper)]
        return min(ends), max(ends)

    def _shape_at(self, at: int, theta: Array, coordinate: float) -> float:
        """Natural value of a shape parameter where its coordinate has another value.

        Parameters are monotonic in their own coordinates, whatever formula leads to them.
        """
        index = next(i for i, block in enumerate(self.shapes) if block.start <= at < block.stop)
        changed = theta.copy()
        changed[at] = coordinate
        z = changed[self.shapes[index]]
        found = self.terms[index].natural(0.0, z, self.scales[index], self.loss_scale)
        return found[self.names[at]]

    def inside(self, theta: Array) -> Array:
        """Coordinates [starts, size] brought into the box, E to its floor where it is held."""
        moved: Array = np.clip(theta, self.lower, self.upper)
        if not self.has_constant:
            moved[:, 0] = self.floor
        return moved

    def starts(self, count: int, seed: int) -> Array:
        """Seeded starts [count, size] in the box; the first k do not depend on ``count``."""
        low, high = self._starts.T
        theta: Array = low + (high - low) * np.random.default_rng(seed).random((count, self.size))
        theta[:, 0] *= np.exp(self.target.min())
        return self.inside(theta)

    def remoteness(self, theta: Array) -> Array:
        """Squared distance of theta [starts, size] from the middle of the start ranges."""
        low, high = self._starts[1:].T
        distance: Array = (((theta[:, 1:] - 0.5 * (low + high)) / (high - low)) ** 2).sum(axis=1)
        return distance

    def _forward(self, theta: Array) -> _Forward:
        total = np.repeat(theta[:, :1], len(self.target), axis=1)
        values, slopes = [], []
        for index, (term, levels) in enumerate(zip(self.terms, self.levels, strict=True)):
            log_shape, slope = term.log_shape(theta[:, self.shapes[index]], levels.x)
            value = levels.spread(np.exp(theta[:, 1 + index, None] + log_shape))
            total += value
            values.append(value)
            slopes.append(slope)
        return _Forward(total=total, shares=[value / total for value in values], slopes=slopes)

    def _jacobian(self, forward: _Forward) -> Array:
        starts, points = forward.total.shape
        jacobian = np.empty((starts, self.size, points))
        np.divide(1.0, forward.total, out=jacobian[:, 0])
        for index, share in enumerate(forward.shares):
            jacobian[:, 1 + index] = share
            slope = self.levels[index].spread(forward.slopes[index])
            np.multiply(slope, share[:, None], out=jacobian[:, self.shapes[index]])
        return jacobian

    def log_prediction(self, theta: Array) -> tuple[Array, Array]:
        """Log of the scaled prediction [starts, points], and its Jacobian.

        Returns:
            The logarithm and its derivatives [starts, size, points].
        """
        forward = self._forward(theta)
        return np.log(forward.total), self._jacobian(forward)

    def objective(
        self, theta: Array, delta: Array, weights: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Sum over points of Huber(log prediction - log loss), with its derivatives.

        The Hessian is exact inside the two branches of the Huber loss: the Gauss-Newton part
        of the points within ``delta``, and the curvature of the law for all points.

        Args:
            theta: search coordinates [starts, size].
            delta: threshold of the Huber loss, one a start.
            weights: how often each point counts, start by start [starts, points]; none counts
                every point once.

        Returns:
            Objective [starts], gradient [starts, size], Hessian [starts, size, size].
        """
        forward = self._forward(theta)
        jacobian = self._jacobian(forward)
        residual = np.log(forward.total) - self.target
        threshold = delta[:, None]
        pull = np.clip(residual, -threshold, threshold)  # derivative of the Huber loss
        terms = pull * (residual - 0.5 * pull)
        # log of a sum: Hess(log L) = sum_t share_t (Hess log_t + grad grad^T) - J J^T
        bend = (np.abs(residual) < threshold) - pull
        if weights is not None:
            terms, pull, bend = terms * weights, pull * weights, bend * weights
        value = terms.sum(axis=1)
        gradient = (jacobian @ pull[:, :, None])[:, :, 0]
        hessian = (jacobian * bend[:, None]) @ jacobian.transpose(0, 2, 1)
        for index, (term, levels) in enumerate(zip(self.terms, self.levels, strict=True)):
            block, slope = self.shapes[index], forward.slopes[index]
            mass = levels.gather(pull * forward.shares[index])
            lean = (slope @ mass[:, :, None])[:, :, 0]
            hessian[:, 1 + index, 1 + index] += mass.sum(axis=1)
            hessian[:, 1 + index, block] += lean
            hessian[:, block, 1 + index] += lean
            hessian[:, block, block] += (slope * mass[:, None]) @ slope.transpose(0, 2, 1)
            hessian[:, block, block] += term.curvature(theta[:, block], levels.x, mass)
        return value, gradient, hessian

    def _at_reference(self, theta: Array) -> tuple[Array, list[Array]]:
        """Terms at the point where every scaled variable is 1.

        Returns:
            Their values [starts, terms], and gradients of their logs [terms][starts, shapes].
        """
        logs, slopes = [], []
        for index, term in enumerate(self.terms):
            here = np.ones((len(term.variables), 1))
            log_shape, slope = term.log_shape(theta[:, self.shapes[index]], here)
            logs.append(theta[:, 1 + index] + log_shape[:, 0])
            slopes.append(slope[:, :, 0])
        return np.exp(np.stack(logs, axis=1)), slopes

    def tangent(self, theta: Array) -> Array:
        """Directions of the straight coordinates, in which E is replaced by the level.

        The level is the log of the loss at the reference point. A step in another coordinate
        keeps it, and so moves E: exactly the trade along which fits are nearly as good.

        Returns:
            d theta / d straight, [starts, size, size]; only the row of E is not the identity.
        """
        values, slopes = self._at_reference(theta)
        tangent = np.repeat(np.eye(self.size)[None], len(theta), axis=0)
        tangent[:, 0, 0] = theta[:, 0] + values.sum(axis=1)
        tangent[:, 0, 1 : 1 + len(self.terms)] = -values
        for index, block in enumerate(self.shapes):
            tangent[:, 0, block] = -values[:, index, None] * slopes[index]
        return tangent

    def move(self, theta: Array, step: Array, without_constant: NDArray[np.bool_]) -> Array:
        """Take a step in the straight coordinates, clipped to the box.

        Args:
            theta: where to start [starts, size].
            step: step [starts, size]; its first entry changes the level.
            without_constant: starts [starts] whose E is at its floor afterwards, whatever the
                level.

        Returns:
            New coordinates. E may come out below its floor: the caller decides what that means.
        """
        moved = np.clip(theta + step, self.lower, self.upper)
        before, after = self._at_reference(theta)[0], self._at_reference(moved)[0]
        change = np.clip(step[:, 0], -_LARGEST_LEVEL_STEP, _LARGEST_LEVEL_STEP)
        level = (theta[:, 0] + before.sum(axis=1)) * np.exp(change)
        moved[:, 0] = np.where(without_constant, self.floor, level - after.sum(axis=1))
        return moved

    def natural(self, theta: Array) -> dict[str, float]:
        """Natural parameters of the terms at one point [size]; E is ``constant``."""
        found: dict[str, float] = {}
        for index, term in enumerate(self.terms):
            z, s = theta[self.shapes[index]], float(theta[1 + index])
            found |= term.natural(s, z, self.scales[index], self.loss_scale)
        return found

    def constant(self, theta: Array) -> float:
        """E in nats at one point [size]."""
        return float(theta[0]) * self.loss_scale
