"""What a run was made with, captured once when its attempt starts."""

from __future__ import annotations

import functools
import os
import platform
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import suite

_PACKAGES = ("torch", "lightning", "transformers", "tokenizers", "mlflow", "optuna", "numpy")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Code and machine behind an attempt.

    Attributes:
        commit: commit of the source tree, or none outside a git checkout.
        dirty: whether the tree differed from that commit.
        version: version of the suite.
        python: version of Python.
        packages: versions of the packages that compute.
        host: machine name.
        pid: process id.
        command: command line.
    """

    commit: str | None
    dirty: bool | None
    version: str
    python: str
    packages: dict[str, str]
    host: str
    pid: int
    command: str

    def to_tags(self) -> dict[str, str]:
        """Run tags, under the names of the contract."""
        tags = {
            "suite.version": self.version,
            "suite.python": self.python,
            "suite.host": self.host,
            "suite.command": self.command[:5000],
            **{f"suite.package.{name}": version for name, version in self.packages.items()},
        }
        if self.commit is not None:
            tags["suite.git.commit"] = self.commit
            tags["suite.git.dirty"] = str(self.dirty).lower()
        return tags


@functools.cache
def capture_provenance() -> Provenance:
    """Read the source tree's and the machine's state, once a process."""
    source = Path(suite.__file__).resolve().parent
    # an installed copy may lie in somebody else's checkout, whose commit says nothing of it
    tracked = _git(source, "ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git(source, "rev-parse", "HEAD") if tracked else None
    status = _git(source, "status", "--porcelain", "--untracked-files=no")
    return Provenance(
        commit=commit,
        dirty=None if commit is None else bool(status),
        version=suite.__version__,
        python=platform.python_version(),
        packages={name: metadata.version(name) for name in _PACKAGES},
        host=socket.gethostname(),
        pid=os.getpid(),
        command=" ".join(sys.argv),
    )


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git in a folder; none where it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
