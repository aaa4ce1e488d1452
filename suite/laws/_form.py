"""What a law is: a constant and a sum of positive terms, with value, gradient and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from suite.errors import InputError
from suite.laws._terms import Array, Symbol, Term, log_or_minus_infinity


@dataclass(frozen=True, kw_only=True)
class Form:
    """``L = E + term + term + ...``, every term positive.

    Attributes:
        name: how fits and figures call it.
        source: where the law comes from.
        constant: E, the loss that no scale removes; none for a law without it.
        terms: what is added to it.
    """

    name: str
    source: str
    constant: Symbol | None
    terms: tuple[Term, ...]

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """Parameters in natural units: the constant, then term by term."""
        constant = (self.constant,) if self.constant else ()
        return constant + tuple(symbol for term in self.terms for symbol in term.symbols)

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables that the law reads, in order of first use."""
        return tuple(dict.fromkeys(name for term in self.terms for name in term.variables))

    @property
    def formula(self) -> str:
        """The law in plain text, such as ``L = E + A/N^alpha + B/D^beta``."""
        constant = (self.constant.name,) if self.constant else ()
        return "L = " + " + ".join(constant + tuple(term.formula for term in self.terms))

    @property
    def latex(self) -> str:
        """The law in LaTeX, without the dollar signs."""
        constant = (self.constant.latex,) if self.constant else ()
        return "L = " + " + ".join(constant + tuple(term.latex for term in self.terms))

    @property
    def directions(self) -> tuple[tuple[Term, ...], ...]:
        """The terms in every combination of their directions; the declared one is first."""
        return tuple(product(*(term.directions for term in self.terms)))

    def columns(self, variables: Mapping[str, Array]) -> dict[str, Array]:
        """The columns that the law reads, checked, as float64 [points].

        Columns that the law does not read are left out.

        Raises:
            InputError: a column is absent, not one-dimensional, of another length, or has a
                value that is not positive and finite (the row is named, counting from 0).
        """
        missing = [name for name in self.variables if name not in variables]
        if missing:
            raise InputError(
                f"the law {self.name!r} reads {', '.join(self.variables)}; there is no "
                f"{', '.join(missing)} among {', '.join(variables) or 'the columns given'}"
            )
        checked = {name: np.asarray(variables[name], dtype=np.float64) for name in self.variables}
        for name, values in checked.items():
            check_column(name, values)
        lengths = {name: len(values) for name, values in checked.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"columns differ in length: {listed}")
        return checked

    def log_prediction(
        self, parameters: Mapping[str, float], variables: Mapping[str, Array]
    ) -> Array:
        """Log of the predicted loss, [points].

        The terms are added as log-sum-exp, so that neither a huge coefficient nor a vanishing
        term overflows.

        Args:
            parameters: natural parameters by symbol.
            variables: columns [points] by variable name.

        Raises:
            InputError: as ``columns``; or a parameter is absent.
        """
        self.check_parameters(parameters)
        columns = self.columns(variables)
        logs = [
            term.log_value(parameters, np.stack([columns[name] for name in term.variables]))
            for term in self.terms
        ]
        if self.constant:
            level = log_or_minus_infinity(parameters[self.constant.name])
            logs.append(np.full_like(logs[0], level))
        total: Array = np.logaddexp.reduce(np.stack(logs), axis=0)
        return total

    def predict(self, parameters: Mapping[str, float], variables: Mapping[str, Array]) -> Array:
        """Predicted loss in nats, [points]; see ``log_prediction``."""
        prediction: Array = np.exp(self.log_prediction(parameters, variables))
        return prediction

    def gradient(self, parameters: Mapping[str, float], variables: Mapping[str, Array]) -> Array:
        """Derivatives of the predicted loss by ``symbols``, [symbols, points].

        In natural units, at natural parameters: nats of loss for each unit of the parameter.

        Raises:
            InputError: as ``log_prediction``.
        """
        self.check_parameters(parameters)
        columns = self.columns(variables)
        rows = [
            term.gradient(parameters, np.stack([columns[name] for name in term.variables]))
            for term in self.terms
        ]
        if self.constant:
            rows.insert(0, np.ones_like(rows[0][:1]))
        return np.concatenate(rows)

    def check_parameters(self, parameters: Mapping[str, float]) -> None:
        """Refuse parameters of which one is absent.

        Raises:
            InputError: naming those that are.
        """
        missing = [symbol.name for symbol in self.symbols if symbol.name not in parameters]
        if missing:
            raise InputError(f"the law {self.name!r} also needs the parameters {missing}")


def check_column(name: str, values: Array) -> None:
    """Refuse a column that is not one row of positive finite numbers.

    Raises:
        InputError: naming the column and the first row at fault, counting from 0.
    """
    if values.ndim != 1:
        raise InputError(f"{name} has the shape {values.shape}; one value a point is needed")
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{name} is {values[row]} in row {row} (counting from 0, {int(bad.sum())} such rows "
            f"of {len(values)}); a law needs positive finite values"
        )
