"""Whether points vary enough for each term of a law to be told from its constant."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from suite.errors import InputError
from suite.laws._equivalence import EquivalenceTerm
from suite.laws._form import Form
from suite.laws._terms import Array, Term


def flat_term(form: Form, columns: Mapping[str, Array]) -> Term | None:
    """The first term that is the same number at every point, whatever its parameters.

    What counts are distinct settings of all its variables together: sizes that differ in their
    layers alone vary a term that reads the parameters outside the loop too.

    Args:
        form: the law.
        columns: columns [points] by variable name, at least one point.
    """
    for term in form.terms:
        values = np.stack([columns[name] for name in term.variables])
        if (values == values[:, :1]).all():
            return term
    return None


def check_levels(form: Form, columns: Mapping[str, Array]) -> None:
    """Refuse points that leave a term constant, or a worth of loops without loops.

    Raises:
        InputError: naming the variables and what is needed.
    """
    term = flat_term(form, columns)
    if term is not None:
        points = len(columns[term.variables[0]])
        seen = [f"{name} is {columns[name][0]:g}" for name in term.variables]
        needed = "levels of it" if len(seen) == 1 else "settings of them"
        raise InputError(
            f"{' and '.join(seen)} in all {points} points; the law {form.name!r} needs at least "
            f"two {needed}"
        )
    for term in form.terms:
        if isinstance(term, EquivalenceTerm) and (columns[term.loops] == 1).all():
            raise InputError(
                f"{term.loops} is 1 in every point, where {term.worth.name} of the law "
                f"{form.name!r} has no effect; add points of more loops, or fit 'chinchilla'"
            )
