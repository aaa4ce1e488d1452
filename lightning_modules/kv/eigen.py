"""Eigenvectors of a scatter matrix: all of them at once, or by subspace iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import scipy.linalg  # type: ignore[import-untyped]
import torch
from torch import Tensor

from lightning_modules.kv.orthonormal import normalised, orthonormal
from suite.errors import InputError, SuiteError

# LAPACK's syevd asks for 1 + 6p + 2p² numbers of workspace and counts them in 32 bits.
_LARGEST_SYEVD = 32_766
# Indices into the matrix itself are counted in 32 bits, too.
_LARGEST_SYEVR = 46_340
_SHIFTS = 17  # from the rounding of the trace to the trace itself

Eigenpairs = tuple[Tensor, Tensor]
"""Eigenvalues ``[r]``, rising, and their eigenvectors ``[p, r]``."""


def leading_eigenpairs(matrix: Tensor, rank: int) -> Eigenpairs:
    """The largest eigenvalues of a symmetric matrix, by LAPACK or its like.

    On a CPU past p = 32,766 ``syevd`` cannot count its own workspace, so ``syevr`` takes over: it
    needs 26p numbers of workspace, finds only the eigenpairs that are asked for, and its indices
    into the matrix itself fit in 32 bits up to p = 46,340. An accelerator's solver counts in 64.

    Args:
        matrix: ``[p, p]``, symmetric.
        rank: r, at most p.

    Raises:
        InputError: the matrix lies on a CPU and is wider than its solver can count.
    """
    if matrix.device.type == "cpu" and len(matrix) > _LARGEST_SYEVR:
        raise InputError(
            f"p is {len(matrix)}, and the CPU's eigensolver counts to {_LARGEST_SYEVR}; take a "
            "number of iterations for exact, such as niter 8, or an accelerator that it fits on"
        )
    if matrix.device.type == "cpu" and len(matrix) > _LARGEST_SYEVD:
        last = len(matrix) - 1
        values, vectors = scipy.linalg.eigh(
            # the transpose is the same matrix in the order that LAPACK wants: no copy for that
            matrix.numpy().T,
            driver="evr",
            subset_by_index=(last - rank + 1, last),
            check_finite=False,
        )
        return torch.from_numpy(values), torch.from_numpy(vectors)
    values, vectors = torch.linalg.eigh(matrix)
    return values[-rank:], vectors[:, -rank:].clone()


def iterated_eigenpairs(
    product: Callable[[Tensor], Tensor], start: Tensor, niters: Sequence[int]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Eigenpairs of ``C`` after several numbers of power iterations, from one run of them.

    With Y a basis of ``C^k Ω``, those of the Nyström approximation ``C Y (Yᵀ C Y)⁻¹ Yᵀ C``
    (Halko, Martinsson and Tropp 2011, section 5.5). Its range is that of ``C^(k+1) Ω``, and the
    product that it needs is also the next iteration's.

    Args:
        product: maps ``[p, q]`` to ``C`` times it.
        start: Ω, ``[p, q]``.
        niters: numbers k of iterations, each at least 0.

    Yields:
        k, eigenvalues ``[q]``, rising, and eigenvectors ``[p, q]``; k rises.
    """
    wanted = sorted(set(niters))
    Y = orthonormal(start)[0]
    for done in range(wanted[-1] + 1):
        image = product(Y)
        if done in wanted:
            Q, R = orthonormal(image)
            half = torch.linalg.solve_triangular(_cholesky(Y.T @ image), R.T, upper=False)
            values, rotation = torch.linalg.eigh(half.T @ half)
            yield done, values, Q @ rotation
            del Q, R, half, rotation
        if done < wanted[-1]:
            Y = normalised(image)


def _cholesky(matrix: Tensor) -> Tensor:
    """Lower factor of a positive semidefinite matrix, shifted as little as it takes."""
    trace = float(matrix.trace())
    factor: Tensor
    shifted = matrix
    for power in range(_SHIFTS):
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not int(failed):
            return factor
        shifted = matrix.clone()
        shifted.diagonal().add_(trace * torch.finfo(matrix.dtype).eps * 10.0**power)
    raise SuiteError(
        "a matrix of moments has no factor: it holds NaN or infinity, or is far from positive "
        "semidefinite; remove the moments from the cache and run again"
    )
