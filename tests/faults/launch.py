"""Runs ``suite`` with faults built in; not a test.

Two ways to call it. With the command line of ``suite``, it is that command. With nothing, it
imports everything that a study needs, and then starts each command that it is told of on
standard input in a fork of itself: the same code in a process of its own, without the ten
seconds that the imports take.

The environment variable ``FAULTS`` holds what is to go wrong, as JSON:

``{"kill": {"at": "suite.atomic:replace_atomically", "when": "after", "call": 2}}``
    SIGKILL before or after the second call of a function.
``{"fill": {"at": ..., "when": ..., "call": ..., "leave": 4096}}``
    fills the home's disk at such a moment, but for so many bytes.
``{"kill": {"touch": 17}}``
    SIGKILL before the process touches files of the home for the 17th time.
``{"group": true}``
    the whole process group is killed, the companion with it.
``{"companion_after": 0}``
    seconds of work before the companion is started.
``{"pace": "/some/file"}``
    training goes no further than the tokens that the file says.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

_TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate"}
_PRELOADED = (
    "lightning",
    "mlflow.store.tracking.sqlalchemy_store",
    "matplotlib.figure",
    "optuna",
    "scipy.optimize",
    "lightning_modules.callbacks",
    "lightning_modules.kv_calibration",
    "lightning_modules.kv.solve",
    "suite.runner",
    "suite.tracking.logger",
    "tuning",
)


def install(faults: Mapping[str, Any], home: str) -> None:
    """Arm the faults in this process."""
    if "companion_after" in faults:
        from suite.tracking.companion import Companion

        assert Companion.__init__.__kwdefaults__
        Companion.__init__.__kwdefaults__["after"] = faults["companion_after"]
    if "pace" in faults:
        _keep_pace(Path(faults["pace"]))
    if "fill" in faults:
        _at(faults["fill"], lambda: fill(Path(home), faults["fill"]["leave"]))
    if "touch" in faults.get("kill", {}):
        _die_at_touch(home, faults["kill"]["touch"], faults)
    elif "kill" in faults:
        _at(faults["kill"], lambda: _die(faults))


def fill(home: Path, leave: int) -> None:
    """Leave so many bytes of the home's disk."""
    block = b"\0" * 4_096
    with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as filler:
        while filler.write(block) == len(block):
            pass
    os.truncate(home / "filler", max((home / "filler").stat().st_size - leave, 0))


def _keep_pace(file: Path) -> None:
    from suite.tracking.logger import TokenLogger

    log = TokenLogger.log_metrics

    def paced(self: TokenLogger, metrics: Mapping[str, float], step: int | None = None) -> None:
        while int(file.read_text()) < (step or 0):
            time.sleep(0.02)
        log(self, metrics, step)

    TokenLogger.log_metrics = paced  # type: ignore[method-assign]


def _die(faults: Mapping[str, Any]) -> None:
    if faults.get("group"):
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _at(moment: Mapping[str, Any], act: Callable[[], None]) -> None:
    module, _, path = moment["at"].partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    inner = getattr(owner, name)
    calls = 0

    @functools.wraps(inner)
    def watched(*arguments: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls
        if mine == moment["call"] and moment["when"] == "before":
            act()
        result = inner(*arguments, **settings)
        if mine == moment["call"] and moment["when"] == "after":
            act()
        return result

    setattr(owner, name, watched)


def _die_at_touch(home: str, last: int, faults: Mapping[str, Any]) -> None:
    touched, worker = 0, os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touched
        if event not in _TOUCHES or os.getpid() != worker:
            return
        if any(str(part).startswith(home) for part in arguments[:2]):
            touched += 1
            if touched == last:
                _die(faults)

    sys.addaudithook(hook)


def command(arguments: list[str]) -> int:
    """Run one command, with the faults of the environment."""
    if arguments[0] == "make-store":
        from suite.tracking.home import Home
        from suite.tracking.store import Store

        Store(Home.at(arguments[1]))
        return 0
    home = os.path.realpath(arguments[arguments.index("--home") + 1])
    install(json.loads(os.environ.get("FAULTS", "{}")), home)
    from suite.cli import main

    sys.argv = ["suite", *arguments]
    return main(arguments)


def _fork(order: Mapping[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        _become(order)
    return child


def _become(order: Mapping[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(order["environment"])
        code = command(order["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve() -> None:
    """Start and watch commands until standard input ends."""
    for name in _PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            found, status = os.waitpid(order["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
        else:
            answer = _fork(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(command(sys.argv[1:]))
    serve()
    os._exit(0)  # an orderly end takes seconds, after all those imports
