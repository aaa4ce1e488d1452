from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.tracking.home import Home
from suite.tracking.store import Store

MakeHome = Callable[[str], Home]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server answers.

    Attributes:
        status: of HTTP.
        headers: by name in lower case.
        body: content.
    """

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Pages:
    """A server that runs.

    Attributes:
        port: where.
        run_id: the one run of its home.
        artifacts: folder of the run's artifacts.
    """

    port: int
    run_id: str
    artifacts: Path

    def ask(
        self,
        path: str,
        *,
        address: str = "127.0.0.1",
        body: bytes | None = None,
        **headers: str,
    ) -> Answer:
        request = urllib.request.Request(
            f"http://{address}:{self.port}/{path}",
            data=body,
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return _answer(answer.status, answer)
        except urllib.error.HTTPError as error:
            return _answer(error.code, error)


def _answer(status: int, message: Any) -> Answer:
    headers = {name.lower(): value for name, value in message.headers.items()}
    return Answer(status=status, headers=headers, body=message.read())


@contextlib.contextmanager
def serving(
    make_home: MakeHome, folder: Path, *settings: str, name: str, address: str = "127.0.0.1"
) -> Iterator[tuple[Pages, Path]]:
    """`suite ui` on a home that was moved to ``name``, and the log of the server."""
    before = make_home("home")
    store = Store(before)
    run_id = store.create_run("demo", name="größe Tm=2", tags={"suite.kind": "report"})
    page = folder / "page.html"
    page.write_bytes("<p>größe</p>".encode())
    store.log_artifact(run_id, page, "report")
    moved = folder / name
    shutil.move(before.root, moved)
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "suite.cli", "ui", "--home", str(moved), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *settings], stdout=output, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        _wait_for(f"http://{address}:{port}/health", process, log)
        artifacts = moved / "artifacts" / "demo" / run_id / "artifacts"
        yield Pages(port=port, run_id=run_id, artifacts=artifacts), log
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        with socket.socket() as free:
            assert free.connect_ex((address, port)) != 0  # nobody listens any more
        assert f"http://{address}:{port} shows {moved}; end with Ctrl-C" in log.read_text()
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


EXPERIMENTS = "api/2.0/mlflow/experiments/search?max_results=5"
SEARCH = "api/2.0/mlflow/runs/search"
ALL_RUNS = b'{"experiment_ids": ["1"]}'


def other_address() -> str | None:
    """An address of this machine that is not the loopback one; none where it has no network."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks which way it would go
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith("127.") else address


def test_the_pages_of_a_moved_home_are_for_this_machine_alone(
    make_home: MakeHome, tmp_path: Path
) -> None:
    with serving(make_home, tmp_path, name="moved, #1 ü 移動") as (pages, _):
        run_id = pages.run_id

        run = json.loads(pages.ask(f"api/2.0/mlflow/runs/get?run_id={run_id}").body)["run"]
        assert run["info"]["run_name"] == "größe Tm=2"
        listed = pages.ask(f"api/2.0/mlflow/artifacts/list?run_id={run_id}&path=report").body
        assert json.loads(listed)["files"] == [
            {"path": "report/page.html", "is_dir": False, "file_size": 14}
        ]
        for path in (
            f"get-artifact?run_id={run_id}&path=report/page.html",
            f"api/2.0/mlflow-artifacts/artifacts/demo/{run_id}/artifacts/report/page.html",
        ):
            answer = pages.ask(path)
            assert answer.body == "<p>größe</p>".encode()
            # a browser saves it: shown as a page of this server, it could call the server
            assert answer.headers["content-disposition"].startswith("attachment")
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert pages.ask("").headers["x-frame-options"] == "SAMEORIGIN"

        for host, status in {
            f"localhost:{pages.port}": 200,
            "localhost:8080": 200,  # through ssh, from another port
            f"127.0.0.1:{pages.port}": 200,
            f"[::1]:{pages.port}": 200,
            "evil.example": 403,
            f"evil.example:{pages.port}": 403,
            f"10.evil.example:{pages.port}": 403,  # MLflow's default lets these two in
            "192.168.evil.example": 403,
            f"0.0.0.0:{pages.port}": 403,
        }.items():
            assert pages.ask("", Host=host).status == status, host
            assert pages.ask(EXPERIMENTS, Host=host).status == status, host

        for origin, status in {
            f"http://localhost:{pages.port}": 200,
            "https://evil.example": 403,
            "https://localhost.evil.example": 403,
            "null": 403,
        }.items():
            assert pages.ask(SEARCH, body=ALL_RUNS, Origin=origin).status == status, origin

        (pages.artifacts / "report" / "link.txt").symlink_to("/etc/hostname")
        for path in ("report/link.txt", "../../../../mlflow.db", "/etc/hostname"):
            answer = pages.ask(f"get-artifact?run_id={run_id}&path={path}")
            assert answer.status == 400, path

        address = other_address()
        if address is not None:
            with pytest.raises(urllib.error.URLError, match="refused"):
                pages.ask(EXPERIMENTS, address=address)


@pytest.mark.slow
def test_a_host_that_was_asked_for_answers_to_its_names_alone(
    make_home: MakeHome, tmp_path: Path
) -> None:
    address = other_address()
    if address is None:
        pytest.skip("this machine has no address beside the loopback one")
    settings = ("--host", address, "--allowed-hosts", f"{address},Box.LAN")
    with serving(make_home, tmp_path, *settings, name="moved", address=address) as (pages, log):

        def ask(path: str, **how: Any) -> int:
            return pages.ask(path, address=address, **how).status

        assert ask(EXPERIMENTS) == 200
        assert ask(EXPERIMENTS, Host=f"box.lan:{pages.port}") == 200
        assert ask(EXPERIMENTS, Host="box.lan") == 200
        assert ask(EXPERIMENTS, Host="evil.example") == 403
        assert ask(EXPERIMENTS, Host=f"10.evil.example:{pages.port}") == 403
        for origin, status in {
            f"http://{address}:{pages.port}": 200,  # its own pages search by POST
            "https://box.lan": 200,
            "https://evil.example": 403,
        }.items():
            assert ask(SEARCH, body=ALL_RUNS, Origin=origin) == status, origin
        assert (
            f"WARNING: this opens the home to others, as {address}, box.lan: whoever reaches "
            f"port {pages.port} can read, change and delete every run and artifact"
        ) in log.read_text()
