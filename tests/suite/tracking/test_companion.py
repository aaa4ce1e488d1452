from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from suite.tracking.companion import Companion
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.recorder import RunRecorder
from suite.tracking.spool import spools
from suite.tracking.store import Store

WORKER = """
import sys, time
from suite.tracking.home import Home
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store
from suite.tracking.companion import Companion

store = Store(Home.at(sys.argv[1]))
store.companion = Companion(store.home, print, after=0.0)
recorder = RunRecorder.begin(store, study="demo", name="n", kind="law", cell="0", run_id=None)
print(recorder.run_id, flush=True)
for step in range(500):
    recorder.log({"loss": step / 3}, step)
sys.stdin.readline()
recorder.end("FINISHED")
store.close()
"""


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def begin(store: Store) -> RunRecorder:
    return RunRecorder.begin(store, study="demo", name="n", kind="law", cell="0", run_id=None)


def companions(home: Home) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if {"suite.tracking.companion", str(home.root)} <= set(child.cmdline())
    ]


def test_points_arrive_while_the_work_goes_on_and_the_companion_goes_with_it(home: Home) -> None:
    store = Store(home)
    store.companion = Companion(home, print, after=0.0)
    recorder = begin(store)
    recorder.log({"loss": 0.5}, 10)
    reader = open_reader(home)
    until(lambda: not reader.curves([recorder.run_id]).is_empty())
    (companion,) = companions(home)
    recorder.log({"loss": 0.25}, 20)
    recorder.end("FINISHED")
    store.close()
    assert not companion.is_running()
    curves = reader.curves([recorder.run_id])
    assert curves.select("step", "value").rows() == [(10, 0.5), (20, 0.25)]
    assert reader.runs("demo")["status"].to_list() == ["FINISHED"]


def test_a_short_attempt_starts_no_companion(home: Home) -> None:
    store = Store(home)
    begin(store).end("FINISHED")
    assert companions(home) == []
    store.close()


def test_signals_are_for_the_worker(home: Home) -> None:
    store = Store(home)
    store.companion = Companion(home, print, after=0.0)
    recorder = begin(store)
    recorder.log({"loss": 0.5}, 10)
    reader = open_reader(home)
    until(lambda: not reader.curves([recorder.run_id]).is_empty())
    (companion,) = companions(home)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        companion.send_signal(number)
    recorder.log({"loss": 0.25}, 20)
    until(lambda: reader.curves([recorder.run_id]).height == 2)
    recorder.end("FINISHED")
    store.close()


def test_what_a_killed_worker_has_logged_arrives_without_it(home: Home, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        run_id = worker.stdout.readline().strip()
        process = psutil.Process(worker.pid)
        until(lambda: bool(process.children()))
        (spool,) = spools(home.spool)
        until(lambda: spool.waiting() == 500)
        (companion,) = process.children()
        worker.kill()
    reader = open_reader(home)
    until(lambda: not companion.is_running() or companion.status() == psutil.STATUS_ZOMBIE)
    points = reader.curves([run_id]).filter(reader.curves([run_id])["key"] == "loss")
    assert points["value"].to_list() == [step / 3 for step in range(500)]
    assert reader.runs("demo")["status"].to_list() == ["RUNNING"], "for the next run to find"
    assert os.listdir(home.spool), "and so is its spool"


def test_a_tracker_that_goes_away_and_comes_back_is_told_once_each(
    home: Home, tmp_path: Path
) -> None:
    said: list[str] = []
    store = Store(home)
    store.companion = Companion(home, said.append, after=0.0)
    recorder = begin(store)
    reader = open_reader(home)
    recorder.log({"loss": 1.0}, 1)
    until(lambda: reader.curves([recorder.run_id]).height == 1)
    away = tmp_path / "away.db"
    home.database.rename(away)
    home.database.mkdir()  # what sqlite cannot open
    recorder.log({"loss": 2.0}, 2)
    until(lambda: len(said) == 1)
    assert "the tracker does not answer" in said[0]
    assert "what is logged waits on disk" in said[0]
    home.database.rmdir()
    away.rename(home.database)
    until(lambda: len(said) == 2)
    assert said[1] == "note    the tracker answers again"
    recorder.end("FINISHED")
    store.close()
    assert reader.curves([recorder.run_id])["step"].to_list() == [1, 2]
