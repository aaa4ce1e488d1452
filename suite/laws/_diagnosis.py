"""What a fit can and cannot say, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from suite.laws._problem import Problem
from suite.laws._terms import VARIABLES, Array, Term
from suite.laws.forms import Form

_FEW_AGREE = 0.1
_ILL_CONDITIONED = 1e10
_FELT = 1e-4  # of the loss; a term that makes less difference than that is not felt


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that warnings are read from.

    Attributes:
        form: the law.
        terms: its terms in the direction that won.
        columns: columns [points] by variable name.
        loss: losses [points].
        agreeing: starts that reached the best objective.
        tried: starts in the winning direction.
        converged: the chosen start ended at a stationary point.
        at_bounds: symbols at a bound.
        at_upper_bounds: coefficients at the upper bound, whose terms are as steep as may be.
        condition_number: of the Gauss-Newton matrix.
        felt: coefficients of the terms that make a difference between the points.
    """

    form: Form
    terms: tuple[Term, ...]
    columns: Mapping[str, Array]
    loss: Array
    agreeing: int
    tried: int
    converged: bool
    at_bounds: tuple[str, ...]
    condition_number: float
    at_upper_bounds: tuple[str, ...] = ()
    felt: tuple[str, ...] = ()


def symbols_at_bounds(form: Form, problem: Problem, theta: Array) -> tuple[str, ...]:
    """Names of the parameters that lie on a bound of the search box at ``theta`` [size]."""
    constant = form.constant.name if form.constant else ""
    at_bound = (theta <= problem.lower) | (theta >= problem.upper)
    names = [name or constant for name, bound in zip(problem.names, at_bound, strict=True) if bound]
    return tuple(name for name in names if name)


def coefficients_at_upper_bounds(problem: Problem, theta: Array) -> tuple[str, ...]:
    """Names of the coefficients whose term is as steep at ``theta`` [size] as the box allows."""
    of_terms = {term.symbols[0].name for term in problem.terms}
    at_bound = theta >= problem.upper
    return tuple(
        name
        for name, bound in zip(problem.names, at_bound, strict=True)
        if bound and name in of_terms
    )


def felt_coefficients(
    form: Form, parameters: Mapping[str, float], columns: Mapping[str, Array]
) -> tuple[str, ...]:
    """Coefficients of the terms that change the loss from one point to another by 1e-4 of it."""
    loss = form.log_prediction(parameters, columns)
    found = []
    for term in form.terms:
        values = np.stack([columns[name] for name in term.variables])
        share = np.exp(term.log_value(parameters, values) - loss)
        if np.ptp(share) > _FELT:
            found.append(term.symbols[0].name)
    return tuple(found)


def condition_number(problem: Problem, theta: Array) -> float:
    """Condition number of J^T J at ``theta`` [size], columns scaled to unit length.

    Parameters at bounds are left out. Infinite where two parameters cannot be told apart.
    """
    jacobian = problem.log_prediction(theta[None])[1][0]
    free = (theta > problem.lower) & (theta < problem.upper)
    free[0] &= problem.has_constant
    rows = jacobian[free]
    lengths = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    if len(rows) == 0 or (lengths == 0).any():
        return float("inf")
    singular = np.linalg.svd(rows / lengths, compute_uv=False)
    ratio = float(singular[-1] / singular[0])
    # Below the rounding error of the singular values themselves the matrix is singular.
    if ratio < np.finfo(np.float64).eps * max(rows.shape):
        return float("inf")
    return ratio**-2


def diagnose(facts: Diagnosis) -> tuple[str, ...]:
    """Warnings about one fit, the gravest first."""
    sentences = [*_unidentified(facts)]
    if not sentences and facts.condition_number > _ILL_CONDITIONED:
        sentences.append(
            f"the points hardly tell the parameters apart (condition number "
            f"{facts.condition_number:.1e}): trust predictions near the points, not parameters"
        )
    if not facts.converged:
        sentences.append("the best start did not converge: the optimum may lie elsewhere")
    if facts.agreeing < max(2, _FEW_AGREE * facts.tried):
        sentences.append(
            f"only {facts.agreeing} of {facts.tried} starts reached the best objective: more "
            f"starts may find a better one"
        )
    sentences += _at_bounds(facts)
    sentences += _rising(facts)
    sentences += point_warnings(facts.columns, facts.loss)
    return tuple(sentences)


def unidentified(
    form: Form, terms: Sequence[Term], columns: Mapping[str, Array]
) -> dict[Term, tuple[int, tuple[str, ...]]]:
    """Terms that spend more parameters on their variables than these have levels.

    Returns:
        For each such term, the levels and the symbols spent, the shared constant first.
    """
    found = {}
    for term in terms:
        values = np.stack([columns[name] for name in term.variables])
        levels = np.unique(values, axis=1).shape[1]
        spent = tuple(symbol.name for symbol in term.symbols)
        if form.constant:
            spent = (form.constant.name, *spent)
        if len(spent) > levels:
            found[term] = (levels, spent)
    return found


def _unidentified(facts: Diagnosis) -> list[str]:
    shared = facts.form.constant
    sentences = []
    found = unidentified(facts.form, facts.terms, facts.columns)
    for term, (levels, spent) in found.items():
        names = " and ".join(term.variables)
        sentences.append(
            f"{names} has {levels} levels and the law spends {len(spent)} parameters on it "
            f"({', '.join(spent)}{f'; {shared.name} is shared' if shared else ''}): "
            f"they are not identified, only the differences between the levels are"
        )
    return sentences


def _at_bounds(facts: Diagnosis) -> list[str]:
    sentences = []
    named = set(facts.at_bounds)
    if facts.form.constant is not None and facts.form.constant.name in named:
        sentences.append(
            f"{facts.form.constant.name} was driven to 0: the points leave no loss that scale "
            f"does not remove"
        )
    for term in facts.form.terms:
        coefficient, *shapes = (symbol.name for symbol in term.symbols)
        if coefficient in set(facts.at_upper_bounds):
            sentences.append(
                f"{coefficient} of the term {term.formula} ended at the upper end of its range: "
                f"the points show a steeper effect of {' and '.join(term.variables)} than a fit "
                f"may take; look for a point far off or mixed units"
            )
        elif coefficient in named and coefficient in facts.felt:
            sentences.append(
                f"{coefficient} of the term {term.formula} ended at the lower end of its range, "
                f"though some points feel the term: look for values of "
                f"{' and '.join(term.variables)} far off from all others, or mixed units"
            )
        elif coefficient in named:
            sentences.append(
                f"the term {term.formula} vanished: the points show no such effect of "
                f"{' and '.join(term.variables)}, and {', '.join(shapes)} mean nothing"
            )
        else:
            sentences += [
                f"{name} ended at a bound of its range: the points would take it further"
                for name in shapes
                if name in named
            ]
    return sentences


def _rising(facts: Diagnosis) -> list[str]:
    pairs = zip(facts.form.terms, facts.terms, strict=True)
    return [
        f"the loss grows with {' and '.join(term.variables)} in these points: the exponent of "
        f"{declared.formula} is negative"
        for declared, term in pairs
        if term != declared and term.symbols[0].name not in facts.at_bounds
    ]


def point_warnings(columns: Mapping[str, Array], loss: Array) -> list[str]:
    """What is odd about the points themselves: units that seem mixed, and duplicates."""
    return [*_units(columns), *_duplicates(columns, loss)]


def _units(columns: Mapping[str, Array]) -> list[str]:
    return [
        f"{name} goes down to {values.min():g}: below {VARIABLES[name].least:,.0f} it is "
        f"probably not in {VARIABLES[name].unit}, and units may be mixed"
        for name, values in columns.items()
        if name in VARIABLES and values.min() < VARIABLES[name].least
    ]


def _duplicates(columns: Mapping[str, Array], loss: Array) -> list[str]:
    rows = np.stack([*columns.values(), loss])
    extra = rows.shape[1] - np.unique(rows, axis=1).shape[1]
    if not extra:
        return []
    return [f"{extra} points repeat another point exactly, and count again in the fit"]
