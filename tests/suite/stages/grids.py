"""A grid of pretraining cells whose curves are made up, for the stages that read them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from lightning_modules.schedule import PretrainingPlan
from suite.cells import Cell
from suite.materials import Materials
from suite.progress import Display
from suite.stages.context import StageContext, TrackedCell
from suite.stages.pretraining import run_held_out_pretraining, run_pretraining
from suite.stopping import StopFlag
from suite.study import SizeSpec
from suite.study_file import parse_study
from suite.tracking.curves import live
from suite.tracking.home import Home

STUDY = """
name: grid
corpora: {maths: {source: embedded, path: worked_math, max_documents: 40}}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: tiny, num_hidden_layers: 1, hidden_size: 16}
    - {name: small, num_hidden_layers: 1, hidden_size: 32}
    - {name: medium, num_hidden_layers: 1, hidden_size: 64}
    - {name: large, num_hidden_layers: 2, hidden_size: 96}
  recurrences: [1, 2, 4, 8]
  tokens: 15_200
  sequence_length: 32
  batch_size: 16
  evaluate_every: 4_000
law:
  form: parameters + tokens + rising recurrence
  fit_from: 0.1
  starts: 12
  resamples: 100
  test_starts: 4
  hold_out: {sizes: [large]}
report: {panels: [loss_grid]}
"""
TRUTH = {"E": 1.5, "A": 60.0, "alpha": 0.4, "B": 40.0, "beta": 0.5, "C": 0.6, "gamma": 0.8}
Array = np.ndarray[Any, np.dtype[np.float64]]


def true_loss(parameters: float, tokens: Array, recurrence: float) -> Array:
    """The law that the made-up curves follow, but for their noise."""
    return (
        TRUTH["E"]
        + TRUTH["A"] / parameters ** TRUTH["alpha"]
        + TRUTH["B"] / tokens ** TRUTH["beta"]
        + TRUTH["C"] / recurrence ** TRUTH["gamma"]
    )


def context_of(home: Home, *edits: str, text: str = STUDY) -> StageContext:
    study = parse_study(text, overrides=list(edits))
    return StageContext(
        study=study,
        home=home,
        materials=Materials(study, Path(), home),
        display=Display(Console(file=io.StringIO(), width=400)),
        stop=StopFlag(),
    )


def said(context: StageContext) -> str:
    assert isinstance(context.display.console.file, io.StringIO)
    return context.display.console.file.getvalue()


class FakeTraining:
    """Stands in for the training of a cell, and logs a made-up curve at the planned tokens.

    Args:
        noise: standard deviation of the log loss about the law: of a run, and of a point.
    """

    def __init__(self, noise: tuple[float, float] = (0.0, 0.0)) -> None:
        self._noise = noise
        self.trained: list[str] = []
        self.before: Callable[[Cell], None] = lambda cell: None
        """Called when the run of a cell has begun; what it raises ends the attempt."""

    def __call__(
        self,
        context: StageContext,
        windows: object,
        size: SizeSpec,
        recurrence: int,
        cell: Cell,
        tracked: TrackedCell | None,
        label: str,
    ) -> None:
        spec = context.study.pretraining
        assert spec is not None
        plan = PretrainingPlan.of(spec)
        recorder = context.begin(cell, tracked)
        context.display.note(f"start   {label}")

        def work() -> None:
            self.before(cell)
            counts = cell.labels["parameters"]
            assert isinstance(counts, dict)
            for key, every in (("train", plan.log_every), ("val", plan.evaluate_every)):
                tokens = np.array(plan.points(every), dtype=np.float64)
                random = np.random.default_rng(int(cell.fingerprint, 16))
                offset = self._noise[0] * random.standard_normal()
                scatter = self._noise[1] * random.standard_normal(len(tokens))
                factor = np.exp(offset + scatter)
                total = true_loss(counts["total"], tokens, recurrence) * factor
                at_step = {
                    f"{key}/loss_at_step/{step}": true_loss(counts["total"], tokens, step) * factor
                    for step in range(1, recurrence + 1)
                }
                for row, step in enumerate(tokens):
                    values = {name: float(loss[row]) for name, loss in at_step.items()}
                    recorder.log({f"{key}/total_loss": float(total[row]), **values}, int(step))

        if context.attempt(cell, recorder, work):
            self.trained.append(cell.name)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """Cells are trained by this, with a little noise."""
    fake = FakeTraining(noise=(0.004, 0.01))
    monkeypatch.setattr("suite.stages.pretraining._train", fake)
    return fake


@pytest.fixture(scope="module")
def fitted_cells(blank_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where all cells have finished but those that the law holds out."""
    root = tmp_path_factory.mktemp("grid") / "home"
    root.mkdir()
    shutil.copyfile(blank_database, root / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.stages.pretraining._train", FakeTraining(noise=(0.004, 0.01)))
        run_pretraining(context_of(own_store(root)))
    return root


@pytest.fixture(scope="module")
def all_cells(fitted_cells: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where all cells have finished, without a prediction."""
    root = tmp_path_factory.mktemp("grid") / "home"
    shutil.copytree(fitted_cells, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.stages.pretraining._train", FakeTraining(noise=(0.004, 0.01)))
        run_held_out_pretraining(context_of(own_store(root)))
    return root


def own_store(root: Path) -> Home:
    return Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")


def copied(home: Path, folder: Path) -> Home:
    """A home of one's own with what another holds."""
    shutil.copytree(home, folder / "home")
    return own_store(folder / "home")


def runs_of(context: StageContext, kind: str) -> list[Mapping[str, Any]]:
    """Runs of a kind, oldest first."""
    runs = context.reader.runs(context.study.name)
    return list(runs.filter(pl.col("kind") == kind).iter_rows(named=True))


def points_of(context: StageContext, run_id: str) -> dict[str, dict[int, float]]:
    """Live values of a run by key and step."""
    found: dict[str, dict[int, float]] = {}
    for row in live(context.reader.curves([run_id])).iter_rows(named=True):
        found.setdefault(row["key"], {})[row["step"]] = row["value"]
    return found


def tags_of(context: StageContext, run_id: str) -> dict[str, str]:
    return dict(context.reader.tags([run_id]).select("key", "value").iter_rows())


def params_of(context: StageContext, run_id: str) -> dict[str, str]:
    return dict(context.reader.params([run_id]).select("key", "value").iter_rows())
