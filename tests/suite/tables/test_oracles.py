"""Every public table to its known optimum, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize

Oracle = Callable[[str], Path]
Fit = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.usefixtures("plain_figures")

CHINCHILLA = ["--drop-highest", 5]
GEMSTONES: list[Any] = []
OLMO = ["--group", "run", "--final", 5]


@pytest.fixture
def fitted(suite_fit: Callable[..., Any], oracle: Oracle, tmp_path: Path) -> Fit:
    """Runs ``suite fit`` on a public table; gives the JSON of its result."""

    def run(name: str, *options: object) -> dict[str, Any]:
        out = tmp_path / "fit"
        code, _, err = suite_fit(oracle(name), "--n", "params", *options, "--out", out)
        assert code == 0, err
        found: dict[str, Any] = json.loads((out / "fit.json").read_text())
        return found

    return run


@pytest.mark.parametrize(
    ("name", "options", "points", "objective", "parameters"),
    [
        (
            "chinchilla.csv",
            CHINCHILLA,
            240,
            0.0010182740178,
            {"A": 477.83, "B": 2143.42, "E": 1.81722, "alpha": 0.34731, "beta": 0.36717},
        ),
        (
            "gemstones_hot.csv",
            GEMSTONES,
            220,
            0.0019816128,
            {"A": 213.08, "B": 4.9676e6, "E": 2.14321, "alpha": 0.29289, "beta": 0.71298},
        ),
        (
            "olmo_ladder_c4.csv",
            OLMO,
            16,
            3.299857e-5,
            {"A": 12.4828, "B": 33.4768, "E": 0.934375, "alpha": 0.103603, "beta": 0.161969},
        ),
    ],
)
def test_public_tables_give_the_known_optimum(
    name: str,
    options: list[Any],
    points: int,
    objective: float,
    parameters: dict[str, float],
    fitted: Fit,
) -> None:
    found = fitted(name, *options, "--starts", 24)
    assert found["points"]["fitted"] == points
    assert found["objective"] == pytest.approx(objective, rel=1e-6)
    values = {name: found["parameters"][name]["value"] for name in parameters}
    assert values == pytest.approx(parameters, rel=5e-4)
    assert found["agreeing_share"] == 1.0
    assert found["warnings"] == []


def test_least_absolute_deviations_give_the_published_chinchilla_values(fitted: Fit) -> None:
    found = fitted("chinchilla.csv", *CHINCHILLA, "--delta", "1e-7", "--starts", 24)
    values = {name: entry["value"] for name, entry in found["parameters"].items()}
    published = {"A": 482.0, "B": 2085.39, "E": 1.81686, "alpha": 0.34781, "beta": 0.36585}
    assert values == pytest.approx(published, rel=5e-4)


def test_intervals_agree_with_the_published_ones(fitted: Fit) -> None:
    found = fitted(
        "chinchilla.csv", *CHINCHILLA, "--delta", "1e-7", "--starts", 8, "--bootstrap", 400
    )
    published = {
        "A": (285, 744), "B": (1042, 5810), "E": (1.769, 1.871),
        "alpha": (0.317, 0.373), "beta": (0.331, 0.415),
    }  # fmt: skip
    for name, (low, high) in published.items():
        interval = found["parameters"][name]["interval"]
        # Both are estimates from a few hundred or thousand resamples; coefficients are skewed.
        ends = np.log(interval) - np.log([low, high])
        assert np.abs(ends).max() < 0.25 * np.log(high / low), (name, interval)


def test_the_ladder_predicts_a_model_seventy_times_larger(fitted: Fit, tmp_path: Path) -> None:
    target = "params=13202396160,tokens=5.0001e12"
    found = fitted("olmo_ladder_c4.csv", *OLMO, "--starts", 8, "--predict", target)
    value = {name: entry["value"] for name, entry in found["parameters"].items()}
    loss = (
        value["E"]
        + value["A"] / 13_202_396_160 ** value["alpha"]
        + value["B"] / 5.0001e12 ** value["beta"]
    )
    assert loss == pytest.approx(2.3443873, abs=1e-6)
    assert found["predictions"][0]["loss"]["value"] == pytest.approx(loss, rel=1e-12)
    assert found["errors"]["mean_relative_error_fitted"] == pytest.approx(0.00247, abs=5e-6)
    written = pl.read_csv(tmp_path / "fit" / "points.csv")
    assert written["residual"].abs().mean() == pytest.approx(0.00247, abs=5e-6)
    assert [text.split(" lies ")[0] for text in found["warnings"]] == ["N 1.32e+10", "D 5e+12"]


def _huber(x: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_loss: np.ndarray) -> float:
    log_a, log_b, log_e, alpha, beta = x
    terms = [log_a - alpha * log_n, log_b - beta * log_d, np.full_like(log_loss, log_e)]
    size = np.abs(np.logaddexp.reduce(terms) - log_loss)
    return float(np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 5e-4)).sum())


def test_traps_that_a_plain_optimiser_falls_into_are_avoided(fitted: Fit, oracle: Oracle) -> None:
    table = pl.read_csv(oracle("chinchilla.csv")).sort("loss").head(-5)
    points = tuple(np.log(table[name].to_numpy()) for name in ("params", "tokens", "loss"))
    ours = fitted("chinchilla.csv", *CHINCHILLA, "--starts", 1)["objective"]

    def mean(x: np.ndarray) -> float:
        return _huber(x, *points) / len(table)

    start = np.array([10.0, 10.0, 0.5, 0.5, 0.5])
    trapped = minimize(mean, start, method="L-BFGS-B")
    assert trapped.success
    assert trapped.fun * len(table) > 1.05 * ours

    # Few starts: of a grid in the usual ranges, most end above the optimum.
    options = {"ftol": 1e-12, "gtol": 1e-9, "maxiter": 300}
    rng = np.random.default_rng(0)
    low, high = np.array([0, 0, -1, 0, 0]), np.array([25, 25, 1, 2, 2])
    ends = [
        minimize(
            _huber,
            low + (high - low) * rng.random(5),
            args=points,
            method="L-BFGS-B",
            options=options,
        ).fun
        for _ in range(12)
    ]
    reached = sum(end < ours * (1 + 1e-4) for end in ends)
    assert 0 < reached < 9
    assert min(ends) > ours * (1 - 1e-9)
