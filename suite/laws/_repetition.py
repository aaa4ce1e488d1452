"""The data-constrained law: tokens and parameters are worth less the more data repeats.

Muennighoff et al., "Scaling Data-Constrained Language Models", arXiv 2305.16264, equations
5 and 6 and appendix A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._form import Form
from suite.laws._terms import Array, Symbol, Term

# Epochs (and multiples of the compute-optimal N) after which repetition has lost its worth.
DECAYS = (
    Symbol(name="R_D", unit="epochs", lower=1e-2, upper=1e4),
    Symbol(name="R_N", unit="", lower=1e-2, upper=1e4),
)
_ONE_EPOCH = 1 + 1e-9
_FARTHEST = 40.0  # log of N / N_opt beyond which it makes no difference


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """What N and D are worth when data repeats.

    Attributes:
        unique_parameters: U_N, the parameters that the unique tokens call for, at most N.
        excess: R_N = N / U_N - 1, which is 0 where U_N is N.
        worth_parameters: N' = U_N (1 + R_N* (1 - exp(-R_N / R_N*))).
        unique_tokens: U_D = min(U, D), where rounding is no repetition; see ``repeats_data``.
        repeats: R_D = D / U_D - 1, epochs beyond the first, which is 0 where U_D is D.
        worth_tokens: D' = U_D (1 + R_D* (1 - exp(-R_D / R_D*))).

    All are [points].
    """

    unique_parameters: Array
    excess: Array
    worth_parameters: Array
    unique_tokens: Array
    repeats: Array
    worth_tokens: Array

    def depends_on(self, decay: str) -> NDArray[np.bool_]:
        """Which points' losses depend on R_D, or on R_N [points]."""
        found: NDArray[np.bool_] = {"R_D": self.repeats, "R_N": self.excess}[decay] > 0
        return found


@dataclass(frozen=True, kw_only=True)
class DataConstrainedForm(Form):
    """A power law of what N and D are worth, with U unique tokens.

    ``L = E + A/N'^alpha + B/D'^beta`` with N' and D' as in ``Repetition``. U_N is
    ``min(N_opt, N)``, N_opt being the compute-optimal N of the plain law for U_D tokens, where
    ``alpha A / N_opt^alpha = beta B / U_D^beta``. So the term of N depends on all parameters,
    and the law is no sum of independent terms: ``terms`` are those of the plain law, and
    ``suite.laws.repeated_data.fit_repeated`` fits it.
    """

    @property
    def plain(self) -> Form:
        """The law of data that never repeats, in N and D."""
        return Form(
            name=f"{self.name}, plain part",
            source=self.source,
            constant=self.constant,
            terms=self.terms,
        )

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """E, A, alpha, B, beta of the plain law, then R_D* and R_N*."""
        return (*self.plain.symbols, *DECAYS)

    @property
    def variables(self) -> tuple[str, ...]:
        """N, D and the unique tokens U."""
        return (*self.plain.variables, "unique_tokens")

    @property
    def formula(self) -> str:
        """The law in plain text."""
        return (
            "L = E + A/N'^alpha + B/D'^beta, D' = U_D (1 + R_D (1 - exp((1 - D/U_D)/R_D))), "
            "N' = U_N (1 + R_N (1 - exp((1 - N/U_N)/R_N)))"
        )

    @property
    def latex(self) -> str:
        """The law in LaTeX, without the dollar signs."""
        worth = r"{0}' = U_{0} + U_{0} R_{0} \left(1 - e^{{(1 - {0}/U_{0})/R_{0}}}\right)"
        return (
            r"L = E + \frac{A}{N'^{\alpha}} + \frac{B}{D'^{\beta}},\; "
            + worth.format("D")
            + r",\; "
            + worth.format("N")
        )

    @property
    def directions(self) -> tuple[tuple[Term, ...], ...]:
        """Refused: a fit of independent terms would leave the repetition out.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"the law {self.name!r} is fitted by fit_repeated, and not as a sum of terms"
        )

    def log_prediction(
        self, parameters: Mapping[str, float], variables: Mapping[str, Array]
    ) -> Array:
        """Log of the predicted loss, [points]; see ``Form.log_prediction``."""
        worth = _worth_columns(self.repetition(parameters, variables))
        return self.plain.log_prediction(parameters, worth)

    def gradient(self, parameters: Mapping[str, float], variables: Mapping[str, Array]) -> Array:
        """Derivatives of the predicted loss by ``symbols``, [symbols, points].

        At U_N = N, where the law has a kink, they are those of the side with N below N_opt.
        """
        found = self.repetition(parameters, variables)
        worth = _worth_columns(found)
        plain = self.plain.gradient(parameters, worth)
        slopes = {
            name: -parameters[exponent]
            * np.exp(term.log_value(parameters, worth[name][None]) - np.log(worth[name]))
            for name, exponent, term in zip(worth, ("alpha", "beta"), self.terms, strict=True)
        }
        by_decay = [
            slopes[name] * _by_decay(unique, repeats, parameters[decay.name])
            for name, unique, repeats, decay in (
                ("tokens", found.unique_tokens, found.repeats, DECAYS[0]),
                ("parameters", found.unique_parameters, found.excess, DECAYS[1]),
            )
        ]
        by_unique = slopes["parameters"] * _by_unique(found.excess, parameters[DECAYS[1].name])
        between = found.depends_on("R_N") & (found.excess < np.expm1(_FARTHEST) * (1 - 1e-12))
        moved = by_unique * found.unique_parameters * between
        through = _log_optimum_gradient(parameters, found) * moved
        return np.concatenate([plain[:1], plain[1:] + through, np.stack(by_decay)])

    def repetition(
        self, parameters: Mapping[str, float], variables: Mapping[str, Array]
    ) -> Repetition:
        """What N and D are worth at each point."""
        self.check_parameters(parameters)
        columns = self.columns(variables)
        n, d = columns["parameters"], columns["tokens"]
        unique_tokens = np.where(repeats_data(columns), columns["unique_tokens"], d)
        unique = n
        if parameters["A"] > 0 and parameters["B"] > 0:
            log_optimum = _log_optimum(parameters, unique_tokens)
            unique = n * np.exp(np.clip(log_optimum - np.log(n), -_FARTHEST, 0.0))
        bound = unique < n * (1 - 1e-14)  # above rounding: U_N was not capped at N
        excess = np.where(bound, n / unique - 1.0, 0.0)
        repeats = d / unique_tokens - 1.0
        return Repetition(
            unique_parameters=unique,
            excess=excess,
            worth_parameters=_worth(unique, excess, parameters[DECAYS[1].name]),
            unique_tokens=unique_tokens,
            repeats=repeats,
            worth_tokens=_worth(unique_tokens, repeats, parameters[DECAYS[0].name]),
        )

    def untold_decays(
        self, parameters: Mapping[str, float], variables: Mapping[str, Array]
    ) -> tuple[str, ...]:
        """R_D where no point repeats its data, and R_N where no model has N above U_N."""
        found = self.repetition(parameters, variables)
        return tuple(d.name for d in DECAYS if not found.depends_on(d.name).any())


def repeats_data(columns: Mapping[str, Array]) -> NDArray[np.bool_]:
    """Which points have seen their unique tokens more than once, rounding aside [points].

    Args:
        columns: columns [points] by name: ``tokens`` and ``unique_tokens``.
    """
    found: NDArray[np.bool_] = columns["tokens"] > columns["unique_tokens"] * _ONE_EPOCH
    return found


def _worth_columns(found: Repetition) -> dict[str, Array]:
    """Columns of N' and D', as the plain law reads them."""
    return {"parameters": found.worth_parameters, "tokens": found.worth_tokens}


def _worth(unique: Array, repeats: Array, decay: float) -> Array:
    worth: Array = unique * (1.0 - decay * np.expm1(-repeats / decay))
    return worth


def _by_decay(unique: Array, repeats: Array, decay: float) -> Array:
    """Derivative of ``_worth`` by the decay."""
    left = np.exp(-repeats / decay)
    slope: Array = unique * (-np.expm1(-repeats / decay) - left * repeats / decay)
    return slope


def _by_unique(repeats: Array, decay: float) -> Array:
    """Derivative of ``_worth`` by the unique amount, the whole amount staying as it is."""
    left = np.exp(-repeats / decay)
    slope: Array = 1.0 - decay * np.expm1(-repeats / decay) - (1.0 + repeats) * left
    return slope


def _log_optimum(parameters: Mapping[str, float], unique_tokens: Array) -> Array:
    """Log of N_opt for U_D unique tokens, [points]."""
    alpha, beta = parameters["alpha"], parameters["beta"]
    ratio = np.log(alpha * parameters["A"]) - np.log(beta * parameters["B"])
    log_optimum: Array = (ratio + beta * np.log(unique_tokens)) / alpha
    return log_optimum


def _log_optimum_gradient(parameters: Mapping[str, float], found: Repetition) -> Array:
    """Derivatives of log N_opt by A, alpha, B and beta, [4, points]."""
    alpha, beta = parameters["alpha"], parameters["beta"]
    if parameters["A"] <= 0 or parameters["B"] <= 0:
        return np.zeros((4, len(found.unique_tokens)))
    log_optimum = _log_optimum(parameters, found.unique_tokens)
    constant = np.ones_like(log_optimum)
    return np.stack(
        [
            constant / (alpha * parameters["A"]),
            (1.0 / alpha - log_optimum) / alpha,
            -constant / (alpha * parameters["B"]),
            (np.log(found.unique_tokens) - 1.0 / beta) / alpha,
        ]
    )
