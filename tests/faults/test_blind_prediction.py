"""SIGKILL around a blind prediction: one prediction, still before the cells that it predicts."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.faults.homes import complaints, frames_of, write_study
from tests.faults.jobs import Preloaded, said, wait

STUDY = """
name: small
seed: 3
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 300}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: narrow, num_hidden_layers: 1, hidden_size: 16}
    - {name: wide, num_hidden_layers: 1, hidden_size: 32}
    - {name: wider, num_hidden_layers: 1, hidden_size: 48}
  recurrences: [1]
  tokens: 6_144
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 1_024
  optimizer: {warmup_tokens: 1_024}
law: {form: chinchilla, fit_from: 0.2, starts: 3, hold_out: {sizes: [wider]}, tests: [first]}
report: {panels: [loss_grid]}
"""
KILLS = {
    "its run is open, and nothing in it": ("suite.stages.blind:fit_law", "before", 1),
    "its points are on disk, and it has not ended": ("suite.stages.blind:_record", "after", 1),
    "it has ended, and no held-out cell has begun": ("suite.stages.blind:_predict", "after", 1),
    "a held-out cell has just begun": ("suite.tracking.recorder:RunRecorder.begin", "after", 1),
}


@pytest.fixture(scope="module")
def undisturbed(
    preloaded: Preloaded, blank_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("blind")
    study, home = write_study(folder, STUDY), folder / "home"
    home.mkdir()
    shutil.copyfile(blank_database, home / "mlflow.db")
    job = preloaded.run("run", study, "--home", str(home))
    assert job.code() == 0, said(job)
    return study, home


def test_kills_around_a_prediction_leave_one_that_is_blind(
    preloaded: Preloaded, undisturbed: tuple[str, Path], new_home: Callable[[str], Path]
) -> None:
    study, reference = undisturbed
    home = new_home("home")
    for moment, kill in KILLS.items():
        at = dict(zip(("at", "when", "call"), kill, strict=True))
        job = preloaded.start("run", study, "--home", str(home), faults={"kill": at})
        assert wait(job) == -signal.SIGKILL, f"{moment}: {said(job)}"
    job = preloaded.run("run", study, "--home", str(home))
    assert job.code() == 0, said(job)
    assert "blind" not in said(job)
    assert complaints(home, reference) == []
    runs, tags, curves = frames_of(home)
    prediction = runs.row(by_predicate=pl.col("kind") == "prediction", named=True)
    predicts = tags.filter(
        pl.col("run_id") == prediction["run_id"], pl.col("key").str.starts_with("suite.predicts.")
    )
    held_out = runs.filter(
        pl.col("kind") == "pretraining",
        pl.lit("suite.predicts.").add(pl.col("cell")).is_in(predicts["key"].to_list()),
    )
    assert held_out["name"].to_list() == ["pretrain wider Tm=1"]
    assert prediction["end_time"] < held_out["start_time"].item()
    first = curves.filter(pl.col("run_id") == held_out["run_id"].item())["timestamp"].min()
    assert isinstance(first, int)
    assert prediction["end_time"] < first
