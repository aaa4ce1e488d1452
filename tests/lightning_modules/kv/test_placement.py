"""Products with a matrix that does not fit: the same numbers, in panels."""

from __future__ import annotations

import pytest
import torch

from lightning_modules.kv import components, placement
from lightning_modules.kv.components import compute_basis
from lightning_modules.kv.errors import reconstruction_errors
from lightning_modules.kv.moments import CentredMoments
from lightning_modules.kv.placement import SymmetricProduct

P, COLUMNS = 37, 5
NEEDED = 8 * P * (P + 10 * COLUMNS)  # the matrix, and ten blocks


def symmetric(seed: int = 0) -> torch.Tensor:
    noise = torch.randn(P, P, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return noise @ noise.T


@pytest.mark.parametrize(("room", "resident"), [(NEEDED, True), (NEEDED - 1, False), (0, False)])
@pytest.mark.parametrize("panel_rows", [1, 10, 37, 50])
def test_what_does_not_fit_is_multiplied_panel_by_panel(
    monkeypatch: pytest.MonkeyPatch, room: int, resident: bool, panel_rows: int
) -> None:
    monkeypatch.setattr(placement, "_PANEL_BYTES", 8 * P * panel_rows)
    matrix = symmetric()
    product = SymmetricProduct(matrix, columns=COLUMNS, device="cpu", room=room)
    assert (product.resident is not None) == resident
    block = torch.randn(P, COLUMNS, dtype=torch.float64)
    torch.testing.assert_close(product(block), matrix @ block, rtol=1e-13, atol=1e-13)


def test_a_matrix_on_its_own_device_is_never_moved() -> None:
    matrix = symmetric()
    assert SymmetricProduct(matrix, columns=COLUMNS).resident is matrix
    assert SymmetricProduct(matrix, columns=COLUMNS, device="cpu").resident is matrix


@pytest.mark.parametrize("niter", [2, "exact"])
def test_bases_and_errors_do_not_depend_on_where_the_matrix_fits(
    monkeypatch: pytest.MonkeyPatch, niter: int
) -> None:
    scatter = symmetric()
    moments = CentredMoments(count=100, mean=torch.ones(P).double(), scatter=scatter)
    other = CentredMoments(count=90, mean=torch.zeros(P).double(), scatter=symmetric(1))
    whole = compute_basis(moments, rank=COLUMNS, niter=niter, seed=0)
    expected = reconstruction_errors(whole, other)

    class Cramped(SymmetricProduct):
        def __init__(self, matrix: torch.Tensor, **settings: object) -> None:
            super().__init__(matrix, columns=COLUMNS, device="cpu", room=0)

    monkeypatch.setattr(placement, "_PANEL_BYTES", 8 * P * 4)
    monkeypatch.setattr(components, "SymmetricProduct", Cramped)
    monkeypatch.setattr("lightning_modules.kv.errors.SymmetricProduct", Cramped)
    cramped = compute_basis(moments, rank=COLUMNS, niter=niter, seed=0)
    torch.testing.assert_close(cramped.components, whole.components, rtol=0, atol=1e-11)
    found = reconstruction_errors(cramped, other)
    torch.testing.assert_close(
        torch.from_numpy(found.relative_error), torch.from_numpy(expected.relative_error)
    )
