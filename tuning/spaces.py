"""The combinations of a search space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from suite.study import Niter, SearchSpace


@dataclass(frozen=True, kw_only=True, order=True)
class Combination:
    """One point of a search space.

    Attributes:
        niter: power iterations as text, or ``exact``: Optuna's categories have one type.
        tokens: calibration tokens.
        rank: components kept.
    """

    niter: str
    tokens: int
    rank: int

    @property
    def iterations(self) -> Niter:
        """``niter`` as the solver takes it."""
        return "exact" if self.niter == "exact" else int(self.niter)


AXES = tuple(field.name for field in fields(Combination))


def combinations(space: SearchSpace) -> tuple[Combination, ...]:
    """Every combination of a space, in the order of its lists."""
    return tuple(
        Combination(niter=str(niter), tokens=tokens, rank=rank)
        for niter, tokens, rank in itertools.product(space.niter, space.tokens, space.rank)
    )


def combination_of(params: Mapping[str, Any]) -> Combination | None:
    """The combination of a trial's parameters; none where it was cut off before it had all."""
    return Combination(**params) if params.keys() == set(AXES) else None


def axes(space: Sequence[Combination]) -> dict[str, tuple[Any, ...]]:
    """Values of a space along each axis, rising; ``exact`` comes after any number."""
    return {
        name: tuple(sorted({getattr(combination, name) for combination in space}, key=_place))
        for name in AXES
    }


def _place(value: str | int) -> float:
    return math.inf if value == "exact" else float(value)
