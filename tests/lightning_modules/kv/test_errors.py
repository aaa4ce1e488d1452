from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_modules.kv.components import compute_basis
from lightning_modules.kv.errors import (
    DEFINITIONS,
    ReconstructionErrors,
    head_errors,
    reconstruction_errors,
)
from lightning_modules.kv.layout import KVEntry, KVLayout
from lightning_modules.kv.moments import CentredMoments, Moments

N, P, R = 700, 80, 60


def rows(seed: int, *, mean: float, decay: float = 1.0, scale: float = 1.0) -> Tensor:
    """Two seeds share directions and differ in spread and mean, as two corpora do."""
    shared = torch.Generator().manual_seed(99)
    own = torch.Generator().manual_seed(seed)

    def noise(*shape: int, generator: torch.Generator) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    directions = torch.linalg.qr(noise(P, P, generator=shared)).Q
    deviations = torch.arange(1, P + 1, dtype=torch.float64) ** -decay
    deviations = deviations * (1 + 0.5 * noise(P, generator=own).abs())
    centre = mean * noise(P, generator=shared) + 0.3 * noise(P, generator=own)
    return scale * ((noise(N, P, generator=own) * deviations) @ directions.T + centre)


def moments_of(data: Tensor, gram_dtype: torch.dtype = torch.float64) -> CentredMoments:
    moments = Moments(P, block=128, gram_dtype=gram_dtype)
    moments.update(data)
    return moments.snapshot()


def explicit(data: Tensor, mean: Tensor, components: Tensor) -> dict[str, np.ndarray]:
    """The four definitions, word for word, from rows that are projected one rank at a time."""
    norm, centred_norm = data.norm(), (data - data.mean(dim=0)).norm()
    left = []
    for rank in range(1, components.shape[1] + 1):
        part = components[:, :rank]
        left.append((data - ((data - mean) @ part @ part.T + mean)).norm())
    residual = torch.stack(left)
    return {
        "relative_error": (residual / norm).numpy(),
        "relative_squared_error": (residual.square() / norm.square()).numpy(),
        "centred_relative_error": (residual / centred_norm).numpy(),
        "centred_relative_squared_error": (residual.square() / centred_norm.square()).numpy(),
    }


def worst(errors: ReconstructionErrors, expected: dict[str, np.ndarray]) -> float:
    return max(
        float(np.abs(getattr(errors, name) / expected[name] - 1).max()) for name in DEFINITIONS
    )


@pytest.mark.parametrize(
    ("mean", "decay", "scale"),
    [
        (0.0, 0.5, 1.0),
        (3.0, 1.0, 1.0),
        (3.0, 2.0, 1.0),
        (1e3, 0.5, 1.0),
        (1e3, 1.0, 1.0),
        (1e3, 2.0, 1.0),
        (3.0, 1.0, 1e-12),
        (1e3, 1.0, 1e-12),
        (3.0, 1.0, 1e12),
    ],
)
@pytest.mark.parametrize("niter", [1, "exact"])
def test_every_definition_at_every_rank_equals_explicit_projection(
    mean: float, decay: float, scale: float, niter: int
) -> None:
    calibration = rows(1, mean=mean, decay=decay, scale=scale)
    basis = compute_basis(moments_of(calibration), rank=R, niter=niter, seed=0)
    for data in (calibration, rows(2, mean=mean, decay=decay, scale=scale)):
        errors = reconstruction_errors(basis, moments_of(data))
        assert worst(errors, explicit(data, basis.mean, basis.components)) < 1e-8


def test_single_precision_products_are_right_to_a_millionth_at_moderate_ranks() -> None:
    data, other = rows(1, mean=3.0).float().double(), rows(2, mean=3.0).float().double()
    basis = compute_basis(moments_of(data, torch.float32), rank=R, niter="exact", seed=0)
    errors = reconstruction_errors(basis, moments_of(other, torch.float32))
    expected = explicit(other, basis.mean, basis.components)
    accurate = expected["centred_relative_squared_error"] > 0.05
    assert accurate.sum() > 3
    for name in DEFINITIONS:
        np.testing.assert_allclose(
            getattr(errors, name)[accurate], expected[name][accurate], rtol=1e-6
        )


def test_errors_fall_with_rank_and_vanish_at_full_rank() -> None:
    data = rows(1, mean=3.0)
    basis = compute_basis(moments_of(data), rank=P, niter="exact", seed=0)
    errors = reconstruction_errors(basis, moments_of(data))
    for name in DEFINITIONS:
        values = getattr(errors, name)
        assert values.shape == (P,)
        assert bool((np.diff(values) <= 0).all())
        assert 0 <= values[-1] < 1e-7


def test_more_components_than_one_chunk_are_summed_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, other = moments_of(rows(1, mean=3.0)), moments_of(rows(2, mean=3.0))
    basis = compute_basis(data, rank=R, niter="exact", seed=0)
    whole = reconstruction_errors(basis, other)
    monkeypatch.setattr("lightning_modules.kv.errors._CHUNK", 7)
    chunked = reconstruction_errors(basis, other)
    np.testing.assert_allclose(chunked.relative_error, whole.relative_error, rtol=1e-12)


def test_in_domain_squared_error_is_the_tail_of_the_spectrum() -> None:
    moments = moments_of(rows(1, mean=3.0))
    basis = compute_basis(moments, rank=P, niter="exact", seed=0)
    errors = reconstruction_errors(basis, moments)
    tail = basis.spectrum.flip(0).cumsum(0).flip(0)[1:] / basis.spectrum.sum()
    np.testing.assert_allclose(errors.centred_relative_squared_error[:-1], tail.numpy(), rtol=1e-9)


def test_one_rank_is_read_by_name() -> None:
    moments = moments_of(rows(1, mean=3.0))
    errors = reconstruction_errors(compute_basis(moments, rank=5, niter=1, seed=0), moments)
    at_three = errors.at(3)
    assert tuple(at_three) == DEFINITIONS
    assert at_three["relative_error"] == errors.relative_error[2]
    assert at_three["relative_squared_error"] == pytest.approx(at_three["relative_error"] ** 2)
    for rank in (0, 6):
        with pytest.raises(ValueError, match="allowed is 1 to 5"):
            errors.at(rank)


def test_an_evaluation_without_spread_has_no_centred_error() -> None:
    moments = moments_of(rows(1, mean=3.0))
    basis = compute_basis(moments, rank=5, niter=1, seed=0)
    one = moments_of(rows(2, mean=3.0)[:1])
    errors = reconstruction_errors(basis, one)
    assert math.isfinite(errors.at(5)["relative_error"])
    assert not math.isfinite(errors.at(5)["centred_relative_error"])


def test_rows_of_another_width_are_refused() -> None:
    basis = compute_basis(moments_of(rows(1, mean=3.0)), rank=5, niter=1, seed=0)
    narrow = CentredMoments(count=2, mean=torch.zeros(3).double(), scatter=torch.eye(3).double())
    with pytest.raises(ValueError, match="width 80, the evaluated rows 3"):
        reconstruction_errors(basis, narrow)


HEADS = KVLayout(
    keys=(
        KVEntry(loop=0, layer=0, heads=2, head_dim=16, offset=0),
        KVEntry(loop=0, layer=1, heads=3, head_dim=8, offset=32),
        KVEntry(loop=1, layer=0, heads=1, head_dim=24, offset=56),
    ),
    values=(),
).slices("key")


@pytest.mark.parametrize(("mean", "decay"), [(0.0, 0.5), (3.0, 1.0), (1e3, 2.0)])
@pytest.mark.parametrize("niter", [1, "exact"])
def test_every_head_at_every_rank_equals_explicit_projection(
    mean: float, decay: float, niter: int
) -> None:
    basis = compute_basis(moments_of(rows(1, mean=mean, decay=decay)), rank=R, niter=niter, seed=0)
    data = rows(2, mean=mean, decay=decay)
    whole, by_head = head_errors(basis, moments_of(data), HEADS)
    assert by_head.heads == HEADS
    centred, own = data - basis.mean, data - data.mean(dim=0)
    for rank in (1, 2, 17, R):
        part = basis.components[:, :rank]
        left = (centred - centred @ part @ part.T).square().sum(dim=0)
        for position, head in enumerate(HEADS):
            found = by_head.over([position]).at(rank)
            norm, spread = (z[:, head.columns].square().sum() for z in (data, own))
            expected = float(left[head.columns].sum())
            # traces of the whole head cancel: what is left of it is known to so many digits
            tolerance = {"rel": 1e-8, "abs": 1e-13 * float(spread / norm)}
            assert found["relative_squared_error"] == pytest.approx(
                expected / float(norm), **tolerance
            )
            assert found["centred_relative_error"] ** 2 == pytest.approx(
                expected / float(spread), rel=1e-8, abs=1e-13
            )
    # the squares of the heads add up to those of the row
    np.testing.assert_allclose(
        by_head.squared.sum(axis=0),
        whole.relative_squared_error * by_head.norm.sum(),
        rtol=1e-9,
        atol=1e-12 * by_head.centred_norm.sum(),
    )


def test_errors_beside_those_of_heads_are_the_same() -> None:
    basis = compute_basis(moments_of(rows(1, mean=3.0)), rank=R, niter=1, seed=0)
    other = moments_of(rows(2, mean=3.0))
    alone, (beside, by_head) = (
        reconstruction_errors(basis, other),
        head_errors(basis, other, HEADS),
    )
    everything = by_head.over(range(len(HEADS)))
    for name in DEFINITIONS:
        np.testing.assert_allclose(getattr(beside, name), getattr(alone, name), rtol=1e-11)
        np.testing.assert_allclose(getattr(everything, name), getattr(alone, name), rtol=1e-7)
