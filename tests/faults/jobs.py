"""Commands in processes of their own, which can be watched and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

LAUNCH = Path(__file__).with_name("launch.py")
Faults = Mapping[str, Any]


class Job(Protocol):
    """One command in a process of its own."""

    pid: int
    log: Path

    def code(self) -> int | None:
        """Its exit code, minus a signal's number; none while it works."""
        ...


def said(job: Job) -> str:
    return job.log.read_text() if job.log.exists() else ""


def wait(job: Job, *, seconds: float = 240.0) -> int:
    """Exit code of a job that ends by itself."""
    until(lambda: job.code() is not None, seconds=seconds, what=lambda: said(job))
    code = job.code()
    assert code is not None
    return code


def until(
    condition: Callable[[], bool], *, seconds: float = 120.0, what: Callable[[], str] = lambda: ""
) -> None:
    """Wait for something that has to come, however slow the machine is."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about: {what()}"
        time.sleep(0.02)


def kill(job: Job, *, group: bool) -> bool:
    """SIGKILL a job, or its whole process group; whether it was still at work."""
    if job.code() is not None:
        return False
    (os.killpg if group else os.kill)(job.pid, signal.SIGKILL)
    until(lambda: job.code() is not None)
    return job.code() == -signal.SIGKILL


class Preloaded:
    """A process that has imported everything, and starts each command in a fork."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started = 0
        self._codes: dict[int, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, str(LAUNCH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def start(self, *arguments: str, faults: Faults | None = None, **variables: str) -> Job:
        self._started += 1
        log = self._logs / f"{self._started}.log"
        pid = self._ask(
            {
                "arguments": arguments,
                "environment": environment(FAULTS=json.dumps(faults or {}), **variables),
                "log": str(log),
            }
        )
        return _Forked(self, pid, log)

    def run(self, *arguments: str, faults: Faults | None = None, **variables: str) -> Job:
        """Start a command and see it end."""
        job = self.start(*arguments, faults=faults, **variables)
        wait(job)
        return job

    def code(self, pid: int) -> int | None:
        if pid not in self._codes:
            found = self._ask({"wait": pid})
            if found is None:
                return None
            self._codes[pid] = found
        return self._codes[pid]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class _Forked:
    def __init__(self, parent: Preloaded, pid: int, log: Path) -> None:
        self._parent, self.pid, self.log = parent, pid, log

    def code(self) -> int | None:
        return self._parent.code(self.pid)


class Cold:
    """The command as a person starts it: a new interpreter."""

    def __init__(self, log: Path, *arguments: str, **variables: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "suite.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment(**variables),
                start_new_session=True,
            )
        self.pid = self._process.pid

    def code(self) -> int | None:
        return self._process.poll()


def environment(**variables: str) -> dict[str, str]:
    left_out = {"SUITE_HOME", "MLFLOW_TRACKING_URI", "SUITE_TRACKER_PATIENCE", "FAULTS"}
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}
