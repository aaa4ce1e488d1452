"""A calibration run to its end: what it tracks, what it keeps, and how that is used."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from mlflow import MlflowClient
from torch import Tensor
from transformers import LlamaForCausalLM

import suite
from lightning_modules.kv import DEFINITIONS, KVCapture
from lightning_modules.kv import solve as solve_module
from suite.cli import main
from suite.corpora.byte_level import ByteTokenizer
from suite.errors import SuiteError
from suite.models import ModelSource
from suite.stages.calibration import WEIGHTS_TAG
from suite.tracking.curves import live
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.recorder import RunRecorder

STUDY = """
name: s
corpora:
  one: {source: files, path: one.jsonl, held_out: 0.4}
  two: {source: files, path: two.jsonl, held_out: 0.4}
calibration:
  models: [{path: model}]
  calibrate_on: [one]
  evaluate_on: [two, one]
  budgets: [100, 300]
  niter: [1, exact]
  rank: 6
  oversampling: 3
  intervals: 8
  sequence_length: 32
  batch_size: 4
  sinks: 3
  evaluation_tokens: 250
  trainer: {accelerator: cpu}
searches:
  - name: quick
    over: {niter: [0, exact], tokens: [100, 300], rank: [2, 4]}
    objectives: [key/relative_error, calibration_seconds]
    trials: 4
"""

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
EXAMPLE = README.split("```python\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def ran(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, pl.DataFrame]:
    """The home of a study that has run, and its calibration runs."""
    home = tmp_path_factory.mktemp("home")
    (base / "s.yaml").write_text(STUDY)
    assert main(["run", str(base / "s.yaml"), "--home", str(home)]) == 0
    place = Home.at(home)
    runs = open_reader(place).runs("s").filter(pl.col("kind") == "calibration")
    assert runs.height == 2
    return place, runs


def artifacts(home: Home, run_id: str) -> Path:
    [found] = home.artifacts.rglob(f"{run_id}/artifacts")
    return found


def newest_values(home: Home, run_id: str, step: int) -> dict[str, float]:
    points = open_reader(home).curves([run_id]).filter(pl.col("step") == step)
    return dict(points.select("key", "value").iter_rows())


def evaluation_rows(base: Path, corpus: str, count: int) -> dict[str, Tensor]:
    """Held-out rows by hand, from the cache's own definition, sequence by sequence."""
    from suite.corpora import Cut, Part, load_corpus, select_documents
    from suite.study import CorpusSpec, DocumentsSpec

    spec = CorpusSpec(source="files", path=f"{corpus}.jsonl", held_out=0.4)
    documents = load_corpus(corpus, spec, base=base).side("held_out")
    how = Cut(sequence_length=32, sinks=3)
    part = Part(name=corpus, documents=documents, weight=1.0)
    model = LlamaForCausalLM.from_pretrained(base / "model")
    rows: dict[str, list[Tensor]] = {"key": [], "value": []}
    with KVCapture(model) as capture:
        for document in select_documents([part], ByteTokenizer(), DocumentsSpec(), how, seed=0):
            for piece in document:
                captured = capture.capture(torch.from_numpy(piece)[None])
                rows["key"].append(captured.keys[0, 3:])
                rows["value"].append(captured.values[0, 3:])
    return {kind: torch.cat(parts)[:count] for kind, parts in rows.items()}


def test_kept_bases_have_the_tracked_errors_on_rows_computed_anew(
    ran: tuple[Home, pl.DataFrame], base: Path
) -> None:
    home, runs = ran
    for run_id in runs["run_id"]:
        values = newest_values(home, run_id, 300)
        for corpus in ("one", "two"):
            rows = evaluation_rows(base, corpus, 250)
            for kind in ("key", "value"):
                file = artifacts(home, run_id) / "basis" / f"{kind}.safetensors"
                basis = suite.load_basis(file)
                assert basis.kind == kind
                assert [entry.layer for entry in basis.layout] == [0, 1]
                assert basis.about["tokens"] == "300"
                for name, error in basis.error(rows[kind]).items():
                    # padding changes the last digits of single-precision activations
                    assert values[f"{kind}/{name}/{corpus}"] == pytest.approx(error, rel=1e-5)
                for rank in range(1, 7):
                    assert values[f"{kind}/relative_error/{corpus}/rank_{rank}"] == pytest.approx(
                        basis.error(rows[kind], rank)["relative_error"], rel=1e-5
                    )


def test_every_run_tells_which_way_its_rows_were_captured(
    ran: tuple[Home, pl.DataFrame],
) -> None:
    home, runs = ran
    params = open_reader(home).params(runs["run_id"].to_list())
    routes = params.filter(pl.col("key") == "capture.route")
    assert sorted(routes["run_id"]) == sorted(runs["run_id"])
    assert routes["value"].unique().to_list() == ["hooks: LlamaAttention k_proj, v_proj"]


@pytest.mark.parametrize("met", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_cell_that_was_cut_off_goes_on_from_the_budgets_that_it_has_met(
    met: int, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "cut.yaml").write_text(STUDY.split("searches:")[0])
    budgets = [60, 100, 300]
    command = ["run", str(base / "cut.yaml"), "--set", "calibration.niter=[1]"]
    command += ["--set", f"calibration.budgets={budgets}"]
    assert main([*command, "--home", str(tmp_path / "whole")]) == 0
    solve, solved = solve_module.calibrate, []

    def counted(moments: Any, **settings: Any) -> Any:
        solved.append(moments.key.count)
        return solve(moments, **settings)

    def cut_off(moments: Any, **settings: Any) -> Any:
        if len(solved) == met:
            raise SuiteError("cut off")
        return counted(moments, **settings)

    monkeypatch.setattr(solve_module, "calibrate", cut_off)
    assert main([*command, "--home", str(tmp_path / "cut")]) == 1
    assert solved == budgets[:met]
    solved.clear()
    monkeypatch.setattr(solve_module, "calibrate", counted)
    assert main([*command, "--home", str(tmp_path / "cut")]) == 0
    assert solved == budgets[met:]
    curves = []
    for name in ("whole", "cut"):
        reader = open_reader(Home.at(tmp_path / name))
        [run_id] = reader.runs("s").filter(pl.col("kind") == "calibration")["run_id"]
        points = live(reader.curves([run_id])).filter(~pl.col("key").str.contains("second"))
        curves.append(points.select("key", "step", "value").sort("key", "step"))
        errors = artifacts(Home.at(tmp_path / name), run_id) / "errors"
        assert len(list(errors.glob("curve-*.json"))) == len(budgets)
    assert curves[0].equals(curves[1])


def test_a_budget_without_its_tables_is_not_met(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "cut.yaml").write_text(STUDY.split("searches:")[0])
    command = ["run", str(base / "cut.yaml"), "--set", "calibration.niter=[1]"]
    command += ["--set", "calibration.budgets=[60, 100, 300]", "--home", str(tmp_path)]
    keep = RunRecorder.keep_text

    def cut_off(recorder: RunRecorder, folder: str, name: str, content: bytes) -> None:
        if name == "curve-100.json":
            raise SuiteError("cut off")
        keep(recorder, folder, name, content)

    monkeypatch.setattr(RunRecorder, "keep_text", cut_off)
    assert main(command) == 1
    monkeypatch.setattr(RunRecorder, "keep_text", keep)
    assert main(command) == 0
    [run_id] = (
        open_reader(Home.at(tmp_path)).runs("s").filter(pl.col("kind") == "calibration")["run_id"]
    )
    tables = artifacts(Home.at(tmp_path), run_id) / "errors"
    assert sorted(path.name for path in tables.glob("curve-*")) == [
        f"curve-{budget}.json" for budget in (100, 300, 60)
    ]


def test_errors_of_other_weights_are_not_gone_on_from(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell of the study that was trained anew has the fingerprint of the old one."""
    (base / "again.yaml").write_text(STUDY.split("searches:")[0])
    command = ["run", str(base / "again.yaml"), "--set", "calibration.niter=[1]"]
    command += ["--home", str(tmp_path)]
    assert main(command) == 0
    solve, solved = solve_module.calibrate, []

    def counted(moments: Any, **settings: Any) -> Any:
        solved.append(moments.key.count)
        return solve(moments, **settings)

    monkeypatch.setattr(solve_module, "calibrate", counted)
    assert main(command) == 0
    assert not solved
    home = Home.at(tmp_path)
    client = MlflowClient(tracking_uri=home.tracking_uri)
    [run_id] = open_reader(home).runs("s").filter(pl.col("kind") == "calibration")["run_id"]
    client.set_tag(run_id, WEIGHTS_TAG, "others")
    assert main(command) == 0
    assert solved == [100, 300]
    assert client.get_run(run_id).data.tags[WEIGHTS_TAG] != "others"
    assert main(command) == 0
    assert solved == [100, 300]


def test_more_components_than_tokens_are_a_warning_and_the_basis_is_what_they_allow(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base / "few.yaml").write_text(STUDY.split("searches:")[0].replace("intervals: 8", ""))
    edits = ["calibration.budgets=[5, 6, 40]", "calibration.niter=[1]"]
    arguments = [argument for edit in edits for argument in ("--set", edit)]
    assert main(["run", str(base / "few.yaml"), "--home", str(tmp_path), *arguments]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "warning: calibration.rank is 6, more than 6 tokens allow" in said
    home = Home.at(tmp_path)
    reader = open_reader(home)
    [run_id] = reader.runs("s").filter(pl.col("kind") == "calibration")["run_id"]
    ranks = reader.curves([run_id], ["calibration/rank"]).sort("step")
    assert ranks["value"].to_list() == [4, 5, 6]
    caption = " ".join((home.reports / "s" / "index.html").read_text().split())
    assert "Up to 6 tokens are fewer than that rank needs" in caption


def test_intervals_are_tracked_and_hold_the_figure(ran: tuple[Home, pl.DataFrame]) -> None:
    home, runs = ran
    for run_id in runs["run_id"]:
        for budget in (100, 300):
            values = newest_values(home, run_id, budget)
            for name in ("key/relative_error/two", "value/relative_error/one"):
                low, high = values[f"{name}/lower"], values[f"{name}/upper"]
                assert 0 < low < values[name] < high < 1
                # rows and moments know the same figure
                assert (low + high) / 2 == pytest.approx(values[name], rel=1e-6)


def test_curves_and_layers_are_kept_for_every_budget(ran: tuple[Home, pl.DataFrame]) -> None:
    home, runs = ran
    for run_id in runs["run_id"]:
        folder = artifacts(home, run_id) / "errors"
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{name}-{budget}.json" for name in ("by_layer", "curve") for budget in (100, 300)
        ]
        values = newest_values(home, run_id, 300)
        curve: dict[str, Any] = json.loads((folder / "curve-300.json").read_text())
        layers: dict[str, Any] = json.loads((folder / "by_layer-300.json").read_text())
        for kind in ("key", "value"):
            for corpus in ("one", "two"):
                for name in DEFINITIONS:
                    assert curve[kind][corpus][name][-1] == values[f"{kind}/{name}/{corpus}"]
                found = layers[kind][corpus]["layers"]
                assert [layer["layer"] for layer in found] == [0, 1]
                assert all(len(layer["heads"]) == 1 for layer in found)


def test_trials_are_solved_from_cached_moments(
    ran: tuple[Home, pl.DataFrame], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four more trials load no model; what they report is a calibration from scratch."""
    home, _ = ran
    monkeypatch.setattr(ModelSource, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    more = ["--set", "searches[0].trials=8"]
    assert main(["run", str(base / "s.yaml"), "--home", str(home.root), *more]) == 0
    reader = open_reader(home)
    trials = reader.runs("s").filter(pl.col("kind") == "trial")
    assert trials.height == 8
    curves = reader.curves(trials["run_id"].to_list(), ["objective/calibration_seconds"])
    [folder] = {path.parent for path in home.cache.rglob("tokens-300.safetensors")}
    for tokens in (100, 300):
        from lightning_modules.kv.pair import StoredPair

        passed = StoredPair.open(folder / f"tokens-{tokens}.safetensors").seconds
        seconds = curves.filter(pl.col("step") == tokens)["value"]
        assert seconds.len() == 4
        assert passed > 0
        assert all(value > passed for value in seconds)


@pytest.mark.slow
def test_rows_are_kept_only_where_intervals_ask_for_them(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*settings: str) -> list[str]:
        arguments = ["run", str(base / "s.yaml"), "--home", str(tmp_path)]
        for setting in ("calibration.niter=[1]", "searches=[]", *settings):
            arguments += ["--set", setting]
        assert main(arguments) == 0
        return sorted(path.name for path in (tmp_path / "cache").rglob("*-rows.safetensors"))

    assert run("calibration.intervals=0") == []
    kinds = ["tokens-250.key-rows.safetensors", "tokens-250.value-rows.safetensors"]
    assert run("calibration.intervals=8") == sorted(kinds * 2)
    # other groups, another rank: from what is there
    monkeypatch.setattr(ModelSource, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    assert run("calibration.intervals=5", "calibration.rank=4") == sorted(kinds * 2)


def test_evaluation_tokens_of_one_document_have_no_interval(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(base / "s.yaml"), "--home", str(tmp_path)]
    for setting in ("calibration.evaluation_tokens=2", "searches=[]"):
        arguments += ["--set", setting]
    assert main(arguments) != 0
    said = "".join(capsys.readouterr()).replace("\n", " ")
    assert "calibration.intervals: got 8" in " ".join(said.split())
    assert not [*tmp_path.rglob("tokens-*.safetensors")]


def test_the_readme_example_runs_on_a_real_cache(
    ran: tuple[Home, pl.DataFrame], base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, runs = ran
    scope: dict[str, Any] = {
        "MODEL": base / "model",
        "TEXT": "abc dead cab fade gag beef",
        "ARTIFACTS": artifacts(home, runs["run_id"][0]),
    }
    exec(EXAMPLE, scope)
    assert scope["coefficients"].shape == (26, 4)
    left = scope["rows"] - scope["restored"]
    error = float(left.detach().double().norm() / scope["rows"].detach().double().norm())
    first, second = capsys.readouterr().out.strip().splitlines()
    assert float(second) == pytest.approx(error, rel=1e-6)
    assert 0 < error < 1
    assert all(math.isfinite(value) for value in ast.literal_eval(first).values())
