from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from suite.errors import InputError
from suite.tracking.home import Home
from suite.tracking.store import Store
from suite.ui import serve, server_command, server_environment

MakeHome = Callable[[str], Home]


def test_the_server_listens_on_the_loopback_address_and_serves_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "a home")
    command = server_command(home, port=5055)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = dict(zip(command[4:], command[5:], strict=False))
    assert options["--backend-store-uri"] == f"sqlite:///{tmp_path}/a home/mlflow.db"
    assert options["--artifacts-destination"] == f"{tmp_path}/a home/artifacts"
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == "5055"


def test_the_server_sends_nothing_home_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    assert server_environment()["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert server_environment()["PATH"] == os.environ["PATH"]
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    assert server_environment()["MLFLOW_DISABLE_TELEMETRY"] == "false"


def test_a_server_has_pages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example")
    with pytest.raises(InputError, match=r"its own pages: https://tracking\.example"):
        serve(Home.at(tmp_path), port=5055)


@pytest.fixture
def served(make_home: MakeHome, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of `suite ui` on a moved home with one run and one artifact, and the run's id."""
    before = make_home("home")
    store = Store(before)
    run_id = store.create_run("demo", name="größe Tm=2", tags={"suite.kind": "report"})
    page = tmp_path / "page.html"
    page.write_bytes("<p>größe</p>".encode())
    store.log_artifact(run_id, page, "report")
    moved = tmp_path / "moved, with spaces ü"
    shutil.move(before.root, moved)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "suite.cli", "ui", "--home", str(moved), "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/health", process, log)
        yield address, run_id
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
        assert process.wait(30) == 0
        assert f"{address} shows {moved}; end with Ctrl-C" in log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server ended:\n{log.read_text()[-2_000:]}")


@pytest.mark.timeout(120)
def test_the_pages_show_a_moved_home_with_its_artifacts(served: tuple[str, str]) -> None:
    address, run_id = served

    def get(path: str) -> bytes:
        with urllib.request.urlopen(f"{address}/{path}", timeout=30) as answer:
            return bytes(answer.read())

    run = json.loads(get(f"api/2.0/mlflow/runs/get?run_id={run_id}"))["run"]
    assert run["info"]["run_name"] == "größe Tm=2"
    listed = json.loads(get(f"api/2.0/mlflow/artifacts/list?run_id={run_id}&path=report"))
    assert listed["files"] == [{"path": "report/page.html", "is_dir": False, "file_size": 14}]
    assert get(f"get-artifact?run_id={run_id}&path=report/page.html") == "<p>größe</p>".encode()
