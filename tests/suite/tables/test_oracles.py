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
from scipy.stats import norm, t

from suite.laws.forms import CHINCHILLA as LAW
from suite.laws.intervals import bootstrap
from tests.suite.laws.published import MOST_ERRORS, errors_of_ends

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
    assert found["objective"] == pytest.approx(objective, rel=1e-7)
    values = {name: found["parameters"][name]["value"] for name in parameters}
    assert values == pytest.approx(parameters, rel=5e-5)
    assert found["agreeing_share"] == 1.0
    assert found["warnings"] == []


def test_least_absolute_deviations_give_the_published_chinchilla_values(fitted: Fit) -> None:
    found = fitted("chinchilla.csv", *CHINCHILLA, "--delta", "1e-7", "--starts", 24)
    values = {name: entry["value"] for name, entry in found["parameters"].items()}
    published = {"A": 482.0, "B": 2085.39, "E": 1.81686, "alpha": 0.34781, "beta": 0.36585}
    assert values == pytest.approx(published, rel=5e-5)


def test_intervals_agree_with_the_published_ones(fitted: Fit, oracle: Oracle) -> None:
    found = fitted("chinchilla.csv", *CHINCHILLA, "--starts", 8, "--bootstrap", 1000, "--seed", 3)
    table = pl.read_csv(oracle("chinchilla.csv")).sort("loss").head(-5)
    resampled = bootstrap(
        LAW,
        {"parameters": table["params"].to_numpy(), "tokens": table["tokens"].to_numpy()},
        table["loss"].to_numpy(),
        np.arange(240),
        starts=8,
        resamples=1000,
        seed=3,
    )
    # what the normal distribution has beyond the 97.5 % of Student's t with 239 degrees
    tail = norm.sf(t.ppf(0.975, 239))
    for column, symbol in enumerate(resampled.symbols):
        values = resampled.parameters[:, column]
        ends = np.quantile(values, [tail, 1 - tail])
        assert found["parameters"][symbol]["interval"] == pytest.approx(ends, rel=1e-9)
        assert max(errors_of_ends(values, symbol)) < MOST_ERRORS, symbol


def worth(amount: np.ndarray, unique: np.ndarray, decay: float) -> np.ndarray:
    """Equation 5 of Muennighoff et al., as the paper writes it."""
    repeats = amount / unique - 1
    return unique + unique * decay * (1 - np.exp(-repeats / decay))


def test_the_data_constrained_law_gives_the_published_loss_to_twelve_digits(
    suite_fit: Callable[..., Any], tmp_path: Path
) -> None:
    """R_D and R_N are found from exact losses, which the paper's equations make here."""
    a, b, e, alpha, r_d, r_n = 6.255414, 7.3049974, 0.6254804, 0.3526596, 15.387756, 5.309743
    rng = np.random.default_rng(0)
    unique = 10 ** rng.uniform(9, 10.5, 40)
    n, d = 10 ** rng.uniform(8, 10, 40), unique * rng.choice([1, 2, 4, 16, 44], 40)
    factor = (np.exp(a) / np.exp(b)) ** (1 / (2 * alpha))  # G of the plain law, where alpha = beta
    best_n = np.minimum(n, (unique * factor) * factor)
    loss = (
        np.exp(e)
        + np.exp(a) / worth(n, best_n, r_n) ** alpha
        + np.exp(b) / worth(d, unique, r_d) ** alpha
    )
    pl.DataFrame({"parameters": n, "tokens": d, "unique_tokens": unique, "loss": loss}).write_csv(
        tmp_path / "t.csv", float_precision=17
    )
    plain = {"E": np.exp(e), "A": np.exp(a), "alpha": alpha, "B": np.exp(b), "beta": alpha}
    fix = [word for name, value in plain.items() for word in ("--fix", f"{name}={float(value)!r}")]
    code, _, err = suite_fit(
        tmp_path / "t.csv", "--form", "data_constrained", *fix, "--starts", 6,
        "--predict", "parameters=6.34e9,tokens=242e9,unique_tokens=25e9",
        "--out", tmp_path / "fit",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert found["parameters"]["R_D"]["value"] == pytest.approx(r_d, rel=1e-6)
    assert found["parameters"]["R_N"]["value"] == pytest.approx(r_n, rel=1e-6)
    assert found["predictions"][0]["loss"]["value"] == pytest.approx(2.2256440889984477, rel=1e-12)


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
