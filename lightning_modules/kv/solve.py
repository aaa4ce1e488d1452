"""From moments to bases and errors, timed: what one calibration costs beyond its forward pass."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_modules.kv.basis import Basis, compute_basis
from lightning_modules.kv.errors import reconstruction_errors
from lightning_modules.kv.pair import KINDS, CentredPair


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Bases of one budget.

    Attributes:
        key: basis of keys.
        value: basis of values.
        seconds: from scratch: the forward passes of these tokens, and the solve.
    """

    key: Basis
    value: Basis
    seconds: float

    def errors(self, evaluation: Mapping[str, CentredPair]) -> dict[str, float]:
        """Errors at the full rank, in all four definitions, on each evaluation corpus.

        Returns:
            Values by metric name, such as ``key/relative_error/pydocs``.
        """
        found: dict[str, float] = {}
        for corpus, moments in evaluation.items():
            for kind in KINDS:
                basis: Basis = getattr(self, kind)
                errors = reconstruction_errors(basis, getattr(moments, kind)).at(basis.rank)
                found |= {f"{kind}/{name}/{corpus}": value for name, value in errors.items()}
        return found


def calibrate(
    moments: CentredPair, *, rank: int, niter: int | Literal["exact"], seed: int
) -> Calibration:
    """Solve for the bases of keys and of values.

    Args:
        moments: of the calibration tokens, with the seconds that they took.
        rank: components; fewer are kept where the data allow no more.
        niter: power iterations, or ``exact``.
        seed: seed of the random start.
    """
    started = time.perf_counter()
    key = compute_basis(moments.key, rank=rank, niter=niter, seed=seed)
    value = compute_basis(moments.value, rank=rank, niter=niter, seed=seed)
    return Calibration(
        key=key, value=value, seconds=moments.seconds + time.perf_counter() - started
    )
