"""Fit the data-constrained law, with the plain law free or fixed.

Muennighoff et al. (arXiv 2305.16264, appendix A) fix the five parameters of the plain law, from
another fit, and free R_D* and R_N* alone; ``plain`` does that. Without it all seven are free.
Fitting the plain law first, to the points whose data does not repeat, would be biased: the law
counts a model that is larger than its unique tokens call for as repetition too, at one epoch
already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from suite.errors import InputError
from suite.laws._diagnosis import point_warnings
from suite.laws._levels import check_levels
from suite.laws._repetition import DECAYS, DataConstrainedForm
from suite.laws._robust_descent import descend
from suite.laws._terms import Array
from suite.laws.fit import Fit
from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED, check_column, check_plain

_ONE_EPOCH = 1 + 1e-9
_FEW_AGREE = 0.1
_ILL_CONDITIONED = 1e10
_NAMES = ("E", "A", "alpha", "B", "beta", "R_D", "R_N")
# Logs of E and of the terms at the mean point, as shares of the mean loss; exponents; decays.
_LOWER = np.log([1e-6, 1e-6, 1e-3, 1e-6, 1e-3, DECAYS[0].lower, DECAYS[1].lower])
_UPPER = np.log([10.0, 10.0, 10.0, 10.0, 10.0, DECAYS[0].upper, DECAYS[1].upper])
_START_LOW = np.log([0.1, 0.02, 0.1, 0.02, 0.1, 1.0, 1.0])
_START_HIGH = np.log([0.9, 0.5, 1.0, 0.5, 1.0, 50.0, 50.0])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Coordinates:
    """Search coordinates of the seven parameters, of which some are free.

    Attributes:
        form: the law.
        columns: columns [points] by variable name.
        log_loss: [points].
        fixed: natural parameters that are not fitted.
    """

    form: DataConstrainedForm
    columns: Mapping[str, Array]
    log_loss: Array
    fixed: Mapping[str, float]

    @property
    def free(self) -> list[int]:
        """Positions of the fitted parameters among the seven."""
        return [index for index, name in enumerate(_NAMES) if name not in self.fixed]

    def _logs_of_means(self) -> tuple[float, float, float]:
        """Mean logs of loss, N and D."""
        return (
            float(self.log_loss.mean()),
            float(np.log(self.columns["parameters"]).mean()),
            float(np.log(self.columns["tokens"]).mean()),
        )

    def parameters(self, theta: Array) -> dict[str, float]:
        """Natural parameters of free coordinates [free]."""
        whole = np.zeros(len(_NAMES))
        whole[self.free] = theta
        e, a, alpha, b, beta, *decays = whole
        log_loss, log_n, log_d = self._logs_of_means()
        # Where an exponent is fixed, so is its coefficient: the plain law is fixed as a whole.
        natural = np.exp(
            [
                e + log_loss,
                a + log_loss + np.exp(alpha) * log_n,
                alpha,
                b + log_loss + np.exp(beta) * log_d,
                beta,
                *decays,
            ]
        )
        found = dict(zip(_NAMES, (float(value) for value in natural), strict=True))
        return {**found, **self.fixed}

    def residual(self, theta: Array) -> tuple[Array, Array]:
        """Log prediction less log loss [points], and its Jacobian [free, points]."""
        parameters = self.parameters(theta)
        log_prediction = self.form.log_prediction(parameters, self.columns)
        order = [symbol.name for symbol in self.form.symbols]
        slopes = self.form.gradient(parameters, self.columns) / np.exp(log_prediction)
        by_log = {name: slopes[order.index(name)] * parameters[name] for name in _NAMES}
        _, log_n, log_d = self._logs_of_means()
        by_log["alpha"] = by_log["alpha"] + by_log["A"] * parameters["alpha"] * log_n
        by_log["beta"] = by_log["beta"] + by_log["B"] * parameters["beta"] * log_d
        jacobian = np.stack([by_log[_NAMES[index]] for index in self.free])
        return log_prediction - self.log_loss, jacobian


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
    form = DATA_CONSTRAINED
    assert isinstance(form, DataConstrainedForm)
    if not huber_delta > 0:
        raise InputError(f"huber_delta is {huber_delta}; it must be positive")
    if starts < 1:
        raise InputError(f"starts is {starts}; at least one is needed")
    columns = form.columns(variables)
    loss = np.asarray(loss, dtype=np.float64)
    _check(form, columns, loss, plain)
    order = np.lexsort((loss, *reversed(columns.values())))
    columns, loss = {name: values[order] for name, values in columns.items()}, loss[order]
    fixed: dict[str, float] = {}
    if plain is not None:
        fixed = {symbol.name: float(plain[symbol.name]) for symbol in CHINCHILLA.symbols}
        if not form.repetition({**fixed, "R_D": 1.0, "R_N": 1.0}, columns).excess.any():
            fixed["R_N"] = DECAYS[1].upper  # no point tells of it
    problem = _Coordinates(form=form, columns=columns, log_loss=np.log(loss), fixed=fixed)
    free = problem.free
    drawn = np.random.default_rng(seed).random((starts, len(_NAMES)))
    found = descend(
        problem.residual,
        (_START_LOW + (_START_HIGH - _START_LOW) * drawn)[:, free],
        _LOWER[free],
        _UPPER[free],
        huber_delta,
        on_start,
    )
    at_bounds = tuple(
        _NAMES[index]
        for index, value in zip(free, found.theta, strict=True)
        if not _LOWER[index] + 1e-6 < value < _UPPER[index] - 1e-6
    )
    parameters = problem.parameters(found.theta)
    condition = _condition(problem.residual(found.theta)[1])
    excess = form.repetition(parameters, columns).excess
    return Fit(
        form=form,
        parameters={symbol.name: parameters[symbol.name] for symbol in form.symbols},
        objective=found.objective,
        num_points=len(loss),
        num_starts=starts,
        num_tried=starts,
        agreeing_share=found.agreeing / starts,
        at_bounds=at_bounds,
        condition_number=condition,
        warnings=(
            *_warnings(at_bounds, excess, condition, found.agreeing, starts),
            *point_warnings(columns, loss),
        ),
    )


def _check(
    form: DataConstrainedForm,
    columns: Mapping[str, Array],
    loss: Array,
    plain: Mapping[str, float] | None,
) -> None:
    check_column("loss", loss)
    if len(loss) != len(columns["tokens"]):
        raise InputError(
            f"columns differ in length: tokens {len(columns['tokens'])}, loss {len(loss)}"
        )
    free = len(form.symbols) - (0 if plain is None else len(CHINCHILLA.symbols))
    if len(loss) < free:
        raise InputError(
            f"the law {form.name!r} has {free} free parameters; {len(loss)} points cannot "
            f"determine them, at least {free} are needed"
        )
    if plain is None:
        check_levels(form, columns)
    else:
        check_plain(plain)
    if not (columns["tokens"] > columns["unique_tokens"] * _ONE_EPOCH).any():
        raise InputError(
            "no point repeats its data (tokens are at most the unique tokens in every row), so "
            "R_D and R_N cannot be told; fit the law 'chinchilla'"
        )


def _warnings(
    at_bounds: tuple[str, ...], excess: Array, condition: float, agreeing: int, starts: int
) -> list[str]:
    sentences = []
    if not excess.any():
        sentences.append(
            "no model is larger than its unique tokens call for, so R_N is not identified"
        )
    elif condition > _ILL_CONDITIONED:
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
    if (lengths == 0).any():
        return float("inf")
    singular = np.linalg.svd(jacobian / lengths, compute_uv=False)
    return float((singular[0] / singular[-1]) ** 2) if singular[-1] > 1e-15 else float("inf")
