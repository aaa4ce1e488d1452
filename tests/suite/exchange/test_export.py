from __future__ import annotations

import json
import math
import os
import sqlite3
from pathlib import Path

import polars as pl
import pytest

import suite
from suite.errors import InputError, SuiteError
from suite.exchange import export
from suite.exchange.export import export_study
from suite.tracking.home import Home
from suite.tracking.processes import WorkingProcess
from suite.tracking.spool import Points, SpoolFile, SpoolWriter

GONE = WorkingProcess(host=os.uname().nodename, pid=1, started=0.0)


def rows(home: Home, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(home.database) as database:
        return database.execute(query).fetchall()


def test_every_point_is_there_with_its_exact_value(
    studied_home: Home, studied_export: Path
) -> None:
    exported = pl.scan_parquet(studied_export / "curves" / "*.parquet").collect()
    stored = rows(studied_home, "SELECT run_uuid, key, step, timestamp, value, is_nan FROM metrics")
    expected = sorted(
        (run, key, step, at, repr(math.nan if nan else max(value, -math.inf)))
        for run, key, step, at, value, nan in stored
        if abs(value) < 1e308
    )
    finite = exported.filter(~pl.col("value").is_infinite())
    shown = finite.select("run_id", "key", "step", "timestamp", "value").iter_rows()
    assert sorted((*row[:4], repr(row[4])) for row in shown) == expected
    infinite = exported.filter(pl.col("value").is_infinite())
    assert infinite.select("key", "step", "value").rows() == [("val/total_loss", 768, -math.inf)]
    assert exported["value"].is_nan().sum() == 1


def test_overtaken_points_are_there_and_marked(studied_export: Path) -> None:
    curves = pl.scan_parquet(studied_export / "curves" / "*.parquet").collect()
    first = curves.filter(pl.col("superseded"))
    assert first.select("key", "step", "attempt").rows() == [
        ("train/total_loss", 512, 1),
        ("train/total_loss", 512, 1),
        ("train/total_loss", 768, 1),
    ]


def test_texts_and_inputs_are_those_of_the_store(studied_home: Home, studied_export: Path) -> None:
    for table in ("params", "tags"):
        stored = rows(studied_home, f"SELECT run_uuid, key, value FROM {table}")
        expected = sorted(row for row in stored if row[1] != "mlflow.runName")
        assert sorted(pl.read_parquet(studied_export / f"{table}.parquet").rows()) == expected
    runs = pl.read_parquet(studied_export / "runs.parquet")
    query = "SELECT run_uuid, name, status, start_time, end_time FROM runs ORDER BY start_time"
    assert runs.select("run_id", "name", "status", "start_time", "end_time").rows() == rows(
        studied_home, query
    )
    (data,) = pl.read_parquet(studied_export / "inputs.parquet").rows(named=True)
    assert data["run_id"] == runs["run_id"][0]
    assert (data["name"], data["digest"]) == ("maths", "0123456789abcdef")
    assert json.loads(data["tags"]) == {"mlflow.data.context": "training"}
    assert json.loads(data["profile"]) == {"documents": 300}


def test_artifacts_and_report_are_the_same_files(studied_home: Home, studied_export: Path) -> None:
    stored = {
        path.relative_to(studied_home.artifacts / "small").as_posix().replace("/artifacts/", "/", 1)
        for path in studied_home.artifacts.rglob("*")
        if path.is_file()
    }
    exported = {
        path.relative_to(studied_export / "artifacts").as_posix()
        for path in (studied_export / "artifacts").rglob("*")
        if path.is_file()
    }
    assert exported == stored
    (basis,) = studied_export.rglob("größe, 100 % 移動.bin")
    assert basis.read_bytes() == bytes(range(256)) * 5_000
    report = studied_home.reports / "small"
    assert {path.name: path.read_bytes() for path in (studied_export / "report").iterdir()} == {
        path.name: path.read_bytes() for path in report.iterdir()
    }


def test_the_same_study_gives_the_same_bytes_but_for_the_date(
    studied_home: Home, studied_export: Path, tmp_path: Path
) -> None:
    tmp_path.joinpath("out").mkdir()  # an empty folder may be used
    done = export_study(studied_home, "small", tmp_path / "out")
    contents = [
        json.loads((out / "study.json").read_text()) for out in (studied_export, tmp_path / "out")
    ]
    assert contents[0].pop("exported") <= contents[1].pop("exported")
    assert contents[0] == contents[1]
    assert contents[0]["suite_version"] == suite.__version__
    assert contents[0]["counts"] == {
        "runs": done.runs,
        "points": done.points,
        "artifacts": done.artifacts,
        "params": pl.read_parquet(studied_export / "params.parquet").height,
        "tags": pl.read_parquet(studied_export / "tags.parquet").height,
        "inputs": 1,
    }
    assert (done.runs, done.points, done.report) == (13, 54, True)
    assert done.size == sum(record["size"] for record in contents[0]["files"].values())


def use(target: Path, how: str) -> None:
    if how == "full":
        target.mkdir()
        (target / "mine.txt").write_text("mine")
    elif how == "file":
        target.write_text("mine")
    else:
        target.with_name("real").mkdir()
        target.symlink_to(target.with_name("real"))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("full", "out is not empty; give --out one that is empty or does not exist yet"),
        ("file", "out is not a folder; give --out a folder that does not exist yet"),
        ("link", "out is not a folder; give --out a folder that does not exist yet"),
    ],
)
def test_a_target_in_use_is_refused_and_left_alone(
    studied_home: Home, tmp_path: Path, how: str, said: str
) -> None:
    use(tmp_path / "out", how)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(InputError, match=said):
        export_study(studied_home, "small", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_an_export_that_fails_leaves_nothing(
    studied_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, calls = export.fetch, iter(range(3))

    def full(*arguments: object) -> object:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        return fetch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "fetch", full)
    with pytest.raises(SuiteError, match=r"No space left on device.*nothing of it is left"):
        export_study(studied_home, "small", tmp_path / "deep" / "out")
    assert list(tmp_path.rglob("*")) == [tmp_path / "deep"]


@pytest.mark.parametrize("place", ["artifacts", "reports"])
def test_a_link_takes_nothing_out_of_the_home(
    copied_home: Home, tmp_path: Path, place: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for others")
    folder = next(path for path in (copied_home.root / place).rglob("*.png")).parent
    (folder / "look.png").symlink_to(secret)
    with pytest.raises(SuiteError, match=r"cannot be exported: .*look\.png is a link"):
        export_study(copied_home, "small", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["../../secret", "/etc", "small/../../secret"])
def test_artifacts_outside_of_the_home_are_refused(
    copied_home: Home, tmp_path: Path, place: str
) -> None:
    with sqlite3.connect(copied_home.database) as database:
        database.execute("UPDATE runs SET artifact_uri = ?", (f"mlflow-artifacts:/{place}",))
    if place == "/etc":  # which lies in the home, whatever it looks like
        assert export_study(copied_home, "small", tmp_path / "out").artifacts == 0
        return
    with pytest.raises(SuiteError, match="which is not in the home"):
        export_study(copied_home, "small", tmp_path / "out")


@pytest.mark.parametrize(
    ("study", "said"),
    [("other", "'other' has no runs in .*suite run"), ("../small", "^STUDY: '../small' is no")],
)
def test_a_study_without_runs_is_refused(
    studied_home: Home, tmp_path: Path, study: str, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        export_study(studied_home, study, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_study_that_is_worked_on_is_not_exported(studied_home: Home, tmp_path: Path) -> None:
    with (
        studied_home.hold("small"),
        pytest.raises(SuiteError, match="another process works on the study 'small'"),
    ):
        export_study(studied_home, "small", tmp_path / "out")


def spool(home: Home, owner: WorkingProcess) -> str:
    """Leave one point unsent; returns the run."""
    run_id = str(rows(home, "SELECT run_uuid FROM runs WHERE name = 'cheap 0'")[0][0])
    writer = SpoolWriter(SpoolFile.of(home.spool, run_id, 1), owner)
    writer.append(Points(step=7, at=1_790_000_000_007, values={"late": 0.125}))
    writer.close()
    return run_id


def test_points_that_a_killed_process_left_unsent_are_in_the_export(
    copied_home: Home, tmp_path: Path
) -> None:
    run_id = spool(copied_home, GONE)
    assert export_study(copied_home, "small", tmp_path / "out").points == 55
    curve = pl.read_parquet(tmp_path / "out" / "curves" / f"{run_id}.parquet")
    assert curve.filter(pl.col("key") == "late").select("step", "value").rows() == [(7, 0.125)]


def test_points_that_cannot_be_sent_stop_the_export(
    copied_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "replay", lambda *arguments: 0)  # as for a process elsewhere
    run_id = spool(copied_home, GONE)
    with pytest.raises(SuiteError, match=rf"not have all of run {run_id} yet.*doctor --fix"):
        export_study(copied_home, "small", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_name_is_exported_under_its_id(copied_home: Home, tmp_path: Path) -> None:
    with sqlite3.connect(copied_home.database) as database:
        database.execute("UPDATE runs SET name = NULL WHERE name = 'cheap 0'")
        database.execute("UPDATE runs SET name = '' WHERE name = 'cheap 1'")
    export_study(copied_home, "small", tmp_path / "out")
    runs = pl.read_parquet(tmp_path / "out" / "runs.parquet").filter(pl.col("kind") == "trial")
    assert runs["name"].to_list() == runs["run_id"].to_list()


@pytest.mark.parametrize("inside", ["", "export", "reports/demo/export"])
def test_an_export_is_not_written_into_the_home(studied_home: Home, inside: str) -> None:
    before = sorted(studied_home.root.rglob("*"))
    with pytest.raises(InputError, match=r"lies in the home that is exported|is not empty"):
        export_study(studied_home, "demo", studied_home.root / inside)
    assert sorted(studied_home.root.rglob("*")) == before
