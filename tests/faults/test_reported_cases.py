"""What people report of other trackers, where no other test has it yet."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from suite.progress import Advance, Display
from suite.runner import run_study
from suite.stopping import StopRequested
from suite.tracking.curves import attempts_from_tags
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

STUDY = """
name: tiny
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 300}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes: [{name: only, num_hidden_layers: 1, hidden_size: 16}]
  recurrences: [1]
  tokens: 8_192
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 512
  optimizer: {warmup_tokens: 1_024}
report: {panels: [loss_grid]}
"""


@pytest.fixture
def study(tmp_path: Path) -> str:
    file = tmp_path / "tiny.yaml"
    file.write_text(STUDY)
    return str(file)


class Interrupting(Display):
    """Sends this process a SIGTERM once a task has come far enough."""

    def __init__(self, at: int) -> None:
        super().__init__(Console(file=io.StringIO()))
        self._at = at

    @contextlib.contextmanager
    def task(self, description: str, total: int) -> Iterator[Advance]:
        with super().task(description, total) as advance:

            def watched(done: int, remark: str = "") -> None:
                advance(done, remark)
                if done >= self._at:
                    os.kill(os.getpid(), signal.SIGTERM)

            yield watched


def test_a_harmless_setting_may_change_when_a_cell_goes_on(study: str, tmp_path: Path) -> None:
    """A resume that dies because a worker count differs, or starts a new run."""
    home = Home.at(tmp_path / "home")
    with pytest.raises(StopRequested):
        run_study(study, home, display=Interrupting(3_000))
    changed = ["pretraining.trainer.num_workers=1", "pretraining.trainer.threads=1"]
    assert run_study(study, home, overrides=changed).failures == {}
    runs = open_reader(home).runs("tiny").filter(pl.col("kind") == "pretraining")
    assert runs["status"].to_list() == ["FINISHED"]
    tags = open_reader(home).tags(runs["run_id"].to_list())
    first, second = attempts_from_tags(dict(tags.select("key", "value").iter_rows()))
    assert (first.outcome, second.outcome) == ("KILLED", "FINISHED")
    assert (first.settings["num_workers"], second.settings["num_workers"]) == (0, 1)
    assert (first.settings["threads"], second.settings["threads"]) == (None, 1)
    assert second.resumed_from >= 3_000
    assert "precision" not in first.settings, "it decides the result, so it is a parameter"


@pytest.mark.slow
def test_the_working_directory_need_not_be_writable(study: str, tmp_path: Path) -> None:
    """Loggers and trainers that make folders wherever they are started."""
    command = [sys.executable, "-m", "suite.cli", "run", study, "--home", str(tmp_path / "home")]
    done = subprocess.run(
        command,
        cwd="/proc",  # where even root can make nothing
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        f"report: {tmp_path / 'home' / 'reports' / 'tiny' / 'index.html'}",
    ), done.stderr


def test_a_loss_that_became_nan_does_not_break_sorting(tmp_path: Path) -> None:
    """Run pages and comparisons that fail once one run holds a NaN."""
    store = Store(Home.at(tmp_path / "home"))
    ids = []
    for last in (2.0, float("nan"), 1.0, float("inf")):
        recorder = RunRecorder.begin(
            store, study="demo", name=f"{last}", kind="law", cell="0", run_id=None
        )
        recorder.log({"train/total_loss": 3.0}, 1)
        recorder.log({"train/total_loss": last}, 2)
        recorder.end("FINISHED")
        ids.append(recorder.run_id)
    for direction, finite in (("ASC", [ids[2], ids[0]]), ("DESC", [ids[0], ids[2]])):
        found = store.client.search_runs(
            [store.experiment("demo")], order_by=[f"metrics.`train/total_loss` {direction}"]
        )
        order = [run.info.run_id for run in found]
        assert len(order) == 4
        assert [run_id for run_id in order if run_id in finite] == finite
        assert order[-1] == ids[1], "NaN comes last either way"


def test_only_one_function_decides_which_points_are_live() -> None:
    """Laws, reports and searches drop superseded points with ``live``, and none by itself."""
    root = Path(__file__).parents[2]
    texts = {file: file.read_text() for file in root.glob("suite/**/*.py")}
    deciding = re.compile(r"col\(\"superseded\"\)|\[\"superseded\"\]")
    assert [file.name for file, text in texts.items() if deciding.search(text)] == ["curves.py"]
    consumers = [
        file
        for file, text in texts.items()
        if file.parent.name in {"laws", "reports", "stages"} and "reader.curves(" in text
    ]
    # the last looks in the store for whatever an earlier report showed, overtaken or not
    assert {file.name for file in consumers} == {
        "calibration.py",
        "law_points.py",
        "search.py",
        "tracked.py",
        "history.py",
    }
    for file in consumers:
        if file.name == "history.py":
            continue
        assert re.search(r"\blive\(", texts[file]), file
