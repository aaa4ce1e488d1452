"""A tracker that is away, overloaded, hangs or does not get its answers through."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from mlflow import MlflowClient

from suite.errors import SuiteError
from suite.tracking.curves import attempts_from_tags
from suite.tracking.home import Home
from suite.tracking.patience import TrackerAwayError
from suite.tracking.recorder import RunRecorder
from suite.tracking.spool import spools
from suite.tracking.store import Store, now_ms
from tests.faults.homes import TRAINING, frames_of, repeatable, write_study
from tests.faults.jobs import Job, Preloaded, said, until, wait
from tests.faults.proxy import ANSWER_LOST, AWAY, Mode, UnreliableProxy
from tests.faults.server import Logged, Server, begin, running_server
from tests.faults.training import Training


@pytest.fixture(scope="module")
def server(blank_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    shutil.copyfile(blank_database, root / "mlflow.db")
    with running_server(root) as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[UnreliableProxy]:
    proxy = UnreliableProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(
    proxy: UnreliableProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    store = Store(Home(root=tmp_path / "home", tracking_uri=proxy.url), patience=60.0)
    yield store
    store.close()


def quickly(*quick: str, of: Sequence[str]) -> list[Any]:
    """Modes, of which only some belong to the quick tests."""
    return [pytest.param(each, marks=[] if each in quick else [pytest.mark.slow]) for each in of]


WAITS = ("down", "hang", "late")  # modes that end only when they are ended


@pytest.mark.parametrize("mode", quickly("500", "hang", "lost", of=(*AWAY, *ANSWER_LOST, "late")))
def test_not_one_point_is_lost_or_doubled(
    store: Store,
    proxy: UnreliableProxy,
    server: Server,
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, logged = begin(store, f"points {mode}"), Logged()
    logged.log(recorder, range(400))  # two requests
    store.patience = 0.3
    with proxy.fault(mode), monkeypatch.context() as short:
        short.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1" if mode in ("hang", "late") else "30")
        with pytest.raises(TrackerAwayError, match="does not answer"):
            recorder.flush()
        logged.log(recorder, range(400, 450))
        assert proxy.disturbed > 0 or mode == "down"
    store.patience = 60.0
    with proxy.fault(mode, times=2) if mode not in WAITS else contextlib.nullcontext():
        logged.log(recorder, range(450, 500))
        recorder.flush()
    recorder.end("FINISHED")
    assert logged.complaints(server, recorder.run_id) == []
    assert server.rows("SELECT status FROM runs WHERE run_uuid = ?", recorder.run_id) == [
        ("FINISHED",)
    ]
    assert spools(store.home.spool) == []


@pytest.mark.parametrize("mode", ["500", *ANSWER_LOST])
def test_a_run_is_made_once(
    store: Store, proxy: UnreliableProxy, server: Server, mode: Mode
) -> None:
    study = f"once {mode}"
    with proxy.fault(mode, only="runs/create", times=1):
        recorder = begin(store, study)
    assert proxy.disturbed == 1
    recorder.end("FINISHED")
    runs = server.rows(
        "SELECT run_uuid, status FROM runs JOIN experiments USING (experiment_id) "
        "WHERE experiments.name = ?",
        study,
    )
    assert runs == [(recorder.run_id, "FINISHED")]


# Every request of an attempt's life, in the order in which they come.
REQUESTS = (
    "experiments/get-by-name",
    "experiments/create",
    "runs/create",
    "runs/search",
    "runs/get",
    "runs/log-batch",
    "runs/log-inputs",
    "runs/update",
)


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("mode", quickly("lost", of=("lost", "502")))
def test_any_request_may_fail_once(
    store: Store, proxy: UnreliableProxy, server: Server, mode: Mode, request_: str
) -> None:
    study = f"any {mode} {request_}"
    with proxy.fault(mode, only=request_, times=1):
        recorder, logged = begin(store, study), Logged()
        logged.log(recorder, range(10))
        recorder.log_params({"late": 1})
        recorder.end("FINISHED")
    assert proxy.disturbed == 1
    run_id = recorder.run_id
    assert logged.complaints(server, run_id) == []
    assert server.rows(
        "SELECT run_uuid, status, end_time FROM runs JOIN experiments USING (experiment_id) "
        "WHERE experiments.name = ?",
        study,
    ) == [(run_id, "FINISHED", recorder.attempt.started + _took(server, recorder))]
    assert server.rows("SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key", run_id) == [
        ("late", "1"),
        ("rate", "0.1"),
    ]
    assert server.rows("SELECT count(*) FROM inputs WHERE destination_id = ?", run_id) == [(1,)]


def _took(server: Server, recorder: RunRecorder) -> int:
    """Milliseconds that the attempt's own tag says."""
    tags = dict(
        server.rows("SELECT key, value FROM tags WHERE run_uuid = ?", recorder.run_id)  # type: ignore[arg-type]
    )
    (attempt,) = attempts_from_tags(tags)
    assert attempt.ended is not None
    return attempt.ended - recorder.attempt.started


@pytest.mark.slow
def test_a_spool_waits_for_its_own_tracker(
    training: Training, proxy: UnreliableProxy, expected: pl.DataFrame
) -> None:
    job = training.start(patience=1, tokens=2_048)
    until(lambda: training.saved(2_048), what=lambda: said(job))
    with proxy.fault("down"):
        training.allow(10**9)
        assert wait(job) == 1
    job = training.start(patience=1, at_home=True)  # rather than wait for the server
    assert wait(job) == 0, said(job)
    assert len(spools(training.home / "spool")) == 1
    job = training.start(patience=60)
    assert wait(job) == 0, said(job)
    assert "start   pretrain" not in said(job)
    assert training.complaints(expected) == []


def test_a_twin_whose_clock_is_slow_gives_way(
    store: Store, proxy: UnreliableProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(store, "twins")
    other = Store(Home(root=tmp_path / "other", tracking_uri=proxy.url), patience=60.0)
    monkeypatch.setattr("suite.tracking.store.now_ms", lambda: now_ms() - 10_000)
    with pytest.raises(SuiteError, match=f"the same cell as run {first.run_id}"):
        begin(other, "twins")
    first.end("FINISHED")


def test_artifacts_reach_the_server(store: Store, server: Server, tmp_path: Path) -> None:
    recorder = begin(store, "artifacts")
    file = tmp_path / "basis.bin"
    file.write_bytes(b"\x00\x01\x02")
    recorder.log_artifact(file, "basis")
    recorder.end("FINISHED")
    assert [path.read_bytes() for path in server.root.rglob("basis.bin")] == [b"\x00\x01\x02"]


@pytest.fixture
def training(
    preloaded: Preloaded,
    server: Server,
    proxy: UnreliableProxy,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Training:
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[-60:].lstrip("-")
    return Training(preloaded, server, proxy, tmp_path, name)


@pytest.fixture(scope="module")
def expected(
    preloaded: Preloaded, blank_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> pl.DataFrame:
    """The curves of the study where nothing disturbs it, from a home with its own database."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "home").mkdir()
    shutil.copyfile(blank_database, folder / "home" / "mlflow.db")
    study = write_study(folder, TRAINING)
    job = preloaded.run("run", study, "--home", str(folder / "home"))
    assert job.code() == 0, said(job)
    return repeatable(folder / "home")


def outage(
    training: Training, proxy: UnreliableProxy, job: Job, mode: Mode, number: int, seconds: float
) -> None:
    """Be away while the job trains from one checkpoint to the next, and come back."""
    away, back = "the tracker does not answer", "the tracker answers again"
    with proxy.fault(mode):
        training.allow(2_048 * (number + 1))
        until(lambda: training.saved(2_048 * (number + 1)), what=lambda: said(job))
        until(lambda: said(job).count(away) == number, what=lambda: said(job))
        time.sleep(seconds)
        assert job.code() is None, said(job)
    before = training.arrived()
    until(lambda: training.arrived() > before, what=lambda: said(job))
    until(lambda: said(job).count(back) == number, what=lambda: said(job))


@pytest.mark.slow
def test_training_goes_on_while_the_tracker_is_away(
    training: Training, proxy: UnreliableProxy, expected: pl.DataFrame
) -> None:
    job = training.start(patience=60, tokens=2_048)
    until(lambda: training.arrived() > 0, what=lambda: said(job))
    for number, mode in enumerate(("down", "500", "429", "hang"), start=1):
        outage(training, proxy, job, mode, number, seconds=0.0)
    training.allow(10**9)
    assert wait(job) == 0, said(job)
    assert training.complaints(expected) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["down", "500", "429", "hang"])
def test_training_goes_on_while_the_tracker_is_away_for_half_a_minute(
    training: Training, proxy: UnreliableProxy, expected: pl.DataFrame, mode: Mode
) -> None:
    job = training.start(patience=120, tokens=2_048)
    until(lambda: training.arrived() > 0, what=lambda: said(job))
    outage(training, proxy, job, mode, 1, seconds=30.0)
    training.allow(10**9)
    assert wait(job) == 0, said(job)
    assert training.complaints(expected) == []


@pytest.mark.parametrize("mode", quickly("down", of=("down", "hang")))
def test_a_cell_whose_end_could_not_be_sent_is_not_trained_again(
    training: Training, proxy: UnreliableProxy, expected: pl.DataFrame, mode: Mode
) -> None:
    job = training.start(patience=1, tokens=2_048)
    until(lambda: training.saved(2_048), what=lambda: said(job))
    with proxy.fault(mode):
        training.allow(10**9)
        assert wait(job) == 1
    assert "error: the tracker does not answer" in said(job)
    assert "is sent when the same command is run again" in said(job)
    assert len(spools(training.home / "spool")) == 1
    job = training.start(patience=60)
    assert wait(job) == 0, said(job)
    assert "that had been left unsent" in said(job)
    assert "start   pretrain" not in said(job)
    assert training.complaints(expected) == []
    runs, tags, _ = frames_of(training.server.root, training.name)
    attempts = tags.filter(pl.col("key") == "suite.attempts")
    assert attempts["value"].to_list() == ["1"] * runs.height


@pytest.mark.parametrize("mode", quickly("down", "500", of=("down", "500", "hang")))
def test_nothing_begins_where_there_is_no_tracker(
    training: Training, proxy: UnreliableProxy, mode: Mode
) -> None:
    with proxy.fault(mode):
        job = training.start(patience=1)
        assert wait(job) in (1, 2)
    (line,) = [line for line in said(job).splitlines() if line.startswith("error:")]
    assert proxy.url in line or "the tracker does not answer" in line
    assert "Traceback" not in said(job)
    assert training.server.rows("SELECT 1 FROM experiments WHERE name = ?", training.name) == []
    assert not (training.home / "checkpoints").exists()
    assert spools(training.home / "spool") == []


@pytest.mark.slow
def test_a_run_that_is_deleted_while_it_trains_is_told_and_begun_anew(
    training: Training, server: Server, expected: pl.DataFrame
) -> None:
    job = training.start(patience=60, tokens=2_048)
    until(lambda: training.arrived() > 0, what=lambda: said(job))
    runs, _, _ = frames_of(server.root, training.name)
    (deleted,) = runs["run_id"]
    MlflowClient(f"http://127.0.0.1:{server.port}").delete_run(deleted)
    training.allow(10**9)
    assert wait(job) == 1
    assert f"error: the tracker refuses what run {deleted} has to say" in said(job)
    job = training.start(patience=60)
    assert wait(job) == 0, said(job)
    assert "it is set aside in" in said(job)
    aside = training.home / "spool" / "refused" / f"{deleted}.1.spool"
    assert '"train/total_loss"' in aside.read_text()
    assert training.complaints(expected) == []
    again = training.start(patience=60)
    assert wait(again) == 0
    assert "set aside" not in said(again)
