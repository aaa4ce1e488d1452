"""Principal components of cache rows, from their moments alone or, for few rows, from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lightning_modules.kv.basis import Basis
from lightning_modules.kv.eigen import iterated_eigenpairs, leading_eigenpairs
from lightning_modules.kv.moments import CentredMoments
from lightning_modules.kv.orthonormal import normalised, orthonormal
from lightning_modules.kv.placement import SymmetricProduct
from lightning_modules.kv_footprint import EXACT_MATRICES
from suite.errors import InputError

Device = torch.device | str | None


def compute_basis(
    moments: CentredMoments,
    *,
    rank: int,
    niter: int | Literal["exact"],
    seed: int,
    oversampling: int = 0,
    device: Device = None,
) -> Basis:
    """Finds the basis that a study cell asks for.

    Args:
        moments: moments of the calibration rows.
        rank: components r; more than ``min(n - 1, p)`` are cut to that, with a warning.
        niter: power iterations of the randomised SVD, or ``exact``.
        seed: seed of the random start; ``exact`` has none.
        oversampling: columns of the random start beyond r, cut to what the data allow.
        device: what computes; default where the moments are. The basis is where it was computed.

    Raises:
        InputError: a setting is not allowed, or the rows do not vary.
    """
    if niter == "exact":
        return exact_basis(moments, rank, device=device)
    bases = subspace_bases(moments, rank, [niter], seed, oversampling=oversampling, device=device)
    return bases[niter]


def exact_basis(moments: CentredMoments, rank: int, *, device: Device = None) -> Basis:
    """The best basis: leading eigenvectors of the scatter.

    Where the scatter does not fit on the device, the CPU's solver takes it.

    Args:
        moments: moments of the calibration rows.
        rank: as in ``compute_basis``.
        device: as in ``compute_basis``.

    Raises:
        InputError: as in ``compute_basis``.
    """
    rank = _allowed_rank(moments, rank)
    product = SymmetricProduct(
        moments.scatter, columns=moments.width, blocks=EXACT_MATRICES - 1, device=device
    )
    matrix = product.resident
    if matrix is None:
        warnings.warn(
            f"{EXACT_MATRICES} matrices of width {moments.width} do not fit on {device}; the "
            "CPU's eigensolver takes them, which is slow (niter 8 is nearly as good)",
            stacklevel=3,
        )
    values, vectors = leading_eigenpairs(moments.scatter if matrix is None else matrix, rank)
    return _basis(moments.mean, values, vectors, niter="exact")


def subspace_basis(
    moments: CentredMoments,
    rank: int,
    niter: int,
    seed: int,
    *,
    oversampling: int = 0,
    device: Device = None,
) -> Basis:
    """``subspace_bases`` for one number of iterations."""
    return subspace_bases(moments, rank, [niter], seed, oversampling=oversampling, device=device)[
        niter
    ]


def subspace_bases(
    moments: CentredMoments,
    rank: int,
    niters: Sequence[int],
    seed: int,
    *,
    oversampling: int = 0,
    device: Device = None,
) -> dict[int, Basis]:
    """The bases of a randomised SVD after several numbers of power iterations, without the rows.

    Each equals V of ``torch.svd_lowrank(X - mean, q=rank + oversampling, niter=niter)``, its
    first ``rank`` columns, with X the float64 rows, at least p of them, after
    ``torch.manual_seed(seed)``. With C the scatter, V spans ``C^(niter + 1) Ω``; see
    ``iterated_eigenpairs``. For fewer rows than p, ``svd_lowrank`` iterates on the transpose
    from another Ω and spans ``C^(niter + 1/2)``, as ``basis_of_rows`` does; the basis here is
    then half an iteration better. Cached moments hold no rows, so a study always takes this
    route, and one convention holds along all of its budgets.

    Args:
        moments: moments of the calibration rows.
        rank: as in ``compute_basis``.
        niters: power iterations, each at least 0; the largest decides the time.
        seed: seed of Ω, which is drawn on the CPU whatever the device.
        oversampling: as in ``compute_basis``.
        device: as in ``compute_basis``. A scatter that does not fit goes over in panels.

    Raises:
        InputError: as in ``compute_basis``.
    """
    _check_iterations(niters, oversampling)
    rank = _allowed_rank(moments, rank)
    columns = min(rank + oversampling, moments.count - 1, moments.width)
    product = SymmetricProduct(moments.scatter, columns=columns, device=device)
    start = _start(moments.width, columns, seed).to(product.device)
    return {
        niter: _basis(
            moments.mean,
            values[-rank:],
            vectors[:, -rank:],
            niter=niter,
            seed=seed,
            oversampling=oversampling,
        )
        for niter, values, vectors in iterated_eigenpairs(product, start, niters)
    }


def basis_of_rows(
    rows: Tensor,
    *,
    rank: int,
    niter: int | Literal["exact"],
    seed: int,
    oversampling: int = 0,
) -> Basis:
    """The basis of stored rows, by the cheaper of the p x p and the n x n route.

    For n >= p that is ``compute_basis`` on their moments. For fewer, everything is found from
    the Gram matrix ``G = A Aᵀ`` of the centred rows A, and mapped to columns at the end; equal
    to ``torch.svd_lowrank``, which then iterates on ``Aᵀ`` from an Ω of n rows.

    Args:
        rows: ``[n, p]``, any floating-point type; computed in float64 where they lie.
        rank: as in ``compute_basis``.
        niter: as in ``compute_basis``.
        seed: as in ``compute_basis``.
        oversampling: as in ``compute_basis``.

    Raises:
        InputError: as in ``compute_basis``.
    """
    data = rows.double()
    mean = data.mean(dim=0)
    data = data - mean
    if len(data) >= data.shape[1]:
        moments = CentredMoments(count=len(data), mean=mean, scatter=data.T @ data)
        return compute_basis(moments, rank=rank, niter=niter, seed=seed, oversampling=oversampling)
    squares = float(data.square().sum())
    rank = _cut_rank(
        rank,
        count=len(data),
        width=data.shape[1],
        centred=squares,
        total=squares + len(data) * float(mean @ mean),
    )
    gram = data @ data.T
    if niter == "exact":
        values, left = leading_eigenpairs(gram, rank)
        # falling, so that the strongest are the ones that orthonormalising leaves alone
        vectors = orthonormal(data.T @ left.flip(1))[0].flip(1)
        return _basis(mean, values, vectors, niter="exact")
    _check_iterations([niter], oversampling)
    Y = orthonormal(_start(len(data), min(rank + oversampling, len(data) - 1), seed).to(gram))[0]
    for _ in range(niter):
        Y = normalised(gram @ Y)
    Q = orthonormal(data.T @ Y)[0]
    image = data @ Q
    values, rotation = torch.linalg.eigh(image.T @ image)
    return _basis(
        mean,
        values[-rank:],
        Q @ rotation[:, -rank:],
        niter=niter,
        seed=seed,
        oversampling=oversampling,
    )


def _start(rows: int, columns: int, seed: int) -> Tensor:
    """Ω, as ``torch.randn`` draws it after ``torch.manual_seed``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, dtype=torch.float64, generator=generator)


def _check_iterations(niters: Sequence[int], oversampling: int) -> None:
    for niter in niters:
        if niter < 0:
            raise InputError(f"niter is {niter}; allowed are whole numbers from 0, or 'exact'")
    if oversampling < 0:
        raise InputError(f"oversampling is {oversampling}; allowed are whole numbers from 0")


def _allowed_rank(moments: CentredMoments, rank: int) -> int:
    return _cut_rank(
        rank,
        count=moments.count,
        width=moments.width,
        centred=moments.centred_sum_of_squares,
        total=moments.sum_of_squares,
    )


def _cut_rank(rank: int, *, count: int, width: int, centred: float, total: float) -> int:
    if rank < 1:
        raise InputError(f"rank is {rank}; at least 1 component is needed")
    if count < 2:
        raise InputError(f"{count} row has no principal components; at least 2 are needed")
    if not math.isfinite(total):
        raise InputError("the moments hold NaN or infinity; the rows they were made of do too")
    # Below this share of the norm, the spread is rounding of the rows themselves.
    if centred <= 1e-14 * total:
        raise InputError(
            f"all {count} rows are equal, so they have no principal components; "
            "calibrate on text that varies, or look at the weights of the model"
        )
    limit = min(count - 1, width)
    if rank > limit:
        warnings.warn(
            f"rank {rank} is more than {count} rows of width {width} allow; "
            f"{limit} components are kept",
            stacklevel=4,
        )
    return min(rank, limit)


def _basis(
    mean: Tensor,
    values: Tensor,
    vectors: Tensor,
    *,
    niter: int | Literal["exact"],
    seed: int | None = None,
    oversampling: int = 0,
) -> Basis:
    """Puts rising eigenpairs in falling order and fixes each vector's sign."""
    vectors = vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True))
    return Basis(
        mean=mean.to(vectors.device),
        components=vectors.mul_(largest.sign()),
        spectrum=values.flip(0).clamp(min=0.0),
        niter=niter,
        seed=seed,
        oversampling=oversampling,
    )
