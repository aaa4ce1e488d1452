"""Orthonormal bases of tall matrices by products alone, which is what accelerators are fast at."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# One pass leaves a matrix orthonormal to working precision once its Gram matrix is this close
# to the identity, in the Frobenius norm: its condition number is then below 1.2.
_CLOSE = 0.12
_PASSES = 3


def orthonormal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Thin QR factors ``Q R`` by shifted CholeskyQR2, or by Householder where that fails.

    A pass takes ``R`` from the Cholesky factor of the Gram matrix, shifted where it is not
    positive definite to working precision (Fukaya et al. 2020); a third pass is
    made where two are not enough. A matrix whose columns are linearly dependent to working
    precision goes to Householder, whose Q is orthonormal whatever the conditioning.

    Args:
        matrix: ``[p, r]`` with ``p >= r``, floating point.

    Returns:
        Q ``[p, r]`` with orthonormal columns and R ``[r, r]``, upper triangular.
    """
    Q, R = matrix, torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(_PASSES):
        gram = Q.T @ Q
        distance = _distance_to_identity(gram)
        factor = _shifted_factor(gram, rows=len(Q))
        if factor is None:
            break
        # not in place: the first pass reads the caller's matrix
        Q = torch.linalg.solve_triangular(factor, Q, upper=True, left=False)
        R = factor @ R
        if distance < _CLOSE:
            return Q, R
    exact = torch.linalg.qr(matrix)
    return exact.Q, exact.R


def normalised(matrix: Tensor) -> Tensor:
    """A well-conditioned basis of the range of a matrix, ``[p, r]``, by one Cholesky pass.

    Enough between power iterations, where only the range counts. A matrix that one pass without
    a shift does not carry is made orthonormal: a shift would leave its weakest directions so
    small that the next iteration loses them.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix.T @ matrix, upper=True)
    if int(failed):
        return orthonormal(matrix)[0]
    solved: Tensor = torch.linalg.solve_triangular(factor, matrix, upper=True, left=False)
    return solved


def _distance_to_identity(gram: Tensor) -> float:
    trace, squares = float(gram.diagonal().sum()), float(gram.square().sum())
    return math.sqrt(max(squares - 2.0 * trace + len(gram), 0.0))


def _shifted_factor(gram: Tensor, *, rows: int) -> Tensor | None:
    """Upper Cholesky factor of a Gram matrix, shifted where need be; none where nothing helps."""
    factor, failed = torch.linalg.cholesky_ex(gram, upper=True)
    if int(failed):
        columns = len(gram)
        unit = torch.finfo(gram.dtype).eps / 2
        shift = 11.0 * (rows * columns + columns * (columns + 1)) * unit * float(gram.trace())
        shifted = gram.clone()
        shifted.diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(shifted, upper=True)
    return None if int(failed) else factor
