from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from suite.reports.run_faults import run_faults
from suite.tracking._checkout import Checkout, Diff
from suite.tracking.curves import Attempt
from suite.tracking.provenance import capture_provenance

PATCH = b"diff --git a/x b/x\n\n+x\n"


def attempt(number: int) -> dict[str, str]:
    found = Attempt(number=number, started=number, resumed_from=-1, host="h", pid=1, device="cpu")
    return dict([found.to_tag()])


def faults(tags: dict[str, str], artifacts: Path | None = None, name: str = "a") -> list[str]:
    rows = {"r": {"name": name}}
    return [str(fault) for fault in run_faults(["r"], rows, {"r": tags}, artifacts)]


def test_a_run_that_is_gone_is_named() -> None:
    (fault,) = run_faults(["x"], {}, {}, None)
    assert str(fault) == "run x: it is not in the store; it was deleted, or its rows were removed"


@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"suite.attempts": "3"},
        {"suite.attempts": "1", **attempt(1)},
        {"suite.attempts": "2", **attempt(1), **attempt(2), "mlflow.runName": "a"},
    ],
)
def test_a_sound_run_has_no_fault(tags: dict[str, str]) -> None:
    assert faults(tags) == []


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"mlflow.runName": "b"}, "its tag mlflow.runName is 'b'"),
        ({"suite.attempts": "1", **attempt(1), **attempt(2)}, "attempts 1, 2, and"),
        ({"suite.attempts": "2", **attempt(2)}, "attempts 2, and suite.attempts is '2'"),
        ({**attempt(1)}, "attempts 1, and suite.attempts is ''"),
        ({"suite.attempts": "1", "suite.attempt.1": "{}"}, "suite.attempt.1 does not describe"),
        ({"suite.provenance.1": "x"}, "its tag suite.provenance.1 is 'x'"),
    ],
)
def test_edited_tags_are_named(tags: dict[str, str], said: str) -> None:
    (line,) = faults(tags)
    assert line.startswith("run r (a): ")
    assert said in line


@pytest.fixture
def on_file(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Tags of a run from a dirty tree, and the folder of its artifacts."""
    diff = Diff(
        content=b"Changes.\n\n" + PATCH,
        size=len(PATCH),
        digest=sha256(PATCH).hexdigest(),
        cut=False,
    )
    found = replace(capture_provenance(), checkout=Checkout(commit="c" * 40, dirty=True, diff=diff))
    folder = tmp_path / "r" / "artifacts" / "provenance" / "attempt-1"
    folder.mkdir(parents=True)
    for name, content in found.files().items():
        (folder / name).write_bytes(content)
    return {"suite.attempts": "1", **attempt(1), **dict([found.attempt_tag(1)])}, folder


def test_records_that_agree_are_no_fault(on_file: tuple[dict[str, str], Path]) -> None:
    tags, folder = on_file
    assert faults(tags, folder.parents[3]) == []
    (folder / "environment.json").unlink()  # cut off before it was kept
    assert faults(tags, folder.parents[3]) == []


def edit_tag(tags: dict[str, str], folder: Path) -> None:
    code = json.loads(tags["suite.provenance.1"])
    tags["suite.provenance.1"] = json.dumps(code | {"suite.git.dirty": "false"})


def edit_file(tags: dict[str, str], folder: Path) -> None:
    file = folder / "environment.json"
    file.write_text(file.read_text().replace('"commit": "c', '"commit": "d'))


def spoil_file(tags: dict[str, str], folder: Path) -> None:
    (folder / "environment.json").write_text("{}")


def edit_patch(tags: dict[str, str], folder: Path) -> None:
    (folder / "diff.patch").write_bytes(b"Changes.\n\n" + PATCH.replace(b"+x", b"+y"))


def remove_patch(tags: dict[str, str], folder: Path) -> None:
    (folder / "diff.patch").unlink()


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (edit_tag, "its tag suite.provenance.1 has suite.git.dirty 'false', its artifact"),
        (edit_file, f"suite.git.commit '{'c' * 40}', its artifact provenance/attempt-1/env"),
        (spoil_file, "provenance/attempt-1/environment.json cannot be read"),
        (edit_patch, "its artifact provenance/attempt-1/diff.patch was edited or removed"),
        (remove_patch, "its artifact provenance/attempt-1/diff.patch was edited or removed"),
    ],
)
def test_records_of_code_that_were_edited_are_named(
    on_file: tuple[dict[str, str], Path], tamper: Callable[[dict[str, str], Path], None], said: str
) -> None:
    tags, folder = on_file
    tamper(tags, folder)
    (line,) = faults(tags, folder.parents[3])
    assert said in line
