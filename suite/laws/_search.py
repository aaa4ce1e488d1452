"""The search for the optimum of a law: every direction, from many seeded starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._levels import check_levels
from suite.laws._newton import Minima, minimise
from suite.laws._problem import Problem
from suite.laws._terms import Array, Term
from suite.laws.forms import Form, check_column

# Residuals below this, in nats, are those of noiseless points: a share of the objective means
# nothing there.
_EXACT_RESIDUAL = 1e-10


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """The starts that went in one direction.

    Attributes:
        terms: terms of the law in this direction.
        problem: the fit in scaled units.
        minima: where the starts ended.
    """

    terms: tuple[Term, ...]
    problem: Problem
    minima: Minima

    @property
    def objective(self) -> float:
        """The least one reached."""
        return float(self.minima.objective.min())

    def agreeing(self, share: float) -> NDArray[np.bool_]:
        """Starts [starts] within a share of the least objective, or exact fits as it is."""
        slack = len(self.problem.target) * 0.5 * _EXACT_RESIDUAL**2
        agrees: NDArray[np.bool_] = self.minima.objective <= self.objective * (1 + share) + slack
        return agrees

    @property
    def chosen(self) -> int:
        """The start to report, of those whose objective is the least to ten digits.

        They fit equally well. Where a law is not identified they differ all the same, and the
        least remote one spares readers an A of 1e60. What is left of ties differs by rounding;
        the first of them, unlike the least, stays the same on another machine.
        """
        ties = self.agreeing(1e-10)
        if (ties & self.minima.converged).any():
            ties &= self.minima.converged
        remoteness = np.where(ties, self.problem.remoteness(self.minima.theta), np.inf)
        return int(np.argmax(remoteness <= remoteness.min() * (1 + 1e-6)))

    @property
    def theta(self) -> Array:
        """Search coordinates of the chosen start [size]."""
        theta: Array = self.minima.theta[self.chosen]
        return theta


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """What the starts of a fit found.

    Attributes:
        form: the law.
        columns: columns [points] that it reads, in canonical order.
        loss: losses [points] in that order.
        order: row, as it was given, of each point [points].
        huber_delta: threshold of the Huber loss.
        starts: starts in all directions.
        attempts: what each direction found.
    """

    form: Form
    columns: dict[str, Array]
    loss: Array
    order: NDArray[np.intp]
    huber_delta: float
    starts: int
    attempts: tuple[Attempt, ...]

    @property
    def best(self) -> Attempt:
        """The direction of the least objective; the declared one where they are equal."""
        return min(self.attempts, key=lambda attempt: attempt.objective)


def search(
    form: Form,
    variables: Mapping[str, Array],
    loss: Array,
    *,
    huber_delta: float,
    starts: int,
    seed: int,
    on_start: Callable[[int], None] | None = None,
) -> Search:
    """Minimise from every start; arguments and errors are those of ``fit.fit``.

    Every direction gets at least one start: fewer starts than directions are raised to their
    number, since a direction that is never tried would pass for one that does not fit.
    """
    if not huber_delta > 0:
        raise InputError(f"huber_delta is {huber_delta}; it must be positive")
    if starts < 1:
        raise InputError(f"starts is {starts}; at least one is needed")
    columns, loss, order = checked_points(form, variables, loss)
    directions = form.directions
    starts = max(starts, len(directions))
    ended = 0

    def count(finished: int) -> None:
        nonlocal ended
        ended += finished
        if on_start:
            on_start(ended)

    attempts: list[Attempt] = []
    direction = _directions(starts, len(directions))
    for index, terms in enumerate(directions):
        problem = Problem(terms, columns, loss, has_constant=form.constant is not None)
        theta = problem.starts(starts, seed)[direction == index]
        minima = minimise(problem, theta, huber_delta, count)
        attempts.append(Attempt(terms=terms, problem=problem, minima=minima))
    return Search(
        form=form,
        columns=columns,
        loss=loss,
        order=order,
        huber_delta=huber_delta,
        starts=starts,
        attempts=tuple(attempts),
    )


def natural(form: Form, problem: Problem, theta: Array) -> dict[str, float]:
    """Natural parameters by symbol at one point [size] of the search."""
    constant = {form.constant.name: problem.constant(theta)} if form.constant else {}
    return constant | problem.natural(theta)


def _directions(starts: int, directions: int) -> NDArray[np.intp]:
    """Direction of each start: the declared one, and each fourth start one of the others.

    Where that leaves directions out, the last starts of the declared one go there. There must
    be as many starts as directions.
    """
    index = np.arange(starts)
    if directions == 1:
        return np.zeros(starts, dtype=np.intp)
    direction = np.where(index % 4 == 3, 1 + (index // 4) % (directions - 1), 0)
    untried = np.setdiff1d(np.arange(1, directions), direction)
    spare = np.flatnonzero(direction == 0)
    direction[spare[len(spare) - len(untried) :]] = untried
    return direction


def checked_points(
    form: Form, variables: Mapping[str, Array], loss: Array
) -> tuple[dict[str, Array], Array, NDArray[np.intp]]:
    """Columns and losses, checked and in canonical order, and that order.

    Raises:
        InputError: as ``fit.fit``.
    """
    columns = form.columns(variables)
    loss = np.asarray(loss, dtype=np.float64)
    check_column("loss", loss)
    points = {name: len(values) for name, values in columns.items()} | {"loss": len(loss)}
    if len(set(points.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in points.items())
        raise InputError(f"columns differ in length: {listed}")
    if len(loss) < len(form.symbols):
        raise InputError(
            f"the law {form.name!r} has {len(form.symbols)} parameters; {len(loss)} points "
            f"cannot determine them, at least {len(form.symbols)} are needed"
        )
    check_levels(form, columns)
    order = np.lexsort((loss, *reversed(columns.values())))
    return {name: values[order] for name, values in columns.items()}, loss[order], order
