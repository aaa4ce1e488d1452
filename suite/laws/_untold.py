"""Which parameters of the data-constrained law its points leave open, all of them or some runs'."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suite.laws._repetition import DECAYS, DataConstrainedForm, Repetition
from suite.laws._terms import Array

Mask = NDArray[np.bool_]


def untold_symbols(
    form: DataConstrainedForm,
    parameters: Mapping[str, float],
    variables: Mapping[str, Array],
    *,
    plain: bool,
) -> tuple[str, ...]:
    """Symbols that these points leave open; see ``left_open``.

    Args:
        form: the law.
        parameters: the optimum, in natural units.
        variables: columns [points] by name.
        plain: whether the plain law is fixed.
    """
    columns = form.columns(variables)
    found = left_open(
        form,
        form.repetition(parameters, columns),
        columns,
        plain=plain,
        drawn=np.ones((1, 1), dtype=bool),
        run=np.zeros(len(columns["tokens"]), dtype=np.intp),
    )
    return tuple(name for name, open_ in found.items() if open_.all())


def left_open(
    form: DataConstrainedForm,
    worth: Repetition,
    columns: Mapping[str, Array],
    *,
    plain: bool,
    drawn: Mask,
    run: NDArray[np.intp],
) -> dict[str, Mask]:
    """For each symbol that may be, the draws [draws] whose runs do not tell it.

    R_D needs a point that repeats its data, and R_N one of a model that is larger than its unique
    tokens call for, at the optimum of all points. A term needs as many settings of what it reads
    as parameters are spent on them, its decay among these where the draw needs one.

    Args:
        form: the law.
        worth: what N and D are worth at that optimum.
        columns: columns [points] by name.
        plain: whether the plain law is fixed.
        drawn: which runs each draw has [draws, runs].
        run: run of each point [points].
    """
    assert form.constant is not None
    of_n, of_d = form.terms
    settings = (
        (of_n, np.stack([columns["parameters"], worth.unique_parameters]), DECAYS[1]),
        (of_d, np.stack([columns["tokens"], worth.unique_tokens]), DECAYS[0]),
    )
    found: dict[str, Mask] = {}
    for term, values, decay in settings:
        names = [] if plain else [form.constant.name, *(s.name for s in term.symbols)]
        levels, of_point = np.unique(values, axis=1, return_inverse=True)
        present = np.zeros((drawn.shape[1], levels.shape[1]), dtype=bool)
        present[run, of_point.reshape(-1)] = True
        of_decay = np.bincount(run[worth.depends_on(decay.name)], minlength=drawn.shape[1])
        needs_decay = drawn @ of_decay > 0
        short = (drawn.astype(int) @ present).astype(bool).sum(axis=1) < len(names) + needs_decay
        for name in names:
            found[name] = found.get(name, False) | short
        found[decay.name] = short | ~needs_decay
    return found
