from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED
from suite.laws.intervals import bootstrap
from suite.tables.request import FitRequest

SuiteFit = Callable[..., tuple[int, str, str]]
FEW = ("--n", "params", "--starts", 4)

pytestmark = pytest.mark.usefixtures("plain_figures")


def test_a_loss_that_is_asked_for_has_the_interval_of_the_bootstrap(
    suite_fit: SuiteFit, runs_csv: Path, runs: pl.DataFrame, tmp_path: Path
) -> None:
    code, text, err = suite_fit(
        runs_csv, *FEW, "--group", "run", "--bootstrap", 400,
        "--predict", "params=2e9,tokens=40B", "--predict", "tokens=1e10,parameters=2e8",
        "--out", tmp_path / "fit",
    )  # fmt: skip
    assert code == 0, err
    columns = {"parameters": runs["params"].to_numpy(), "tokens": runs["tokens"].to_numpy()}
    loss, run = runs["loss"].to_numpy(), runs["run"].to_numpy()
    expected = bootstrap(CHINCHILLA, columns, loss, run, starts=4, resamples=400)
    band = expected.predict({"parameters": np.array([2e9, 2e8]), "tokens": np.array([4e10, 1e10])})
    ends = f"{band.estimate[0]:.7g} (95% interval {band.lower[0]:.7g} to {band.upper[0]:.7g})"
    assert f"loss at params 2000000000, tokens 4e+10: {ends}" in text
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())["predictions"]
    assert found[1]["variables"] == {"parameters": 2e8, "tokens": 1e10}
    assert found[1]["loss"]["value"] == pytest.approx(band.estimate[1], rel=1e-12)
    assert found[1]["loss"]["interval"] == pytest.approx([band.lower[1], band.upper[1]])
    assert "warning: N 2e+09 lies above the fitted sizes (5e+07 to 1e+09)" in text
    assert "warning: D 4e+10 lies beyond the fitted tokens (up to 2e+10)" in text


def test_a_budget_is_spent_as_the_closed_form_says(
    suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path
) -> None:
    code, text, err = suite_fit(runs_csv, *FEW, "--flops", "1e20", "--out", tmp_path / "fit")
    assert code == 0, err
    assert "best use of 1e+20 FLOPs, taking C = 6 N D: N " in text
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())
    value = {name: entry["value"] for name, entry in found["parameters"].items()}
    alpha, beta = value["alpha"], value["beta"]
    g = (alpha * value["A"] / (beta * value["B"])) ** (1 / (alpha + beta))
    spent = found["allocation"]
    n, d = spent["parameters"]["value"], spent["tokens"]["value"]
    assert n == pytest.approx(g * (1e20 / 6) ** (beta / (alpha + beta)), rel=1e-8)
    assert 6 * n * d == pytest.approx(1e20, rel=1e-12)
    loss = value["E"] + value["A"] / n**alpha + value["B"] / d**beta
    assert spent["loss"] == {"value": pytest.approx(loss, rel=1e-12), "interval": None,
                             "level": 0.95}  # fmt: skip
    assert (spent["costs"], spent["at_end"]) == ("C = 6 N D", False)


def test_what_was_not_asked_is_not_answered(
    suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path
) -> None:
    text = suite_fit(runs_csv, *FEW, "--out", tmp_path / "fit")[1]
    assert "best use" not in text
    assert "loss at" not in text
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert (found["predictions"], found["allocation"]) == ([], None)


@pytest.mark.parametrize(
    "bootstrap", [(), pytest.param(("--bootstrap", 400), marks=pytest.mark.slow)]
)
def test_an_answer_that_hangs_on_a_decay_that_nothing_tells_says_so(
    bootstrap: tuple[object, ...], suite_fit: SuiteFit, tmp_path: Path
) -> None:
    """Models that suit their data tell nothing of R_N."""
    tokens = np.geomspace(1e9, 3e10, 12)
    columns = {"parameters": np.full(12, 1e6), "tokens": tokens, "unique_tokens": tokens / 4}
    plain = {"E": 1.87, "A": 521.0, "alpha": 0.35, "B": 1488.0, "beta": 0.35}
    loss = DATA_CONSTRAINED.predict(plain | {"R_D": 15.4, "R_N": 5.3}, columns)
    pl.DataFrame({**columns, "loss": loss}).write_csv(tmp_path / "t.csv")
    fix = [word for name, value in plain.items() for word in ("--fix", f"{name}={value}")]
    sentence = "warning: the answer hangs on R_N, which the points do not identify"
    for n, said in (("1e6", False), ("1e12", True)):
        code, text, err = suite_fit(
            tmp_path / "t.csv", "--form", "data_constrained", "--starts", 2, *fix, *bootstrap,
            "--predict", f"parameters={n},tokens=4e9,unique_tokens=1e9",
        )  # fmt: skip
        assert code == 0, err
        assert (sentence in text) is said
        assert "hangs on R_D" not in text


@pytest.mark.parametrize("bootstrap", [(), ("--bootstrap", 150)])
def test_intervals_do_not_change_which_answers_hang_on_what_two_sizes_leave_open(
    bootstrap: tuple[object, ...], suite_fit: SuiteFit, tmp_path: Path
) -> None:
    tokens = np.geomspace(1e9, 3e10, 12)
    sizes, epochs = np.tile([1e6, 2e6], 6), np.tile([1, 4, 9], 4)
    columns = {"parameters": sizes, "tokens": tokens, "unique_tokens": tokens / epochs}
    law = {"E": 1.87, "A": 521.0, "alpha": 0.35, "B": 1488.0, "beta": 0.35, "R_D": 15.4, "R_N": 5.3}
    loss = DATA_CONSTRAINED.predict(law, columns)
    pl.DataFrame({**columns, "loss": loss}).write_csv(tmp_path / "t.csv")
    code, text, err = suite_fit(
        tmp_path / "t.csv", "--form", "data_constrained", "--starts", 2, *bootstrap,
        "--predict", "parameters=4e6,tokens=4e9,unique_tokens=4e9",
    )  # fmt: skip
    assert code == 0, err
    assert "warning: the answer hangs on A, alpha, which the points do not identify" in text


def test_a_point_is_named_by_column_name_or_letter() -> None:
    columns = {"parameters": "size", "tokens": "seen"}
    place = {"parameters": 1e9, "tokens": 1e12}
    for n, d in (("N", "D"), ("size", "D"), ("parameters", "seen")):
        asked = FitRequest(columns=columns, predict=({n: 1e9, d: 1e12},))
        assert asked.places(asked.law()) == (place,)
