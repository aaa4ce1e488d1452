from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from suite.doctor.stored import look_up
from suite.tracking.home import Home
from suite.tracking.processes import WorkingProcess
from suite.tracking.spool import End, Points, SpoolFile, SpoolWriter
from suite.tracking.store import Store
from suite.ui import server_command, server_environment

pytestmark = pytest.mark.slow


@pytest.fixture
def served(make_home: Callable[[str], Home], tmp_path: Path) -> Iterator[Home]:
    """A home whose runs go to a real MLflow server."""
    behind = make_home("behind")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        server_command(behind, port=port),
        env=server_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    uri = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{uri}/health", timeout=5).close()
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    root = tmp_path / "home"
    root.mkdir()
    yield Home(root=root, tracking_uri=uri)
    os.killpg(server.pid, signal.SIGTERM)
    server.wait()


def test_a_home_with_a_server_is_looked_at_and_mended(
    served: Home,
    gone: WorkingProcess,
    digest: Callable[[Path], dict[str, tuple[str, int]]],
    examine: Callable[..., Any],
) -> None:
    store = Store(served)
    tags = {"suite.kind": "law", "suite.cell": "0"}
    cut_off, unsent, deleted = (
        store.create_run("demo", name=name, tags=tags) for name in ("cut off", "unsent", "deleted")
    )
    writer = SpoolWriter(SpoolFile.of(served.spool, unsent, 1), gone)
    for step in range(3):
        writer.append(Points(step=step, at=1_000 + step, values={"loss": step / 4}))
    writer.append(End("FINISHED", 9_000))
    store.client.delete_run(deleted)
    known = look_up(served.tracking_uri, [cut_off, deleted, "f" * 32])
    assert {run_id: (run.study, run.deleted) for run_id, run in known.items()} == {
        cut_off: ("demo", False),
        deleted: ("demo", True),
    }
    for run_id in (cut_off, deleted, "f" * 32):
        (served.checkpoints / run_id).mkdir(parents=True)

    before = digest(served.root)
    found = examine(served)
    assert digest(served.root) == before
    assert found.good("schema") == ["the server sees to its own schema"]
    version = metadata.version("mlflow")
    assert f"the clock of the server (MLflow {version}) agrees with this machine's" in (
        found.good("clock")
    )
    assert len(found.left) == 5  # the spool, both runs that say RUNNING, two orphans
    mended = examine(served, fix=True)
    assert mended.left == []
    ended = {run_id: store.client.get_run(run_id).info.status for run_id in (cut_off, unsent)}
    assert ended == {cut_off: "KILLED", unsent: "FINISHED"}
    assert [point.value for point in store.client.get_metric_history(unsent, "loss")] == [
        0.0,
        0.25,
        0.5,
    ]
    assert [path.name for path in served.checkpoints.iterdir()] == [cut_off]
    again = examine(served, fix=True)
    assert again.left == []
    assert all(outcome.mended is None for outcomes in again.values() for outcome in outcomes)
