from __future__ import annotations

import copy
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest

from suite.tracking.drain import RefusedError, drain, replay
from suite.tracking.home import Home
from suite.tracking.patience import TrackerAwayError
from suite.tracking.processes import WorkingProcess, this_process
from suite.tracking.spool import Artifact, End, Params, Points, SpoolFile, SpoolWriter, Tags
from suite.tracking.store import Store

GONE = WorkingProcess(host=this_process().host, pid=2**22 + 1, started=1.0)


@pytest.fixture
def store(home: Home) -> Store:
    return Store(home, patience=0.05)


def new_spool(store: Store, owner: WorkingProcess = GONE) -> SpoolWriter:
    run_id = store.create_run("demo", name="n", tags={})
    return SpoolWriter(SpoolFile.of(store.home.spool, run_id, 1), owner)


def history(store: Store, run_id: str, key: str = "loss") -> list[tuple[int, int, str]]:
    """Step, time and value of every point, as the store has them."""
    points = store.client.get_metric_history(run_id, key)
    return sorted((point.step, point.timestamp, repr(point.value)) for point in points)


def cut_after(store: Store, calls: int, lost: bool) -> Callable[..., Any]:
    """MLflow's ``log_batch`` that fails after some calls; ``lost``: having done its work."""
    log_batch, made = store.client.log_batch, 0

    def cut(*arguments: Any, **settings: Any) -> None:
        nonlocal made
        made += 1
        if made > calls:
            if lost:
                log_batch(*arguments, **settings)
            raise ConnectionError("cut")
        log_batch(*arguments, **settings)

    return cut


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("calls", range(6))
def test_whatever_was_cut_is_sent_once_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch, calls: int, lost: bool
) -> None:
    writer = new_spool(store)
    run_id = writer.spool.run_id
    for step in range(1_200):
        writer.append(Points(step=step, at=5_000 + step, values={"loss": step / 7, "rate": 1e-3}))
        if step == 700:
            writer.append(Tags({"half": "way"}))
    writer.append(Params({"late": "1"}))
    writer.append(End("FINISHED", 9_999))
    with monkeypatch.context() as away:
        away.setattr(store.client, "log_batch", cut_after(store, calls, lost))
        if calls < 5:  # two batches, the tag, the rest of the points, the parameter
            with pytest.raises(TrackerAwayError, match="cut"):
                drain(writer.spool, store)
    if writer.spool.path.exists():
        drain(writer.spool, store)
    assert history(store, run_id) == [(s, 5_000 + s, repr(s / 7)) for s in range(1_200)]
    assert len(history(store, run_id, "rate")) == 1_200
    run = store.client.get_run(run_id)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 9_999)
    assert (run.data.tags["half"], run.data.params["late"]) == ("way", "1")
    assert list(store.home.spool.iterdir()) == []


def test_sending_all_of_it_again_changes_nothing(store: Store) -> None:
    writer = new_spool(store)
    for step, value in enumerate([1.0, math.nan, math.inf, -math.inf, -0.0, 5e-324]):
        writer.append(Points(step=step, at=10, values={"loss": value}))
        writer.append(Points(step=step, at=10, values={"loss": value}))
    writer.append(Tags({"t": "v"}))
    writer.append(Params({"p": "v"}))
    drain(writer.spool, store)
    before = history(store, writer.spool.run_id)
    assert len(before) == 6
    writer.spool.mark_sent(0)
    drain(writer.spool, store)
    assert history(store, writer.spool.run_id) == before


def test_a_spool_goes_on_after_it_was_drained(store: Store) -> None:
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    drain(writer.spool, store)
    drain(writer.spool, store)
    writer.append(Points(step=2, at=2, values={"loss": 2.0}))
    drain(writer.spool, store)
    assert history(store, writer.spool.run_id) == [(1, 1, "1.0"), (2, 2, "2.0")]
    assert writer.spool.path.exists(), "its attempt has not ended"


def test_damaged_lines_are_kept_aside_and_the_rest_is_sent(store: Store) -> None:
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    with writer.spool.path.open("ab") as file:
        file.write(b"\0\0\0\n")
    writer.append(Points(step=2, at=2, values={"loss": 2.0}))
    writer.append(End("FAILED", 3))
    drain(writer.spool, store)
    assert [step for step, *_ in history(store, writer.spool.run_id)] == [1, 2]
    assert writer.spool.damaged.read_bytes() == b"\0\0\0\n"


def test_a_spool_that_another_home_has_overtaken_is_refused(store: Store) -> None:
    """On a shared server its late points would pass for those of the later attempt."""
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    shared = copy.copy(store)
    shared.home = replace(store.home, tracking_uri=f"{store.home.tracking_uri}?shared=1")
    assert not shared.home.owns_database
    store.set_tags(writer.spool.run_id, {"suite.attempts": "1"})
    drain(writer.spool, shared)
    store.set_tags(writer.spool.run_id, {"suite.attempts": "2"})
    writer.append(Points(step=2, at=2, values={"loss": 2.0}))
    with pytest.raises(RefusedError, match="attempt 2 has gone on in run"):
        drain(writer.spool, shared)
    assert len(history(store, writer.spool.run_id)) == 1


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "1/absent"])
def test_an_artifact_outside_the_spool_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    (store.home.root.parent / "secret").write_text("not for the tracker")
    writer = new_spool(store)
    writer.append(Artifact(name, ""))
    with pytest.raises(RefusedError, match="is not in"):
        drain(writer.spool, store)
    assert not list(store.home.artifacts.rglob("secret"))


def test_a_deleted_run_is_refused_for_good_and_its_spool_set_aside(store: Store) -> None:
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    run_id = writer.spool.run_id
    store.client.delete_run(run_id)
    with pytest.raises(RefusedError, match=f"refuses what run {run_id} has to say"):
        drain(writer.spool, store)
    said: list[str] = []
    content = writer.spool.path.read_bytes()
    assert replay(store.home.spool, lambda: store, said.append) == 0
    assert f"set aside in {store.home.spool / 'refused'}" in said[0]
    aside = store.home.spool / "refused" / writer.spool.path.name
    assert aside.read_bytes() == content
    assert replay(store.home.spool, lambda: store, said.append) == 0
    assert len(said) == 1, "said once"


def test_a_spool_of_a_living_process_is_left_to_it(store: Store) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        started = psutil.Process(living.pid).create_time()
        owner = WorkingProcess(host=GONE.host, pid=living.pid, started=started)
        writer = new_spool(store, owner)
        writer.append(Points(step=1, at=1, values={"loss": 1.0}))
        assert replay(store.home.spool, lambda: store, print) == 0
        assert history(store, writer.spool.run_id) == []
        living.communicate()
    assert replay(store.home.spool, lambda: store, lambda text: None) == 1
    assert len(history(store, writer.spool.run_id)) == 1
    assert not writer.spool.path.exists(), "nobody will append to it"


def test_nothing_to_send_opens_no_tracker(tmp_path: Path) -> None:
    def never() -> Store:
        raise AssertionError

    assert replay(tmp_path / "absent", never, print) == 0


def test_only_one_process_sends_a_spool_at_a_time(store: Store) -> None:
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 1.0}))
    with filelock.FileLock(str(writer.spool.lock)):
        with pytest.raises(TrackerAwayError, match="another process is still sending"):
            drain(writer.spool, store)
    drain(writer.spool, store)
    assert len(history(store, writer.spool.run_id)) == 1


def test_a_copy_of_a_home_sends_its_copy_of_the_spool(store: Store, tmp_path: Path) -> None:
    writer = new_spool(store)
    writer.append(Points(step=1, at=1, values={"loss": 0.1}))
    copied = Home.at(tmp_path / "copy of home")
    shutil.copytree(store.home.root, copied.root)
    other = Store(copied)
    for each in (store, other):
        replay(each.home.spool, lambda each=each: each, lambda text: None)  # type: ignore[misc]
        assert history(each, writer.spool.run_id) == [(1, 1, "0.1")]


def test_random_interruptions_neither_lose_nor_double_a_point(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    writer = new_spool(store)
    log_batch = store.client.log_batch

    def unreliable(*arguments: Any, **settings: Any) -> None:
        fate = chance.random()
        if fate < 0.3:
            raise ConnectionError("not sent")
        log_batch(*arguments, **settings)
        if fate < 0.6:
            raise ConnectionError("answer lost")

    monkeypatch.setattr(store.client, "log_batch", unreliable)
    store.patience = 0.0
    sent = 0
    for _ in range(30):
        for _ in range(chance.randrange(40)):
            writer.append(Points(step=sent, at=sent, values={"loss": float(sent)}))
            sent += 1
        try:
            drain(writer.spool, store)
        except TrackerAwayError:
            if chance.random() < 0.2:
                writer.spool.mark_sent(0)
    store.patience = 60.0
    drain(writer.spool, store)
    found = history(store, writer.spool.run_id)
    assert found == sorted((n, n, repr(float(n))) for n in range(sent))
