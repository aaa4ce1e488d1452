"""Runs git so that it reads, and does nothing else."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

PATIENCE = 10.0
"""Seconds for all calls together."""

# Nothing that a repository or a user has configured may run, and nothing may be written or
# fetched: no hooks, no file-system monitor, no external diff, no lock on the index.
_SETTINGS = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.quotePath": "true"}
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_INHERITED = ("GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM")


class GitError(Exception):
    """Git did not do what was asked; the message says why."""


class Git:
    """Runs git in a folder; all calls together have so many seconds."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._index: Path | None = None

    def at(self, folder: Path, *, index: Path | None = None) -> Git:
        """The same in another folder, with an index of its own."""
        other = copy.copy(self)
        other._folder, other._index = folder, index
        return other

    def line(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> str:
        """What git prints, without the end of the line."""
        with self.run(*arguments, fine=fine) as output:
            return os.fsdecode(output.read().removesuffix(b"\n"))

    def run(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> IO[bytes]:
        """What git prints, as an open file.

        Args:
            arguments: the command and what it takes.
            fine: exit codes that are no failure.

        Raises:
            GitError: if it fails, is not there, or takes too long.
        """
        settings = [part for item in _SETTINGS.items() for part in ("-c", "=".join(item))]
        try:
            return self._run(["git", "--no-pager", *settings, *arguments], fine)
        except OSError as error:
            raise GitError(f"git cannot be run: {error.strerror or error}") from error

    def _run(self, command: Sequence[str], fine: tuple[int, ...]) -> IO[bytes]:
        with contextlib.ExitStack() as opened:
            # files, for somebody would have to read a pipe while git is timed
            output = opened.enter_context(tempfile.TemporaryFile())
            with tempfile.TemporaryFile() as complaint:
                code = self._wait(
                    subprocess.Popen(
                        command,
                        cwd=self._folder,
                        env=_environment(self._index),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=complaint,
                        start_new_session=True,
                    )
                )
                complaint.seek(0)
                said = complaint.read(2_000).decode(errors="replace").strip()
            if code not in fine:
                raise GitError(said.splitlines()[0] if said else f"git failed with code {code}")
            output.seek(0)
            opened.pop_all()
            return output

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=max(0.0, self._deadline - time.monotonic()))
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # git waits for what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
            if isinstance(error, subprocess.TimeoutExpired):
                raise GitError(f"git did not answer within {self._seconds:g} s") from error
            raise


def _environment(index: Path | None) -> dict[str, str]:
    """The environment without what would point git elsewhere or make it run a program."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_")
        or name in _INHERITED
        or (name.startswith("GIT_CONFIG_") and name != "GIT_CONFIG_PARAMETERS")
    }
    own = {} if index is None else {"GIT_INDEX_FILE": str(index)}
    return kept | _VARIABLES | own
