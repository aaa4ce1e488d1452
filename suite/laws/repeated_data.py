"""Fit the data-constrained law, with the plain law free or fixed.

Muennighoff et al. (arXiv 2305.16264, appendix A) fix the five parameters of the plain law, from
another fit, and free R_D* and R_N* alone; ``plain`` does that. Without it all seven are free.
Fitting the plain law first, to the points whose data does not repeat, would be biased: the law
counts a model that is larger than its unique tokens call for as repetition too, at one epoch
already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from suite.laws._diagnosis import point_warnings
from suite.laws._repeated_search import RepeatedSearch, search_repeated
from suite.laws._terms import Array
from suite.laws._untold import untold_symbols
from suite.laws.fit import Fit

__all__ = ["describe_repeated", "fit_repeated", "untold_symbols"]

_FEW_AGREE = 0.1
_ILL_CONDITIONED = 1e10


def fit_repeated(
    variables: Mapping[str, Array],
    loss: Array,
    *,
    plain: Mapping[str, float] | None = None,
    huber_delta: float = 1e-3,
    starts: int = 64,
    seed: int = 0,
    on_start: Callable[[int], None] | None = None,
) -> Fit:
    """Fit ``data_constrained``: the sum over all points of Huber losses on log loss.

    Args:
        variables: columns [points]: ``parameters``, ``tokens``, ``unique_tokens``.
        loss: losses [points] in nats.
        plain: E, A, alpha, B, beta of the plain law, which then stay; none frees them.
        huber_delta: threshold of the Huber loss, in nats of log loss.
        starts: starts of the optimiser.
        seed: seed of the starts.
        on_start: called with the number of starts that have ended so far.

    Raises:
        InputError: as ``fit``; or no point repeats its data, or ``plain`` is not those five,
            positive and finite.
    """
    return describe_repeated(
        search_repeated(
            variables,
            loss,
            plain=plain,
            huber_delta=huber_delta,
            starts=starts,
            seed=seed,
            on_start=on_start,
        )
    )


def describe_repeated(found: RepeatedSearch) -> Fit:
    """The fit that a search arrived at, and what to think of it."""
    problem, descent, at_bounds = found.problem, found.descent, found.at_bounds
    jacobian = problem.residual(descent.theta)[1]
    of_the_rest = _condition(jacobian[(jacobian != 0).any(axis=1)])  # without an untold R_N
    return Fit(
        form=problem.form,
        parameters=found.natural(descent.theta),
        objective=descent.objective,
        num_points=len(found.loss),
        num_starts=found.starts,
        num_tried=found.starts,
        agreeing_share=descent.agreeing / found.starts,
        at_bounds=at_bounds,
        condition_number=_condition(jacobian),
        warnings=(
            *_untold(found),
            *_warnings(at_bounds, of_the_rest, descent.agreeing, found.starts),
            *point_warnings(problem.columns, found.loss),
        ),
    )


def _untold(found: RepeatedSearch) -> list[str]:
    sentences, names = [], found.untold
    if not found.repetition.depends_on("R_N").any():
        sentences.append(
            "no model is larger than its unique tokens call for, so R_N is not identified"
        )
        names = tuple(name for name in names if name != "R_N")
    if names:
        sentences.append(
            f"{', '.join(names)} are not identified: the law spends more parameters on N and U_N, "
            "or on D and U_D, than the points have settings of them"
        )
    return sentences


def _warnings(
    at_bounds: tuple[str, ...], condition: float, agreeing: int, starts: int
) -> list[str]:
    sentences = []
    if condition > _ILL_CONDITIONED:
        sentences.append(
            f"the points hardly tell the parameters apart (condition number {condition:.1e}): "
            "trust predictions near the points, not parameters"
        )
    if agreeing < max(2, _FEW_AGREE * starts):
        sentences.append(
            f"only {agreeing} of {starts} starts reached the best objective: more starts may "
            "find a better one"
        )
    sentences += [
        f"{name} ended at a bound of its range: the points would take it further"
        for name in at_bounds
    ]
    return sentences


def _condition(jacobian: Array) -> float:
    """Condition number of J^T J, columns of unit length; J is [free, points]."""
    lengths = np.sqrt((jacobian**2).sum(axis=1, keepdims=True))
    if not len(jacobian) or (lengths == 0).any():
        return float("inf")
    singular = np.linalg.svd(jacobian / lengths, compute_uv=False)
    return float((singular[0] / singular[-1]) ** 2) if singular[-1] > 1e-15 else float("inf")
