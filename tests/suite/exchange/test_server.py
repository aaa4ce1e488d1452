"""To a real MLflow server and back, over HTTP."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from suite.errors import InputError
from suite.exchange.export import export_study
from suite.exchange.load import import_study
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import Store
from suite.ui import server_command, server_environment

FramesOf = Callable[[Path], dict[str, pl.DataFrame]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(blank_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on an empty store of its own."""
    root = tmp_path_factory.mktemp("server")
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    shutil.copyfile(blank_database, home.database)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = root / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            server_command(home, port=port),
            env=server_environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, log.read_text()[-2_000:]
                assert time.monotonic() < deadline
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


@pytest.fixture
def on_server(address: str, tmp_path: Path) -> Home:
    return Home(root=tmp_path / "home", tracking_uri=address)


def test_a_study_goes_to_a_server_and_comes_back(
    copied_home: Home,
    on_server: Home,
    tmp_path: Path,
    frames_of: FramesOf,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for odd in copied_home.artifacts.rglob("*%*"):
        odd.rename(odd.with_name("größe, 移動.bin"))
    export_study(copied_home, "small", tmp_path / "out")
    done = import_study(tmp_path / "out", on_server)
    assert (done.new, done.points, done.artifacts) == (13, 54, 13)
    assert capfd.readouterr().out == "", "MLflow prints addresses unless it is told not to"
    assert import_study(tmp_path / "out", on_server).known == 13
    export_study(on_server, "small", tmp_path / "again")
    before, after = frames_of(tmp_path / "out"), frames_of(tmp_path / "again")
    for name, frame in before.items():
        assert frame.equals(after[name]), name
    kept = [
        sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
        for folder in (tmp_path / "out" / "artifacts", tmp_path / "again" / "artifacts")
    ]
    assert kept[0] == kept[1]
    assert [path.name for path in on_server.artifacts.rglob("*")] == []


def test_an_import_to_a_server_that_was_cut_off_goes_on(
    on_server: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copied_home: Home,
) -> None:
    shutil.rmtree(copied_home.artifacts)
    export_study(copied_home, "small", tmp_path / "out")
    whole, calls = Store.log_points, iter(range(100))

    def cut(*arguments: object) -> None:
        whole(*arguments)  # type: ignore[arg-type]
        if next(calls) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "log_points", cut)
        with pytest.raises(KeyboardInterrupt):
            import_study(tmp_path / "out", on_server, name="cut-off")
    done = import_study(tmp_path / "out", on_server, name="cut-off")
    assert (done.new, done.known) == (10, 3)
    reader = open_reader(on_server)
    runs = reader.runs("cut-off")
    assert runs.height == 13
    assert reader.curves(runs["run_id"].to_list()).height == 54


def test_an_artifact_that_a_server_cannot_take_is_refused_before_anything_is_written(
    studied_export: Path, on_server: Home
) -> None:
    with pytest.raises(InputError, match=r"größe, 100 % .*which an MLflow server does not take"):
        import_study(studied_export, on_server, name="odd")
    assert open_reader(on_server).runs("odd").is_empty()
