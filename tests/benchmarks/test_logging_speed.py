"""What logging costs the training thread, against Lightning's own MLflow logger."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from suite.tracking.home import Home
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

pytestmark = pytest.mark.benchmark

STEPS, METRICS = 200, 8


def test_logging_is_cheaper_than_lightnings_logger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning.pytorch.loggers import MLFlowLogger

    values = {f"train/metric_{n}": float(n) for n in range(METRICS)}
    theirs = MLFlowLogger(
        experiment_name="theirs", tracking_uri=f"sqlite:///{tmp_path / 'theirs.db'}"
    )
    theirs.log_metrics(values, step=0)
    begun = time.perf_counter()
    for step in range(1, STEPS + 1):
        theirs.log_metrics(values, step=step)
    their_seconds = time.perf_counter() - begun

    home = Home.at(tmp_path / "home")
    recorder = RunRecorder.begin(
        Store(home), study="ours", name="run", kind="pretraining", cell="0" * 16, run_id=None
    )
    begun = time.perf_counter()
    for step in range(1, STEPS + 1):
        recorder.log(values, step)
    recorder.flush()
    our_seconds = time.perf_counter() - begun
    recorder.end("FINISHED")
    with capsys.disabled():
        print(
            f"\n{STEPS} steps x {METRICS} metrics on sqlite: MLFlowLogger {their_seconds:.2f} s, "
            f"RunRecorder {our_seconds:.3f} s, ratio {their_seconds / our_seconds:.0f}"
        )
