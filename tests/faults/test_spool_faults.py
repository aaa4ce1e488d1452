"""The spool when its home is copied, its process dies while it tidies, or others look on."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.errors import SuiteError
from suite.tracking.drain import RefusedError, drain, replay
from suite.tracking.home import Home
from suite.tracking.processes import HEARTBEAT_TAG, WorkingProcess, this_process
from suite.tracking.spool import End, Points, SpoolFile, SpoolWriter, spools
from suite.tracking.store import Store
from tests.faults.homes import (
    TRAINING,
    complaints,
    frames_of,
    own_store,
    repeatable,
    untrue_attempts,
    write_study,
)
from tests.faults.jobs import Preloaded, kill, said, until, wait
from tests.faults.server import begin

GONE = WorkingProcess(host=this_process().host, pid=2**22 + 1, started=1.0)


@pytest.fixture
def store(new_home: Callable[[str], Path]) -> Iterator[Store]:
    with contextlib.closing(Store(own_store(new_home("home")), patience=5.0)) as store:
        yield store


def writer_of(store: Store, owner: WorkingProcess = GONE) -> SpoolWriter:
    run_id = store.create_run("demo", name="n", tags={})
    return SpoolWriter(SpoolFile.of(store.home.spool, run_id, 1), owner)


def steps(store: Store, run_id: str) -> list[int]:
    return sorted(point.step for point in store.client.get_metric_history(run_id, "loss"))


class Died(BaseException):
    """The process is gone; nothing that would tidy up runs."""


@pytest.mark.parametrize("removed", range(5))
def test_who_dies_while_a_spool_is_removed_leaves_nothing_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    writer = writer_of(store)
    file = store.home.root / "basis.bin"
    file.write_bytes(b"basis")
    writer.append(Points(step=1, at=5, values={"loss": 1.0}))
    writer.keep(file, "basis")
    writer.append(End("FINISHED", 9))
    done = 0

    def dying(inner: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: object, *arguments: Any, **settings: Any) -> Any:
            nonlocal done
            if str(path).startswith(str(store.home.spool)):
                if done == removed:
                    raise Died
                done += 1
            return inner(path, *arguments, **settings)

        return act

    with monkeypatch.context() as mortal:
        mortal.setattr(Path, "unlink", dying(Path.unlink))
        mortal.setattr(shutil, "rmtree", dying(shutil.rmtree))
        with contextlib.suppress(Died):
            drain(writer.spool, store)
    notes: list[str] = []
    replay(store.home.spool, lambda: store, notes.append)
    assert list(store.home.spool.iterdir()) == []
    assert notes == []
    assert steps(store, writer.spool.run_id) == [1]
    run = store.run(writer.spool.run_id)
    assert (run.info.status, run.info.end_time) == ("FINISHED", 9)
    assert [path.read_bytes() for path in store.home.artifacts.rglob("basis.bin")] == [b"basis"]


def test_a_spool_that_is_being_opened_is_left_to_its_writer(store: Store) -> None:
    run_id = store.create_run("demo", name="n", tags={})
    spool = SpoolFile.of(store.home.spool, run_id, 1)

    class Slow(SpoolWriter):
        def _write(self, document: Any) -> None:
            if "owner" in document:  # another study of the home starts at this very moment
                replay(store.home.spool, lambda: store, lambda text: None)
            super()._write(document)

    writer = Slow(spool, this_process())
    writer.append(Points(step=1, at=5, values={"loss": 1.0}))
    writer.append(End("FINISHED", 9))
    drain(spool, store)
    assert steps(store, run_id) == [1]


def test_a_spool_without_a_first_line_is_tidied_up_once_it_is_old(store: Store) -> None:
    store.home.spool.mkdir()
    path = store.home.spool / f"{'a' * 32}.1.spool"
    path.touch()
    replay(store.home.spool, lambda: store, lambda text: None)
    assert path.exists(), "its writer may be about to write"
    os.utime(path, (1e9, 1e9))
    replay(store.home.spool, lambda: store, lambda text: None)
    assert list(store.home.spool.iterdir()) == []


def test_a_spool_that_is_set_aside_keeps_its_artifacts(store: Store) -> None:
    writer = writer_of(store)
    file = store.home.root / "basis.bin"
    file.write_bytes(b"basis")
    writer.append(Points(step=1, at=5, values={"loss": 1.0}))
    writer.keep(file, "basis")
    store.delete_run(writer.spool.run_id)
    with pytest.raises(RefusedError):
        drain(writer.spool, store)
    replay(store.home.spool, lambda: store, lambda text: None)
    aside = store.home.spool / "refused"
    assert [path.read_bytes() for path in aside.rglob("basis.bin")] == [b"basis"]
    assert spools(store.home.spool) == []


def test_a_spool_of_a_run_in_another_store_stays_for_that_store(
    store: Store, new_home: Callable[[str], Path]
) -> None:
    writer = writer_of(store)
    writer.append(Points(step=1, at=5, values={"loss": 1.0}))
    writer.append(End("FINISHED", 9))
    other = Store(
        Home(root=store.home.root, tracking_uri=own_store(new_home("other")).tracking_uri)
    )
    notes: list[str] = []
    assert replay(store.home.spool, lambda: other, notes.append) == 0
    (said_of_it,) = notes
    assert f"run {writer.spool.run_id} is not in this store" in said_of_it
    assert replay(store.home.spool, lambda: store, notes.append) == 1
    assert steps(store, writer.spool.run_id) == [1]


def test_a_run_is_not_gone_on_with_while_its_spool_may_still_grow(store: Store) -> None:
    """Or else the curve would have a gap, until somebody sends the rest."""
    first = begin(store, "demo")
    elsewhere = replace(first.attempt, host="elsewhere")
    spool = SpoolFile.of(store.home.spool, first.run_id, 1)
    first.log({"loss": 1.0}, 10)
    spool.path.write_bytes(
        spool.path.read_bytes().replace(this_process().host.encode(), b"elsewhere")
    )
    store.set_tags(first.run_id, dict([elsewhere.to_tag()]) | {HEARTBEAT_TAG: "1000"})
    with pytest.raises(SuiteError, match=r"on elsewhere may still work on run \w+"):
        begin(store, "demo", run_id=first.run_id)
    os.utime(spool.path, (1e9, 1e9))
    begin(store, "demo", run_id=first.run_id).end("FINISHED")
    assert steps(store, first.run_id) == [10]


@pytest.mark.slow
def test_a_home_that_is_copied_with_a_full_spool_goes_on_like_the_original(
    preloaded: Preloaded, new_home: Callable[[str], Path], tmp_path: Path
) -> None:
    study, home, pace = write_study(tmp_path, TRAINING), new_home("home"), tmp_path / "pace"
    pace.write_text("6_000")
    job = preloaded.start("run", study, "--home", str(home), faults={"pace": str(pace)})
    until(lambda: bool(list(home.glob("checkpoints/*/tokens-*4096.ckpt"))), what=lambda: said(job))
    assert kill(job, group=True)
    (spool,) = spools(home / "spool")
    waiting = spool.waiting()
    assert waiting > 16, "no companion has sent any of it"
    copy = tmp_path / "a copy, ünïcode 移動"
    shutil.copytree(home, copy, symlinks=True)
    for root in (home, copy):
        job = preloaded.run("run", study, "--home", str(root))
        assert job.code() == 0, said(job)
        assert f"sent {waiting} values of run {spool.run_id}" in said(job)
        runs, tags, _ = frames_of(root)
        assert untrue_attempts(runs, tags) == []
        assert list((root / "spool").iterdir()) == []
    assert complaints(copy, home) == []
    fresh = new_home("fresh")
    assert wait(preloaded.run("run", study, "--home", str(fresh))) == 0
    assert repeatable(home).equals(repeatable(fresh), null_equal=True)
