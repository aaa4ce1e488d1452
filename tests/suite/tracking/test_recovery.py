from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from suite.tracking.curves import attempts_from_tags
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.recorder import RunRecorder
from suite.tracking.recovery import cut_off_runs, end_cut_off
from suite.tracking.store import Store, now_ms


@pytest.fixture
def store(home: Home) -> Store:
    return Store(home)


def begin(store: Store, study: str = "demo") -> RunRecorder:
    return RunRecorder.begin(store, study=study, name="n", kind="law", cell="0", run_id=None)


def leave_to(store: Store, recorder: RunRecorder, pid: int, started: float) -> None:
    """Make another process the one that works on a run."""
    _, tag = replace(recorder.attempt, pid=pid, process_started=started).to_tag()
    store.set_tags(recorder.run_id, {"suite.attempt.1": tag})


def test_a_run_whose_process_is_gone_ends_as_killed(store: Store) -> None:
    lost, finished, mine = begin(store), begin(store), begin(store)
    leave_to(store, lost, 2**22 + 1, 1.0)
    store.set_tags(lost.run_id, {"suite.heartbeat": str(lost.attempt.started + 7_000)})
    finished.end("FINISHED")
    reader = open_reader(store.home)
    found = cut_off_runs(reader, "demo")
    assert [run.run_id for run in found] == [lost.run_id]
    assert found[0].ended == lost.attempt.started + 7_000
    said: list[str] = []
    end_cut_off(found, lambda: store, said.append)
    run = store.client.get_run(lost.run_id)
    assert (run.info.status, run.info.end_time) == ("KILLED", lost.attempt.started + 7_000)
    (attempt,) = attempts_from_tags(run.data.tags)
    assert (attempt.outcome, attempt.ended) == ("CUT_OFF", lost.attempt.started + 7_000)
    assert said == [f"note    'n' was cut off; its run {lost.run_id} is no longer RUNNING"]
    assert cut_off_runs(reader, "demo") == []
    assert store.client.get_run(mine.run_id).info.status == "RUNNING", "this process lives"


def test_a_run_that_somebody_works_on_is_not_cut_off(store: Store) -> None:
    recorder = begin(store)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        leave_to(store, recorder, living.pid, psutil.Process(living.pid).create_time())
        assert cut_off_runs(open_reader(store.home), "demo") == []
        living.communicate()
    assert len(cut_off_runs(open_reader(store.home), "demo")) == 1


def test_a_run_without_an_attempt_is_given_time_to_record_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = store.create_run("demo", name="n", tags={"suite.kind": "law", "suite.cell": "0"})
    assert cut_off_runs(open_reader(store.home), "demo") == []
    monkeypatch.setattr("suite.tracking.recovery.now_ms", lambda: now_ms() + 301_000)
    (found,) = cut_off_runs(open_reader(store.home), "demo")
    assert (found.run_id, found.attempt) == (run_id, None)
    end_cut_off([found], lambda: store, lambda text: None)
    run = store.client.get_run(run_id)
    assert (run.info.status, run.info.end_time) == ("KILLED", run.info.start_time)


def test_a_run_that_ended_without_its_status_gets_it(store: Store) -> None:
    recorder = begin(store)
    _, tag = replace(recorder.attempt, ended=5, outcome="FAILED").to_tag()
    store.set_tags(recorder.run_id, {"suite.attempt.1": tag})
    (found,) = cut_off_runs(open_reader(store.home), "demo")
    assert found.attempt is not None
    assert (found.attempt.outcome, found.ended) == ("FAILED", 5)


def test_runs_that_the_suite_did_not_make_and_other_studies_are_left_alone(store: Store) -> None:
    store.create_run("demo", name="somebody's", tags={})
    other = begin(store, "other")
    leave_to(store, other, 2**22 + 1, 1.0)
    reader = open_reader(store.home)
    assert cut_off_runs(reader, "demo") == []
    assert [run.run_id for run in cut_off_runs(reader, None)] == [other.run_id]
