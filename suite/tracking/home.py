"""The one folder that holds all state of a user's studies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.errors import InputError, SuiteError


@dataclass(frozen=True, kw_only=True)
class Home:
    """Paths inside a home folder; nothing in it refers to the folder's own place.

    Attributes:
        root: the folder.
        tracking_uri: MLflow's tracking URI; the home's own sqlite file unless
            ``MLFLOW_TRACKING_URI`` names another store.
    """

    root: Path
    tracking_uri: str

    @classmethod
    def at(cls, root: str | Path | None = None) -> Home:
        """The home at ``root``, else at ``SUITE_HOME``, else at ``./mlruns``.

        Raises:
            InputError: if the path is empty, or cannot be part of a database address.
        """
        if root is not None and not str(root):
            raise InputError("--home is empty; give a folder, or leave --home out")
        chosen = Path(root or os.environ.get("SUITE_HOME") or "mlruns").expanduser().absolute()
        # a database address gives these a meaning of their own
        if odd := re.search(r"\?|%[0-9A-Fa-f]{2}", str(chosen)):
            raise InputError(
                f"the home {chosen} has {odd[0]!r} in its path; choose another with --home or "
                "SUITE_HOME"
            )
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{chosen / 'mlflow.db'}"
        return cls(root=chosen, tracking_uri=uri)

    @property
    def database(self) -> Path:
        """The home's own MLflow database."""
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        """Artifacts of all runs."""
        return self.root / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """One folder a run: the state that it resumes from, and the trained model."""
        return self.root / "checkpoints"

    @property
    def cache(self) -> Path:
        """Tokenizers, token streams and KV moments; everything in it can be made again."""
        return self.root / "cache"

    @property
    def reports(self) -> Path:
        """One folder a study."""
        return self.root / "reports"

    @property
    def spool(self) -> Path:
        """What attempts have to say to the tracker, until it is sent."""
        return self.root / "spool"

    @property
    def optuna_journal(self) -> Path:
        """Optuna's journal storage."""
        return self.root / "optuna.journal"

    @property
    def owns_database(self) -> bool:
        """Whether runs go to the home's own sqlite file."""
        return self.tracking_uri == f"sqlite:///{self.database}"

    @property
    def is_server(self) -> bool:
        """Whether runs go to an MLflow server over HTTP."""
        return self.tracking_uri.startswith(("http:", "https:"))

    def create(self) -> None:
        """Make the folder.

        Raises:
            InputError: if it cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise InputError(self._unwritable(error)) from error

    def _unwritable(self, error: OSError) -> str:
        cannot = f"the home {self.root} cannot be written ({error.strerror or error})"
        if self.root.is_file():
            return f"the home {self.root} is a file; give a folder with --home or SUITE_HOME"
        if self.database.exists():
            return f"{cannot}; copy it to where it can, and give the copy with --home or SUITE_HOME"
        return f"{cannot}; choose another with --home or SUITE_HOME"

    @contextlib.contextmanager
    def hold(self, study: str) -> Iterator[None]:
        """Keep other processes from working on the study; the lock ends with the process.

        Raises:
            SuiteError: if another process holds the study; the message names it.
        """
        from filelock import FileLock, Timeout

        self.create()
        locks = self.root / "locks"
        locks.mkdir(exist_ok=True)
        holder = locks / f"{study}.json"
        lock = FileLock(str(locks / f"{study}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise SuiteError(
                f"another process works on the study {study!r} in {self.root} "
                f"({_read_holder(holder)}); wait for it, or end it"
            ) from error
        try:
            holder.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


def _read_holder(path: Path) -> str:
    try:
        held = json.loads(path.read_text())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # being written, or damaged
        return "just started"
