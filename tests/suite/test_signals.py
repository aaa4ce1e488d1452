"""Signals to a study that trains: it saves, ends as KILLED, and goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from suite.tracking.curves import live
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

STUDY = """
name: tiny
seed: 3
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 120}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: narrow, num_hidden_layers: 1, hidden_size: 16}
  recurrences: [1]
  tokens: 20_480
  sequence_length: 32
  batch_size: 8
  evaluate_every: 5_120
  checkpoint_every: 1_024
  evaluation_tokens: 256
  optimizer: {warmup_tokens: 1_024}
  trainer: {accelerator: cpu, threads: 1}
"""
LAST_TOKENS = 20_480
PATIENCE = 90.0

# Loading torch, lightning and mlflow takes longer than the study. This process does it once; each
# command is then a process that is forked from it: a session of its own, with the default signals.
LAUNCHER = """
import fcntl, json, os, signal, socket, sys, termios
import lightning_modules.callbacks, mlflow.store.tracking.sqlalchemy_store, transformers
import suite.reports.build, suite.reports.verify, suite.runner, suite.stages.trainers
from suite.cli import main
asked = socket.socket(fileno=0)
while True:
    text, outputs, _, _ = socket.recv_fds(asked, 65536, 1)
    if not text:
        break
    what = json.loads(text)
    if "wait" in what:
        print(os.waitstatus_to_exitcode(os.waitpid(what["wait"], 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid:
        os.close(outputs[0])
        print(pid, flush=True)
        continue
    os.setsid()
    if os.isatty(outputs[0]):
        fcntl.ioctl(outputs[0], termios.TIOCSCTTY, 0)
    for descriptor in range(3):
        os.dup2(outputs[0], descriptor)
    os.close(outputs[0])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if what["nohup"]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main(what["arguments"]))
os._exit(0)  # an orderly end takes seconds after all those imports
"""


class Launcher:
    """Starts commands of the suite; see ``LAUNCHER``."""

    def __init__(self) -> None:
        self._asking, asked = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with asked:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER],
                stdin=asked,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def start(self, arguments: list[str], output: int, *, nohup: bool) -> int:
        """Start a command that writes to an open file or terminal; returns its process."""
        return self._ask({"arguments": arguments, "nohup": nohup}, [output])

    def exit_code(self, pid: int) -> int:
        """Exit code of a command that has ended, negative for a signal."""
        return self._ask({"wait": pid}, [])

    def _ask(self, what: dict[str, object], outputs: list[int]) -> int:
        socket.send_fds(self._asking, [json.dumps(what).encode()], outputs)
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._asking.close()
        self._process.communicate()


@dataclass
class Command:
    """A command that runs.

    Attributes:
        launcher: the process above it.
        pid: its process.
        home: its home.
        terminal: our end of its terminal, if it has one.
    """

    launcher: Launcher
    pid: int
    home: Path
    terminal: int | None = None

    def running(self) -> bool:
        """Whether it has not ended; what it writes to its terminal meanwhile is read."""
        if self.terminal is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.terminal, 65_536)
        return _state(self.pid) != "Z"

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.running(), "it ended before the signal"
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def until_saved(self) -> None:
        """Wait for the first checkpoint: some 20 others are still to come."""
        self.until(lambda: [*self.home.glob("checkpoints/*/tokens-*.ckpt")])

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.running():
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.02)
        return self.launcher.exit_code(self.pid)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _in_session(session: int) -> set[int]:
    """Processes of a session that have not ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, OSError):
            state, _, _, its = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            if int(its) == session and state != "Z":
                found.add(int(entry.name))
    return found


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


Run = Callable[..., Command]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "tiny.yaml"
    path.write_text(STUDY)
    return path


def start(
    launcher: Launcher,
    study: Path,
    home: Path,
    *settings: str,
    output: int | None = None,
    nohup: bool = False,
) -> Command:
    overrides = [part for setting in settings for part in ("--set", setting)]
    arguments = ["run", str(study), "--home", str(home), *overrides]
    with Path(f"{home}.log").open("ab") as log:
        pid = launcher.start(arguments, log.fileno() if output is None else output, nohup=nohup)
    return Command(launcher, pid, home)


@pytest.fixture(scope="module")
def undisturbed(
    launcher: Launcher,
    study: Path,
    blank_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A home in which the study ran without a signal."""
    home = tmp_path_factory.mktemp("undisturbed") / "home"
    home.mkdir()
    shutil.copyfile(blank_database, home / "mlflow.db")
    assert start(launcher, study, home).exit_code() == 0, Path(f"{home}.log").read_text()
    return home


@pytest.fixture
def run(
    launcher: Launcher, study: Path, undisturbed: Path, blank_database: Path, tmp_path: Path
) -> Run:
    """Starts the study in the test's own home, or goes on with it there."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(blank_database, home / "mlflow.db")
    shutil.copytree(undisturbed / "cache", home / "cache")

    def begin(*settings: str, output: int | None = None, nohup: bool = False) -> Command:
        return start(launcher, study, home, *settings, output=output, nohup=nohup)

    return begin


def trained(home: Path) -> pl.DataFrame:
    """Pretraining runs of the study."""
    return open_reader(Home.at(home)).runs("tiny").filter(pl.col("kind") == "pretraining")


def live_points(home: Path) -> pl.DataFrame:
    """Live points of the one pretraining run, without measured speed."""
    points = live(open_reader(Home.at(home)).curves([trained(home)["run_id"].item()]))
    return (
        points.filter(~pl.col("key").str.starts_with("speed/"))
        .select("key", "step", "value")
        .sort(pl.all())
    )


def assert_stopped(command: Command) -> str:
    """The command stopped as asked, and its run is KILLED; returns the run's id.

    One more interrupt, as the interpreter leaves, ends it by that signal: 130 to a shell as well.
    """
    assert command.exit_code() in (130, -signal.SIGINT)
    runs = trained(command.home)
    assert runs["status"].to_list() == ["KILLED"]
    assert 0 < live_points(command.home)["step"].max() < LAST_TOKENS  # type: ignore[operator]
    assert _in_session(command.pid) == set(), "no process of it is left"
    return str(runs["run_id"].item())


def assert_goes_on(run: Run, run_id: str, undisturbed: Path) -> None:
    """The study goes on in the same run, to the very curve of an undisturbed one."""
    command = run()
    assert command.exit_code() == 0, Path(f"{command.home}.log").read_text()
    runs = trained(command.home)
    assert runs.select("run_id", "status").rows() == [(run_id, "FINISHED")]
    tags = open_reader(Home.at(command.home)).tags([run_id])
    assert dict(tags.select("key", "value").iter_rows())["suite.attempts"] == "2"
    assert live_points(command.home).equals(live_points(undisturbed))


def log_of(command: Command) -> str:
    return Path(f"{command.home}.log").read_text()


def on_terminal(run: Run, *, nohup: bool) -> Command:
    """A command on a terminal that is closed once the first checkpoint is there."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    try:
        command = run(output=theirs, nohup=nohup)
        os.close(theirs)
        command.terminal = ours
        command.until_saved()
        command.terminal = None
    finally:
        os.close(ours)
    return command


def test_closing_the_terminal_saves_and_ends_as_killed(run: Run, undisturbed: Path) -> None:
    run_id = assert_stopped(on_terminal(run, nohup=False))
    assert_goes_on(run, run_id, undisturbed)


@pytest.mark.slow
def test_under_nohup_a_closed_terminal_changes_nothing(run: Run, undisturbed: Path) -> None:
    command = on_terminal(run, nohup=True)
    assert command.exit_code() == 0
    assert trained(command.home)["status"].to_list() == ["FINISHED"]
    assert live_points(command.home).equals(live_points(undisturbed))


def test_interrupts_without_end_still_end_as_killed(run: Run, undisturbed: Path) -> None:
    """The second does not wait for the boundary; those after it meet the clean-up."""
    command = run()
    command.until_saved()
    sent = 0
    while command.running():
        command.send(signal.SIGINT)
        sent += 1
        time.sleep(0.005)
    assert sent > 2
    run_id = assert_stopped(command)
    assert_goes_on(run, run_id, undisturbed)


def test_ending_the_whole_process_group_spares_the_step_under_way(
    run: Run, undisturbed: Path
) -> None:
    command = run("pretraining.trainer.num_workers=2")
    command.until_saved()
    assert len(_in_session(command.pid)) >= 3, "two loader workers work beside it"
    os.killpg(command.pid, signal.SIGTERM)
    run_id = assert_stopped(command)
    assert "run the same command again" in log_of(command)
    assert_goes_on(run, run_id, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0005, 0.01, 0.1, 0.3])
def test_two_interrupts_at_any_distance_end_as_killed(
    run: Run, undisturbed: Path, gap: float
) -> None:
    command = run()
    command.until_saved()
    command.send(signal.SIGINT)
    time.sleep(gap)
    if command.running():
        command.send(signal.SIGINT)
    run_id = assert_stopped(command)
    assert_goes_on(run, run_id, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("group", [False, True])
def test_each_request_to_end_saves_at_the_boundary(
    run: Run, undisturbed: Path, number: signal.Signals, group: bool
) -> None:
    command = run("pretraining.trainer.num_workers=1")
    command.until_saved()
    (os.killpg if group else os.kill)(command.pid, number)
    run_id = assert_stopped(command)
    saved = max(command.home.glob("checkpoints/*/tokens-*.ckpt")).stem.removeprefix("tokens-")
    assert live_points(command.home)["step"].max() == int(saved)
    assert_goes_on(run, run_id, undisturbed)
