"""Which points a held-out test keeps from the fit: by level, by run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitPoints:
    """Points that were prepared for one split, and for no other.

    Attributes:
        variables: columns [points] by name.
        loss: losses [points] in nats.
        split: which of them are held out.
    """

    variables: Mapping[str, Array]
    loss: Array
    split: Split

    def fitted(self) -> dict[str, Array]:
        """Columns of the points that are fitted."""
        left = ~self.split.held_out
        return {name: values[left] for name, values in self.variables.items()}


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
