"""MLflow's own pages on a home."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from suite.errors import InputError
from suite.stopping import StopFlag
from suite.terminal import say
from suite.tracking.home import Home
from suite.tracking.reader import without_password

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.2
_FAREWELL_SECONDS = 10.0
_HOST_NAME = re.compile(
    r"([a-z0-9]([a-z0-9_.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE
)
# What others have set for a server of their own must not open this one.
_OTHER_SERVERS = (
    "MLFLOW_ARTIFACTS_ONLY",
    "MLFLOW_ENABLE_REMOTE_ASSISTANT",
    "MLFLOW_ENABLE_WORKSPACES",
    "MLFLOW_EXPOSE_PROMETHEUS",
    "MLFLOW_GUNICORN_OPTS",
    "MLFLOW_SERVE_ARTIFACTS",
    "MLFLOW_STATIC_PREFIX",
    "MLFLOW_UVICORN_OPTS",
)


def serve(home: Home, *, port: int, host: str = LOOPBACK, allowed_hosts: Sequence[str] = ()) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Args:
        home: whose runs and artifacts are shown.
        port: where the server listens.
        host: address that it listens on; another than this machine's own needs
            ``allowed_hosts``.
        allowed_hosts: names, with or without a port, by which browsers may open it beside
            ``localhost``.

    Returns:
        The server's exit code, or 0 when it was stopped.

    Raises:
        InputError: if the home has no runs yet, the store is a server with its own pages, the
            address cannot be had, or it would let others in without being asked to.
    """
    if home.is_server:
        raise InputError(
            "the tracking store is a server with its own pages: "
            f"{without_password(home.tracking_uri)}"
        )
    if home.owns_database and not home.database.exists():
        raise InputError(f"{home.root} holds no runs yet; start with `suite run demo`")
    names = [_checked_name(name) for name in allowed_hosts]
    exposure = (
        f"whoever reaches port {port} can read, change and delete every run and artifact of "
        f"{home.root}; there is no password"
    )
    if not (_is_loopback(host) or names):
        raise InputError(
            f"--host {host} lets others in: {exposure}. If that is meant, say by which names "
            "browsers open it: --allowed-hosts NAME[,NAME]. If not, leave --host out, and from "
            f"another machine go through ssh: ssh -L {port}:localhost:{port} THIS-MACHINE"
        )
    _check_address(host, port)
    if names:
        say(f"WARNING: this opens the home to others, as {', '.join(names)}: {exposure}")
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{port} shows {home.root}; end with Ctrl-C", sys.stdout)
    with StopFlag() as stop:
        # a session of its own, so that a signal reaches the server through here and ends all of it
        server = subprocess.Popen(
            server_command(home, port=port, host=host, allowed_hosts=names),
            env=server_environment(),
            start_new_session=True,
        )
        try:
            while server.poll() is None and not stop.requested:
                time.sleep(_POLL_SECONDS)
            return 0 if stop.requested else int(server.returncode)
        finally:
            _end(server)


def server_command(
    home: Home, *, port: int, host: str = LOOPBACK, allowed_hosts: Sequence[str] = ()
) -> list[str]:
    """Command line of an MLflow server on the home.

    Artifacts are served from the home, which is what the ``mlflow-artifacts:`` locations in the
    database refer to, wherever the home lies. Requests must come under a name of this machine
    or one of ``allowed_hosts``: MLflow's own default lets in every name that begins like a
    private address, such as ``10.evil.example``, which a page anywhere on the web can have point
    here. Pages of other origins may change nothing, except those served by this machine.
    """
    hosts = ["localhost", "localhost:*", LOOPBACK, f"{LOOPBACK}:*", "[::1]", f"[::1]:{port}"]
    origins = []
    for name in allowed_hosts:
        has_port = re.search(r":[0-9]+$", name) is not None
        reached = [name] if has_port else [name, f"{name}:{port}"]
        hosts += reached
        origins += [f"{scheme}://{each}" for scheme in ("http", "https") for each in reached]
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", home.tracking_uri),
        # as an address, for MLflow takes a % in a path for the start of an escaped character
        *("--artifacts-destination", home.artifacts.as_uri()),
        "--serve-artifacts",
        *("--host", host),
        *("--port", str(port)),
        *("--allowed-hosts", ",".join(hosts)),
        *(("--cors-allowed-origins", ",".join(origins)) if origins else ()),
        *("--x-frame-options", "SAMEORIGIN"),
        *("--workers", "1"),  # each takes seconds of CPU time to start, and one person needs one
    ]


def server_environment() -> dict[str, str]:
    """Environment of the server: no telemetry, no runner of jobs, no way to language models."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MLFLOW_SERVER_") and name not in _OTHER_SERVERS
    }
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **kept,
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_FAREWELL_SECONDS)
            return


def _checked_name(name: str) -> str:
    if not _HOST_NAME.fullmatch(name):
        raise InputError(
            f"--allowed-hosts has {name!r}; give names or addresses as they stand in the "
            "browser's address bar, such as box.lab.example or 192.168.0.7:5000, and no '*': "
            "with it, any page on the web could reach the runs through your browser"
        )
    return name.lower()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before MLflow takes seconds to start."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r} is not an address of this machine ({error})") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            reasons = {
                errno.EADDRINUSE: f"port {port} is taken, maybe by another `suite ui`; end that "
                "one, or give another --port",
                errno.EADDRNOTAVAIL: f"--host {host} is not an address of this machine",
                errno.EACCES: f"port {port} needs the rights of the system's administrator; give "
                "a --port from 1024 on",
            }
            reason = reasons.get(error.errno or 0)
            if reason is None:
                raise
            raise InputError(reason) from error
