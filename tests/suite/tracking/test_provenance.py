from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import suite
from suite.tracking.provenance import Provenance, capture_provenance


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for the installed package, inside a folder that may become a checkout."""
    folder = tmp_path / "checkout" / "suite"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(suite, "__file__", str(folder / "__init__.py"))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    capture_provenance.cache_clear()
    yield folder
    capture_provenance.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_names_the_versions_the_machine_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_provenance.cache_clear()
    monkeypatch.setattr(sys, "argv", ["suite", "run", "demo"])
    found = capture_provenance()
    capture_provenance.cache_clear()
    assert found.version == suite.__version__
    assert found.packages["torch"] == metadata.version("torch")
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.pid == os.getpid()
    tags = found.to_tags()
    assert tags["suite.command"] == "suite run demo"
    assert tags["suite.package.mlflow"] == metadata.version("mlflow")
    assert tags["suite.version"] == suite.__version__


def test_outside_a_checkout_there_is_no_commit(package: Path) -> None:
    found = capture_provenance()
    assert (found.commit, found.dirty) == (None, None)
    assert not [key for key in found.to_tags() if key.startswith("suite.git")]


def test_a_checkout_gives_its_commit_and_whether_it_was_changed(package: Path) -> None:
    git(package, "init")
    git(package, "add", ".")
    git(package, "commit", "-m", "one")
    commit = git(package, "rev-parse", "HEAD")
    clean = capture_provenance()
    assert (clean.commit, clean.dirty) == (commit, False)
    assert clean.to_tags()["suite.git.dirty"] == "false"

    capture_provenance.cache_clear()
    (package / "__init__.py").write_text("changed = True")
    changed = capture_provenance()
    assert (changed.commit, changed.dirty) == (commit, True)
    assert changed.to_tags()["suite.git.commit"] == commit
    assert changed.to_tags()["suite.git.dirty"] == "true"


def test_a_checkout_that_does_not_track_the_package_is_not_its_source(package: Path) -> None:
    """The package is installed into an environment that lies in a project of somebody else."""
    (package.parent / "theirs.py").write_text("")
    git(package.parent, "init")
    git(package.parent, "add", "theirs.py")
    git(package.parent, "commit", "-m", "one")
    assert capture_provenance().commit is None


def test_a_machine_without_git_is_fine(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture_provenance().commit is None


def test_long_commands_fit_into_a_tag() -> None:
    found = Provenance(
        commit=None,
        dirty=None,
        version="1",
        python="3",
        packages={},
        host="h",
        pid=1,
        command="x" * 100_000,
    )
    assert len(found.to_tags()["suite.command"]) == 5_000
