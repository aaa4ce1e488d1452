"""The combinations of a search space."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

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


def combinations(space: SearchSpace) -> tuple[Combination, ...]:
    """Every combination of a space, in the order of its lists."""
    return tuple(
        Combination(niter=str(niter), tokens=tokens, rank=rank)
        for niter, tokens, rank in itertools.product(space.niter, space.tokens, space.rank)
    )
