"""How long laws take to fit: against scipy, on a whole grid with intervals, and as points grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from suite.laws._problem import Problem
from suite.laws._search import natural
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL
from suite.laws.intervals import bootstrap

Columns = dict[str, np.ndarray]

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

STARTS = 500
SIZES = (53e6, 134e6, 374e6, 778e6, 1.36e9)
TRUTH = {
    "E": 1.5, "A": 300.0, "t1": 0.0, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
    "C": 0.5, "t3": 0.0, "gamma": 1.0,
}  # fmt: skip


@dataclass
class Stopwatch:
    """Seconds of the wall and of the processor."""

    wall: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> Stopwatch:
        self._begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._begun[0]
        self.cpu = time.process_time() - self._begun[1]


@pytest.fixture(scope="module")
def chinchilla() -> tuple[Columns, np.ndarray]:
    """The 240 public points."""
    default = Path(__file__).resolve().parents[3] / "shared" / "oracles"
    file = Path(os.environ.get("SUITE_ORACLES", default)) / "chinchilla.csv"
    if not file.is_file():
        pytest.skip(f"there is no {file}; SUITE_ORACLES names another folder")
    table = pl.read_csv(file).sort("loss").head(-5)
    columns = {"parameters": table["params"], "tokens": table["tokens"]}
    return (
        {name: column.to_numpy().astype(float) for name, column in columns.items()},
        table["loss"].to_numpy(),
    )


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Prints lines past pytest's capture."""

    def lines(*texts: str) -> None:
        with capsys.disabled():
            print("", *texts, sep="\n")

    return lines


def curves_of(points: int) -> tuple[Columns, np.ndarray, np.ndarray]:
    """Fifteen noisy curves of a looped grid: columns, losses, runs."""
    axes = np.meshgrid(SIZES, [2.0, 4.0, 8.0], np.linspace(2e9, 2e10, points), indexing="ij")
    names = ("parameters", "recurrence", "tokens")
    columns = {name: axis.ravel() for name, axis in zip(names, axes, strict=True)}
    rng = np.random.default_rng(1)
    run = np.repeat(np.arange(15), points)
    noise = 0.01 * rng.standard_normal(len(run)) + 0.004 * rng.standard_normal(15)[run]
    return columns, LOOPLM_TOTAL.predict(TRUTH, columns) * np.exp(noise), run


def test_chinchilla_beats_scipy_without_gradients(
    chinchilla: tuple[Columns, np.ndarray], show: Callable[..., None]
) -> None:
    columns, loss = chinchilla
    log_n, log_d, log_loss = (np.log(v) for v in (*columns.values(), loss))

    def objective(x: np.ndarray) -> float:
        terms = [x[0] - x[3] * log_n, x[1] - x[4] * log_d, np.full(len(loss), x[2])]
        size = np.abs(np.logaddexp.reduce(terms) - log_loss)
        return float(np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 5e-4)).sum())

    # The starts of ``fit`` itself, as the coordinates of the objective that papers minimise.
    problem = Problem(CHINCHILLA.terms, columns, loss, has_constant=True)
    drawn = [natural(CHINCHILLA, problem, theta) for theta in problem.starts(STARTS, 0)]
    starts = [
        [*(np.log(p[name]) for name in ("A", "B", "E")), p["alpha"], p["beta"]] for p in drawn
    ]
    with Stopwatch() as theirs:
        ends = [
            minimize(
                objective,
                start,
                method="L-BFGS-B",
                options={"ftol": 1e-15, "gtol": 1e-12, "maxfun": 100_000, "maxiter": 5_000},
            ).fun
            for start in starts
        ]
    with Stopwatch() as ours:
        found = fit(CHINCHILLA, columns, loss, starts=STARTS)
    reached = np.mean(np.array(ends) <= found.objective * (1 + 1e-6))
    show(
        f"chinchilla, 240 points, {STARTS} starts            seconds  best objective   reach it",
        f"  scipy L-BFGS-B without gradients       {theirs.cpu:9.2f}  {min(ends):.10e}  "
        f"{reached:7.1%}",
        f"  suite.laws.fit                         {ours.cpu:9.2f}  {found.objective:.10e}  "
        f"{found.agreeing_share:7.1%}",
        f"  ratio                                  {theirs.cpu / ours.cpu:9.1f}",
    )
    assert found.objective <= min(ends) * (1 + 1e-9)
    assert found.objective == pytest.approx(min(ends), rel=1e-6)
    assert theirs.cpu >= 20 * ours.cpu


def test_fifteen_curves_with_500_resamples_take_less_than_a_minute(
    show: Callable[..., None],
) -> None:
    columns, loss, run = curves_of(200)
    with Stopwatch() as watch:
        found = bootstrap(LOOPLM_TOTAL, columns, loss, run, starts=200, resamples=500)
    show(
        "looplm_total, 15 curves x 200 points, 200 starts and 500 resamples",
        f"  {watch.wall:.1f} s, {watch.cpu:.1f} s of processors, "
        f"{found.converged_share:.1%} of the resamples converged",
    )
    assert found.converged_share == 1.0
    # One thread does the work: its processor time is what a machine of its own would take.
    assert watch.cpu <= 60


def test_the_cost_of_a_point_stays_as_points_grow(show: Callable[..., None]) -> None:
    rows, costs = [], {}
    for points in (50, 200, 800):
        columns, loss, run = curves_of(points)
        with Stopwatch() as fitted:
            fit(LOOPLM_TOTAL, columns, loss, starts=24)
        with Stopwatch() as resampled:
            bootstrap(LOOPLM_TOTAL, columns, loss, run, starts=3, resamples=100)
        costs[len(loss)] = fitted.cpu / len(loss), resampled.cpu / len(loss)
        rows.append(
            f"  {len(loss):6,}  {fitted.cpu:8.2f} s {1e6 * costs[len(loss)][0]:8.0f} µs "
            f" {resampled.cpu:8.2f} s {1e6 * costs[len(loss)][1]:8.0f} µs"
        )
    show("looplm_total   24 starts, each point   100 resamples, each point", *rows)
    for index in (0, 1):
        few, some, many = (costs[15 * points][index] for points in (50, 200, 800))
        # Starts on other noise take other paths, some longer; the least share their overhead.
        assert many <= 1.6 * some
        assert some <= 1.6 * few
