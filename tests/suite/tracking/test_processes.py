from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from suite.tracking.processes import WorkingProcess, this_process


def test_this_process_is_this_one_and_alive() -> None:
    process = this_process()
    assert (process.host, process.pid) == (socket.gethostname(), os.getpid())
    assert process.started == psutil.Process().create_time()
    assert process.is_alive(heartbeat=None, now=0)


def test_a_process_that_has_ended_is_gone_whatever_its_heartbeat() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = WorkingProcess(
            host=socket.gethostname(),
            pid=child.pid,
            started=psutil.Process(child.pid).create_time(),
        )
        assert process.is_alive(heartbeat=None, now=0)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not process.is_alive(heartbeat=1_000, now=1_000), "nobody has waited for it yet"
        child.wait()
        assert not process.is_alive(heartbeat=1_000, now=1_000)


def test_a_later_process_with_the_same_id_is_another_one() -> None:
    now = this_process()
    assert now.started is not None
    assert not replace(now, started=now.started - 60).is_alive(heartbeat=1_000, now=1_000)


@pytest.mark.parametrize(
    ("heartbeat", "alive"), [(None, False), (1_000_000, True), (700_001, True), (700_000, False)]
)
@pytest.mark.parametrize("unknown", [{"host": "elsewhere"}, {"started": None}])
def test_elsewhere_the_heartbeat_tells(
    heartbeat: int | None, alive: bool, unknown: dict[str, None]
) -> None:
    process = replace(this_process(), **unknown)
    assert process.is_alive(heartbeat=heartbeat, now=1_000_000) is alive


def test_a_process_is_named_for_a_person() -> None:
    assert str(WorkingProcess(host="node7", pid=12, started=None)) == "process 12 on node7"
