from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from suite.tracking.home import Home
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

BASES = ("basis/key.safetensors", "basis/value.safetensors")
REPORT = ("report/index.html", "report/loss_grid.png", "report/manifest.json")


@pytest.fixture
def artifacts(
    store: Store, begin: Callable[..., RunRecorder], tmp_path: Path
) -> Callable[[str], Path]:
    """Makes a finished run of a kind with the artifacts that it should have; where they lie."""

    def make(kind: str) -> Path:
        recorder = begin(kind)
        manifest = {"artifacts": {"index.html": "0", "loss_grid.png": "0"}}
        for name in {"calibration": BASES, "report": REPORT}.get(kind, ()):
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(manifest) if name.endswith(".json") else "x")
            recorder.log_artifact(file, file.parent.name)
        recorder.log_params({"long": "y" * 7_000})
        recorder.end("FINISHED")
        return store.home.artifacts / "demo" / recorder.run_id / "artifacts"

    return make


def run_of(folder: Path) -> str:
    return folder.parent.name


def test_artifacts_that_are_there_are_counted(
    store: Store, artifacts: Callable[[str], Path], examine: Callable[..., Any]
) -> None:
    for kind in ("calibration", "report", "law"):
        artifacts(kind)
    num_files = len(BASES) + len(REPORT) + 3  # each run has a long parameter
    assert examine(store.home).good("artifacts") == [
        f"{num_files} artifacts of 3 finished runs are there"
    ]


@pytest.mark.parametrize(
    ("kind", "name", "num_files"),
    [
        ("calibration", BASES[0], 3),
        ("calibration", BASES[1], 3),
        ("report", "report/index.html", 4),
        ("report", "report/loss_grid.png", 4),
        ("report", "report/manifest.json", 2),
        ("law", "params/*.txt", 1),
    ],
)
def test_each_artifact_that_is_missing_is_named(
    store: Store,
    artifacts: Callable[[str], Path],
    examine: Callable[..., Any],
    kind: str,
    name: str,
    num_files: int,
) -> None:
    folder = artifacts(kind)
    (file,) = folder.glob(name)
    file.unlink()
    for _ in range(2):
        found = examine(store.home, fix=True)
        assert found.only("artifacts").finding.where == (
            f"{file.relative_to(folder)} of run {run_of(folder)} of 'demo'",
        )
        assert found.left == [f"1 of {num_files} artifacts of finished runs are not there"]


def test_artifacts_of_runs_that_are_not_finished_are_not_asked_for(
    store: Store, begin: Callable[..., RunRecorder], examine: Callable[..., Any]
) -> None:
    begin("calibration").end("FAILED")
    begin("report").end("KILLED")
    assert examine(store.home).left == []


def test_artifacts_in_another_home_of_a_shared_store_are_only_noted(
    store: Store,
    artifacts: Callable[[str], Path],
    make_home: Callable[[str], Home],
    examine: Callable[..., Any],
) -> None:
    artifacts("calibration")
    other = Home(root=make_home("other").root, tracking_uri=store.home.tracking_uri)
    finding = examine(other).only("artifacts").finding
    assert finding.severity == "note"
    assert finding.what == "3 of 3 artifacts of finished runs are not there"


def test_a_place_outside_the_home_is_not_followed(
    store: Store, artifacts: Callable[[str], Path], examine: Callable[..., Any]
) -> None:
    run_id = run_of(artifacts("calibration"))
    with closing(sqlite3.connect(store.home.database)) as connection:
        connection.execute(
            "UPDATE runs SET artifact_uri = 'mlflow-artifacts:/../../etc' WHERE run_uuid = ?",
            (run_id,),
        )
        connection.commit()
    finding = examine(store.home).only("artifacts").finding
    assert (finding.severity, finding.where) == ("error", (f"run {run_id}",))
    assert "'mlflow-artifacts:/../../etc', which is not in the home" in finding.what


def test_studies_without_a_report_are_named_and_are_no_fault(
    store: Store, begin: Callable[..., RunRecorder], examine: Callable[..., Any]
) -> None:
    for study in ("with", "without"):
        begin(study=study).end("FINISHED")
    begin(study="unfinished").end("FAILED")
    folder = store.home.reports / "with"
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    found = examine(store.home)
    finding = found.only("reports").finding
    assert (finding.what, finding.where) == (
        "1 of 2 studies with finished runs have no report here",
        ("without",),
    )
    assert found.left == []
