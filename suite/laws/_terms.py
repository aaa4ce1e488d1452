"""Terms that laws are added up from: a positive coefficient times a shape.

A term knows three things: its natural parameters (``A``, ``t1``, ``alpha``), its own search
coordinates, in which the optimiser walks straight, and the derivatives in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LATEX_NAMES = frozenset({"alpha", "beta", "gamma", "delta", "phi", "kappa", "rho"})


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A quantity that a law reads, one value a point.

    Attributes:
        name: key of its column.
        letter: how formulas call it.
        latex: the letter in LaTeX.
        unit: unit of the column.
        least: values below this are probably in other units (millions, billions).
    """

    name: str
    letter: str
    latex: str
    unit: str
    least: float = 0.0


VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        Variable(name="parameters", letter="N", latex="N", unit="parameters", least=1e3),
        Variable(name="tokens", letter="D", latex="D", unit="tokens", least=1e3),
        Variable(name="recurrence", letter="T_m", latex="T_m", unit="loops"),
        Variable(name="step", letter="T", latex="T", unit="loops"),
        Variable(
            name="parameters_once",
            letter="N_once",
            latex=r"N_{\mathrm{once}}",
            unit="parameters",
        ),
        Variable(
            name="parameters_recurrent",
            letter="N_rec",
            latex=r"N_{\mathrm{rec}}",
            unit="parameters",
            least=1e3,
        ),
        Variable(name="unique_tokens", letter="U", latex="U", unit="tokens", least=1e3),
        Variable(name="x", letter="x", latex="x", unit="x"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """A parameter of a law, in natural units.

    Attributes:
        name: key in ``Fit.parameters``.
        unit: its unit; empty for a pure number.
        lower: least value that a fit may give.
        upper: largest value that a fit may give.
    """

    name: str
    unit: str
    lower: float
    upper: float = math.inf

    @property
    def latex(self) -> str:
        """The symbol in LaTeX: Greek by name, digits as subscript."""
        if self.name in _LATEX_NAMES:
            return f"\\{self.name}"
        letters = self.name.rstrip("0123456789")
        digits = self.name[len(letters) :]
        return f"{letters}_{{{digits}}}" if digits else letters


@dataclass(frozen=True, kw_only=True)
class SearchBox:
    """Box of one search coordinate, and the range that starts are drawn from.

    Attributes:
        lower: least value.
        upper: largest value.
        start: range of the starts.
    """

    lower: float
    upper: float
    start: tuple[float, float]


class Term(Protocol):
    """What a law needs of a term: ``exp(s) * shape(z; x)``, with x in scaled units.

    The search coordinates are ``s``, the logarithm of the coefficient, and ``z``, one for
    each shape parameter. Where ``levels`` is written, the values are those of the distinct
    settings of the term's variables, not of every point.
    """

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """Natural parameters; the first is the coefficient, then one for each of ``z``."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that the term reads."""

    @property
    def boxes(self) -> tuple[SearchBox, ...]:
        """Box of each of ``z``."""

    @property
    def directions(self) -> tuple[Term, ...]:
        """The term itself, and its variants that no smooth path leads to."""

    @property
    def formula(self) -> str:
        """The term in plain text."""

    @property
    def latex(self) -> str:
        """The term in LaTeX."""

    def scales(self, values: Array) -> Array:
        """Units [variables] that bring values [variables, points] to order one."""

    def log_shape(self, z: Array, x: Array) -> tuple[Array, Array]:
        """Log shape [starts, levels] and its gradient [starts, shapes, levels]."""

    def curvature(self, z: Array, x: Array, mass: Array) -> Array:
        """Second derivatives of the log shape, summed with weights ``mass`` [starts, levels].

        Returns:
            [starts, shapes, shapes].
        """

    def natural(self, s: float, z: Array, scales: Array, loss_scale: float) -> dict[str, float]:
        """Natural parameters of one point of the search space."""

    def log_value(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Log of the term [points] from natural parameters, values [variables, points]."""

    def gradient(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Derivatives of the term by its ``symbols``, [symbols, points], in natural units."""


def log_or_minus_infinity(value: float) -> float:
    """Natural logarithm, and minus infinity for what is not positive."""
    return math.log(value) if value > 0 else -math.inf
