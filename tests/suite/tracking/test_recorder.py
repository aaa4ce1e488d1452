from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import suite.tracking.recorder
from suite.errors import SuiteError
from suite.tracking.curves import Attempt, attempts_from_tags
from suite.tracking.drain import replay
from suite.tracking.home import Home
from suite.tracking.patience import TrackerAwayError
from suite.tracking.reader import live, open_reader
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import DatasetRecord, Store

CORPUS = DatasetRecord(name="prose", digest="d", source="s", context="training", profile={"n": 1})


class Clock:
    """A wall clock that a test turns, in ms."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1_000_000)
    monkeypatch.setattr(suite.tracking.recorder, "now_ms", clock)
    return clock


@pytest.fixture
def store(home: Home) -> Store:
    return Store(home)


def begin(store: Store, run_id: str | None = None, **more: Any) -> RunRecorder:
    return RunRecorder.begin(
        store,
        study="demo",
        name="pretrain größe Tm=2",
        kind="pretraining",
        cell="0123456789abcdef",
        run_id=run_id,
        **{"settings": {"tokens": 100, "betas": (0.9, 0.95)}, "datasets": [CORPUS], **more},
    )


def tags_of(store: Store, run_id: str) -> dict[str, str]:
    return dict(store.client.get_run(run_id).data.tags)


def status_of(store: Store, run_id: str) -> str:
    return str(store.client.get_run(run_id).info.status)


def points(store: Store, run_id: str) -> list[tuple[int, float, int, bool]]:
    """Step, value, attempt and fate of every point."""
    curves = open_reader(store.home).curves([run_id])
    return curves.select("step", "value", "attempt", "superseded").rows()


def test_a_new_run_has_the_contract_tags_params_and_corpora(store: Store) -> None:
    recorder = begin(store, device="gpu x 8", parent="f" * 32)
    assert recorder.attempt == Attempt(
        number=1,
        started=recorder.attempt.started,
        resumed_from=-1,
        host=socket.gethostname(),
        pid=os.getpid(),
        device="gpu x 8",
        process_started=psutil.Process().create_time(),
    )
    run = store.client.get_run(recorder.run_id)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "pretrain größe Tm=2"
    assert run.data.params == {"tokens": "100", "betas": "[0.9, 0.95]"}
    assert (
        run.data.tags.items()
        >= {
            "suite.study": "demo",
            "suite.kind": "pretraining",
            "suite.cell": "0123456789abcdef",
            "suite.attempts": "1",
            "mlflow.parentRunId": "f" * 32,
        }.items()
    )
    assert "suite.version" in run.data.tags
    assert attempts_from_tags(run.data.tags) == (recorder.attempt,)
    assert run.inputs is not None
    assert [item.dataset.name for item in run.inputs.dataset_inputs] == ["prose"]


def test_going_on_is_a_second_attempt_in_the_same_run(store: Store) -> None:
    first = begin(store)
    first.log({"loss": 3.0}, 10)
    first.end("KILLED")
    assert status_of(store, first.run_id) == "KILLED"

    second = begin(store, first.run_id, resumed_from=10, settings={"tokens": 999}, datasets=[])
    assert second.run_id == first.run_id
    assert second.attempt.number == 2
    assert second.attempt.resumed_from == 10
    assert second.attempt.started > first.attempt.started
    assert status_of(store, first.run_id) == "RUNNING"
    assert tags_of(store, first.run_id)["suite.attempts"] == "2"
    # what was logged when the run was new stays as it was
    assert store.client.get_run(first.run_id).data.params["tokens"] == "100"
    assert len(open_reader(store.home).runs("demo")) == 1


def test_an_attempt_whose_process_is_gone_was_cut_off(store: Store) -> None:
    first = begin(store)
    first.log({"loss": 3.0}, 10)
    second = begin(store, first.run_id, resumed_from=10)
    second.log({"loss": 2.0}, 20)
    second.end("FINISHED")
    attempts = attempts_from_tags(tags_of(store, first.run_id))
    assert [(a.number, a.outcome) for a in attempts] == [(1, "CUT_OFF"), (2, "FINISHED")]
    assert attempts[0].ended is not None
    assert attempts[0].started <= attempts[0].ended < attempts[1].started
    assert points(store, first.run_id) == [(10, 3.0, 1, False), (20, 2.0, 2, False)]


def test_a_process_that_lives_keeps_its_run(store: Store) -> None:
    first = begin(store)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        started = psutil.Process(living.pid).create_time()
        _, tag = replace(first.attempt, pid=living.pid, process_started=started).to_tag()
        store.set_tags(first.run_id, {"suite.attempt.1": tag})
        with pytest.raises(SuiteError, match=f"process {living.pid} on .* works on run"):
            begin(store, first.run_id)
        living.communicate()
    assert begin(store, first.run_id).attempt.number == 2


@pytest.mark.parametrize(("silent_for", "lives"), [(299_000, True), (301_000, False)])
def test_a_process_on_another_machine_lives_while_its_heart_beats(
    store: Store, clock: Clock, silent_for: int, lives: bool
) -> None:
    first = begin(store)
    _, tag = replace(first.attempt, host="elsewhere").to_tag()
    store.set_tags(first.run_id, {"suite.attempt.1": tag})
    clock.now += silent_for
    if lives:
        with pytest.raises(SuiteError, match="on elsewhere works on run"):
            begin(store, first.run_id)
    else:
        begin(store, first.run_id)
        first_attempt, _ = attempts_from_tags(tags_of(store, first.run_id))
        assert (first_attempt.outcome, first_attempt.ended) == ("CUT_OFF", first.attempt.started)


def test_secrets_in_what_went_wrong_do_not_reach_the_store(store: Store) -> None:
    recorder = begin(store)
    said = "cannot reach postgresql://me:open-sesame@host/runs"
    recorder.end("FAILED", failure=said, traceback=f"Traceback\n{said}\n")
    kept = store.home.artifacts / "demo" / recorder.run_id / "artifacts" / "failures"
    masked = "cannot reach postgresql://me:***@host/runs"
    assert tags_of(store, recorder.run_id)["suite.failure"] == masked
    assert (kept / "attempt-1.txt").read_text() == f"Traceback\n{masked}\n"


def test_settings_outside_the_fingerprint_are_recorded_on_each_attempt(store: Store) -> None:
    first = begin(store, unfingerprinted={"devices": 1, "num_workers": 0})
    first.end("KILLED")
    begin(store, first.run_id, unfingerprinted={"devices": 8, "num_workers": 4}).end("FINISHED")
    attempts = attempts_from_tags(tags_of(store, first.run_id))
    assert [attempt.settings for attempt in attempts] == [
        {"devices": 1, "num_workers": 0},
        {"devices": 8, "num_workers": 4},
    ]


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_an_attempt_ends_with_its_status(store: Store, status: Any) -> None:
    recorder = begin(store)
    recorder.log({"loss": 1.0}, 10)
    recorder.end(status, failure="the loss became NaN" if status == "FAILED" else None)
    run = store.client.get_run(recorder.run_id)
    assert run.info.status == status
    assert run.info.end_time >= run.info.start_time
    (attempt,) = attempts_from_tags(run.data.tags)
    assert attempt.outcome == status
    assert attempt.ended is not None
    assert attempt.ended >= attempt.started
    assert ("suite.failure" in run.data.tags) == (status == "FAILED")
    assert points(store, recorder.run_id) == [(10, 1.0, 1, False)]


def test_a_run_that_goes_on_no_longer_tells_of_its_failure(store: Store) -> None:
    first = begin(store)
    first.end("FAILED", failure="x" * 100_000, traceback="Traceback ...")
    assert tags_of(store, first.run_id)["suite.failure"] == "x" * 5_000
    kept = store.home.artifacts / "demo" / first.run_id / "artifacts" / "failures"
    assert (kept / "attempt-1.txt").read_text() == "Traceback ..."
    begin(store, first.run_id).end("FINISHED")
    assert "suite.failure" not in tags_of(store, first.run_id)
    assert (kept / "attempt-1.txt").exists(), "what went wrong before is kept"


def test_a_rollback_supersedes_what_lies_above_the_checkpoint(store: Store) -> None:
    first = begin(store)
    for step in (10, 20, 30):
        first.log({"loss": float(step)}, step)
    first.flush()
    second = begin(store, first.run_id, resumed_from=20)
    second.log({"loss": -30.0}, 30)
    second.flush()
    assert points(store, first.run_id) == [
        (10, 10.0, 1, False),
        (20, 20.0, 1, False),
        (30, 30.0, 1, True),
        (30, -30.0, 2, False),
    ]
    reader = open_reader(store.home)
    assert live(reader.curves([first.run_id]))["value"].to_list() == [10.0, 20.0, -30.0]


def test_a_clock_that_goes_back_does_not_move_points_between_attempts(
    store: Store, clock: Clock
) -> None:
    first = begin(store)
    clock.now += 100
    first.log({"loss": 1.0}, 10)
    clock.now -= 50  # within an attempt, too
    first.log({"loss": 2.0}, 20)
    first.flush()

    clock.now -= 500_000
    second = begin(store, first.run_id, resumed_from=10)
    second.log({"loss": 3.0}, 20)
    second.flush()
    assert points(store, first.run_id) == [
        (10, 1.0, 1, False),
        (20, 2.0, 1, True),
        (20, 3.0, 2, False),
    ]


def test_a_clock_that_goes_back_after_a_rollback_that_was_cut_off(
    store: Store, clock: Clock
) -> None:
    """MLflow's latest metric is then the stale one at the greatest step, and older."""
    first = begin(store)
    clock.now += 10
    first.log({"loss": 1.0}, 50)
    first.log({"loss": 2.0}, 100)
    first.flush()
    clock.now += 10
    second = begin(store, first.run_id, resumed_from=50)
    clock.now += 500
    second.log({"loss": 3.0}, 60)
    second.flush()

    clock.now -= 400
    third = begin(store, first.run_id, resumed_from=50)
    third.log({"loss": 4.0}, 60)
    third.flush()
    assert points(store, first.run_id) == [
        (50, 1.0, 1, False),
        (60, 3.0, 2, True),
        (60, 4.0, 3, False),
        (100, 2.0, 1, True),
    ]


def test_attempts_start_one_after_another_whatever_the_clock_says(
    store: Store, clock: Clock
) -> None:
    first = begin(store)
    clock.now -= 100
    second = begin(store, first.run_id)
    third = begin(store, first.run_id)
    assert first.attempt.started < second.attempt.started < third.attempt.started


def test_starting_afresh_supersedes_all_of_the_earlier_attempt(store: Store, clock: Clock) -> None:
    first = begin(store)
    first.log({"loss": 1.0}, 0)
    first.flush()
    second = begin(store, first.run_id)
    second.log({"loss": 2.0}, 0)
    second.flush()
    assert points(store, first.run_id) == [(0, 1.0, 1, True), (0, 2.0, 2, False)]


def test_points_wait_for_a_flush(store: Store, clock: Clock) -> None:
    recorder = begin(store)
    recorder.log({"loss": 1.0, "rate": 2.0}, 10)
    assert points(store, recorder.run_id) == []
    recorder.flush()
    recorder.flush()
    assert points(store, recorder.run_id) == [(10, 1.0, 1, False), (10, 2.0, 1, False)]


def test_more_than_a_batch_is_sent_in_several(store: Store) -> None:
    recorder = begin(store)
    recorder.log({f"m{n}": float(n) for n in range(999)}, 10)
    recorder.log({f"m{n}": float(n) for n in range(2_502)}, 20)
    recorder.flush()
    assert len(points(store, recorder.run_id)) == 3_501


def test_an_outage_keeps_points_until_the_next_flush(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.patience = 0.05
    recorder = begin(store)
    recorder.log({"loss": 1.0}, 10)

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(store.client, "log_batch", fail)
        with pytest.raises(TrackerAwayError, match="the store is away"):
            recorder.flush()
    recorder.log({"loss": 2.0}, 20)
    recorder.flush()
    assert [step for step, *_ in points(store, recorder.run_id)] == [10, 20]


def test_an_end_that_could_not_be_sent_is_sent_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.patience = 0.05
    recorder = begin(store)
    recorder.log({"loss": 1.0}, 10)

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(store.client, "log_batch", fail)
        with pytest.raises(TrackerAwayError, match="is sent when the same command is run again"):
            recorder.end("FINISHED")
    assert status_of(store, recorder.run_id) == "RUNNING"
    said: list[str] = []
    assert replay(store.home.spool, lambda: store, said.append) == 1
    assert said == [f"note    sent 1 values of run {recorder.run_id} that had been left unsent"]
    assert status_of(store, recorder.run_id) == "FINISHED"
    assert points(store, recorder.run_id) == [(10, 1.0, 1, False)]
    assert [*store.home.spool.iterdir()] == []


def test_a_run_that_was_cut_off_while_it_began_gets_its_settings_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as cutting:
        cutting.setattr(store, "log_params", cut)
        with pytest.raises(KeyboardInterrupt):
            begin(store)
    run_id = open_reader(store.home).runs("demo")["run_id"].item()
    assert store.client.get_run(run_id).data.params == {}
    recorder = begin(store, run_id)
    run = store.client.get_run(run_id)
    assert recorder.attempt.number == 2
    assert run.data.params == {"tokens": "100", "betas": "[0.9, 0.95]"}
    assert run.inputs is not None
    assert len(run.inputs.dataset_inputs) == 1


def test_params_found_out_later_join_the_first(store: Store, tmp_path: Path) -> None:
    recorder = begin(store)
    recorder.log_params({"model": {"key_width": 64}, "long": "x" * 6_001})
    recorder.flush()
    assert store.client.get_run(recorder.run_id).data.params["model.key_width"] == "64"
    file = tmp_path / "basis.bin"
    file.write_bytes(b"basis")
    recorder.log_artifact(file, "basis")
    kept = store.home.artifacts / "demo" / recorder.run_id / "artifacts" / "basis" / "basis.bin"
    assert kept.read_bytes() == b"basis"
