"""Small studies with each kind of law, trained for real, from the command to the report."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from suite.cli import main
from suite.laws.kept import KeptLaw
from suite.tracking.curves import live
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

STUDY = """
name: small
seed: 3
corpora: {maths: {source: embedded, path: worked_math, max_documents: 300}}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: narrow, num_hidden_layers: 1, hidden_size: 16}
    - {name: wide, num_hidden_layers: 1, hidden_size: 32}
    - {name: wider, num_hidden_layers: 1, hidden_size: 48}
  recurrences: [1, 2]
  tokens: 6_144
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 1_024
  optimizer: {warmup_tokens: 1_024}
law: {fit_from: 0.2, starts: 8, test_starts: 4, hold_out: {sizes: [wider]}, tests: [first]}
"""
STEPS = "law.metric=train/loss_at_step"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "edits"),
    [
        ("recurrence_equivalence", []),
        ("parameters + tokens", ["law.metric=val/total_loss"]),
        ("looplm_stepwise", [STEPS, "pretraining.recurrences=[2]"]),
    ],
)
def test_a_study_predicts_its_held_out_cells_where_they_are_logged_later(
    form: str, edits: list[str], tmp_path: Path
) -> None:
    study, home = tmp_path / "small.yaml", tmp_path / "home"
    study.write_text(STUDY)
    settings = [part for edit in (f"law.form={form}", *edits) for part in ("--set", edit)]
    assert main(["run", str(study), "--home", str(home), *settings]) == 0
    reader = open_reader(Home.at(home))
    runs = reader.runs("small")
    assert set(runs["status"]) == {"FINISHED"}
    prediction, law = (
        runs.row(by_predicate=pl.col("kind") == kind, named=True) for kind in ("prediction", "law")
    )
    metric = reader.params([law["run_id"]]).filter(key="metric")["value"].item()
    held_out = runs.filter(pl.col("name").str.starts_with("pretrain wider"))
    points = live(reader.curves([prediction["run_id"], *held_out["run_id"]]))
    for cell, run_id in held_out.select("cell", "run_id").iter_rows():
        predicted = points.filter(run_id=prediction["run_id"], key=f"predicted/{cell}")
        logged = points.filter(run_id=run_id, key=metric).filter(pl.col("step") > 0)
        assert predicted["step"].to_list() == logged["step"].to_list() != []
        assert prediction["end_time"] < logged["timestamp"].min()
    kept = home / "artifacts" / "small" / law["run_id"] / "artifacts" / "law" / "fit.json"
    assert KeptLaw.from_json(kept.read_text()).form == form
    assert main(["verify", str(study), "--home", str(home), *settings]) == 0
