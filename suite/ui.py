"""MLflow's own pages on a home."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from suite.errors import InputError
from suite.stopping import StopFlag
from suite.tracking.home import Home

_POLL_SECONDS = 0.2


def server_command(home: Home, *, port: int) -> list[str]:
    """Command line of an MLflow server on the home, on the loopback address only.

    Artifacts are served from the home, which is what the ``mlflow-artifacts:`` locations in the
    database refer to, wherever the home lies.
    """
    return [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        home.tracking_uri,
        "--artifacts-destination",
        str(home.artifacts),
        "--serve-artifacts",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",  # each worker takes seconds of CPU time to start, and one person needs one
    ]


def server_environment() -> dict[str, str]:
    """Environment of the server: no telemetry, and no runner of jobs, which nothing here has."""
    return {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        **os.environ,
    }


def serve(home: Home, *, port: int) -> int:
    """Serve until SIGINT or SIGTERM; returns the server's exit code, or 0 when it was stopped.

    Raises:
        InputError: if the home has no runs yet, or the store is a server with its own pages.
    """
    if home.tracking_uri.startswith(("http:", "https:")):
        raise InputError(f"the tracking store is a server with its own pages: {home.tracking_uri}")
    if home.owns_database and not home.database.exists():
        raise InputError(f"{home.root} holds no runs yet; start with `suite run demo`")
    print(f"http://127.0.0.1:{port} shows {home.root}; end with Ctrl-C", flush=True)
    # a session of its own, so that a signal reaches the server through here and ends all of it
    server = subprocess.Popen(
        server_command(home, port=port), env=server_environment(), start_new_session=True
    )
    try:
        with StopFlag() as stop:
            while server.poll() is None and not stop.requested:
                time.sleep(_POLL_SECONDS)
        return 0 if stop.requested else int(server.returncode)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
