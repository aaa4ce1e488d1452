"""The width of Llama 3.1 8B on a CPU: one basis from moments of p = 32,768, timed and weighed."""

from __future__ import annotations

import resource
import time

import psutil
import pytest
import torch
from torch import Tensor

from lightning_modules.kv.components import subspace_basis
from lightning_modules.kv.moments import CentredMoments

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

WIDTH, RANK, DIRECTIONS = 32_768, 1_024, 1_280
NITER, SEED = 1, 0
NOISE = 1e-3  # variance beyond the directions, beside 1 for the first of them
_PANEL = 2_048
_ROOM = 14 << 30


def scatter(spread: Tensor) -> Tensor:
    """``W Wᵀ + NOISE I`` in float64, panel by panel, symmetric to the bit: 8.6 GB and no more."""
    made = torch.empty(WIDTH, WIDTH, dtype=torch.float64)
    for start in range(0, WIDTH, _PANEL):
        stop = start + _PANEL
        made[start:stop, start:] = spread[start:stop] @ spread[start:].T
        corner = made[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        made[stop:, start:stop] = made[start:stop, stop:].T
    made.diagonal().add_(NOISE)
    return made


def test_a_basis_at_the_width_of_llama(capsys: pytest.CaptureFixture[str]) -> None:
    if psutil.virtual_memory().available < _ROOM:
        pytest.skip(f"needs {_ROOM >> 30} GB of free memory")
    generator = torch.Generator().manual_seed(1)
    deviations = torch.arange(1, DIRECTIONS + 1).float() ** -0.5
    spread = torch.randn(WIDTH, DIRECTIONS, generator=generator).mul_(deviations / WIDTH**0.5)
    begun = time.perf_counter()
    moments = CentredMoments(
        count=160_000, mean=torch.zeros(WIDTH, dtype=torch.float64), scatter=scatter(spread)
    )
    made = time.perf_counter()
    basis = subspace_basis(moments, RANK, NITER, SEED)
    solved = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    V = basis.components
    departure = float((V.T @ V - torch.eye(RANK, dtype=V.dtype)).abs().max())

    def product(block: Tensor) -> Tensor:
        return spread @ (spread.T @ block) + NOISE * block

    # the same iteration without the matrix: C^2 Omega, and what its range holds of C
    spread = spread.double()
    start = torch.randn(
        WIDTH, RANK, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED)
    )
    Q = torch.linalg.qr(product(torch.linalg.qr(product(start)).Q)).Q
    kept, expected = (float((block * product(block)).sum()) for block in (V, Q))
    with capsys.disabled():
        print(
            f"\np = {WIDTH}, r = {RANK}, niter {NITER}, float64, {torch.get_num_threads()} "
            f"threads, load {psutil.getloadavg()[0]:.1f}: {solved - made:.0f} s beyond the "
            f"{made - begun:.0f} s that made the matrix; peak {peak / 1e9:.1f} GB, of which the "
            f"matrix {8 * WIDTH**2 / 1e9:.1f}; orthonormal to {departure:.0e}"
        )
    assert departure < 1e-6
    assert kept == pytest.approx(expected, rel=1e-6)
