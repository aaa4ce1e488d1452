"""How long fits take, as ratios and processor seconds of one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL
from suite.laws.intervals import bootstrap

Columns = dict[str, np.ndarray]

pytestmark = pytest.mark.benchmark


def test_chinchilla_beats_scipy_without_gradients(
    oracle: Callable[[str], pl.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    table = oracle("chinchilla.csv").sort("loss").head(-5)
    n, d, loss = (table[name].to_numpy() for name in ("params", "tokens", "loss"))

    def objective(x: np.ndarray) -> float:
        terms = [x[0] - x[3] * np.log(n), x[1] - x[4] * np.log(d), np.full(len(n), x[2])]
        size = np.abs(np.logaddexp.reduce(terms) - np.log(loss))
        return float(np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 5e-4)).sum())

    rng = np.random.default_rng(0)
    begun, scipy_starts = time.process_time(), 12
    best = min(
        minimize(
            objective,
            rng.uniform([0, 0, 0, 0, 0], [20, 20, 1, 1, 1]),
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-12, "maxfun": 100_000, "maxiter": 5000},
        ).fun
        for _ in range(scipy_starts)
    )
    scipy_each = (time.process_time() - begun) / scipy_starts
    begun = time.process_time()
    found = fit(CHINCHILLA, {"parameters": n, "tokens": d}, loss, starts=500)
    each = (time.process_time() - begun) / 500
    with capsys.disabled():
        print(
            f"\nchinchilla, 240 points: {500 * each:.2f} s for 500 starts, "
            f"{scipy_each / each:.0f} times faster a start than L-BFGS-B without gradients"
        )
    assert found.objective <= best * (1 + 1e-9)
    assert scipy_each > 20 * each


def test_a_grid_of_curves_is_fitted_in_seconds(
    grid: Callable[..., dict[str, np.ndarray]], capsys: pytest.CaptureFixture[str]
) -> None:
    columns = grid([53e6, 134e6, 374e6, 778e6], [2, 4, 8], np.linspace(2e9, 2e10, 200))
    rng = np.random.default_rng(0)
    loss = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / (columns["tokens"] + 3e8) ** 0.32
    loss = (loss + 0.5 / columns["recurrence"]) * np.exp(0.01 * rng.standard_normal(len(loss)))
    begun = time.process_time()
    found = fit(LOOPLM_TOTAL, columns, loss, starts=64)
    seconds = time.process_time() - begun
    with capsys.disabled():
        print(f"\nlooplm_total, 12 curves x 200 points, 64 starts: {seconds:.1f} s")
    assert found.agreeing_share == 1.0
    assert seconds < 10


def curves_of(points: int, grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray, np.ndarray]:
    """Fifteen noisy curves of a looped grid: columns, losses, runs."""
    columns = grid([53e6, 134e6, 374e6, 778e6, 1.36e9], [2, 4, 8], np.linspace(2e9, 2e10, points))
    rng = np.random.default_rng(1)
    loss = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / (columns["tokens"] + 3e8) ** 0.32
    run = np.repeat(np.arange(15), points)
    noise = 0.01 * rng.standard_normal(len(loss)) + 0.004 * rng.standard_normal(15)[run]
    return columns, (loss + 0.5 / columns["recurrence"]) * np.exp(noise), run


@pytest.mark.timeout(900)
def test_fifteen_curves_and_500_resamples_take_less_than_a_minute(
    grid: Callable[..., Columns], capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.process_time()
    found = bootstrap(LOOPLM_TOTAL, *curves_of(200, grid), starts=200, resamples=500)
    seconds = time.process_time() - begun
    with capsys.disabled():
        print(
            f"\nlooplm_total, 15 curves x 200 points, 200 starts and 500 resamples: "
            f"{seconds:.1f} s of one core"
        )
    assert found.converged_share == 1.0
    assert seconds < 60


@pytest.mark.timeout(900)
def test_resampling_grows_with_points_no_faster_than_they_do(
    grid: Callable[..., Columns], capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for points in (100, 200, 400):
        begun = time.process_time()
        bootstrap(LOOPLM_TOTAL, *curves_of(points, grid), starts=3, resamples=100)
        seconds.append(time.process_time() - begun)
    growth = [later / earlier for earlier, later in pairwise(seconds)]
    with capsys.disabled():
        print(
            f"\nlooplm_total, 15 curves x 100, 200, 400 points, 100 resamples: "
            f"{', '.join(f'{took:.1f}' for took in seconds)} s, "
            f"{growth[0]:.2f} and {growth[1]:.2f} times as long for twice the points"
        )
    # Other starts of the noise take other paths, some longer.
    assert max(growth) < 2.6
