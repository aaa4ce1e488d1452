from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import pytest

import suite
from suite.tracking._checkout import Checkout, Diff
from suite.tracking._machine import Hardware
from suite.tracking.provenance import (
    Provenance,
    capture_provenance,
    code_on_file,
    source_digest,
)

SAMPLE = Provenance(
    checkout=Checkout(
        commit="c" * 40,
        branch="main",
        dirty=True,
        diff=Diff(content=b"diff --git a/x b/x\n", size=7, digest="d" * 64, cut=False),
    ),
    version="1.2.3",
    source="5" * 64,
    python="3.11.9",
    packages={"torch": "2.13.0", "numpy": "2.4.6", "extra": "0.1"},
    lock="1" * 64,
    hardware=Hardware(platform="P", cpu="C", cores=2, usable_cores=2, memory_bytes=2**30),
    environment={"OMP_NUM_THREADS": "1"},
    host="h",
    pid=1,
    command="suite run demo",
    interpreter="python -m suite.cli run demo",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the installed package, outside any checkout."""
    folder = tmp_path / "checkout" / "suite"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(suite, "__file__", str(folder / "__init__.py"))
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def environment_of(found: Provenance) -> dict[str, object]:
    document = json.loads(found.files()["environment.json"])
    assert isinstance(document, dict)
    return document


def test_names_the_versions_the_machine_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["suite", "run", "my study.yaml"])
    found = capture_provenance()
    assert found.version == suite.__version__
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.pid == os.getpid()
    tags = found.to_tags()
    assert tags["suite.command"] == "suite run 'my study.yaml'"
    assert tags["suite.package.mlflow"] == metadata.version("mlflow")
    assert tags["suite.version"] == suite.__version__
    assert tags["suite.hardware"] == str(found.hardware)


def test_every_installed_distribution_has_its_version() -> None:
    found = capture_provenance()
    listed = json.loads(
        subprocess.check_output([sys.executable, "-m", "pip", "list", "--format=json"])
    )
    assert dict(found.packages) == {row["name"]: row["version"] for row in listed}
    rows = sorted(found.packages.items())
    lines = "".join(f"{name}=={version}\n" for name, version in rows)
    assert found.to_tags()["suite.packages"] == sha256(lines.encode()).hexdigest()


def test_a_checkout_gives_commit_branch_diff_and_lock(package: Path) -> None:
    (package.parent / "requirements.lock").write_text("torch==2\n")
    git(package.parent, "init", "-b", "trunk")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-m", "one")
    (package / "__init__.py").write_text("changed = True\n")
    found = capture_provenance()
    tags = found.to_tags()
    assert tags["suite.git.commit"] == git(package, "rev-parse", "HEAD")
    assert tags["suite.git.branch"] == "trunk"
    assert tags["suite.git.dirty"] == "true"
    assert tags["suite.lock"] == sha256(b"torch==2\n").hexdigest()
    assert b"+changed = True\n" in found.files()["diff.patch"]


def test_the_code_of_a_process_is_what_it_was_at_first(package: Path) -> None:
    first = capture_provenance()
    (package / "__init__.py").write_text("edited later\n")
    assert capture_provenance().source == first.source
    assert source_digest(package) != first.source


def test_an_installed_wheel_has_no_commit_but_its_source_has_a_digest(package: Path) -> None:
    found = capture_provenance()
    assert not [key for key in found.to_tags() if key.startswith("suite.git")]
    assert "suite.lock" not in found.to_tags()
    assert list(found.files()) == ["environment.json"]
    assert found.to_tags()["suite.source"] == source_digest(package)
    assert "suite.git.commit" not in json.loads(found.attempt_tag(1)[1])
    assert "not a git repository" in str(environment_of(found)["git"])


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("suite/new.py", True),
        ("tuning/new.yaml", True),
        ("lightning_modules/a/new.j2", True),
        ("suite/__pycache__/new.cpython-311.pyc", False),
        ("other/new.py", False),
        ("new.py", False),
    ],
)
def test_the_source_digest_follows_the_files_that_the_packages_load(
    package: Path, path: str, counts: bool
) -> None:
    before = source_digest(package)
    file = package.parent / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    assert (source_digest(package) != before) is counts


def test_the_source_digest_tells_names_from_contents(package: Path) -> None:
    (package / "a.py").write_text("b.py")
    one = source_digest(package)
    (package / "a.py").rename(package / "b.py")
    (package / "b.py").write_text("a.py")
    assert source_digest(package) != one


def test_secrets_reach_neither_tags_nor_files(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(package.parent, "init")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-m", "one")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2secret@host/runs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter3secret")
    monkeypatch.setenv("SUITE_TOKEN", "hunter4secret")
    (package / "new.py").write_text("KEY = 'hunter3secret'\nURI = 'http://a:hunter2secret@b'\n")
    monkeypatch.setattr(sys, "argv", ["suite", "--token", "hunter5secret", "hunter4secret"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "suite", "--token=hunter5secret"])
    found = capture_provenance()
    assert found.command == "suite --token '***' '***'"
    assert dict(found.environment)["MLFLOW_TRACKING_URI"] == "postgresql://me:***@host/runs"
    everything = repr((found.to_tags(), found.attempt_tag(1), found.files(), found))
    assert "diff.patch" in found.files()
    for number in "2345":
        assert f"hunter{number}secret" not in everything


def test_arguments_that_are_no_text_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["suite", os.fsdecode(b"caf\xe9.yaml")])
    monkeypatch.setenv("SUITE_HOME", os.fsdecode(b"caf\xe9"))
    found = capture_provenance()
    assert found.to_tags()["suite.command"] == r"suite 'caf\udce9.yaml'"
    assert found.environment["SUITE_HOME"] == r"caf\udce9"


def test_tags_are_short_enough_for_the_store() -> None:
    long = replace(
        SAMPLE,
        command="x" * 100_000,
        checkout=replace(SAMPLE.checkout, branch="b" * 9_000),
        hardware=replace(SAMPLE.hardware, cpu="c" * 9_000),
    )
    assert max(map(len, long.to_tags().values())) == len(long.to_tags()["suite.command"]) == 5_000


@pytest.mark.parametrize(("dirty", "text"), [(True, "true"), (False, "false"), (None, "unknown")])
def test_a_tree_that_could_not_be_read_is_neither_clean_nor_dirty(
    dirty: bool | None, text: str
) -> None:
    found = replace(SAMPLE, checkout=replace(SAMPLE.checkout, dirty=dirty, diff=None))
    assert found.to_tags()["suite.git.dirty"] == text
    assert "diff.patch" not in found.files()


def test_the_tag_of_an_attempt_keeps_its_code() -> None:
    key, value = SAMPLE.attempt_tag(3)
    assert key == "suite.provenance.3"
    assert json.loads(value) == {
        "suite.version": "1.2.3",
        "suite.python": "3.11.9",
        "suite.source": "5" * 64,
        "suite.packages": SAMPLE.packages_digest,
        "suite.git.commit": "c" * 40,
        "suite.git.dirty": "true",
        "suite.package.torch": "2.13.0",
        "suite.package.numpy": "2.4.6",
    }


def test_the_file_holds_everything_about_an_attempt() -> None:
    assert environment_of(SAMPLE) == {
        "suite": {"version": "1.2.3", "source": "5" * 64},
        "git": {
            "commit": "c" * 40,
            "branch": "main",
            "dirty": True,
            "note": None,
            "diff": {"bytes": 7, "sha256": "d" * 64, "cut": False},
        },
        "command": "suite run demo",
        "interpreter": "python -m suite.cli run demo",
        "process": {"host": "h", "pid": 1},
        "hardware": {
            "platform": "P",
            "cpu": "C",
            "cores": 2,
            "usable_cores": 2,
            "memory_bytes": 2**30,
            "gpus": [],
            "visible_gpus": 0,
            "driver": None,
            "cuda": None,
        },
        "environment": {"OMP_NUM_THREADS": "1"},
        "lock": "1" * 64,
        "python": "3.11.9",
        "packages": {"torch": "2.13.0", "numpy": "2.4.6", "extra": "0.1"},
    }
    assert SAMPLE.files()["diff.patch"] == b"diff --git a/x b/x\n"
    # an attempt that was cut off between the two must not look like one whose diff was removed
    assert list(SAMPLE.files()) == ["diff.patch", "environment.json"]


def test_the_file_and_the_tag_of_an_attempt_say_the_same() -> None:
    found = capture_provenance()
    for one in (SAMPLE, found):
        content = one.files()["environment.json"]
        assert code_on_file(content) == json.loads(one.attempt_tag(1)[1])


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"git": 1, "packages": 2}', b"\xff"])
def test_a_file_that_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        code_on_file(content)
