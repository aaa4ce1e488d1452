from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import suite.ui
from suite.errors import InputError
from suite.tracking.home import Home
from suite.tracking.store import Store
from suite.ui import serve, server_command, server_environment

MakeHome = Callable[[str], Home]


def test_the_server_listens_on_the_loopback_address_and_serves_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "a home")
    command = server_command(home, port=5055)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = dict(itertools.pairwise(command))
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


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Serve by a small program instead of MLflow."""
    command = [sys.executable, "-c", program]
    monkeypatch.setattr(suite.ui, "server_command", lambda home, port: command)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_its_workers(
    make_home: MakeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    stand_in(
        monkeypatch,
        "import os, pathlib, time\n"
        "worker = os.fork()\n"
        f"if worker: pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{worker}}')\n"
        "time.sleep(100)\n",
    )

    def stop() -> None:
        while not (pids.exists() and pids.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=stop).start()
    assert serve(make_home("home"), port=5055) == 0
    server, worker = map(int, pids.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert ended(worker)


def ended(pid: int) -> bool:
    """Whether a process that is not our child ends within seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_server_that_ends_by_itself_gives_its_exit_code(
    make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "raise SystemExit(3)")
    assert serve(make_home("home"), port=5055) == 3


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
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/health", process, log)
        yield address, run_id
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        with socket.socket() as free:
            assert free.connect_ex(("127.0.0.1", port)) != 0  # nobody listens any more
        assert f"{address} shows {moved}; end with Ctrl-C" in log.read_text()
    finally:
        if process.poll() is None:
            process.terminate()
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
