"""The power term: what most scaling laws are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from suite.laws._terms import (
    VARIABLES,
    Array,
    SearchBox,
    Symbol,
    Term,
    log_or_minus_infinity,
)


@dataclass(frozen=True, kw_only=True)
class PowerTerm:
    """``A / (x + t)^alpha`` of one variable; without ``shift``, ``A / x^alpha``.

    With x in units of its geometric mean, tau = t in the same units and the loss in units of
    its own, the search coordinates are

    - s = log(A' alpha / (1 + tau)), A' being the term's value at x = 1: the slope of the loss
      against log x there, which points pin down far better than they do A;
    - p = log |alpha|;
    - u = log(1 + tau).

    In A, alpha and tau themselves the valley of good fits bends sharply, and every optimiser
    crawls along it. In these coordinates, with the level at x = 1 in place of E, it is almost
    straight.

    Attributes:
        coefficient: A, positive.
        exponent: alpha; its bounds are those of |alpha|.
        variable: name of x.
        shift: t, from 0 to a hundred times the geometric mean of x.
        may_rise: a negative exponent, a loss that grows with x, is tried as well.
        rising: the exponent is negative.
    """

    coefficient: Symbol
    exponent: Symbol
    variable: str
    shift: Symbol | None = None
    may_rise: bool = False
    rising: bool = False

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """Coefficient, exponent and, where there is one, shift."""
        return (self.coefficient, self.exponent, *((self.shift,) if self.shift else ()))

    @property
    def variables(self) -> tuple[str, ...]:
        """The one variable."""
        return (self.variable,)

    @property
    def boxes(self) -> tuple[SearchBox, ...]:
        """Boxes of p and u."""
        p = SearchBox(
            lower=math.log(self.exponent.lower),
            upper=math.log(self.exponent.upper),
            start=(math.log(0.05), math.log(1.5)),
        )
        u = SearchBox(lower=0.0, upper=math.log1p(100.0), start=(0.0, math.log(2.0)))
        return (p, u) if self.shift else (p,)

    @property
    def directions(self) -> tuple[Term, ...]:
        """Falling and, where it may, rising: E >= 0 keeps a fit from crossing alpha = 0."""
        return (self, replace(self, rising=True)) if self.may_rise else (self,)

    @property
    def formula(self) -> str:
        """Such as ``A/(N + t1)^alpha``."""
        x = VARIABLES[self.variable].letter
        base = f"({x} + {self.shift.name})" if self.shift else x
        return f"{self.coefficient.name}/{base}^{self.exponent.name}"

    @property
    def latex(self) -> str:
        r"""Such as ``\frac{A}{(N + t_{1})^{\alpha}}``."""
        x = VARIABLES[self.variable].latex
        base = f"({x} + {self.shift.latex})" if self.shift else x
        return rf"\frac{{{self.coefficient.latex}}}{{{base}^{{{self.exponent.latex}}}}}"

    def scales(self, values: Array) -> Array:
        """Geometric mean of the variable, [1]."""
        mean: Array = np.exp(np.log(values).mean(axis=1))
        return mean

    def _exponent(self, z: Array) -> Array:
        magnitude: Array = np.clip(np.exp(z[:, :1]), self.exponent.lower, self.exponent.upper)
        return -magnitude if self.rising else magnitude

    def log_shape(self, z: Array, x: Array) -> tuple[Array, Array]:
        """Log of ((1 + tau)/(x + tau))^alpha (1 + tau)/|alpha|, and its gradient by p and u."""
        alpha = self._exponent(z)
        if self.shift is None:
            bend = -alpha * np.log(x)
            return bend - z[:, :1], (bend - 1.0)[:, None]
        u = z[:, 1:2]
        shifted = x + np.expm1(u)
        bend = alpha * (u - np.log(shifted))
        gradient = np.stack([bend - 1.0, 1.0 + alpha * (x - 1.0) / shifted], axis=1)
        return bend - z[:, :1] + u, gradient

    def curvature(self, z: Array, x: Array, mass: Array) -> Array:
        """Second derivatives by p and u, summed with weights: [starts, shapes, shapes]."""
        alpha = self._exponent(z)
        if self.shift is None:
            total: Array = alpha[:, 0] * (mass @ -np.log(x[0]))
            return total[:, None, None]
        u = z[:, 1:2]
        shifted = x + np.expm1(u)
        lean = alpha * (x - 1.0) / shifted
        sums = np.empty((len(z), 2, 2))
        sums[:, 0, 0] = (mass * alpha * (u - np.log(shifted))).sum(axis=1)
        sums[:, 0, 1] = sums[:, 1, 0] = (mass * lean).sum(axis=1)
        sums[:, 1, 1] = -(mass * lean * np.exp(u) / shifted).sum(axis=1)
        return sums

    def natural(self, s: float, z: Array, scales: Array, loss_scale: float) -> dict[str, float]:
        """A, alpha and t in natural units."""
        alpha = float(self._exponent(z[None])[0, 0])
        u = float(z[1]) if self.shift else 0.0
        log_value = s - float(z[0]) + u  # at x = 1, in units of the loss scale
        log_a = log_value + math.log(loss_scale) + alpha * (math.log(scales[0]) + u)
        found = {self.coefficient.name: math.exp(log_a), self.exponent.name: alpha}
        if self.shift:
            found[self.shift.name] = math.expm1(u) * float(scales[0])
        return found

    def log_value(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Log of A / (x + t)^alpha, [points]."""
        shift = parameters[self.shift.name] if self.shift else 0.0
        log_value: Array = log_or_minus_infinity(parameters[self.coefficient.name]) - parameters[
            self.exponent.name
        ] * np.log(values[0] + shift)
        return log_value

    def gradient(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Derivatives of A / (x + t)^alpha by A, alpha and t, [symbols, points]."""
        value = np.exp(self.log_value(parameters, values))
        per_unit = np.exp(self.log_value({**parameters, self.coefficient.name: 1.0}, values))
        shifted = values[0] + (parameters[self.shift.name] if self.shift else 0.0)
        rows = [per_unit, -value * np.log(shifted)]
        if self.shift:
            rows.append(-value * parameters[self.exponent.name] / shifted)
        return np.stack(rows)


def coefficient_symbol(name: str, unit: str, exponent: str) -> Symbol:
    """A coefficient A of ``A / x^alpha``, x in ``unit``."""
    return Symbol(name=name, unit=f"nats {unit}^{exponent}", lower=0.0)


def exponent_symbol(name: str) -> Symbol:
    """An exponent alpha of ``A / x^alpha``, with the usual bounds."""
    return Symbol(name=name, unit="", lower=1e-3, upper=10.0)


def power(
    coefficient: str, exponent: str, variable: str, shift: str | None = None, *, rises: bool = False
) -> PowerTerm:
    """A ``PowerTerm`` with the usual units and bounds, from names alone.

    Args:
        coefficient: name of A.
        exponent: name of alpha.
        variable: name of x in ``VARIABLES``.
        shift: name of t; none leaves it out.
        rises: also try a loss that grows with x.
    """
    unit = VARIABLES[variable].unit
    return PowerTerm(
        coefficient=coefficient_symbol(coefficient, unit, exponent),
        exponent=exponent_symbol(exponent),
        variable=variable,
        shift=Symbol(name=shift, unit=unit, lower=0.0) if shift else None,
        may_rise=rises,
    )
