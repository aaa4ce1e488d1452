"""The laws by name. A new one is a ``Form`` made of terms that exist, entered in ``FORMS``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from suite.errors import InputError
from suite.laws._compositions import compose, is_composition
from suite.laws._equivalence import equivalence
from suite.laws._form import Form, check_column
from suite.laws._levels import flat_term
from suite.laws._power import power
from suite.laws._repetition import DECAYS, DataConstrainedForm
from suite.laws._terms import VARIABLES, Symbol

_CONSTANT = Symbol(name="E", unit="nats", lower=0.0)

CHINCHILLA = Form(
    name="chinchilla",
    source="Hoffmann et al., arXiv 2203.15556, approach 3",
    constant=_CONSTANT,
    terms=(power("A", "alpha", "parameters"), power("B", "beta", "tokens")),
)

LOOPLM_TOTAL = Form(
    name="looplm_total",
    source="Ouro, arXiv 2510.25741, total loss of looped language models",
    constant=_CONSTANT,
    terms=(
        power("A", "alpha", "parameters", "t1"),
        power("B", "beta", "tokens", "t2"),
        # Small models can get worse with every loop; a law that could not say so would
        # quietly report that recurrence does nothing.
        power("C", "gamma", "recurrence", "t3", rises=True),
    ),
)

LOOPLM_STEPWISE = Form(
    name="looplm_stepwise",
    source="Ouro, arXiv 2510.25741, loss of each step T, for one T_m at a time",
    constant=_CONSTANT,
    terms=(*LOOPLM_TOTAL.terms[:2], power("C", "gamma", "step", "t3", rises=True)),
)

RECURRENCE_EQUIVALENCE = Form(
    name="recurrence_equivalence",
    source="arXiv 2604.21106: a loop is worth r^phi times its parameters",
    constant=_CONSTANT,
    terms=(equivalence("A", "alpha", "phi"), power("B", "beta", "tokens")),
)

DATA_CONSTRAINED = DataConstrainedForm(
    name="data_constrained",
    source="Muennighoff et al., arXiv 2305.16264, equations 5 and 6",
    constant=_CONSTANT,
    terms=CHINCHILLA.terms,
)

POWER = Form(
    name="power",
    source="one variable of the user's choice",
    constant=_CONSTANT,
    terms=(power("A", "alpha", "x"),),
)

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        CHINCHILLA,
        LOOPLM_TOTAL,
        LOOPLM_STEPWISE,
        RECURRENCE_EQUIVALENCE,
        DATA_CONSTRAINED,
        POWER,
    )
}


def check_plain(parameters: Mapping[str, float]) -> None:
    """Refuse all but the five parameters of the plain law within ``data_constrained``.

    Raises:
        InputError: one is absent or unknown, or not positive and finite.
    """
    needed = [symbol.name for symbol in CHINCHILLA.symbols]
    absent = [name for name in needed if name not in parameters]
    unknown = [name for name in parameters if name not in needed]
    if absent or unknown:
        seen = [f"no {', '.join(absent)}"] if absent else []
        seen += [f"{', '.join(map(repr, unknown))}, which it has not"] if unknown else []
        raise InputError(
            f"got {' and '.join(seen)}; the plain law is fixed as a whole, by a value for each of "
            f"{', '.join(needed)} and no other"
        )
    for name, value in parameters.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value:g}; it must be positive and finite")


def get_form(name: str) -> Form:
    """The law of that name, or the one that a sum of terms stands for.

    Raises:
        InputError: no law has it, or a term of the sum is none.
    """
    if name in FORMS:
        return FORMS[name]
    if is_composition(name):
        return compose(name)
    raise InputError(
        f"no law is called {name!r}; there are {', '.join(sorted(FORMS))}, and sums of terms "
        "such as 'parameters + tokens'"
    )


__all__ = [
    "CHINCHILLA",
    "DATA_CONSTRAINED",
    "DECAYS",
    "FORMS",
    "LOOPLM_STEPWISE",
    "LOOPLM_TOTAL",
    "POWER",
    "RECURRENCE_EQUIVALENCE",
    "VARIABLES",
    "DataConstrainedForm",
    "Form",
    "check_column",
    "check_plain",
    "flat_term",
    "get_form",
]
