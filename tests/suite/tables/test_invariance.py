"""What must not change the result of ``suite fit``: order, units, starts, threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

SuiteFit = Callable[..., tuple[int, str, str]]
Result = Callable[..., dict[str, Any]]
LIMIT = 1e-8

pytestmark = pytest.mark.usefixtures("plain_figures")


@pytest.fixture(scope="module")
def runs() -> pl.DataFrame:
    """Fifteen runs of five sizes: hardly any resample leaves a parameter open."""
    rng = np.random.default_rng(0)
    rows = [
        (f"{size}-{budget:g}", size, n, d, 1.7 + 400 / n**0.34 + 900 / d**0.32)
        for size, n in zip("ABCDE", np.geomspace(5e7, 5e9, 5), strict=True)
        for budget in (5e9, 1e10, 2e10)
        for d in np.geomspace(1e9, budget, 4)
    ]
    table = pl.DataFrame(rows, schema=["run", "size", "params", "tokens", "loss"], orient="row")
    return table.with_columns(loss=pl.col("loss") * np.exp(0.003 * rng.standard_normal(60)))


@pytest.fixture
def result(suite_fit: SuiteFit, tmp_path: Path) -> Result:
    """Writes a table and fits it; gives the JSON of the result."""

    def run(table: pl.DataFrame, *options: object) -> dict[str, Any]:
        table.write_csv(tmp_path / "t.csv", float_precision=17)
        code, _, err = suite_fit(tmp_path / "t.csv", *options, "--out", tmp_path / "fit")
        assert code == 0, err
        found: dict[str, Any] = json.loads((tmp_path / "fit" / "fit.json").read_text())
        return found

    return run


def numbers(found: dict[str, Any]) -> list[float]:
    """Objective, parameters, intervals where there are any, and predictions."""
    values = [found["objective"]]
    for entry in (*found["parameters"].values(), *(p["loss"] for p in found["predictions"])):
        values += [entry["value"], *(end for end in entry["interval"] or () if end is not None)]
    return values


ASKED = ("--n", "params", "--starts", 4, "--predict", "params=2e9,tokens=4e10")
OVER_RUNS = ("--group", "run", "--bootstrap", 130)


@pytest.mark.parametrize("options", [(), OVER_RUNS, ("--hold-out", "size=E", "--form", "tokens")])
def test_the_order_of_rows_changes_nothing(
    options: tuple[object, ...], result: Result, runs: pl.DataFrame
) -> None:
    asked = (*ASKED[:4], *options) if "--form" in options else (*ASKED, *options)
    plain = numbers(result(runs, *asked))
    for shuffled in (runs.reverse(), runs.sample(fraction=1, shuffle=True, seed=5)):
        assert numbers(result(shuffled, *asked)) == pytest.approx(plain, rel=LIMIT)


def test_names_of_runs_change_no_interval(result: Result, runs: pl.DataFrame) -> None:
    plain = numbers(result(runs, *ASKED, *OVER_RUNS))
    names = {name: f"run {20 - i}" for i, name in enumerate(runs["run"].unique().sort())}
    renamed = runs.with_columns(pl.col("run").replace(names))
    assert numbers(result(renamed, *ASKED, *OVER_RUNS)) == pytest.approx(plain, rel=LIMIT)


@pytest.mark.parametrize("options", [(), OVER_RUNS])
def test_tokens_in_billions_change_nothing_but_the_unit_of_b(
    options: tuple[object, ...], result: Result, runs: pl.DataFrame
) -> None:
    plain = result(runs, *ASKED, *options)
    in_billions = runs.with_columns(pl.col("tokens") / 1e9)
    place = ("--predict", "params=2e9,tokens*1e9=4e10")
    brought_back = result(in_billions, *ASKED[:4], "--d", "tokens*1e9", *place, *options)
    assert numbers(brought_back) == pytest.approx(numbers(plain), rel=LIMIT)
    scaled = result(in_billions, *ASKED[:4], "--predict", "params=2e9,tokens=40", *options)
    assert scaled["objective"] == pytest.approx(plain["objective"], rel=LIMIT)
    value = {name: entry["value"] for name, entry in scaled["parameters"].items()}
    value["B"] *= 1e9 ** value["beta"]
    expected = {name: entry["value"] for name, entry in plain["parameters"].items()}
    assert value == pytest.approx(expected, rel=LIMIT)
    del plain["parameters"]["B"], scaled["parameters"]["B"]
    assert numbers(scaled) == pytest.approx(numbers(plain), rel=LIMIT)


def test_more_starts_and_other_seeds_change_nothing(result: Result, runs: pl.DataFrame) -> None:
    """Starts that end at the optimum are copies of each other, however many there are."""
    plain = result(runs, *ASKED)
    for options in (("--starts", 1), ("--starts", 40), ("--seed", 11)):
        found = result(runs, *ASKED, *options)
        assert found["agreeing_share"] == 1.0
        assert numbers(found) == pytest.approx(numbers(plain), rel=LIMIT)


def test_threads_change_nothing(runs: pl.DataFrame, tmp_path: Path) -> None:
    runs.write_csv(tmp_path / "runs.csv")
    found = []
    for threads in ("1", "4"):
        out = tmp_path / threads
        program = (
            "import sys; import suite.tables.figures as figures; figures.draw = lambda _: {}; "
            "from suite.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        options = [str(part) for part in (*ASKED, *OVER_RUNS, "--out", out)]
        subprocess.run(
            [sys.executable, "-c", program, "fit", str(tmp_path / "runs.csv"), *options],
            env=os.environ
            | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            check=True,
        )
        found.append(numbers(json.loads((out / "fit.json").read_text())))
    assert len(found[0]) > 8
    np.testing.assert_allclose(found[1], found[0], rtol=LIMIT)
