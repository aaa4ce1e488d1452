"""What a run was made with, captured once when its attempt starts."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import suite
from suite.tracking._checkout import PACKAGES, SOURCE_SUFFIXES, Checkout, read_checkout
from suite.tracking._machine import Hardware, read_hardware
from suite.tracking._redaction import known_secrets, mask_arguments, recorded_environment

PROVENANCE_TAG = "suite.provenance."
COMPUTING = (
    "torch", "lightning", "transformers", "tokenizers", "mlflow", "optuna", "numpy", "scipy",
    "polars",
)  # fmt: skip
"""Packages whose versions stand in tags of their own."""
LOCK_NAME = "requirements.lock"
ENVIRONMENT_NAME, DIFF_NAME = "environment.json", "diff.patch"
"""Files of an attempt, in the folder of artifacts that ``attempt_folder`` gives."""
_MAX_COMMAND = 5_000
_MAX_TAG = 1_000


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Code and machine behind an attempt; no part of it holds a secret.

    Attributes:
        checkout: what git says of the source tree.
        version: version of the suite.
        source: SHA-256 of the source files that were imported, wherever they lie.
        python: version of Python.
        packages: version of every installed distribution, by name.
        lock: SHA-256 of the lock file beside the packages, if there is one.
        hardware: the machine.
        environment: variables that can change a result or its speed.
        host: machine name.
        pid: process id.
        command: command line, quoted for a shell.
        interpreter: command line of the interpreter, likewise.
    """

    checkout: Checkout
    version: str
    source: str | None
    python: str
    packages: Mapping[str, str]
    lock: str | None
    hardware: Hardware
    environment: Mapping[str, str]
    host: str
    pid: int
    command: str
    interpreter: str

    @property
    def packages_digest(self) -> str:
        """SHA-256 of names and versions of all distributions."""
        return _packages_digest(self.packages)

    @property
    def computing(self) -> dict[str, str]:
        """Versions of the packages that compute."""
        return {name: self.packages[name] for name in COMPUTING if name in self.packages}

    @property
    def _dirty(self) -> str:
        return {True: "true", False: "false", None: "unknown"}[self.checkout.dirty]

    def to_tags(self) -> dict[str, str]:
        """Run tags, under the names of the contract."""
        tags = {
            "suite.version": self.version,
            "suite.python": self.python,
            "suite.host": self.host,
            "suite.command": self.command[:_MAX_COMMAND],
            "suite.hardware": str(self.hardware)[:_MAX_TAG],
            "suite.packages": self.packages_digest,
            **{f"suite.package.{name}": version for name, version in self.computing.items()},
        }
        if self.source is not None:
            tags["suite.source"] = self.source
        if self.lock is not None:
            tags["suite.lock"] = self.lock
        if self.checkout.commit is not None:
            tags["suite.git.commit"] = self.checkout.commit
            tags["suite.git.dirty"] = self._dirty
        if self.checkout.branch is not None:
            tags["suite.git.branch"] = self.checkout.branch[:_MAX_TAG]
        return tags

    def attempt_tag(self, number: int) -> tuple[str, str]:
        """Key and value of the run tag that keeps the code of one attempt.

        The tags of ``to_tags`` are those of the latest attempt; a run that was resumed after an
        edit has points from both.

        Args:
            number: the attempt's number, from 1.
        """
        code = code_on_file(self.files()[ENVIRONMENT_NAME])
        return f"{PROVENANCE_TAG}{number}", json.dumps(code, sort_keys=True)

    def files(self) -> dict[str, bytes]:
        """Files to keep with an attempt, by name, in the order in which to keep them.

        The environment holds the digest of the diff and comes after it: where there is an
        environment, the diff was kept too, whatever cut the attempt off.
        """
        checkout, diff = self.checkout, self.checkout.diff
        document = {
            "suite": {"version": self.version, "source": self.source},
            "git": {
                "commit": checkout.commit,
                "branch": checkout.branch,
                "dirty": checkout.dirty,
                "note": checkout.note,
                "diff": diff and {"bytes": diff.size, "sha256": diff.digest, "cut": diff.cut},
            },
            "command": self.command,
            "interpreter": self.interpreter,
            "process": {"host": self.host, "pid": self.pid},
            "hardware": asdict(self.hardware),
            "environment": dict(self.environment),
            "lock": self.lock,
            "python": self.python,
            "packages": dict(sorted(self.packages.items())),
        }
        kept = {} if diff is None else {DIFF_NAME: diff.content}
        return kept | {ENVIRONMENT_NAME: (json.dumps(document, indent=1) + "\n").encode()}


def attempt_folder(number: int) -> str:
    """Where the files of an attempt are kept among the artifacts of its run."""
    return f"provenance/attempt-{number}"


def code_on_file(environment: bytes) -> dict[str, str]:
    """What the tag of an attempt holds, from the file that is kept with it.

    Args:
        environment: content of ``environment.json``.

    Raises:
        ValueError: if it is not what ``Provenance.files`` writes.
    """
    try:
        document = json.loads(environment)
        git, packages = document["git"], document["packages"]
        dirty = {True: "true", False: "false", None: "unknown"}[git["dirty"]]
        found = {
            "suite.version": document["suite"]["version"],
            "suite.python": document["python"],
            "suite.source": document["suite"]["source"],
            "suite.packages": _packages_digest(packages),
            "suite.git.commit": git["commit"],
            "suite.git.dirty": None if git["commit"] is None else dirty,
            **{f"suite.package.{name}": packages.get(name) for name in COMPUTING},
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no record of an environment: {error}") from error
    return {key: value for key, value in found.items() if value is not None}


def _packages_digest(packages: Mapping[str, str]) -> str:
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def capture_provenance() -> Provenance:
    """Read the state of the source tree, the installation and the machine.

    The code of a process is what it was when it was first asked for: what was imported does
    not follow later edits.
    """
    secrets = known_secrets(os.environ)
    code = _capture_code(_tree())
    return Provenance(
        checkout=code.checkout,
        version=suite.__version__,
        source=code.source,
        python=platform.python_version(),
        packages=code.packages,
        lock=code.lock,
        hardware=read_hardware(),
        environment={
            _storable(name): _storable(value)
            for name, value in recorded_environment(os.environ).items()
        },
        host=socket.gethostname(),
        pid=os.getpid(),
        command=_storable(shlex.join(mask_arguments(sys.argv, secrets))),
        interpreter=_storable(shlex.join(mask_arguments(sys.orig_argv, secrets))),
    )


def installed_source() -> str | None:
    """``source_digest`` of the packages that this process runs."""
    return _source_digest_once(_tree())


def source_digest(tree: Path) -> str | None:
    """SHA-256 of the source files of the packages, by name and content.

    A wheel and a clean checkout of the same commit have the same digest.

    Args:
        tree: folder of the package ``suite``; the other packages lie beside it.

    Returns:
        The digest, or none where the files cannot be read.
    """
    digest = hashlib.sha256()
    try:
        files = {
            file.relative_to(tree.parent).as_posix(): file
            for name in PACKAGES
            for file in (tree.parent / name).rglob("*")
            if file.suffix in SOURCE_SUFFIXES and file.is_file()
        }
        for name, file in sorted(files.items()):
            content = file.read_bytes()
            digest.update(f"{len(name)} {len(content)} {name}".encode(errors="surrogateescape"))
            digest.update(content)
    except OSError:
        return None
    return digest.hexdigest() if files else None


def _tree() -> Path:
    return Path(suite.__file__).resolve().parent


_source_digest_once = functools.cache(source_digest)


@dataclass(frozen=True, kw_only=True)
class _Code:
    checkout: Checkout
    source: str | None
    packages: dict[str, str]
    lock: str | None


@functools.cache
def _capture_code(tree: Path) -> _Code:
    checkout = read_checkout(tree, secrets=known_secrets(os.environ))
    branch = None if checkout.branch is None else _storable(checkout.branch)
    lock = tree.parent / LOCK_NAME
    return _Code(
        checkout=Checkout(**{**vars(checkout), "branch": branch}),
        source=_source_digest_once(tree),
        packages=_installed(),
        lock=hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
    )


def _installed() -> dict[str, str]:
    """Versions of all distributions; of two with one name, the one that is imported."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        if name := distribution.metadata["Name"]:  # none in what a broken removal has left
            found.setdefault(name, distribution.version or "unknown")
    return found


def _storable(text: str) -> str:
    """Text that any database takes: bytes that are no UTF-8 are written out."""
    return text.encode(errors="backslashreplace").decode()
