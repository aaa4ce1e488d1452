"""Fit a law to points: the sum of Huber losses on log loss, from many seeded starts.

The objective is that of Hoffmann et al. (arXiv 2203.15556, approach 3), with the sum over
points; the traps of that fit (a mean, loose tolerances, few starts) are described by
Besiroglu et al. (arXiv 2404.10102).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from suite.laws._diagnosis import (
    Diagnosis,
    coefficients_at_upper_bounds,
    condition_number,
    diagnose,
    felt_coefficients,
    symbols_at_bounds,
    unidentified,
)
from suite.laws._search import Search, natural, search
from suite.laws._terms import Array
from suite.laws.forms import Form

# Starts whose objective is within this share of the best one agree with it.
_AGREEMENT = 1e-6


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law and how far it can be trusted.

    Attributes:
        form: the law.
        parameters: natural parameters by symbol: losses in nats, N, D, T_m in their own units.
        objective: sum over points of Huber(log prediction - log loss), in nats^2.
        num_points: points fitted.
        num_starts: starts of the optimiser.
        num_tried: those of them in the winning direction.
        agreeing_share: share of the starts that ended within 1e-6 of the best objective,
            relatively. Where a law is also tried in a rising direction, every fourth start
            goes that way (at least one, whatever the starts asked for), and the share is that of
            the starts in the winning direction.
        at_bounds: symbols that ended at a bound of the search: a constant or a shift at 0, a
            coefficient whose term has vanished or is as steep as may be, an exponent at the end
            of its range.
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
    num_tried: int
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
        starts: starts of the optimiser; raised to the number of directions that the law is
            tried in, which need one each.
        seed: seed of the starts.
        on_start: called with the number of starts that have ended so far.

    Raises:
        InputError: a column is absent or of another length; a loss or a variable is not
            positive and finite (the row is named); there are fewer points than parameters, or
            the variables of a term have one setting only; a setting is out of range.
    """
    found = search(
        form,
        variables,
        loss,
        huber_delta=huber_delta,
        starts=starts,
        seed=seed,
        on_start=on_start,
    )
    return describe(found)


def describe(found: Search) -> Fit:
    """The fit that a search arrived at, and what to think of it."""
    best = found.best
    theta, problem = best.theta, best.problem
    agrees = best.agreeing(_AGREEMENT)
    at_bounds = symbols_at_bounds(found.form, problem, theta)
    condition = condition_number(problem, theta)
    parameters = natural(found.form, problem, theta)
    return Fit(
        form=found.form,
        parameters=parameters,
        objective=float(best.minima.objective[best.chosen]),
        num_points=len(found.loss),
        num_starts=found.starts,
        num_tried=len(agrees),
        agreeing_share=float(agrees.mean()),
        at_bounds=at_bounds,
        condition_number=condition,
        warnings=diagnose(
            Diagnosis(
                form=found.form,
                terms=best.terms,
                columns=found.columns,
                loss=found.loss,
                agreeing=int(agrees.sum()),
                tried=len(agrees),
                converged=bool(best.minima.converged[best.chosen]),
                at_bounds=at_bounds,
                condition_number=condition,
                at_upper_bounds=coefficients_at_upper_bounds(problem, theta),
                felt=felt_coefficients(found.form, parameters, found.columns),
            )
        ),
    )


def unidentified_symbols(form: Form, variables: Mapping[str, Array]) -> tuple[str, ...]:
    """Symbols of which points with these variables determine only combinations.

    Args:
        form: the law.
        variables: columns [points] by name.

    Raises:
        InputError: as ``Form.columns``.
    """
    spent = unidentified(form, form.terms, form.columns(variables)).values()
    return tuple(dict.fromkeys(name for _, names in spent for name in names))
