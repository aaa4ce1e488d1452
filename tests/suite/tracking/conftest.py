"""Every kind of store that MLflow has, each one whole and thrown away with its tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from suite.tracking.home import Home
from suite.tracking.reader import Reader, open_reader
from suite.ui import server_command, server_environment

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A store.

    Attributes:
        client: MLflow's, to write with.
        reader: what ``open_reader`` gives for it.
        database: the reader of the same store by SQL.
    """

    client: MlflowClient
    reader: Reader
    database: Reader


def opened(home: Home, *, database: str | None = None) -> Backend:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=home.tracking_uri)
    client.search_experiments(max_results=1)
    reader = open_reader(home)
    behind = open_reader(Home(root=home.root, tracking_uri=database)) if database else reader
    return Backend(client=client, reader=reader, database=behind)


def wait_until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with suppress(OSError, sa.exc.OperationalError):
            if ready():
                return
        time.sleep(0.1)
    raise TimeoutError("it does not answer")


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Backend:
    """A file in a folder with a name that wants care."""
    root = tmp_path_factory.mktemp("größe of a store")
    shutil.copyfile(blank_database, root / "mlflow.db")
    return opened(Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Iterator[Backend]:
    """MLflow's own server on the loopback address."""
    root = tmp_path_factory.mktemp("served")
    shutil.copyfile(blank_database, root / "mlflow.db")
    database = f"sqlite:///{root / 'mlflow.db'}"
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (root / "log").open("wb") as log:
        running = subprocess.Popen(
            server_command(Home(root=root, tracking_uri=database), port=port),
            env=server_environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: urllib.request.urlopen(f"{address}/health", timeout=5).read() == b"OK")
        yield opened(Home(root=root, tracking_uri=address), database=database)
    finally:
        os.killpg(running.pid, signal.SIGKILL)  # it would wait for its clients
        running.wait()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Backend]:
    """A cluster that listens on a socket in its own folder and nowhere else."""
    pytest.importorskip("psycopg", reason="PostgreSQL: its driver psycopg is not installed")
    initdb, postgres = shutil.which("initdb"), shutil.which("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL: initdb and postgres are not on the path")
    # not in pytest's folder: it is closed to the user that the cluster runs as
    root = Path(tempfile.mkdtemp(prefix="suite-postgresql-"))
    try:
        options: dict[str, Any] = {
            **_unprivileged(root),
            "cwd": root,
            "env": {**os.environ, "LC_ALL": "C"},
        }
        data = f"--pgdata={root / 'data'}"
        subprocess.run(
            [initdb, data, "--auth=trust", "--username=suite", "--encoding=UTF8", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            **options,
        )
        running = subprocess.Popen(
            [postgres, "-D", str(root / "data"), "-F", "-h", "", "-k", str(root)],
            stderr=subprocess.DEVNULL,
            **options,
        )
        try:
            uri = f"postgresql://suite@/postgres?host={root}"
            wait_until(lambda: sa.create_engine(uri).connect().close() is None)
            yield opened(Home(root=root, tracking_uri=uri))
        finally:
            running.send_signal(signal.SIGINT)  # its word for ending now, with clients or without
            running.wait()
    finally:
        shutil.rmtree(root)


def _unprivileged(root: Path) -> dict[str, Any]:
    """Whom PostgreSQL runs as, where these tests run as root; the folder becomes theirs."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            os.chown(root, found.pw_uid, found.pw_gid)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL: it refuses to run as root, and no other user is known")


@pytest.fixture(scope="module", params=["sqlite", "server", "postgresql"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each store in turn."""
    found: Backend = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def backends(request: pytest.FixtureRequest) -> dict[str, Backend]:
    """All stores that this machine has, by name; the first two it always has."""
    found = {name: request.getfixturevalue(name) for name in ("sqlite", "server")}
    with suppress(pytest.skip.Exception):
        found["postgresql"] = request.getfixturevalue("postgresql")
    return found
