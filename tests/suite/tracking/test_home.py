from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from suite.errors import InputError, SuiteError
from suite.tracking.home import Home

HOLDER = """
import sys, time
from suite.tracking.home import Home
with Home.at(sys.argv[1]).hold(sys.argv[2]):
    print("held", flush=True)
    time.sleep(100)
"""


def hold_elsewhere(home: Home, study: str) -> subprocess.Popen[str]:
    """Another process that holds a study; it is to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home.root), study], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_home_is_given_or_set_or_beside_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert Home.at().root == tmp_path / "mlruns"
    monkeypatch.setenv("SUITE_HOME", "~/runs")
    assert Home.at().root == tmp_path / "user" / "runs"
    assert Home.at("given").root == tmp_path / "given"
    assert not list(tmp_path.iterdir())  # asking for a home makes nothing


def test_runs_go_to_the_home_unless_another_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Home.at(tmp_path)
    assert own.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert own.owns_database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://host/db")
    other = Home.at(tmp_path)
    assert other.tracking_uri == "postgresql://host/db"
    assert not other.owns_database


def test_everything_lies_inside_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    for path in (
        home.database,
        home.artifacts,
        home.checkpoints,
        home.cache,
        home.reports,
        home.optuna_journal,
    ):
        assert path.parent == tmp_path


@pytest.mark.parametrize("odd", ["?", "%41"])
def test_what_a_database_address_gives_a_meaning_is_refused(tmp_path: Path, odd: str) -> None:
    expected = rf"has '.*\{odd[0]}.*' in its path; choose another with --home or SUITE_HOME"
    with pytest.raises(InputError, match=expected):
        Home.at(tmp_path / f"a{odd}b")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file", "is a file; give a folder"),
        ("file/home", "cannot be written"),
        ("/proc/home", "cannot be written"),
    ],
)
def test_a_home_that_cannot_be_written_is_wrong_input(
    tmp_path: Path, place: str, words: str
) -> None:
    (tmp_path / "file").write_text("")
    home = Home.at(tmp_path / place)
    for use in (home.create, lambda: home.hold("demo").__enter__()):
        with pytest.raises(InputError) as caught:
            use()
        assert str(home.root) in str(caught.value)
        assert words in str(caught.value)
        assert "--home" in str(caught.value)
        assert caught.value.exit_code == 2
    assert not home.root.is_dir()


def test_creating_leaves_nothing_behind(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "a" / "b")
    home.create()
    home.create()
    assert home.root.is_dir()
    assert not list(home.root.iterdir())


def test_a_second_process_is_refused_and_told_who_holds_the_study(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    holder = hold_elsewhere(home, "demo")
    try:
        with pytest.raises(SuiteError) as caught, home.hold("demo"):
            pytest.fail("held twice")
        assert f"process {holder.pid} on " in str(caught.value)
        assert "'demo'" in str(caught.value)
        assert caught.value.exit_code == 1
        with home.hold("other"):  # another study is free
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with home.hold("demo"):  # nothing is left to clear away after a kill
        assert f'"pid": {os.getpid()}' in (tmp_path / "locks" / "demo.json").read_text()


def test_the_study_is_free_again_after_a_failure(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with pytest.raises(KeyError), home.hold("demo"):
        raise KeyError
    with home.hold("demo"):
        pass
    assert not (tmp_path / "locks" / "demo.json").exists()


@pytest.mark.parametrize("left", ["", "[]", '{"pid": 1}', "{"])
def test_a_half_written_holder_does_not_hide_the_refusal(tmp_path: Path, left: str) -> None:
    home = Home.at(tmp_path)
    with home.hold("demo"):
        (tmp_path / "locks" / "demo.json").write_text(left)
        with pytest.raises(SuiteError, match="just started"), home.hold("demo"):
            pytest.fail("held twice")
