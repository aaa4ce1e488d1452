"""Links and locations in a home that somebody else has made: nothing is written outside."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.cli import main
from suite.errors import SuiteError
from suite.exchange.export import export_study
from suite.tracking.home import Home
from suite.tracking.store import Store

MakeHome = Callable[[str], Home]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the user's own, with a file that must stay."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "index.html").write_text("mine")
    (folder / "page.html").write_text("mine")
    return folder


def kept(folder: Path) -> bool:
    names = sorted(path.name for path in folder.iterdir())
    return names == ["index.html", "page.html"] and all(
        (folder / name).read_text() == "mine" for name in names
    )


def a_run(home: Home) -> str:
    store = Store(home)
    tags = {"suite.kind": "pretraining", "suite.cell": "0" * 16}
    run_id = store.create_run("demo", name="one", tags=tags)
    store.log_params(run_id, {"size.name": "s", "recurrence": "1", "parameters.total": "10"})
    store.log_params(run_id, {"tokens": "100"})
    return run_id


def test_a_report_is_not_written_through_a_link(
    make_home: MakeHome, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = make_home("home")
    a_run(home)
    home.reports.mkdir()
    (home.reports / "demo").symlink_to(outside)
    assert main(["report", "demo", "--home", str(home.root), "--set", "seed=1"]) == 1
    assert f"leads out of {home.reports}, to {outside}" in capsys.readouterr().err
    assert kept(outside)


def test_a_link_in_place_of_a_page_is_replaced(make_home: MakeHome, outside: Path) -> None:
    home = make_home("home")
    store = Store(home)
    from suite.reports.build import build_report
    from suite.tracking.reader import open_reader

    run_id = a_run(home)
    _log_losses(store, run_id)
    out = home.reports / "demo"
    out.mkdir(parents=True)
    (out / "index.html").symlink_to(outside / "index.html")
    report = build_report(open_reader(home), "demo", None, out)
    assert not report.page.is_symlink()
    assert kept(outside)


def _log_losses(store: Store, run_id: str) -> None:
    from mlflow.entities import Metric

    points = [Metric("train/total_loss", 1.0 / step, step, step) for step in (1, 50, 100)]
    store.client.log_batch(run_id, metrics=points)


def test_an_artifact_is_not_written_through_a_link(
    make_home: MakeHome, tmp_path: Path, outside: Path
) -> None:
    home = make_home("home")
    run_id = a_run(home)
    file = tmp_path / "page.html"
    file.write_text("a report")
    folder = home.artifacts / "demo" / run_id / "artifacts"
    folder.mkdir(parents=True)
    (folder / "report").symlink_to(outside)
    with pytest.raises(SuiteError, match=f"leads out of {home.artifacts}"):
        Store(home).log_artifact(run_id, file, "report")
    assert kept(outside)


def test_a_run_whose_artifacts_lie_behind_a_link_is_not_exported(
    make_home: MakeHome, tmp_path: Path, outside: Path
) -> None:
    home = make_home("home")
    run_id = a_run(home)
    (outside / "artifacts").mkdir()
    (outside / "artifacts" / "secret.txt").write_text("not the suite's")
    (home.artifacts / "demo").mkdir(parents=True)
    (home.artifacts / "demo" / run_id).symlink_to(outside)
    with pytest.raises(SuiteError, match=f"leads out of {home.artifacts}"):
        export_study(home, "demo", tmp_path / "export")
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize("location", ["../../outside", "demo/../../../outside", "/../outside"])
def test_an_artifact_stays_in_the_home_whatever_the_database_says(
    make_home: MakeHome, tmp_path: Path, outside: Path, location: str
) -> None:
    home = make_home("home")
    run_id = a_run(home)
    with sqlite3.connect(home.database) as database:
        database.execute("UPDATE runs SET artifact_uri = ?", (f"mlflow-artifacts:/{location}",))
    file = tmp_path / "page.html"
    file.write_text("a report")
    with pytest.raises(SuiteError, match=f"leads out of {home.artifacts}"):
        Store(home).log_artifact(run_id, file)
    assert kept(outside)


def test_folders_of_a_home_may_lie_on_another_disk(make_home: MakeHome, tmp_path: Path) -> None:
    home = make_home("home")
    run_id = a_run(home)
    (tmp_path / "big disk").mkdir()
    home.artifacts.symlink_to(tmp_path / "big disk")
    file = tmp_path / "page.html"
    file.write_text("a report")
    Store(home).log_artifact(run_id, file, "report")
    written = tmp_path / "big disk" / "demo" / run_id / "artifacts" / "report" / "page.html"
    assert written.read_text() == "a report"


@pytest.mark.parametrize("name", ["#1", "a;b=c", "'", '"', "[x]", "$HOME", "ü"])
def test_other_paths_hold_a_store_that_works(
    tmp_path: Path, blank_database: Path, name: str
) -> None:
    home = Home.at(tmp_path / name)
    home.create()
    shutil.copyfile(blank_database, home.database)
    run_id = a_run(home)
    with sqlite3.connect(tmp_path / name / "mlflow.db") as database:
        assert database.execute("SELECT run_uuid FROM runs").fetchall() == [(run_id,)]
