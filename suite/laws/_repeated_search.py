"""The search for the optimum of the data-constrained law, with the plain law free or fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._levels import check_levels
from suite.laws._repetition import DECAYS, DataConstrainedForm, Repetition, repeats_data
from suite.laws._robust_descent import Descent, Sum, descend
from suite.laws._terms import Array
from suite.laws._untold import untold_symbols
from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED, check_column, check_plain

_NAMES = ("E", "A", "alpha", "B", "beta", "R_D", "R_N")
# Logs of E and of the terms at the mean point, as shares of the mean loss; exponents; decays.
_LOWER = np.log([1e-6, 1e-6, 1e-3, 1e-6, 1e-3, DECAYS[0].lower, DECAYS[1].lower])
_UPPER = np.log([10.0, 10.0, 10.0, 10.0, 10.0, DECAYS[0].upper, DECAYS[1].upper])
_START_LOW = np.log([0.1, 0.02, 0.1, 0.02, 0.1, 1.0, 1.0])
_START_HIGH = np.log([0.9, 0.5, 1.0, 0.5, 1.0, 50.0, 50.0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
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

    def sum(self, weights: Array) -> Sum:
        """What is minimised, each point counting as often as its weight [points]."""
        return Sum(
            residual=self.residual,
            lower=_LOWER[self.free],
            upper=_UPPER[self.free],
            weights=weights,
        )

    @cached_property
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
        log_loss, log_n, log_d = self._logs_of_means
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
        _, log_n, log_d = self._logs_of_means
        by_log["alpha"] = by_log["alpha"] + by_log["A"] * parameters["alpha"] * log_n
        by_log["beta"] = by_log["beta"] + by_log["B"] * parameters["beta"] * log_d
        jacobian = np.stack([by_log[_NAMES[index]] for index in self.free])
        return log_prediction - self.log_loss, jacobian


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedSearch:
    """What the starts of a fit found.

    Attributes:
        problem: the fit, its points in canonical order.
        loss: losses [points] in that order.
        order: row, as it was given, of each point [points].
        plain: whether the plain law is fixed.
        huber_delta: threshold of the Huber loss.
        starts: starts of the optimiser.
        descent: where they ended.
    """

    problem: Coordinates
    loss: Array
    order: NDArray[np.intp]
    plain: bool
    huber_delta: float
    starts: int
    descent: Descent

    def natural(self, theta: Array) -> dict[str, float]:
        """Natural parameters by symbol, in the law's order, of free coordinates [free]."""
        parameters = self.problem.parameters(theta)
        return {symbol.name: parameters[symbol.name] for symbol in self.problem.form.symbols}

    @property
    def repetition(self) -> Repetition:
        """What N and D are worth at the best coordinates."""
        return self.problem.form.repetition(self.natural(self.descent.theta), self.problem.columns)

    @property
    def untold(self) -> tuple[str, ...]:
        """Symbols that the points leave open at the best coordinates."""
        at = self.natural(self.descent.theta)
        return untold_symbols(self.problem.form, at, self.problem.columns, plain=self.plain)

    @property
    def at_bounds(self) -> tuple[str, ...]:
        """Symbols that ended at a bound of the search."""
        free, theta = self.problem.free, self.descent.theta
        return tuple(
            _NAMES[index]
            for index, value in zip(free, theta, strict=True)
            if not _LOWER[index] + 1e-6 < value < _UPPER[index] - 1e-6
        )


def search_repeated(
    variables: Mapping[str, Array],
    loss: Array,
    *,
    plain: Mapping[str, float] | None,
    huber_delta: float,
    starts: int,
    seed: int,
    on_start: Callable[[int], None] | None = None,
) -> RepeatedSearch:
    """Minimise from every start; arguments and errors are those of ``fit_repeated``."""
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
        worth = form.repetition({**fixed, "R_D": 1.0, "R_N": 1.0}, columns)
        if not worth.depends_on("R_N").any():
            fixed["R_N"] = DECAYS[1].upper  # no point tells of it
    problem = Coordinates(form=form, columns=columns, log_loss=np.log(loss), fixed=fixed)
    drawn = np.random.default_rng(seed).random((starts, len(_NAMES)))
    return RepeatedSearch(
        problem=problem,
        loss=loss,
        order=order,
        plain=plain is not None,
        huber_delta=huber_delta,
        starts=starts,
        descent=descend(
            problem.sum(np.ones(len(loss))),
            (_START_LOW + (_START_HIGH - _START_LOW) * drawn)[:, problem.free],
            huber_delta,
            on_start,
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
    if not repeats_data(columns).any():
        raise InputError(
            "no point repeats its data (tokens are at most the unique tokens in every row), so "
            "R_D and R_N cannot be told; fit the law 'chinchilla'"
        )
