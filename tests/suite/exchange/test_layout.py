from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import InputError
from suite.exchange.layout import (
    Contents,
    FileRecord,
    check_path,
    check_study_name,
    checked_name,
)

CONTENTS = Contents(
    study="small",
    suite_version="1.2",
    exported="2026-11-30T12:00:00+00:00",
    counts={"runs": 1, "params": 0, "tags": 2, "inputs": 0, "points": 3, "artifacts": 0},
    files={"runs.parquet": FileRecord(sha256="0" * 64, size=12)},
)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../b",
        "a/./b",
        "a//b",
        "a/",
        "a\\..\\b",
        "a\x00b",
        "a\nb",
        "a\x7f",
        "\ud800",
        "x" * 201,
        "ü" * 101,
        "a/" * 500 + "a",
    ],
)
def test_paths_that_lead_out_or_cannot_be_written_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        check_path(path)


@pytest.mark.parametrize("path", ["a", "a b/größe, 100 % 移動.bin", "x" * 200, "..a/b..", "C:x"])
def test_other_paths_are_kept_as_they_are(path: str) -> None:
    assert check_path(path) == path


@given(
    st.lists(st.sampled_from(["..", ".", "a", "", "\\", "..\\", "b"]) | st.text(), max_size=5).map(
        "/".join
    )
)
def test_an_allowed_path_stays_below_its_folder(path: str) -> None:
    try:
        allowed = check_path(path)
    except ValueError:
        return
    root = Path("/no/such/root")
    assert (root / allowed).resolve().is_relative_to(root)
    assert (root / allowed).resolve() != root
    assert PurePosixPath(allowed).as_posix() == path


def test_contents_come_back_from_their_text() -> None:
    assert Contents.from_json(CONTENTS.to_json()) == CONTENTS


def edited(**changes: Any) -> str:
    document = {**json.loads(CONTENTS.to_json()), **changes}
    return json.dumps({key: value for key, value in document.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "its format is 'suite-export'"),
        (edited(format="other"), "its format is 'suite-export'"),
        (edited(version=2), "its version is 2, and this suite reads 1; .* wrote it, '1.2'"),
        (edited(version=True), "its version is True"),
        (edited(version=None), "its version is None"),
        (edited(study="../small"), "'../small' is no name of a study"),
        (edited(study=3), "its 'study' is 3"),
        (edited(counts={"runs": 1}), "its 'counts' are"),
        (edited(counts={**CONTENTS.counts, "runs": -1}), "its 'counts' are"),
        (edited(counts={**CONTENTS.counts, "runs": True}), "its 'counts' are"),
        (edited(files=["runs.parquet"]), "its 'files' is"),
        (edited(files={"../x": {"sha256": "0" * 64, "size": 1}}), r"the path '\.\./x' is not"),
        (edited(files={"x": {"sha256": "0" * 63, "size": 1}}), "it describes the file 'x' as"),
        (edited(files={"x": {"sha256": "0" * 64, "size": -1}}), "it describes the file 'x' as"),
        (edited(files={"x": {"sha256": "0" * 64, "size": True}}), "it describes the file 'x' as"),
        (edited(files={"x": {"sha256": "0" * 64, "size": 1, "y": 1}}), "it describes the file"),
        (edited(files={"x": "0" * 64}), "it describes the file 'x' as"),
    ],
)
def test_other_contents_are_refused_with_the_part_at_fault(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Contents.from_json(text)


@pytest.mark.parametrize("name", ["", "a/b", "..", "-a", "a b", "ü", "a\n", "x" * 101, "Default"])
def test_names_that_no_study_has_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a study"):
        check_study_name(name)
    with pytest.raises(InputError, match=r"^--name: .* is no name of a study"):
        checked_name(name, "--name")
