from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Metric, Param

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA
from suite.tables.tracked import tracked_table
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import Store

BATCH = 1_000_000
SIZES = {"small": 5e7, "middle": 2e8, "large": 1e9}


@pytest.fixture
def foreign(home: Home) -> Home:
    """Runs as somebody else may log them: steps of the optimiser, names of their own."""
    client = Store(home).client
    experiment = client.create_experiment("theirs")
    for name, size in SIZES.items():
        run_id = client.create_run(experiment, run_name=name).info.run_id
        metrics = []
        for step in (500, 1000, 4000, 16000):
            loss = 1.7 + 400 / size**0.34 + 900 / (step * BATCH) ** 0.32
            metrics += [Metric("eval/loss", loss, 1, step), Metric("seen", step * BATCH, 1, step)]
        metrics.append(Metric("grad", 0.5, 1, 77))
        params = [Param("model/size", str(int(size))), Param("batch", str(BATCH)),
                  Param("optimizer", "adamw")]  # fmt: skip
        client.log_batch(run_id, metrics=metrics, params=params)
        client.set_terminated(run_id, "FAILED" if name == "large" else "FINISHED")
    return home


def test_a_row_is_a_logged_loss_with_all_that_its_run_logged(foreign: Home) -> None:
    table = tracked_table(open_reader(foreign), "theirs", "eval/loss")
    assert table.columns == [
        "run_id", "name", "status", "kind", "step", "batch", "eval/loss", "model/size",
        "optimizer", "seen",
    ]  # fmt: skip
    assert len(table.frame) == 12
    small = table.frame.filter(name="small")
    assert small["step"].to_list() == [500, 1000, 4000, 16000]
    assert small["seen"].to_list() == [step * BATCH for step in small["step"]]
    assert small["model/size"].to_list() == [5e7] * 4
    assert small["optimizer"].to_list() == ["adamw"] * 4
    assert table.place(0).startswith("run ")
    assert table.place(0).endswith(" at step 500")


@pytest.mark.usefixtures("plain_figures")
@pytest.mark.parametrize("tokens", ["seen", "step*batch", f"step*{BATCH}"])
def test_runs_of_others_are_fitted_under_their_own_names(
    tokens: str, foreign: Home, suite_fit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, text, err = suite_fit(
        "--from-mlflow", "theirs", "--home", foreign.root, "--loss", "eval/loss",
        "--n", "model/size", "--d", tokens, "--starts", 4, "--out", tmp_path / "fit",
    )  # fmt: skip
    assert code == 0, err
    assert "12 fitted of 3 groups" in text
    n = np.repeat(list(SIZES.values()), 4)
    d = np.tile(np.array([500, 1000, 4000, 16000]) * float(BATCH), 3)
    columns = {"parameters": n, "tokens": d}
    expected = fit(CHINCHILLA, columns, 1.7 + 400 / n**0.34 + 900 / d**0.32, starts=4)
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())
    value = {name: entry["value"] for name, entry in found["parameters"].items()}
    assert value == pytest.approx(expected.parameters, rel=1e-6)
    assert found["table"]["sha256"] is None


def test_runs_that_have_not_finished_are_told(
    foreign: Home, suite_fit: Callable[..., tuple[int, str, str]]
) -> None:
    asked = ["--from-mlflow", "theirs", "--home", foreign.root, "--loss", "eval/loss"]
    asked += ["--n", "model/size", "--starts", 2]
    said = "warning: of 3 runs some have not finished (1 FAILED): leave them out with --where "
    assert said + "\"status == 'FINISHED'\"" in suite_fit(*asked)[1]
    assert "not finished" not in suite_fit(*asked, "--where", "status == 'FINISHED'")[1]


def test_runs_are_chosen_by_status(
    foreign: Home, suite_fit: Callable[..., tuple[int, str, str]]
) -> None:
    code, text, _ = suite_fit(
        "--from-mlflow", "theirs", "--home", foreign.root, "--loss", "eval/loss",
        "--n", "model/size", "--starts", 2, "--where", "status == 'FINISHED'",
    )  # fmt: skip
    assert code == 0
    assert "8 fitted of 2 groups" in text


def test_what_was_not_logged_is_told_what_was(foreign: Home) -> None:
    reader = open_reader(foreign)
    with pytest.raises(InputError, match="--from-mlflow: the store has no experiment 'ours'"):
        tracked_table(reader, "ours", "eval/loss")
    with pytest.raises(InputError, match="'loss'; they logged eval/loss, grad, seen"):
        tracked_table(reader, "theirs", "loss")


def test_metrics_that_are_called_as_columns_of_the_run_are_renamed(home: Home) -> None:
    client = Store(home).client
    experiment = client.create_experiment("clash")
    names = ("step", "run_id", "name", "status", "kind", "metric.step", "value", "key", "__row")
    run_id = client.create_run(experiment, run_name="one").info.run_id
    metrics = [Metric(name, 10.0 + at, 1, 5) for at, name in enumerate(names)]
    params = [Param("status", "a param"), Param("size", "7"), Param("__row", "8")]
    client.log_batch(run_id, metrics=[*metrics, Metric("loss", 2.0, 1, 5)], params=params)
    (row,) = tracked_table(open_reader(home), "clash", "loss").frame.rows(named=True)
    assert (row["run_id"], row["name"], row["step"], row["loss"]) == (run_id, "one", 5, 2.0)
    assert [row[f"metric.{name}"] for name in names[1:5]] == [11.0, 12.0, 13.0, 14.0]
    assert (row["metric.metric.step"], row["metric.step"]) == (10.0, 15.0)
    assert (row["value"], row["key"], row["metric.__row"]) == (16.0, 17.0, 18.0)
    assert (row["__row"], row["size"]) == (0, 7.0)
    with pytest.raises(InputError, match=r"the metric 'status' \(write metric.status\)"):
        tracked_table(open_reader(home), "clash", "status")
