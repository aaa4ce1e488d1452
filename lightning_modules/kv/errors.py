"""How well a basis reconstructs other rows, at every rank, from their moments alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.moments import CentredMoments

DEFINITIONS = (
    "relative_error",
    "relative_squared_error",
    "centred_relative_error",
    "centred_relative_squared_error",
)
"""Names of the four error figures, the one that is drawn first."""

# Components handled at once, so that no second [p, r] matrix is needed.
_CHUNK = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructionErrors:
    """Errors of the leading 1, 2, ... r components, in four definitions.

    With Z the evaluated rows, ``Ẑ = (Z - mu) V Vᵀ + mu`` (mu the *calibration* mean) and m the
    *evaluation* rows' own mean. Index k - 1 is rank k. A definition whose denominator is zero
    is infinite, or NaN where nothing is left over either.

    Attributes:
        relative_error: ``||Z - Ẑ||_F / ||Z||_F``, ``[r]``.
        relative_squared_error: its square, ``[r]``.
        centred_relative_error: ``||Z - Ẑ||_F / ||Z - m||_F``, ``[r]``. It can pass 1, since a
            constant guess of m is not among the reconstructions.
        centred_relative_squared_error: its square, ``[r]``.
    """

    relative_error: NDArray[np.float64]
    relative_squared_error: NDArray[np.float64]
    centred_relative_error: NDArray[np.float64]
    centred_relative_squared_error: NDArray[np.float64]

    def at(self, rank: int) -> dict[str, float]:
        """The four figures at one rank, by name in the order of ``DEFINITIONS``.

        Raises:
            ValueError: the rank is not between 1 and r.
        """
        ranks = len(self.relative_error)
        if not 1 <= rank <= ranks:
            raise ValueError(f"rank is {rank}; allowed is 1 to {ranks}")
        return {name: float(getattr(self, name)[rank - 1]) for name in DEFINITIONS}


def reconstruction_errors(basis: Basis, evaluation: CentredMoments) -> ReconstructionErrors:
    """Errors of a basis on a set of rows, at every rank.

    With S the scatter of Z about mu, the squared error at rank k is the trace of S less
    ``v_iᵀ S v_i`` for the first k components.

    Args:
        basis: components and calibration mean.
        evaluation: moments of the rows that are reconstructed, of the same width.

    Raises:
        ValueError: the widths differ.
    """
    if basis.mean.shape[0] != evaluation.width:
        raise ValueError(
            f"the basis has width {basis.mean.shape[0]}, the evaluated rows {evaluation.width}"
        )
    offset = evaluation.mean - basis.mean
    kept = np.concatenate(
        [
            (
                (chunk * (evaluation.scatter @ chunk)).sum(dim=0)
                + evaluation.count * (offset @ chunk).square()
            )
            .cpu()
            .numpy()
            for chunk in torch.split(basis.components, _CHUNK, dim=1)
        ]
    )
    total = evaluation.centred_sum_of_squares + evaluation.count * float(offset @ offset)
    # Summed from the last rank back: each rank's error then is a sum of positive terms.
    left_over = max(total - float(kept.sum()), 0.0)
    squared = left_over + np.append(kept[:0:-1].cumsum()[::-1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = squared / np.float64(evaluation.sum_of_squares)
        centred = squared / np.float64(evaluation.centred_sum_of_squares)
    return ReconstructionErrors(
        relative_error=np.sqrt(relative),
        relative_squared_error=relative,
        centred_relative_error=np.sqrt(centred),
        centred_relative_squared_error=centred,
    )
