"""Fit a law to points: the sum of Huber losses on log loss, from many seeded starts.

The objective is that of Hoffmann et al. (arXiv 2203.15556, approach 3), with the sum over
points; the traps of that fit (a mean, loose tolerances, few starts) are described by
Besiroglu et al. (arXiv 2404.10102).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._diagnosis import Diagnosis, condition_number, diagnose, symbols_at_bounds
from suite.laws._newton import Minima, minimise
from suite.laws._problem import Problem
from suite.laws._terms import Array, Term
from suite.laws.forms import Form, check_column

# Starts whose objective is within this share of the best one agree with it. Residuals below
# ``_EXACT_RESIDUAL`` nats are those of noiseless points, where a share means nothing.
_AGREEMENT = 1e-6
_EXACT_RESIDUAL = 1e-10


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law and how far it can be trusted.

    Attributes:
        form: the law.
        parameters: natural parameters by symbol: losses in nats, N, D, T_m in their own units.
        objective: sum over points of Huber(log prediction - log loss), in nats^2.
        num_points: points fitted.
        num_starts: starts of the optimiser.
        agreeing_share: share of the starts that ended within 1e-6 of the best objective,
            relatively. Where a law is also tried in a rising direction, every fourth start
            goes that way, and the share is that of the starts in the winning direction.
        at_bounds: symbols that ended at a bound of the search: a constant or a shift at 0, a
            coefficient whose term has vanished, an exponent at the end of its range.
        condition_number: of the Gauss-Newton matrix (J^T J of log predictions, columns of
            unit length, in the scaled coordinates of the search, parameters at bounds left
            out). Above 1e10 the points hardly tell the parameters apart.
        warnings: what a reader of the result should know, in plain sentences.
    """

    form: Form
    parameters: dict[str, float]
    objective: float
    num_points: int
    num_starts: int
    agreeing_share: float
    at_bounds: tuple[str, ...]
    condition_number: float
    warnings: tuple[str, ...]

    def predict(self, variables: Mapping[str, Array]) -> Array:
        """Predicted loss in nats, [points].

        Args:
            variables: columns [points] by name; those that the law does not read are ignored.

        Raises:
            InputError: a column is absent, or a value is not positive and finite.
        """
        return self.form.predict(self.parameters, variables)


def fit(
    form: Form,
    variables: Mapping[str, Array],
    loss: Array,
    *,
    huber_delta: float = 1e-3,
    starts: int = 64,
    seed: int = 0,
    on_start: Callable[[int], None] | None = None,
) -> Fit:
    """Fit a law by minimising the sum of Huber losses on log loss.

    The result does not depend on the order of the points. Variables and loss are scaled by
    their geometric means inside, so that units (tokens or billions of them) do not matter.

    Args:
        form: the law.
        variables: columns [points] by name (``parameters``, ``tokens``, ``recurrence``);
            those that the law does not read are ignored.
        loss: losses [points] in nats.
        huber_delta: threshold of the Huber loss, in nats of log loss. Towards 0 the fit is
            that of least absolute deviations (the objective shrinks with it); infinity gives
            least squares.
        starts: starts of the optimiser.
        seed: seed of the starts.
        on_start: called with the number of starts that have ended so far.

    Raises:
        InputError: a column is absent or of another length; a loss or a variable is not
            positive and finite (the row is named); there are fewer points than parameters, or
            a variable has one level only; a setting is out of range.
    """
    if not huber_delta > 0:
        raise InputError(f"huber_delta is {huber_delta}; it must be positive")
    if starts < 1:
        raise InputError(f"starts is {starts}; at least one is needed")
    columns, loss = _checked(form, variables, loss)
    ended = 0

    def count(finished: int) -> None:
        nonlocal ended
        ended += finished
        if on_start:
            on_start(ended)

    attempts: list[tuple[Problem, Minima, tuple[Term, ...]]] = []
    direction = _directions(starts, len(form.directions))
    for index, terms in enumerate(form.directions):
        problem = Problem(terms, columns, loss, has_constant=form.constant is not None)
        theta = problem.starts(starts, seed)[direction == index]
        if len(theta):
            attempts.append((problem, minimise(problem, theta, huber_delta, count), terms))
    problem, minima, terms = min(attempts, key=lambda attempt: float(attempt[1].objective.min()))

    best = float(minima.objective.min())
    slack = len(loss) * 0.5 * _EXACT_RESIDUAL**2
    agrees = minima.objective <= best * (1 + _AGREEMENT) + slack
    chosen = _choose(problem, minima, best * (1 + 1e-10) + slack)
    theta = minima.theta[chosen]
    at_bounds = symbols_at_bounds(form, problem, theta)
    condition = condition_number(problem, theta)
    constant = {form.constant.name: problem.constant(theta)} if form.constant else {}
    return Fit(
        form=form,
        parameters=constant | problem.natural(theta),
        objective=float(minima.objective[chosen]),
        num_points=len(loss),
        num_starts=starts,
        agreeing_share=float(agrees.mean()),
        at_bounds=at_bounds,
        condition_number=condition,
        warnings=diagnose(
            Diagnosis(
                form=form,
                terms=terms,
                columns=columns,
                loss=loss,
                agreeing=int(agrees.sum()),
                tried=len(agrees),
                converged=bool(minima.converged[chosen]),
                at_bounds=at_bounds,
                condition_number=condition,
            )
        ),
    )


def _directions(starts: int, directions: int) -> NDArray[np.intp]:
    """Direction of each start: the declared one, and each fourth start one of the others."""
    index = np.arange(starts)
    if directions == 1:
        return np.zeros(starts, dtype=np.intp)
    return np.where(index % 4 == 3, 1 + (index // 4) % (directions - 1), 0)


def _choose(problem: Problem, minima: Minima, ceiling: float) -> int:
    """The start to report, of those whose objective is at most ``ceiling``.

    They fit equally well. Where a law is not identified they differ all the same, and the
    least remote one spares readers an A of 1e60. What is left of ties differs by rounding;
    the first of them, unlike the least, stays the same on another machine.
    """
    ties = minima.objective <= ceiling
    if (ties & minima.converged).any():
        ties &= minima.converged
    remoteness = np.where(ties, problem.remoteness(minima.theta), np.inf)
    return int(np.argmax(remoteness <= remoteness.min() * (1 + 1e-6)))


def _checked(
    form: Form, variables: Mapping[str, Array], loss: Array
) -> tuple[dict[str, Array], Array]:
    """Columns and losses, checked and in canonical order."""
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
    for name, values in columns.items():
        if np.all(values == values[0]):
            raise InputError(
                f"{name} is {values[0]:g} in all {len(loss)} points; the law {form.name!r} "
                f"needs at least two levels of it"
            )
    order = np.lexsort((loss, *reversed(columns.values())))
    return {name: values[order] for name, values in columns.items()}, loss[order]
