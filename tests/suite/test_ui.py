from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import suite.ui
from suite.errors import InputError
from suite.tracking.home import Home
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
