"""The process beside a long attempt that sends its spool while it works.

MLflow's own code takes some 0.2 ms of Python for each metric. In a thread that time would be
taken from training, which waits for the same interpreter; in a process it is not. It ends when
the pipe to its standard input closes, so it outlives nobody: a worker that was killed leaves a
companion that sends what is left and goes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import suite
from suite.tracking.processes import HEARTBEAT_EVERY, HEARTBEAT_TAG, this_process

if TYPE_CHECKING:
    from suite.tracking.home import Home
    from suite.tracking.spool import SpoolFile
    from suite.tracking.store import Store

_EVERY = 2.0  # seconds between two looks at the spool
_LAST_PATIENCE = 20.0  # seconds that the last values may take
_FAREWELL = 5.0  # seconds that the worker waits for its companion to go


class Companion:
    """The worker's end: starts the process a while after the first attempt, and ends it.

    Args:
        home: whose spool is sent.
        note: is told when the tracker goes away and comes back; from another thread.
        after: seconds of work before the process is started, which costs some itself.
    """

    def __init__(self, home: Home, note: Callable[[str], object], *, after: float = 5.0) -> None:
        self._home = home
        self._note = note
        self._after = after
        self._timer: threading.Timer | None = None
        self._process: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()
        self._attempts = 0

    def wanted(self) -> None:
        """An attempt has begun."""
        self._attempts += 1
        gone = self._process is None or self._process.poll() is not None
        if gone and self._timer is None:
            self._timer = threading.Timer(self._after, self._start)
            self._timer.daemon = True
            self._timer.start()

    def rest(self) -> None:
        """An attempt has ended; after the last, a companion that was not started is not needed."""
        self._attempts = max(self._attempts - 1, 0)
        if self._attempts == 0:
            self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """End the process."""
        self._cancel()
        with self._starting:
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:  # a tracker that hangs; what waits is in the spool
            process.kill()
            process.wait()

    def _start(self) -> None:
        environment = dict(os.environ)
        environment.pop("MLFLOW_TRACKING_URI", None)
        if not self._home.owns_database:
            environment["MLFLOW_TRACKING_URI"] = self._home.tracking_uri
        packages = str(Path(suite.__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [packages, environment.get("PYTHONPATH")])
        )
        with self._starting:
            if self._timer is None:
                return
            self._timer = None
            self._process = subprocess.Popen(
                # -P: a file of the working directory must not pass for a module
                [sys.executable, "-P", "-m", __name__, str(self._home.root), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                # before it can ignore the signals that are meant for the worker
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._note(line.rstrip("\n"))


def main(root: str, worker: int) -> None:
    """Send the spool of a process until it closes the pipe, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the worker, which has yet to write
    with contextlib.suppress(OSError):
        os.nice(5)
    from suite.tracking.home import Home

    _Sender(Home.at(root), worker).run()


class _Sender:
    def __init__(self, home: Home, worker: int) -> None:
        self._home = home
        self._worker = worker
        self._store: Store | None = None
        self._away = False
        self._heartbeats: dict[str, float] = {}
        self._hopeless: set[SpoolFile] = set()

    def run(self) -> None:
        while not select.select([sys.stdin], [], [], _EVERY)[0]:
            self._send(patience=0.0, alive=True)
        self._send(patience=_LAST_PATIENCE, alive=False)

    def _send(self, *, patience: float, alive: bool) -> None:
        from suite.tracking.drain import BusyError, RefusedError, drain
        from suite.tracking.patience import TrackerAwayError
        from suite.tracking.spool import spools
        from suite.tracking.store import Store

        here = this_process().host
        for spool in spools(self._home.spool):
            owner = spool.owner()
            mine = owner is not None and (owner.pid, owner.host) == (self._worker, here)
            if not mine or spool in self._hopeless:
                continue
            try:
                if self._store is None:
                    self._store = Store(self._home, patience=0.0)
                self._store.patience = patience
                drain(spool, self._store)
                if alive and spool.path.exists():
                    self._beat(self._store, spool)
            except BusyError:
                continue  # the worker itself is at it
            except TrackerAwayError as error:
                self._say(
                    away=True,
                    text=f"note    the tracker does not answer ({error.reason}); work goes on, "
                    "and what is logged waits on disk",
                )
            except RefusedError:
                # the worker meets the same at the end of the attempt, and tells of it
                self._hopeless.add(spool)
            except (
                Exception
            ):  # whatever it is, the next look may do better, and others' spools wait
                continue
            else:
                self._say(away=False, text="note    the tracker answers again")

    def _beat(self, store: Store, spool: SpoolFile) -> None:
        now, run_id = time.monotonic(), spool.run_id
        if now - self._heartbeats.get(run_id, -HEARTBEAT_EVERY) >= HEARTBEAT_EVERY:
            os.utime(spool.path)  # for other machines that see the home and not the tracker
            store.set_tags(run_id, {HEARTBEAT_TAG: str(time.time_ns() // 1_000_000)})
            self._heartbeats[run_id] = now

    def _say(self, *, away: bool, text: str) -> None:
        if away != self._away:
            self._away = away
            with contextlib.suppress(OSError):
                print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
