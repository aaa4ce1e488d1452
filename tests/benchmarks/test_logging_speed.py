"""What logging costs the training thread, against Lightning's MLflow logger and in the demo."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import MLFlowLogger

from suite.runner import run_study
from suite.stages.context import StageContext
from suite.tracking.companion import Companion
from suite.tracking.home import Home
from suite.tracking.logger import TokenLogger
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

pytestmark = pytest.mark.benchmark

STEPS, METRICS = 2_000, 8
VALUES = {f"train/metric_{n}": 1.0 / (n + 3) for n in range(METRICS)}


def step() -> None:
    """Some milliseconds of work, as a small model's training step."""
    matrix = torch.full((256, 256), 0.5)
    for _ in range(6):
        matrix = torch.tanh(matrix @ matrix)


def train(log: Callable[[int], None]) -> tuple[float, float]:
    """Seconds of the whole loop, and of its calls of the logger."""
    logging = 0.0
    begun = time.perf_counter()
    for number in range(1, STEPS + 1):
        step()
        called = time.perf_counter()
        log(number)
        logging += time.perf_counter() - called
    return time.perf_counter() - begun, logging


def test_logging_is_cheaper_than_lightnings_logger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, _ = train(lambda number: None)

    theirs = MLFlowLogger(
        experiment_name="theirs", tracking_uri=f"sqlite:///{tmp_path / 'theirs.db'}"
    )
    theirs.log_metrics(VALUES, step=0)
    their_loop, their_calls = train(lambda number: theirs.log_metrics(VALUES, step=number))

    home = Home.at(tmp_path / "home")
    store = Store(home)
    store.companion = Companion(home, lambda text: None, after=0.0)
    recorder = RunRecorder.begin(
        store, study="ours", name="run", kind="pretraining", cell="0" * 16, run_id=None
    )
    ours = TokenLogger(recorder)
    our_loop, our_calls = train(lambda number: ours.log_metrics(VALUES, step=number))
    begun = time.perf_counter()
    recorder.end("FINISHED")
    end = time.perf_counter() - begun
    store.close()
    written = store.client.get_metric_history(recorder.run_id, "train/metric_7")
    assert len(written) == STEPS
    with capsys.disabled():
        print(f"\n{STEPS:,} steps x {METRICS} metrics on sqlite; bare loop {bare:.2f} s")
        print(f"{'':24}{'in calls':>10}{'loop - bare':>13}{'end':>8}   seconds")
        print(f"{'Lightning MLFlowLogger':24}{their_calls:10.3f}{their_loop - bare:13.3f}{0:8.3f}")
        print(f"{'TokenLogger':24}{our_calls:10.3f}{our_loop - bare:13.3f}{end:8.3f}")
        print(f"{'ratio':24}{their_calls / our_calls:10.0f}")
    assert our_calls <= their_calls / 20


@pytest.mark.timeout(1800)
def test_logging_takes_little_of_the_demos_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = {"log": 0.0, "sync": 0.0, "end": 0.0, "cell": 0.0}

    def timed(owner: type, name: str, what: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def measured(*arguments: Any, **settings: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*arguments, **settings)
            finally:
                spent[what] += time.perf_counter() - begun

        monkeypatch.setattr(owner, name, measured)

    timed(RunRecorder, "log", "log")
    timed(RunRecorder, "sync", "sync")
    timed(RunRecorder, "end", "end")
    timed(StageContext, "attempt", "cell")
    run_study(
        "demo",
        Home.at(tmp_path / "home"),
        overrides=[
            "law=null",
            "calibration=null",
            "searches=[]",
            "report.panels=[loss_grid]",
        ],
    )
    logging = spent["log"] + spent["sync"] + spent["end"]
    with capsys.disabled():
        print(
            f"\nthe demo's pretraining: {spent['cell']:.1f} s, of which logging "
            f"{spent['log']:.3f} s, syncing before checkpoints {spent['sync']:.3f} s, ends "
            f"{spent['end']:.3f} s: {logging / spent['cell']:.2%}"
        )
    assert logging <= 0.01 * spent["cell"]
