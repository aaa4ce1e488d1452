"""Which points a held-out test keeps from the fit: by level, by tokens, by run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._terms import VARIABLES, Array


@dataclass(frozen=True, eq=False)
class Split:
    """Points that are fitted, and points that are only predicted.

    Attributes:
        name: what is held out, such as ``N = 5.3e+07``.
        held_out: whether each point is kept from the fit [points].
    """

    name: str
    held_out: NDArray[np.bool_]


def by_level(variable: str, values: Array) -> tuple[Split, ...]:
    """One split for each level of a variable, which is held out: each size, each recurrence.

    The first and the last level ask the law to extrapolate, the others to interpolate.

    Args:
        variable: its name, for that of the splits.
        values: its value at each point [points].

    Raises:
        InputError: fewer than three levels; without one of two, nothing is left to fit.
    """
    levels = np.unique(values)
    if len(levels) < 3:
        raise InputError(
            f"{variable} has {len(levels)} levels; a test that holds out each of them in turn "
            f"needs at least 3, so that two are left to fit"
        )
    return tuple(without_levels(variable, values, [float(level)]) for level in levels)


def without_levels(variable: str, values: Array, held_out: Collection[float]) -> Split:
    """The split that holds out some levels of a variable, such as 2 of 5 sizes.

    Args:
        variable: its name, for that of the split.
        values: its value at each point [points].
        held_out: levels that are held out.

    Raises:
        InputError: a level that no point has, or every level is held out.
    """
    levels = np.unique(values)
    chosen = sorted(set(held_out))
    absent = [level for level in chosen if level not in levels]
    if absent or not chosen:
        raise InputError(
            f"{variable} = {', '.join(f'{level:g}' for level in absent) or 'nothing'} cannot be "
            f"held out; the levels are {', '.join(f'{level:g}' for level in levels)}"
        )
    if len(chosen) == len(levels):
        raise InputError(f"all levels of {variable} are held out; the law needs some to be fitted")
    letter = VARIABLES[variable].letter if variable in VARIABLES else variable
    listed = ", ".join(f"{level:.3g}" for level in chosen)
    return Split(f"{letter} = {listed}", np.isin(values, chosen))


def by_first_share(
    tokens: Array, run: NDArray[np.intp], shares: Sequence[float] = (0.25, 0.5, 0.75)
) -> tuple[Split, ...]:
    """Splits that fit the beginning of every curve and hold out the rest.

    Args:
        tokens: tokens trained on at each point [points].
        run: index of the run of each point, from 0 [points].
        shares: shares of the last tokens of each run up to which points are fitted.

    Raises:
        InputError: a share is not between 0 and 1, or leaves nothing to fit or to predict.
    """
    last = np.zeros(int(run.max()) + 1)
    np.maximum.at(last, run, tokens)
    splits = []
    for share in shares:
        if not 0 < share < 1:
            raise InputError(f"the share of tokens is {share}; it must lie between 0 and 1")
        split = Split(f"after the first {share:.0%} of tokens", tokens > share * last[run])
        if split.held_out.all() or not split.held_out.any():
            found = "every" if split.held_out.all() else "no"
            raise InputError(
                f"{found} point lies {split.name}; curves of several points are needed"
            )
        splits.append(split)
    return tuple(splits)


def leave_one_run_out(run: NDArray[np.intp], names: Sequence[str]) -> tuple[Split, ...]:
    """One split for each run, which is held out whole: its points know each other's noise.

    Args:
        run: index of each point's run in ``names`` [points].
        names: name of each run.

    Raises:
        InputError: there is only one run.
    """
    present = np.unique(run)
    if len(present) < 2:
        raise InputError("there is one run only; without it nothing is left to fit")
    return tuple(Split(names[index], run == index) for index in present)
