from __future__ import annotations

import contextlib
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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import suite.ui
from suite.errors import InputError
from suite.tracking.home import Home
from suite.tracking.store import Store
from suite.ui import serve, server_command, server_environment

MakeHome = Callable[[str], Home]


def options_of(command: list[str]) -> dict[str, str]:
    return dict(itertools.pairwise(command))


def test_the_server_listens_on_the_loopback_address_and_serves_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "a home, #1")
    command = server_command(home, port=5055)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    options = options_of(command)
    assert options["--backend-store-uri"] == f"sqlite:///{tmp_path}/a home, #1/mlflow.db"
    assert options["--artifacts-destination"] == f"file://{tmp_path}/a%20home%2C%20%231/artifacts"
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == "5055"
    assert "--cors-allowed-origins" not in options


def test_a_named_host_is_allowed_with_and_without_the_port_and_so_are_its_own_pages(
    tmp_path: Path,
) -> None:
    command = server_command(
        Home.at(tmp_path), port=5055, host="0.0.0.0", allowed_hosts=["box.lan", "other:80"]
    )
    options = options_of(command)
    assert options["--host"] == "0.0.0.0"
    hosts = options["--allowed-hosts"].split(",")
    assert hosts[-3:] == ["box.lan", "box.lan:5055", "other:80"]
    assert options["--cors-allowed-origins"].split(",") == [
        "http://box.lan",
        "http://box.lan:5055",
        "https://box.lan",
        "https://box.lan:5055",
        "http://other:80",
        "https://other:80",
    ]


def test_the_server_sends_nothing_home_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    assert server_environment()["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert server_environment()["PATH"] == os.environ["PATH"]
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    assert server_environment()["MLFLOW_DISABLE_TELEMETRY"] == "false"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE", "true"),
        ("MLFLOW_SERVER_ALLOWED_HOSTS", "*"),
        ("MLFLOW_SERVER_CORS_ALLOWED_ORIGINS", "*"),
        ("MLFLOW_UVICORN_OPTS", "--host 0.0.0.0"),
        ("MLFLOW_ENABLE_REMOTE_ASSISTANT", "true"),
    ],
)
def test_settings_of_another_server_do_not_open_this_one(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert name not in server_environment()


def test_another_host_is_refused_without_names_and_told_what_it_would_expose(
    make_home: MakeHome,
) -> None:
    home = make_home("home")
    with pytest.raises(InputError) as caught:
        serve(home, port=5055, host="0.0.0.0")
    message = str(caught.value)
    for part in (
        "--host 0.0.0.0 lets others in: whoever reaches port 5055 can read, change and delete",
        f"every run and artifact of {home.root}; there is no password",
        "--allowed-hosts NAME[,NAME]",
        "ssh -L 5055:localhost:5055",
    ):
        assert part in message


@pytest.mark.parametrize(
    "name",
    ["*", "*.lab.example", "10.*", "http://box", "a b", "a,b", "", "-a", "box/x", "[::1", "ü"],
)
def test_only_plain_names_can_be_allowed(make_home: MakeHome, name: str) -> None:
    with pytest.raises(InputError, match=r"--allowed-hosts has .*no '\*'") as caught:
        serve(make_home("home"), port=5055, host="0.0.0.0", allowed_hosts=["box.lan", name])
    assert repr(name) in str(caught.value)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of the loopback address on which something listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_taken_port_is_said_at_once(make_home: MakeHome, taken_port: int) -> None:
    with pytest.raises(InputError, match=f"port {taken_port} is taken, .*give another --port"):
        serve(make_home("home"), port=taken_port)


@pytest.mark.parametrize("host", ["192.0.2.77", "no-such-host.invalid", "a..b"])
def test_an_address_of_another_machine_cannot_be_listened_on(
    make_home: MakeHome, host: str
) -> None:
    with pytest.raises(InputError, match=f"--host '?{host}'? is not an address of this machine"):
        serve(make_home("home"), port=5055, host=host, allowed_hosts=["box.lan"])


def test_a_server_has_pages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example")
    with pytest.raises(InputError, match=r"its own pages: https://tracking\.example"):
        serve(Home.at(tmp_path), port=5055)


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Serve by a small program instead of MLflow."""
    command = [sys.executable, "-c", program]
    monkeypatch.setattr(suite.ui, "server_command", lambda home, **settings: command)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_a_server_that_does_not_end_is_ended(
    make_home: MakeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    stand_in(
        monkeypatch,
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n",
    )
    monkeypatch.setattr(suite.ui, "_FAREWELL_SECONDS", 0.1)

    def stop() -> None:
        while not (ready.exists() and ready.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert serve(make_home("home"), port=5055) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(ready.read_text()), 0)


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
