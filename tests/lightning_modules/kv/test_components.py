from __future__ import annotations

import warnings
from typing import Literal

import pytest
import torch
from torch import Tensor

from lightning_modules.kv import eigen
from lightning_modules.kv.basis import Basis
from lightning_modules.kv.components import (
    basis_of_rows,
    compute_basis,
    exact_basis,
    subspace_bases,
    subspace_basis,
)
from lightning_modules.kv.moments import CentredMoments
from suite.errors import InputError

N, P, R = 600, 96, 24


def rows(*, decay: float = 1.0, mean: float = 3.0, count: int = N, seed: int = 0) -> Tensor:
    """Rows whose k-th principal deviation falls as ``k ** -decay``."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    directions = torch.linalg.qr(noise(P, P)).Q
    deviations = torch.arange(1, P + 1, dtype=torch.float64) ** -decay
    return (noise(count, P) * deviations) @ directions.T + mean * noise(P)


def moments_of(data: Tensor) -> CentredMoments:
    mean = data.mean(dim=0)
    return CentredMoments(count=len(data), mean=mean, scatter=(data - mean).T @ (data - mean))


def errors_at_every_rank(components: Tensor, centred: Tensor) -> Tensor:
    """Norms of what is left of centred rows, by explicit projection on growing bases."""
    return torch.stack(
        [
            (centred - centred @ components[:, :k] @ components[:, :k].T).norm()
            for k in range(1, components.shape[1] + 1)
        ]
    )


def assert_orthonormal(components: Tensor) -> None:
    identity = torch.eye(components.shape[1], dtype=torch.float64)
    torch.testing.assert_close(components.T @ components, identity, rtol=0, atol=1e-12)


@pytest.mark.parametrize("niter", [0, 1, 2, 8])
@pytest.mark.parametrize("decay", [0.0, 0.5, 1.0, 2.0])
def test_equals_torch_svd_lowrank_on_the_rows(niter: int, decay: float) -> None:
    data, other = rows(decay=decay), rows(decay=decay, seed=1)
    centred = data - data.mean(dim=0)
    torch.manual_seed(11)
    _, deviations, expected = torch.svd_lowrank(centred, q=R, niter=niter)
    basis = subspace_basis(moments_of(data), R, niter, seed=11)
    assert_orthonormal(basis.components)
    difference = basis.components @ basis.components.T - expected @ expected.T
    assert float(difference.norm()) < 1e-6
    torch.testing.assert_close(basis.spectrum, deviations.square(), rtol=1e-8, atol=0)
    for rest in (centred, other - data.mean(dim=0)):
        torch.testing.assert_close(
            errors_at_every_rank(basis.components, rest),
            errors_at_every_rank(expected, rest),
            rtol=1e-8,
            atol=0,
        )


def test_exact_equals_the_full_svd_of_the_rows() -> None:
    data = rows()
    _, deviations, right = torch.linalg.svd(data - data.mean(dim=0), full_matrices=False)
    basis = exact_basis(moments_of(data), R)
    torch.testing.assert_close(basis.spectrum, deviations[:R].square(), rtol=1e-10, atol=0)
    alignment = (basis.components * right[:R].T).sum(dim=0).abs()
    torch.testing.assert_close(alignment, torch.ones_like(alignment), rtol=0, atol=1e-10)
    torch.testing.assert_close(basis.mean, data.mean(dim=0), rtol=0, atol=0)


def test_past_the_limit_of_the_usual_solver_the_other_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = moments_of(rows())
    usual = exact_basis(moments, R)
    monkeypatch.setattr(eigen, "_LARGEST_SYEVD", P - 1)
    other = exact_basis(moments, R)
    torch.testing.assert_close(other.components, usual.components, rtol=0, atol=1e-9)
    torch.testing.assert_close(other.spectrum, usual.spectrum, rtol=1e-10, atol=0)


def test_more_power_iterations_come_closer_to_exact() -> None:
    data = rows(decay=0.5)
    centred = data - data.mean(dim=0)
    left = [
        float(errors_at_every_rank(basis.components, centred)[-1])
        for basis in (
            compute_basis(moments_of(data), rank=R, niter=niter, seed=0)
            for niter in (0, 1, 8, "exact")
        )
    ]
    assert left == sorted(left, reverse=True)
    assert left[-2] == pytest.approx(left[-1], rel=2e-3)


@pytest.mark.parametrize("niter", [3, "exact"])
def test_the_largest_entry_of_every_component_is_positive(
    niter: int | Literal["exact"],
) -> None:
    basis = compute_basis(moments_of(rows()), rank=R, niter=niter, seed=0)
    columns = torch.arange(R)
    largest = basis.components.abs().argmax(dim=0)
    assert bool((basis.components[largest, columns] > 0).all())
    assert bool((basis.spectrum.diff() <= 0).all())


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    moments = moments_of(rows())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = subspace_basis(moments, R, 1, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    again = subspace_basis(moments, R, 1, seed=0)
    other = subspace_basis(moments, R, 1, seed=1)
    assert torch.equal(first.components, again.components)
    assert not torch.allclose(first.components, other.components, atol=1e-3)
    assert (first.niter, first.seed, first.rank) == (1, 0, R)
    assert (exact_basis(moments, R).niter, exact_basis(moments, R).seed) == ("exact", None)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("niter", [0, 8, "exact"])
def test_scale_changes_the_spectrum_only(scale: float, niter: int | Literal["exact"]) -> None:
    data = rows()
    basis = compute_basis(moments_of(data), rank=R, niter=niter, seed=0)
    scaled = compute_basis(moments_of(data * scale), rank=R, niter=niter, seed=0)
    torch.testing.assert_close(scaled.components, basis.components, rtol=0, atol=1e-9)
    torch.testing.assert_close(scaled.spectrum, basis.spectrum * scale**2, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("count", "rank", "kept"), [(N, P + 4, P), (11, R, 10), (2, 1, 1)])
@pytest.mark.parametrize("niter", [1, "exact"])
def test_rank_is_cut_to_what_the_data_allow(
    count: int, rank: int, kept: int, niter: int | Literal["exact"]
) -> None:
    data = rows(count=count)

    def solve() -> Basis:
        return compute_basis(moments_of(data), rank=rank, niter=niter, seed=0)

    if kept < rank:
        with pytest.warns(UserWarning, match=f"rank {rank} is more .* {kept} components are kept"):
            basis = solve()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            basis = solve()
    assert basis.rank == kept
    assert_orthonormal(basis.components)
    # As many components as the rows have dimensions leave nothing of them.
    centred = data - data.mean(dim=0)
    assert float(errors_at_every_rank(basis.components, centred)[-1]) < 1e-6 * float(centred.norm())


@pytest.mark.parametrize("niter", [0, 1, 8])
def test_repeated_rows_give_an_orthonormal_basis_that_holds_them(niter: int) -> None:
    data = rows(count=6).repeat(50, 1)
    basis = subspace_basis(moments_of(data), R, niter, seed=0)
    assert_orthonormal(basis.components)
    centred = data - data.mean(dim=0)
    left = errors_at_every_rank(basis.components, centred) / centred.norm()
    assert float(left[4]) < 1e-6
    assert float(left[3]) > 1e-3


@pytest.mark.parametrize(
    ("data", "rank", "niter", "message"),
    [
        (rows(), 0, 1, "rank is 0"),
        (rows(), R, -1, "niter is -1"),
        (rows(count=1), R, 1, "1 row has no principal components"),
        (torch.full((50, P), 0.1, dtype=torch.float64), R, 1, "all 50 rows are equal"),
        (rows() * torch.nan, R, 1, "NaN or infinity"),
    ],
)
def test_impossible_requests_are_refused(data: Tensor, rank: int, niter: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compute_basis(moments_of(data), rank=rank, niter=niter, seed=0)


@pytest.mark.parametrize("oversampling", [1, 8])
@pytest.mark.parametrize("niter", [0, 2])
def test_oversampling_equals_the_leading_columns_of_a_wider_svd_lowrank(
    niter: int, oversampling: int
) -> None:
    data = rows(decay=0.5)
    centred = data - data.mean(dim=0)
    torch.manual_seed(4)
    _, deviations, wider = torch.svd_lowrank(centred, q=R + oversampling, niter=niter)
    basis = subspace_basis(moments_of(data), R, niter, seed=4, oversampling=oversampling)
    assert (basis.rank, basis.oversampling) == (R, oversampling)
    assert_orthonormal(basis.components)
    torch.testing.assert_close(basis.spectrum, deviations[:R].square(), rtol=1e-9, atol=0)
    torch.testing.assert_close(
        errors_at_every_rank(basis.components, centred),
        errors_at_every_rank(wider[:, :R], centred),
        rtol=1e-8,
        atol=0,
    )


def test_several_numbers_of_iterations_from_one_run_equal_those_alone() -> None:
    moments = moments_of(rows())
    together = subspace_bases(moments, R, [8, 1, 0], seed=0)
    assert [*together] == [0, 1, 8]
    for niter, basis in together.items():
        alone = subspace_basis(moments, R, niter, seed=0)
        assert torch.equal(alone.components, basis.components)
        assert torch.equal(alone.spectrum, basis.spectrum)
        assert basis.niter == niter


@pytest.mark.parametrize("count", [30, 95])
@pytest.mark.parametrize("niter", [0, 1, 8])
@pytest.mark.parametrize("oversampling", [0, 3])
def test_few_rows_equal_svd_lowrank_on_the_same_rows(
    count: int, niter: int, oversampling: int
) -> None:
    """Which then iterates on the transpose, from a start of n rows."""
    data = rows(decay=0.5, count=count)
    centred = data - data.mean(dim=0)
    torch.manual_seed(2)
    _, deviations, expected = torch.svd_lowrank(centred, q=R + oversampling, niter=niter)
    basis = basis_of_rows(data, rank=R, niter=niter, seed=2, oversampling=oversampling)
    assert_orthonormal(basis.components)
    torch.testing.assert_close(basis.spectrum, deviations[:R].square(), rtol=1e-8, atol=0)
    torch.testing.assert_close(
        errors_at_every_rank(basis.components, centred),
        errors_at_every_rank(expected[:, :R], centred),
        rtol=1e-7,
        atol=1e-9,
    )


@pytest.mark.parametrize("count", [30, 95, N])
def test_exact_is_the_same_by_both_routes(count: int) -> None:
    data = rows(count=count)
    by_rows = basis_of_rows(data.float().double(), rank=R, niter="exact", seed=0)
    by_moments = exact_basis(moments_of(data.float().double()), R)
    assert_orthonormal(by_rows.components)
    torch.testing.assert_close(by_rows.components, by_moments.components, rtol=0, atol=1e-9)
    torch.testing.assert_close(by_rows.spectrum, by_moments.spectrum, rtol=1e-10, atol=0)


@pytest.mark.parametrize("niter", [1, "exact"])
def test_rows_that_span_less_than_the_rank_give_an_orthonormal_basis(
    niter: int | Literal["exact"],
) -> None:
    data = rows(count=6).repeat(9, 1)
    basis = basis_of_rows(data, rank=R, niter=niter, seed=0)
    assert_orthonormal(basis.components)
    centred = data - data.mean(dim=0)
    left = errors_at_every_rank(basis.components, centred) / centred.norm()
    assert float(left[4]) < 1e-6
    with pytest.warns(UserWarning, match="5 components are kept"):
        assert basis_of_rows(rows(count=6), rank=R, niter=niter, seed=0).rank == 5
    with pytest.raises(InputError, match="all 4 rows are equal"):
        basis_of_rows(torch.ones(4, P), rank=1, niter=niter, seed=0)


def test_a_negative_oversampling_is_refused() -> None:
    with pytest.raises(InputError, match="oversampling is -1"):
        compute_basis(moments_of(rows()), rank=R, niter=1, seed=0, oversampling=-1)
