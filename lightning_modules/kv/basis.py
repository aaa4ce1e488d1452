"""Principal components of cache rows, from their moments alone."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import scipy.linalg  # type: ignore[import-untyped]
import torch
from torch import Tensor

from lightning_modules.kv.files import DamagedFileError, load_tensors, save_tensors
from lightning_modules.kv.moments import CentredMoments
from suite.errors import InputError

# LAPACK's syevd asks for 1 + 6p + 2p² numbers of workspace and counts them in 32 bits.
_LARGEST_SYEVD = 32_766
_FORMAT = "loopkv-basis-1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Basis:
    """The leading principal components: ``x`` becomes ``(x - mean) V Vᵀ + mean``.

    Every leading part of the components is itself the basis of that rank.

    Attributes:
        mean: mean of the calibration rows, ``[p]``, float64.
        components: V, orthonormal columns ``[p, r]``, float64, most important first; the
            largest entry of each is positive.
        spectrum: ``[r]``, falling: eigenvalues of the scatter ``Σ (x - mean)(x - mean)ᵀ``, that
            is squared singular values of the centred rows, as the solver sees them.
        niter: power iterations of the randomised SVD, or ``exact``.
        seed: seed of the random start; none for ``exact``.
    """

    mean: Tensor
    components: Tensor
    spectrum: Tensor
    niter: int | Literal["exact"]
    seed: int | None

    @property
    def rank(self) -> int:
        """Components r; fewer than were asked for where the data allow no more."""
        return self.components.shape[1]

    def save(self, path: Path) -> None:
        """Write a safetensors file whose header says how to apply it."""
        save_tensors(
            path,
            {"mean": self.mean, "components": self.components, "spectrum": self.spectrum},
            {
                "format": _FORMAT,
                "apply": "coefficients = (x - mean) @ components; "
                "reconstruction = coefficients @ components.T + mean",
                "niter": str(self.niter),
                "seed": json.dumps(self.seed),
            },
        )

    @classmethod
    def load(cls, path: Path) -> Basis:
        """Read what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            SuiteError: the file is damaged, or holds something else.
        """
        tensors, header = load_tensors(path)
        if header.get("format") != _FORMAT:
            raise DamagedFileError(path, f"its header names the format {header.get('format')!r}")
        niter = header["niter"]
        return cls(
            mean=tensors["mean"],
            components=tensors["components"],
            spectrum=tensors["spectrum"],
            niter="exact" if niter == "exact" else int(niter),
            seed=json.loads(header["seed"]),
        )


def compute_basis(
    moments: CentredMoments, *, rank: int, niter: int | Literal["exact"], seed: int
) -> Basis:
    """Finds the basis that a study cell asks for.

    Args:
        moments: moments of the calibration rows.
        rank: components r; more than ``min(n - 1, p)`` are cut to that, with a warning.
        niter: power iterations of the randomised SVD, or ``exact``.
        seed: seed of the random start; ``exact`` has none.

    Raises:
        InputError: ``rank`` or ``niter`` is not allowed, or the rows do not vary.
    """
    if niter == "exact":
        return exact_basis(moments, rank)
    return subspace_basis(moments, rank, niter, seed)


def exact_basis(moments: CentredMoments, rank: int) -> Basis:
    """The best basis: leading eigenvectors of the scatter.

    Args:
        moments: moments of the calibration rows.
        rank: as in ``compute_basis``.

    Raises:
        InputError: as in ``compute_basis``.
    """
    rank = _allowed_rank(moments, rank)
    scatter = moments.scatter
    if scatter.device.type == "cpu" and moments.width > _LARGEST_SYEVD:
        last = moments.width - 1
        values, vectors = (
            torch.from_numpy(part)
            for part in scipy.linalg.eigh(
                scatter.numpy(), driver="evr", subset_by_index=(last - rank + 1, last)
            )
        )
    else:
        values, vectors = torch.linalg.eigh(scatter)
    return _basis(moments, values[-rank:], vectors[:, -rank:], niter="exact", seed=None)


def subspace_basis(moments: CentredMoments, rank: int, niter: int, seed: int) -> Basis:
    """The basis of a randomised SVD with power iterations, without the rows.

    Equals V of ``torch.svd_lowrank(X - mean, q=rank, niter=niter)``, with X the float64 rows,
    at least p of them, after ``torch.manual_seed(seed)``. With C the scatter, V spans
    ``C^(niter + 1) Ω``. Its columns are ordered as there: with Y an orthonormal basis of
    ``C^niter Ω``, they are the eigenvectors of the Nyström approximation
    ``C Y (Yᵀ C Y)⁻¹ Yᵀ C`` (Halko, Martinsson and Tropp 2011, section 5.5). For fewer rows than
    p, ``svd_lowrank`` iterates on the transpose from another Ω, and only the quality agrees.

    Args:
        moments: moments of the calibration rows.
        rank: as in ``compute_basis``.
        niter: power iterations, at least 0.
        seed: seed of Ω, which is drawn on the CPU whatever the device.

    Raises:
        InputError: as in ``compute_basis``.
    """
    if niter < 0:
        raise InputError(f"niter is {niter}; allowed are whole numbers from 0, or 'exact'")
    rank = _allowed_rank(moments, rank)
    scatter = moments.scatter
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(moments.width, rank, dtype=torch.float64, generator=generator)
    # Householder, not Cholesky QR: at p = 2,880 and r = 512 one thread took 0.15 s against
    # 0.25 s for two passes of Cholesky, and it is orthonormal whatever the conditioning.
    Y = torch.linalg.qr(start.to(scatter.device)).Q
    for _ in range(niter):
        Y = torch.linalg.qr(scatter @ Y).Q
    image = scatter @ Y
    Q, R = torch.linalg.qr(image)
    L = _cholesky(Y.T @ image)
    half = torch.linalg.solve_triangular(L, R.T, upper=False)
    values, rotation = torch.linalg.eigh(half.T @ half)
    return _basis(moments, values, Q @ rotation, niter=niter, seed=seed)


def _allowed_rank(moments: CentredMoments, rank: int) -> int:
    if rank < 1:
        raise InputError(f"rank is {rank}; at least 1 component is needed")
    if moments.count < 2:
        raise InputError(f"{moments.count} row has no principal components; at least 2 are needed")
    if not math.isfinite(moments.sum_of_squares):
        raise InputError("the moments hold NaN or infinity; the rows they were made of do too")
    # Below this share of the norm, the spread is rounding of the rows themselves.
    if moments.centred_sum_of_squares <= 1e-14 * moments.sum_of_squares:
        raise InputError(
            f"all {moments.count} rows are equal, so they have no principal components; "
            "calibrate on text that varies"
        )
    limit = min(moments.count - 1, moments.width)
    if rank > limit:
        warnings.warn(
            f"rank {rank} is more than {moments.count} rows of width {moments.width} allow; "
            f"{limit} components are kept",
            stacklevel=4,
        )
    return min(rank, limit)


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower factor of a positive semidefinite matrix, shifted as little as it takes."""
    shift = float(matrix.trace()) * torch.finfo(matrix.dtype).eps
    factor: Tensor
    shifted = matrix
    while True:
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not int(failed):
            return factor
        shifted = matrix + shift * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        shift *= 10


def _basis(
    moments: CentredMoments,
    values: Tensor,
    vectors: Tensor,
    *,
    niter: int | Literal["exact"],
    seed: int | None,
) -> Basis:
    """Puts rising eigenpairs in falling order and fixes each vector's sign."""
    vectors = vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return Basis(
        mean=moments.mean,
        components=vectors * largest.sign(),
        spectrum=values.flip(0).clamp(min=0.0),
        niter=niter,
        seed=seed,
    )
