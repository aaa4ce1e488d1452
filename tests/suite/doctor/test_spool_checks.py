from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from suite.tracking.processes import WorkingProcess, this_process
from suite.tracking.recorder import RunRecorder
from suite.tracking.spool import End, Points, SpoolFile, SpoolWriter
from suite.tracking.store import Store, now_ms


@pytest.fixture
def run_id(store: Store) -> str:
    return store.create_run("demo", name="n", tags={"suite.kind": "law", "suite.cell": "0"})


def test_what_a_process_has_left_unsent_is_sent_and_its_run_ended(
    store: Store,
    run_id: str,
    leave_spool: Callable[..., SpoolFile],
    gone: WorkingProcess,
    examine: Callable[..., Any],
) -> None:
    spool = leave_spool(run_id, 5)
    writer = SpoolWriter(spool, gone)
    writer.append(End("FINISHED", 9_000))
    found = examine(store.home).only("spool").finding
    assert (found.what, found.where) == (
        f"5 values of run {run_id} wait to be sent",
        (str(spool.path),),
    )
    mended = examine(store.home, fix=True)
    assert mended.only("spool").mended == "sent 5 values"
    assert mended.left == []
    history = store.client.get_metric_history(run_id, "loss")
    assert [(p.step, p.timestamp, p.value) for p in history] == [
        (step, 1_000 + step, step / 4) for step in range(5)
    ]
    run = store.client.get_run(run_id)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 9_000)
    assert list(store.home.spool.iterdir()) == []
    assert examine(store.home, fix=True).good("spool") == ["nothing waits for the tracker"]


def test_the_spool_of_a_process_that_works_is_left_alone(
    store: Store,
    begin: Callable[..., RunRecorder],
    leave_spool: Callable[..., SpoolFile],
    examine: Callable[..., Any],
) -> None:
    recorder = begin()
    (store.home.spool / f"{recorder.run_id}.1.spool").unlink()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        started = psutil.Process(living.pid).create_time()
        owner = WorkingProcess(host=this_process().host, pid=living.pid, started=started)
        spool = leave_spool(recorder.run_id, owner=owner)
        content = spool.path.read_bytes()
        found = examine(store.home, fix=True)
        assert found.good("spool") == [
            f"{owner} writes what run {recorder.run_id} has to say; it is left alone",
            "nothing waits for the tracker",
        ]
        assert spool.path.read_bytes() == content
        living.communicate()


def test_a_run_of_another_store_keeps_its_spool(
    store: Store, leave_spool: Callable[..., SpoolFile], examine: Callable[..., Any]
) -> None:
    spool = leave_spool("a" * 32)
    for _ in range(2):
        outcome = examine(store.home, fix=True).only("spool")
        assert outcome.left
        assert outcome.finding.mend is None
        assert outcome.finding.what == (
            f"3 values of run {'a' * 32} wait to be sent, but {store.home.tracking_uri} does not "
            "know the run"
        )
    assert spool.waiting() == 3


def test_what_a_deleted_run_had_to_say_is_set_aside_and_told_ever_after(
    store: Store,
    run_id: str,
    leave_spool: Callable[..., SpoolFile],
    examine: Callable[..., Any],
) -> None:
    content = leave_spool(run_id).path.read_bytes()
    store.client.delete_run(run_id)
    found = examine(store.home).only("spool").finding
    assert found.what == f"3 values of run {run_id} wait to be sent, but the run was deleted"
    mended = examine(store.home, fix=True)
    first, second = (o for o in mended["spool"] if o.finding.severity != "ok")
    aside = store.home.spool / "refused" / f"{run_id}.1.spool"
    assert first.mended is not None
    assert str(aside.parent) in first.mended
    assert (second.finding.severity, second.finding.what) == (
        "note",
        f"the tracker has refused 3 values of run {run_id}, which are set aside; the run was "
        "deleted",
    )
    assert aside.read_bytes() == content
    assert mended.left == []
    store.client.restore_run(run_id)
    outcome = examine(store.home, fix=True).only("spool")
    assert outcome.left
    aside.rename(store.home.spool / aside.name)
    assert examine(store.home, fix=True).only("spool").mended == "sent 3 values"
    assert len(store.client.get_metric_history(run_id, "loss")) == 3


def test_lines_that_cannot_be_read_are_counted_and_kept(
    store: Store,
    run_id: str,
    leave_spool: Callable[..., SpoolFile],
    gone: WorkingProcess,
    examine: Callable[..., Any],
) -> None:
    spool = leave_spool(run_id)
    with spool.path.open("ab") as file:
        file.write(b"\x00\x01\n{}\n")
    SpoolWriter(spool, gone).append(Points(step=9, at=now_ms(), values={"loss": 1.0}))
    found = examine(store.home).only("spool").finding
    assert found.what == (f"4 values of run {run_id} wait to be sent, and 2 line(s) cannot be read")
    mended = examine(store.home, fix=True)
    assert [o.mended for o in mended["spool"] if o.mended] == ["sent 4 values"]
    assert mended.left == [
        f"2 line(s) of a spool could not be read, so values of run {run_id} may be missing"
    ]
    (kept,) = store.home.spool.glob("*.damaged")
    assert kept.read_bytes() == b"\x00\x01\n{}\n"
    kept.unlink()
    assert examine(store.home, fix=True).left == []


def test_a_tracker_that_goes_away_in_between_leaves_the_spool(
    store: Store,
    run_id: str,
    leave_spool: Callable[..., SpoolFile],
    examine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = leave_spool(run_id)
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", "0")

    def away(*arguments: object, **settings: object) -> None:
        raise ConnectionError("cut")

    with monkeypatch.context() as patched:
        patched.setattr("mlflow.MlflowClient.log_batch", away)
        outcome = examine(store.home, fix=True).only("spool")
    assert outcome.left
    assert outcome.failed is not None
    assert "the tracker does not answer (cut)" in outcome.failed
    assert spool.waiting() == 3
    assert examine(store.home, fix=True).only("spool").mended == "sent 3 values"
