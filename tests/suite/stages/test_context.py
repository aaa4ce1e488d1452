"""Runs of cells: found again by fingerprint, gone on in, and ended truthfully."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from lightning_modules.pretraining import Diverged
from suite.cells import Cell
from suite.errors import InputError
from suite.materials import Materials
from suite.progress import Display
from suite.stages.context import SETTLED_TAG, StageContext, TrackedCell
from suite.stopping import StopFlag, StopRequested
from suite.study import CorpusSpec, Study
from suite.tracking.home import Home

CELL = Cell(
    kind="calibration",
    name="calibrate tiny",
    settings={"rank": 4, "model": {"identity": "x"}},
    labels={"model": {"label": "tiny"}},
)
OTHER = Cell(kind="calibration", name="calibrate other", settings={"rank": 5}, labels={})


def context_of(home: Home, *, name: str = "s") -> StageContext:
    study = Study(name=name, corpora={"c": CorpusSpec(source="embedded", path="pydocs")})
    return StageContext(
        study=study,
        home=home,
        materials=Materials(study, Path(), home),
        display=Display(Console(file=io.StringIO(), width=200)),
        stop=StopFlag(),
    )


@pytest.fixture
def context(home: Home) -> StageContext:
    return context_of(home)


def shown(context: StageContext) -> str:
    assert isinstance(context.display.console.file, io.StringIO)
    return context.display.console.file.getvalue()


def tags_of(context: StageContext, run_id: str) -> dict[str, str]:
    tags = context.reader.tags([run_id])
    return dict(zip(tags["key"].to_list(), tags["value"].to_list(), strict=True))


def run(
    context: StageContext, cell: Cell, work: Callable[[], None] = lambda: None, **settings: Any
) -> str:
    """One attempt at a cell, as a stage makes it; returns the run id."""
    tracked = context.tracked(cell.kind).get(cell.fingerprint)
    recorder = context.begin(cell, tracked, **settings)
    context.attempt(cell, recorder, work)
    return recorder.run_id


def fail(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_an_unknown_cell_is_not_tracked_and_a_finished_one_is_settled(
    context: StageContext,
) -> None:
    assert context.tracked("calibration") == {}
    run_id = run(context, CELL)
    assert context.tracked("calibration") == {
        CELL.fingerprint: TrackedCell(run_id=run_id, status="FINISHED", settled=True)
    }
    assert context.tracked("pretraining") == {}
    assert context.failures == {}


def test_cells_of_other_studies_are_not_this_ones(context: StageContext, home: Home) -> None:
    run(context_of(home, name="another"), CELL)
    assert context.tracked("calibration") == {}


def test_a_run_shows_its_cell_and_its_parameters(context: StageContext) -> None:
    parent = run(context, OTHER)
    run_id = run(context, CELL, parent=parent)
    row = context.reader.runs("s").filter(pl.col("run_id") == run_id).row(0, named=True)
    assert (row["name"], row["kind"], row["cell"], row["parent_run_id"]) == (
        "calibrate tiny",
        "calibration",
        CELL.fingerprint,
        parent,
    )
    params = context.reader.params([run_id])
    assert dict(zip(params["key"], params["value"], strict=True)) == {
        "rank": "4",
        "model.identity": "x",
        "model.label": "tiny",
    }


def test_a_later_attempt_goes_on_in_the_same_run(context: StageContext) -> None:
    first = context.begin(CELL, None)
    first.log({"a": 1.0, "b": 1.0}, 10)
    first.log({"a": 2.0}, 20)
    first.flush()  # and the process is lost: the run still says RUNNING
    tracked = context.tracked("calibration")[CELL.fingerprint]
    assert (tracked.status, tracked.settled) == ("RUNNING", False)
    second = context.begin(CELL, tracked, resumed_from=10)
    assert second.run_id == first.run_id
    context.attempt(CELL, second, lambda: second.log({"a": 3.0}, 20))
    points = context.reader.curves([first.run_id]).filter(~pl.col("superseded"))
    assert sorted(points.select("key", "step", "value").rows()) == [
        ("a", 10, 1.0),
        ("a", 20, 3.0),
        ("b", 10, 1.0),
    ]
    assert tags_of(context, first.run_id)["suite.attempts"] == "2"
    assert len(context.reader.runs("s")) == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            InputError("no such corpus", key="calibration.evaluate_on"),
            "calibration.evaluate_on: no",
        ),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
    ],
)
def test_a_failure_is_recorded_said_and_tried_again(
    context: StageContext, error: Exception, reason: str
) -> None:
    run_id = run(context, CELL, fail(error))
    assert [*context.failures] == ["calibrate tiny"]
    assert context.failures["calibrate tiny"].startswith(reason)
    assert f"FAILED  calibrate tiny: {reason}" in shown(context)
    tracked = context.tracked("calibration")[CELL.fingerprint]
    assert tracked == TrackedCell(
        run_id=run_id,
        status="FAILED",
        settled=False,
        failure=context.failures["calibrate tiny"],
    )
    tags = tags_of(context, run_id)
    assert tags["suite.failure"] == context.failures["calibrate tiny"]
    kept = context.home.artifacts / "s" / run_id / "artifacts" / "failures" / "attempt-1.txt"
    assert kept.read_text().startswith("Traceback")
    assert type(error).__name__ in kept.read_text()
    # The study goes on, and the next one tries the cell again, in its run.
    assert run(context, OTHER) != run_id
    assert run(context, CELL) == run_id
    assert context.tracked("calibration")[CELL.fingerprint].status == "FINISHED"


def test_a_failure_of_any_length_is_kept(context: StageContext) -> None:
    run_id = run(context, CELL, fail(RuntimeError("long " * 10_000)))
    assert tags_of(context, run_id)["suite.failure"].startswith("RuntimeError: long long")
    kept = context.home.artifacts / "s" / run_id / "artifacts" / "failures" / "attempt-1.txt"
    assert kept.read_text().count("long ") == 10_000


def test_a_cell_that_would_fail_again_is_settled(context: StageContext) -> None:
    run_id = run(context, CELL, fail(Diverged(float("nan"), 640)))
    assert context.failures == {"calibrate tiny": "the training loss became nan at 640 tokens"}
    tracked = context.tracked("calibration")[CELL.fingerprint]
    assert tracked == TrackedCell(
        run_id=run_id,
        status="FAILED",
        settled=True,
        failure="the training loss became nan at 640 tokens",
    )
    context.failures.clear()
    assert not context.needs_work(CELL, tracked)
    assert context.failures == {"calibrate tiny": "the training loss became nan at 640 tokens"}
    assert tags_of(context, run_id)[SETTLED_TAG] == "true"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (StopRequested(), StopRequested),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(1), KeyboardInterrupt),  # Lightning turns the one into the other
    ],
)
def test_a_stopped_cell_ends_as_killed_and_is_not_a_failure(
    context: StageContext, error: BaseException, raised: type[BaseException]
) -> None:
    recorder = context.begin(CELL, None)
    recorder.log({"a": 1.0}, 10)
    with pytest.raises(raised):
        context.attempt(CELL, recorder, fail(error))
    tracked = context.tracked("calibration")[CELL.fingerprint]
    assert tracked == TrackedCell(run_id=recorder.run_id, status="KILLED", settled=False)
    assert context.failures == {}
    assert context.reader.curves([recorder.run_id])["value"].to_list() == [1.0]


def test_work_that_was_done_when_the_signal_came_is_finished(context: StageContext) -> None:
    recorder = context.begin(CELL, None)
    assert context.attempt(CELL, recorder, lambda: setattr(context.stop, "requested", True))
    assert context.tracked("calibration")[CELL.fingerprint].settled
    with pytest.raises(StopRequested):
        context.stop.check()


def test_the_newest_run_of_a_cell_counts(context: StageContext) -> None:
    first = context.begin(CELL, None)
    first.end("FAILED", failure="something")
    second = context.begin(CELL, None)
    second.end("FINISHED")
    assert context.tracked("calibration")[CELL.fingerprint].run_id == second.run_id
    context.store.client.delete_run(second.run_id)
    assert context.tracked("calibration")[CELL.fingerprint].run_id == first.run_id


def test_asking_a_new_home_makes_its_store(tmp_path: Path) -> None:
    context = context_of(Home.at(tmp_path / "new"))
    assert context.tracked("calibration") == {}
    assert context.home.database.exists()


def test_looking_at_a_finished_study_does_not_load_mlflow(context: StageContext) -> None:
    run(context, CELL)
    program = f"""
import sys
from pathlib import Path
from suite.progress import Display
from suite.stages.context import StageContext
from suite.stopping import StopFlag
from suite.study import CorpusSpec, Study
from suite.tracking.home import Home
study = Study(name="s", corpora={{"c": CorpusSpec(source="embedded", path="pydocs")}})
context = StageContext(
    study=study, home=Home.at({str(context.home.root)!r}), materials=None, display=Display(),
    stop=StopFlag(),
)
assert context.tracked("calibration")[{CELL.fingerprint!r}].settled
print(sorted({{"mlflow", "torch"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_signal_sets_the_flag_and_the_boundary_raises(context: StageContext) -> None:
    def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        reached.append(True)
        context.stop.check()

    reached: list[bool] = []
    recorder = context.begin(CELL, None)
    with context.stop, pytest.raises(StopRequested):
        context.attempt(CELL, recorder, work)
    assert reached
    assert context.tracked("calibration")[CELL.fingerprint].status == "KILLED"
