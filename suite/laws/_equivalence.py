"""The recurrence-equivalence term: looped parameters count for more, by a power of the loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from suite.laws._power import coefficient_symbol, exponent_symbol
from suite.laws._terms import VARIABLES, Array, SearchBox, Symbol, Term, log_or_minus_infinity

_TYPICAL_PHI = 0.5  # only sets the unit of the search; near the published .46


@dataclass(frozen=True, kw_only=True)
class EquivalenceTerm:
    """``A / (N_once + r^phi N_rec)^alpha``: arXiv 2604.21106.

    N_once parameters are applied once and N_rec in each of r loops. With phi = 1 a loop is
    worth as much as further layers of its own; with phi = 0 it is worth nothing; below 0 loops
    do harm.

    With both counts in units of S, half a typical effective count, and m = N_eff / S, the
    search coordinates are

    - s = log(A' alpha), A' being the term's value at m = 2, where both counts are S and r = 1:
      as for a power term, the slope of the loss against log N_eff there;
    - p = log alpha;
    - phi itself.

    Attributes:
        coefficient: A, positive.
        exponent: alpha.
        worth: phi.
        once: name of the variable N_once.
        recurrent: name of the variable N_rec.
        loops: name of the variable r.
    """

    coefficient: Symbol
    exponent: Symbol
    worth: Symbol
    once: str
    recurrent: str
    loops: str

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """A, alpha and phi."""
        return (self.coefficient, self.exponent, self.worth)

    @property
    def variables(self) -> tuple[str, ...]:
        """N_once, N_rec and r."""
        return (self.once, self.recurrent, self.loops)

    @property
    def boxes(self) -> tuple[SearchBox, ...]:
        """Boxes of p and phi."""
        p = SearchBox(
            lower=math.log(self.exponent.lower),
            upper=math.log(self.exponent.upper),
            start=(math.log(0.05), math.log(1.5)),
        )
        phi = SearchBox(lower=self.worth.lower, upper=self.worth.upper, start=(-0.2, 1.2))
        return (p, phi)

    @property
    def directions(self) -> tuple[Term, ...]:
        """Itself alone: phi passes through 0 smoothly."""
        return (self,)

    @property
    def formula(self) -> str:
        """Such as ``A/(N_once + T_m^phi N_rec)^alpha``."""
        once, recurrent, loops = (VARIABLES[name].letter for name in self.variables)
        effective = f"({once} + {loops}^{self.worth.name} {recurrent})"
        return f"{self.coefficient.name}/{effective}^{self.exponent.name}"

    @property
    def latex(self) -> str:
        """The term in LaTeX."""
        once, recurrent, loops = (VARIABLES[name].latex for name in self.variables)
        effective = rf"({once} + {{{loops}}}^{{{self.worth.latex}}} {recurrent})"
        return rf"\frac{{{self.coefficient.latex}}}{{{effective}^{{{self.exponent.latex}}}}}"

    def scales(self, values: Array) -> Array:
        """The unit S of both counts, and 1 for the loops: [3]."""
        once, recurrent, loops = values
        typical = np.log(once + loops**_TYPICAL_PHI * recurrent).mean()
        unit = 0.5 * float(np.exp(typical))
        return np.array([unit, unit, 1.0])

    def log_shape(self, z: Array, x: Array) -> tuple[Array, Array]:
        """Log of (m/2)^-alpha / alpha, and its gradient by p and phi."""
        log_ratio, share, log_loops, alpha = self._parts(z, x)
        bend = -alpha * log_ratio
        gradient = np.stack([bend - 1.0, -alpha * share * log_loops], axis=1)
        return bend - z[:, :1], gradient

    def curvature(self, z: Array, x: Array, mass: Array) -> Array:
        """Second derivatives by p and phi, summed with weights: [starts, 2, 2]."""
        log_ratio, share, log_loops, alpha = self._parts(z, x)
        lean = alpha * share * log_loops
        sums = np.empty((len(z), 2, 2))
        sums[:, 0, 0] = -(mass * alpha * log_ratio).sum(axis=1)
        sums[:, 0, 1] = sums[:, 1, 0] = -(mass * lean).sum(axis=1)
        sums[:, 1, 1] = -(mass * lean * (1.0 - share) * log_loops).sum(axis=1)
        return sums

    def _parts(self, z: Array, x: Array) -> tuple[Array, Array, Array, Array]:
        """log(m/2), the looped share of m [starts, levels], log r, and alpha [starts, 1]."""
        once, recurrent, loops = x
        log_loops = np.log(loops)[None]
        looped = np.exp(z[:, 1:2] * log_loops) * recurrent
        effective = once + looped
        return np.log(0.5 * effective), looped / effective, log_loops, np.exp(z[:, :1])

    def natural(self, s: float, z: Array, scales: Array, loss_scale: float) -> dict[str, float]:
        """A, alpha and phi in natural units."""
        alpha = math.exp(z[0])
        log_a = s - float(z[0]) + math.log(loss_scale) + alpha * math.log(2.0 * scales[0])
        return {
            self.coefficient.name: math.exp(log_a),
            self.exponent.name: alpha,
            self.worth.name: float(z[1]),
        }

    def log_value(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Log of A / (N_once + r^phi N_rec)^alpha, [points]."""
        once, recurrent, loops = values
        effective = once + loops ** parameters[self.worth.name] * recurrent
        log_value: Array = log_or_minus_infinity(parameters[self.coefficient.name]) - parameters[
            self.exponent.name
        ] * np.log(effective)
        return log_value

    def gradient(self, parameters: Mapping[str, float], values: Array) -> Array:
        """Derivatives by A, alpha and phi, [3, points]."""
        once, recurrent, loops = values
        looped = loops ** parameters[self.worth.name] * recurrent
        effective = once + looped
        value = np.exp(self.log_value(parameters, values))
        per_unit = np.exp(self.log_value({**parameters, self.coefficient.name: 1.0}, values))
        by_phi = -value * parameters[self.exponent.name] * looped / effective * np.log(loops)
        return np.stack([per_unit, -value * np.log(effective), by_phi])


def equivalence(coefficient: str, exponent: str, worth: str) -> EquivalenceTerm:
    """An ``EquivalenceTerm`` of the usual variables and bounds, from names alone."""
    return EquivalenceTerm(
        coefficient=coefficient_symbol(coefficient, "parameters", exponent),
        exponent=exponent_symbol(exponent),
        worth=Symbol(name=worth, unit="", lower=-2.0, upper=2.0),
        once="parameters_once",
        recurrent="parameters_recurrent",
        loops="recurrence",
    )
