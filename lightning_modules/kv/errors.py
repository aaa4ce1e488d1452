"""How well a basis reconstructs other rows, at every rank, from their moments alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.layout import HeadColumns
from lightning_modules.kv.moments import CentredMoments
from lightning_modules.kv.placement import SymmetricProduct

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


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadErrors:
    """Errors on the columns of each head, whose squares add up to those of the whole row.

    Attributes:
        heads: in the order of a row.
        squared: ``||Z - Ẑ||²`` on the head's columns at every rank, ``[heads, r]``.
        norm: ``||Z||²`` there, ``[heads]``.
        centred_norm: ``||Z - m||²`` there, ``[heads]``.
    """

    heads: tuple[HeadColumns, ...]
    squared: NDArray[np.float64]
    norm: NDArray[np.float64]
    centred_norm: NDArray[np.float64]

    def over(self, heads: Sequence[int]) -> ReconstructionErrors:
        """Errors on the columns of some heads together, such as those of a layer.

        Args:
            heads: positions in ``heads``.
        """
        part = list(heads)
        return ReconstructionErrors(
            **error_ratios(
                self.squared[part].sum(axis=0),
                norm=float(self.norm[part].sum()),
                centred_norm=float(self.centred_norm[part].sum()),
            )
        )


def error_ratios(
    squared: NDArray[np.float64] | float, *, norm: float, centred_norm: float
) -> dict[str, NDArray[np.float64]]:
    """The four definitions, by name, of squared errors.

    Args:
        squared: ``||Z - Ẑ||²``, any shape.
        norm: ``||Z||²``.
        centred_norm: ``||Z - m||²``.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.asarray(squared) / np.float64(norm)
        centred = np.asarray(squared) / np.float64(centred_norm)
        found = (np.sqrt(relative), relative, np.sqrt(centred), centred)
    return dict(zip(DEFINITIONS, found, strict=True))


def reconstruction_errors(
    basis: Basis, evaluation: CentredMoments, *, device: torch.device | str | None = None
) -> ReconstructionErrors:
    """Errors of a basis on a set of rows, at every rank.

    With S the scatter of Z about mu, the squared error at rank k is the trace of S less
    ``v_iᵀ S v_i`` for the first k components.

    Args:
        basis: components and calibration mean.
        evaluation: moments of the rows that are reconstructed, of the same width.
        device: what computes; default where the moments are.

    Raises:
        ValueError: the widths differ.
    """
    product, offset = _placed(basis, evaluation, device)
    kept = np.concatenate(
        [
            (chunk * _image(product, chunk, offset, evaluation.count)).sum(dim=0).cpu().numpy()
            for chunk in torch.split(basis.components.to(product.device), _CHUNK, dim=1)
        ]
    )
    return _errors(kept, offset, evaluation)


def _errors(
    kept: NDArray[np.float64], offset: Tensor, evaluation: CentredMoments
) -> ReconstructionErrors:
    """Errors at every rank from what each component keeps of the squares about mu."""
    total = evaluation.centred_sum_of_squares + evaluation.count * float(offset @ offset)
    # Summed from the last rank back: each rank's error then is a sum of positive terms.
    left_over = max(total - float(kept.sum()), 0.0)
    squared = left_over + np.append(kept[:0:-1].cumsum()[::-1], 0.0)
    return ReconstructionErrors(
        **error_ratios(
            squared,
            norm=evaluation.sum_of_squares,
            centred_norm=evaluation.centred_sum_of_squares,
        )
    )


def head_errors(
    basis: Basis,
    evaluation: CentredMoments,
    heads: Sequence[HeadColumns],
    *,
    device: torch.device | str | None = None,
) -> tuple[ReconstructionErrors, HeadErrors]:
    """Errors of a basis in all and on the columns of every head, at every rank.

    With S as above, M = Vᵀ S V and H the rows of V that are a head's columns, its squared error
    at rank k is ``tr S_hh - 2 tr(H_k (S V)_hᵀ) + tr(H_kᵀ H_k M_k)``, where k takes the leading k
    components. The last term at every k at once is a running sum over the entries of
    ``(HᵀH) * M``, so all heads and ranks take ``4 p r²`` operations beyond the product S V, and
    room for it (``[p, r]``) and for two matrices ``[r, r]``.

    Args:
        basis: components and calibration mean.
        evaluation: as in ``reconstruction_errors``.
        heads: what a head's columns are.
        device: what computes; default where the moments are.

    Raises:
        ValueError: the widths differ.
    """
    product, offset = _placed(basis, evaluation, device)
    V = basis.components.to(product.device)
    image = _image(product, V, offset, evaluation.count)
    inner = V.T @ image
    kept = inner.diagonal().clone()
    # each entry below the diagonal has its like above it
    inner.triu_(1).mul_(2.0).diagonal().copy_(kept)
    spread = evaluation.scatter.diagonal().to(offset)
    about = spread + evaluation.count * offset.square()
    plain = spread + evaluation.count * evaluation.mean.to(offset).square()
    squared = torch.empty(len(heads), basis.rank, dtype=V.dtype, device=V.device)
    for position, head in enumerate(heads):
        part = V[head.columns]
        crossed = (part * image[head.columns]).sum(dim=0)
        own = (part.T @ part).mul_(inner).sum(dim=0)
        squared[position] = about[head.columns].sum() + (own - 2.0 * crossed).cumsum(dim=0)
    return _errors(kept.cpu().numpy(), offset, evaluation), HeadErrors(
        heads=tuple(heads),
        squared=squared.clamp_(min=0.0).cpu().numpy(),
        norm=np.array([float(plain[head.columns].sum()) for head in heads]),
        centred_norm=np.array([float(spread[head.columns].sum()) for head in heads]),
    )


def _placed(
    basis: Basis, evaluation: CentredMoments, device: torch.device | str | None
) -> tuple[SymmetricProduct, Tensor]:
    """The evaluation scatter where it is multiplied, and its mean less that of the basis."""
    if basis.width != evaluation.width:
        raise ValueError(
            f"the basis has width {basis.width}, the evaluated rows {evaluation.width}"
        )
    product = SymmetricProduct(evaluation.scatter, columns=basis.rank, device=device)
    return product, (evaluation.mean - basis.mean.to(evaluation.mean)).to(product.device)


def _image(product: SymmetricProduct, block: Tensor, offset: Tensor, count: int) -> Tensor:
    """``S V``, with S the scatter about the basis's mean."""
    return product(block).addr_(offset, offset @ block, alpha=count)
