from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite.doctor.holders import read_holders
from suite.tracking.curves import attempts_from_tags
from suite.tracking.home import Home
from suite.tracking.processes import WorkingProcess, this_process
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store


def leave_to(store: Store, recorder: RunRecorder, process: WorkingProcess) -> None:
    """Make another process the one that works on a run."""
    _, tag = replace(
        recorder.attempt, host=process.host, pid=process.pid, process_started=process.started
    ).to_tag()
    store.set_tags(recorder.run_id, {"suite.attempt.1": tag})


def test_runs_whose_process_is_gone_are_ended_and_others_left_alone(
    store: Store,
    begin: Callable[..., RunRecorder],
    gone: WorkingProcess,
    examine: Callable[..., Any],
) -> None:
    lost = [begin(study=study, name=f"of {study}") for study in ("demo", "other")]
    mine = begin(name="mine")
    begin().end("FINISHED")
    for recorder in lost:
        recorder.set_tags({})
        leave_to(store, recorder, gone)
        (store.home.spool / f"{recorder.run_id}.1.spool").unlink()
    found = examine(store.home)
    assert [(o.finding.what, *o.finding.where) for o in found["cut-off runs"] if o.left] == [
        (f"'of {s}' says RUNNING, but its process is gone", f"run {r.run_id} of {s!r}")
        for s, r in zip(("demo", "other"), lost, strict=True)
    ]
    assert found.good("cut-off runs") == [
        f"{this_process()} works on 'mine', run {mine.run_id}; it is left alone"
    ]
    assert store.client.get_run(lost[0].run_id).info.status == "RUNNING"
    mended = examine(store.home, fix=True)
    assert [o.mended for o in mended["cut-off runs"] if o.finding.mend] == [
        "ended as KILLED, when it was last heard of"
    ] * 2
    for recorder in lost:
        run = store.client.get_run(recorder.run_id)
        assert (run.info.status, run.info.end_time) == ("KILLED", recorder.attempt.started)
        assert attempts_from_tags(run.data.tags)[0].outcome == "CUT_OFF"
    assert store.client.get_run(mine.run_id).info.status == "RUNNING"
    assert examine(store.home, fix=True).left == []


def test_a_cut_off_run_of_a_study_that_is_worked_on_is_left_to_it(
    store: Store,
    begin: Callable[..., RunRecorder],
    gone: WorkingProcess,
    examine: Callable[..., Any],
) -> None:
    recorder = begin()
    leave_to(store, recorder, gone)
    (store.home.spool / f"{recorder.run_id}.1.spool").unlink()
    with store.home.hold("demo"):
        outcome = examine(store.home, fix=True).only("cut-off runs")
    assert (outcome.finding.severity, outcome.mended) == ("note", None)
    assert store.client.get_run(recorder.run_id).info.status == "RUNNING"


def test_an_attempt_that_was_edited_is_an_error_that_names_the_tag(
    store: Store, begin: Callable[..., RunRecorder], examine: Callable[..., Any]
) -> None:
    store.set_tags(begin().run_id, {"suite.attempt.1": "edited"})
    finding = examine(store.home, fix=True).only("cut-off runs").finding
    assert finding.severity == "error"
    assert "the tag suite.attempt.1 does not describe an attempt: 'edited'" in finding.what


@pytest.fixture
def write_holder(home: Home) -> Callable[[str], Path]:
    def write(content: str) -> Path:
        locks = home.root / "locks"
        locks.mkdir(exist_ok=True)
        (locks / "demo.lock").touch()
        (locks / "demo.json").write_text(content)
        return locks / "demo.json"

    return write


def named(host: str, pid: int) -> str:
    return json.dumps({"host": host, "pid": pid})


HERE = this_process().host


@pytest.mark.parametrize(
    ("content", "alive", "who"),
    [
        (named(HERE, psutil.Process().pid), True, f"process {psutil.Process().pid} on {HERE}"),
        (named(HERE, 2**22 + 1), False, f"process {2**22 + 1} on {HERE}"),
        (named("elsewhere", 1), None, "process 1 on elsewhere"),
        ("", None, "a process that is not named"),
        ('{"host": "here"}', None, "a process that is not named"),
        ("[]", None, "a process that is not named"),
        ('{"host": "here", "pid": "x"}', None, "a process that is not named"),
    ],
    ids=["this process", "gone", "elsewhere", "empty", "no pid", "a list", "pid is a text"],
)
def test_who_holds_a_study(
    home: Home, write_holder: Callable[[str], Path], content: str, alive: bool | None, who: str
) -> None:
    path = write_holder(content)
    (holder,) = read_holders(home)
    assert (holder.study, holder.path, holder.alive, holder.who) == ("demo", path, alive, who)
    assert holder.may_work == (alive is not False)


def test_a_process_with_the_same_id_that_started_later_is_another(
    home: Home, write_holder: Callable[[str], Path], age: Callable[[Path], Path]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        age(write_holder(named(HERE, living.pid)))
        assert read_holders(home)[0].alive is False
        living.communicate()


@pytest.mark.parametrize("content", ["", named("elsewhere", 1), named(HERE, 2**22 + 1)])
def test_a_name_that_was_left_behind_is_removed_once_the_lock_is_free(
    home: Home,
    write_holder: Callable[[str], Path],
    examine: Callable[..., Any],
    content: str,
) -> None:
    path = write_holder(content)
    examine(home)
    assert path.read_text() == content
    assert examine(home, fix=True).only("studies at work").mended == "removed"
    assert not path.exists()
    assert examine(home, fix=True).good("studies at work") == ["nobody works in this home now"]
