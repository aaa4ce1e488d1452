"""Bases from moments against a randomised SVD of stored rows: one run, one ratio."""

from __future__ import annotations

import time

import pytest
import torch

from lightning_modules.kv import Moments, compute_basis, reconstruction_errors

pytestmark = pytest.mark.benchmark

ROWS, WIDTH, RANK = 8_000, 1_024, 256
BUDGETS = (2_000, 4_000, 6_000, 8_000)
NITER = (1, 8)


def test_a_grid_of_budgets_and_niter_is_cheaper_from_moments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, WIDTH + 1, dtype=torch.float32) ** -0.7
    mixed = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q * spectrum
    rows = torch.randn(ROWS, WIDTH, generator=generator) @ mixed.T + 1.0
    held_out = torch.randn(ROWS // 4, WIDTH, generator=generator) @ mixed.T + 1.0

    begun = time.perf_counter()
    from_rows = {}
    for budget in BUDGETS:
        for niter in NITER:
            mean = rows[:budget].double().mean(dim=0).float()
            torch.manual_seed(0)
            _, _, v = torch.svd_lowrank(rows[:budget] - mean, q=RANK, niter=niter)
            left = (held_out - mean) - (held_out - mean) @ v @ v.T
            from_rows[budget, niter] = float(left.norm() / held_out.norm())
    rows_seconds = time.perf_counter() - begun

    begun = time.perf_counter()
    evaluation = Moments(WIDTH)
    evaluation.update(held_out)
    moments, from_moments = Moments(WIDTH), {}
    for start, budget in zip((0, *BUDGETS), BUDGETS, strict=False):
        moments.update(rows[start:budget])
        snapshot = moments.snapshot()
        for niter in NITER:
            basis = compute_basis(snapshot, rank=RANK, niter=niter, seed=0)
            errors = reconstruction_errors(basis, evaluation.snapshot())
            from_moments[budget, niter] = float(errors.relative_error[-1])
    moments_seconds = time.perf_counter() - begun

    for point, error in from_rows.items():
        assert from_moments[point] == pytest.approx(error, rel=2e-3), point
    with capsys.disabled():
        print(
            f"\n{len(BUDGETS)} budgets x {len(NITER)} niter, p = {WIDTH}, r = {RANK}: "
            f"svd_lowrank on rows {rows_seconds:.2f} s, moments {moments_seconds:.2f} s, "
            f"ratio {rows_seconds / moments_seconds:.1f}"
        )
