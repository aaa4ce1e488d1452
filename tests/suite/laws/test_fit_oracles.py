"""Fits of public measurements whose optimum is known, and the traps met on the way to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA

Points = tuple[dict[str, np.ndarray], np.ndarray]
Oracle = Callable[[str], pl.DataFrame]


def points_of(table: pl.DataFrame) -> Points:
    columns = {"parameters": table["params"], "tokens": table["tokens"]}
    return (
        {name: column.to_numpy().astype(float) for name, column in columns.items()},
        table["loss"].to_numpy(),
    )


@pytest.fixture(scope="module")
def chinchilla(oracle: Oracle) -> Points:
    return points_of(oracle("chinchilla.csv").sort("loss").head(-5))


@pytest.fixture(scope="module")
def gemstones(oracle: Oracle) -> Points:
    return points_of(oracle("gemstones_hot.csv"))


@pytest.fixture(scope="module")
def olmo(oracle: Oracle) -> Points:
    last = oracle("olmo_ladder_c4.csv").sort("run", "tokens").group_by("run", maintain_order=True)
    return points_of(
        last.agg(pl.col("params", "tokens").last(), loss=pl.col("loss").tail(5).mean())
    )


@pytest.mark.parametrize(
    ("name", "huber_delta", "objective", "parameters"),
    [
        (
            "chinchilla",
            1e-3,
            0.0010182740178,
            {"A": 477.83, "B": 2143.42, "E": 1.81722, "alpha": 0.34731, "beta": 0.36717},
        ),
        (
            "chinchilla",
            1e-7,
            None,
            {"A": 482.00, "B": 2085.39, "E": 1.81686, "alpha": 0.34781, "beta": 0.36585},
        ),
        (
            "gemstones",
            1e-3,
            0.0019816128,
            {"A": 213.08, "B": 4.9676e6, "E": 2.14321, "alpha": 0.29289, "beta": 0.71298},
        ),
        (
            "olmo",
            1e-3,
            3.299857e-5,
            {"A": 12.4828, "B": 33.4768, "E": 0.934375, "alpha": 0.103603, "beta": 0.161969},
        ),
    ],
)
def test_public_points_give_the_known_optimum(
    name: str,
    huber_delta: float,
    objective: float | None,
    parameters: dict[str, float],
    request: pytest.FixtureRequest,
) -> None:
    columns, loss = request.getfixturevalue(name)
    result = fit(CHINCHILLA, columns, loss, huber_delta=huber_delta, starts=16)
    if objective is not None:
        assert result.objective == pytest.approx(objective, rel=1e-7)
    assert result.parameters == pytest.approx(parameters, rel=5e-5)
    assert result.at_bounds == ()
    assert result.agreeing_share == 1.0
    assert result.warnings == ()


def test_the_ladder_predicts_a_model_seventy_times_larger(olmo: Points) -> None:
    columns, loss = olmo
    result = fit(CHINCHILLA, columns, loss, starts=8)
    errors = np.abs(result.predict(columns) - loss) / loss
    assert errors.mean() == pytest.approx(0.00247, abs=5e-6)
    target = {"parameters": np.array([13_202_396_160.0]), "tokens": np.array([5.0001e12])}
    assert result.predict(target)[0] == pytest.approx(2.3443873, abs=1e-6)


def huber_sum(x: np.ndarray, columns: dict[str, np.ndarray], loss: np.ndarray) -> float:
    """The objective as papers write it, of (log A, log B, log E, alpha, beta)."""
    log_a, log_b, log_e, alpha, beta = x
    terms = [
        log_a - alpha * np.log(columns["parameters"]),
        log_b - beta * np.log(columns["tokens"]),
        np.full(len(loss), log_e),
    ]
    size = np.abs(np.logaddexp.reduce(terms) - np.log(loss))
    return float(np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 5e-4)).sum())


TRAPPED_STARTS = [(5, 10, 0.5, 0.5, 0.5), (10, 10, 0.5, 0.5, 0.5), (20, 20, 0.5, 1.0, 1.0)]


@pytest.mark.parametrize("start", TRAPPED_STARTS)
def test_a_mean_with_default_tolerances_stops_early_and_calls_itself_converged(
    start: tuple[float, ...], chinchilla: Points
) -> None:
    optimum = fit(CHINCHILLA, *chinchilla, starts=4).objective
    columns, loss = chinchilla

    def mean(x: np.ndarray) -> float:
        return huber_sum(x, columns, loss) / len(loss)

    trapped = minimize(mean, start, method="L-BFGS-B")
    assert trapped.success
    assert trapped.fun * len(loss) > 1.25 * optimum


@pytest.mark.parametrize("start", TRAPPED_STARTS)
def test_the_sum_with_tight_tolerances_agrees_with_the_fit(
    start: tuple[float, ...], chinchilla: Points
) -> None:
    optimum = fit(CHINCHILLA, *chinchilla, starts=4).objective
    tight = minimize(
        huber_sum,
        start,
        args=chinchilla,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-12, "maxiter": 1000},
    )
    assert tight.fun == pytest.approx(optimum, rel=1e-6)
    assert optimum <= tight.fun


def test_even_the_sum_stops_early_with_default_tolerances(chinchilla: Points) -> None:
    optimum = fit(CHINCHILLA, *chinchilla, starts=4).objective
    trapped = minimize(huber_sum, TRAPPED_STARTS[1], args=chinchilla, method="L-BFGS-B")
    assert trapped.success
    assert trapped.fun > 1.02 * optimum


def test_a_single_start_reaches_the_optimum_of_each_seed(chinchilla: Points) -> None:
    objectives = [fit(CHINCHILLA, *chinchilla, starts=1, seed=seed).objective for seed in range(10)]
    np.testing.assert_allclose(objectives, objectives[0], rtol=1e-12)
