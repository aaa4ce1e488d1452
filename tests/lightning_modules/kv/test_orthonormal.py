"""Orthonormal bases by products: as good as Householder's, whatever the conditioning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_modules.kv import orthonormal as module
from lightning_modules.kv.orthonormal import normalised, orthonormal

P, R = 120, 20


def matrix(condition: float, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """``[P, R]`` with singular values from 1 down to 1 / condition."""
    generator = torch.Generator().manual_seed(seed)

    def directions(rows: int) -> Tensor:
        noise = torch.randn(rows, R, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(noise).Q

    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), R).double()
    return (directions(P) * values @ directions(R).T).to(dtype)


def departure(Q: Tensor) -> float:
    return float((Q.T @ Q - torch.eye(Q.shape[1], dtype=Q.dtype)).norm())


@pytest.mark.parametrize("condition", [1e0, 1e3, 1e7, 1e9, 1e13, 1e16])
def test_factors_are_those_of_householder(condition: float) -> None:
    data = matrix(condition)
    Q, R_ = orthonormal(data)
    assert departure(Q) < 1e-13
    assert torch.equal(R_, R_.triu())
    assert float((Q @ R_ - data).norm()) < 1e-13
    if condition < 1e9:  # columns of the two then agree up to their signs
        expected = torch.linalg.qr(data).Q
        torch.testing.assert_close((Q * expected).sum(0).abs(), torch.ones(R).double())


def test_single_precision_is_orthonormal_to_a_millionth() -> None:
    for condition in (1e0, 1e3, 1e6):
        Q, _ = orthonormal(matrix(condition, dtype=torch.float32))
        assert departure(Q) < 1e-5 / R**0.5


@pytest.mark.parametrize("kept", [1, 7, 15])
def test_dependent_columns_fall_back_to_householder(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = matrix(10.0)
    data[:, kept:] = data[:, :1]
    called: list[Tensor] = []
    householder = torch.linalg.qr

    def counted(given: Tensor) -> Tensor:
        called.append(given)
        return householder(given)

    monkeypatch.setattr(module.torch.linalg, "qr", counted)
    Q, R_ = orthonormal(data)
    assert len(called) == 1
    assert called[0] is data
    assert departure(Q) < 1e-13
    assert float((Q @ R_ - data).norm()) < 1e-13


def test_a_matrix_of_zeros_has_a_basis_too() -> None:
    assert departure(orthonormal(torch.zeros(P, R).double())[0]) < 1e-13


def test_the_matrix_itself_is_left_alone() -> None:
    data = matrix(1e3)
    before = data.clone()
    orthonormal(data)
    normalised(data)
    assert torch.equal(data, before)


@pytest.mark.parametrize("condition", [1e0, 1e6, 1e10, 1e14])
def test_one_pass_keeps_the_range_and_makes_it_well_conditioned(condition: float) -> None:
    data = matrix(condition)
    found = normalised(data)
    values = torch.linalg.svdvals(found)
    assert float(values[0] / values[-1]) < 10.0
    Q = torch.linalg.qr(data).Q
    # what rounding makes of the weakest direction is no better known than this
    assert float((found - Q @ (Q.T @ found)).norm()) < 1e-14 * condition + 1e-13
