"""A whole small study, end to end: run, run again, kill, tamper, move, diverge."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from suite.cli import main
from suite.reports.manifest import read_manifest
from suite.tracking.curves import live
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

STUDY = """
name: small
seed: 3
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 300}
  other: {source: embedded, path: worked_math, held_out: 0.3, max_documents: 500}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: narrow, num_hidden_layers: 1, hidden_size: 16}
    - {name: wide, num_hidden_layers: 1, hidden_size: 32}
  recurrences: [1, 2]
  tokens: 6_144
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 1_024
  optimizer: {warmup_tokens: 1_024}
law:
  form: looplm_total
  fit_from: 0.2
  starts: 8
  tests: [first]
  ablations: false
  test_starts: 4
calibration:
  models:
    - {size: wide, recurrence: 2}
  calibrate_on: [maths]
  evaluate_on: [other, maths]
  budgets: [200, 400, 800]
  niter: [1, exact]
  rank: 12
  sequence_length: 64
  evaluation_tokens: 512
searches:
  - name: cheap
    over: {niter: [0, 2, exact], tokens: [200, 400], rank: [4, 8]}
    trials: 5
"""
PLANNED = {"pretraining": 4, "law": 1, "calibration": 2, "search": 1, "trial": 5, "report": 1}
MEASURED_TIME = ("speed/", "calibration/seconds", "objective/calibration_seconds")


def suite(*arguments: str, home: Path) -> int:
    return main([*arguments, "--home", str(home)])


def study_file(folder: Path, text: str = STUDY) -> str:
    path = folder / "small.yaml"
    path.write_text(text)
    return str(path)


def runs_of(home: Path) -> pl.DataFrame:
    return open_reader(Home.at(home)).runs("small")


def curves_of(home: Path, kind: str) -> pl.DataFrame:
    """Live points by cell, without measured times, which no two runs share."""
    reader = open_reader(Home.at(home))
    runs = reader.runs("small").filter(pl.col("kind") == kind)
    points = live(reader.curves(runs["run_id"].to_list())).join(
        runs.select("run_id", "cell"), on="run_id"
    )
    measured = pl.any_horizontal(pl.col("key").str.starts_with(key) for key in MEASURED_TIME)
    return points.filter(~measured).select("cell", "key", "step", "value").sort(pl.all())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A study that has been run once; tests that change its home copy it first."""
    folder = tmp_path_factory.mktemp("study")
    study = study_file(folder)
    home = folder / "home"
    assert suite("run", study, home=home) == 0
    return study, home


@pytest.fixture
def copied(finished: tuple[str, Path], tmp_path: Path) -> tuple[str, Path]:
    study, home = finished
    shutil.copytree(home, tmp_path / "a home, moved, ünïcode 移動")
    return study, tmp_path / "a home, moved, ünïcode 移動"


def test_every_stage_leaves_finished_runs(finished: tuple[str, Path]) -> None:
    _, home = finished
    runs = runs_of(home)
    assert dict(runs.group_by("kind").len().iter_rows()) == PLANNED
    assert set(runs["status"]) == {"FINISHED"}
    assert runs.filter(pl.col("kind") != "report")["cell"].is_unique().all()


def test_trials_are_children_of_their_search(finished: tuple[str, Path]) -> None:
    runs = runs_of(finished[1])
    search = runs.filter(pl.col("kind") == "search")["run_id"].item()
    trials = runs.filter(pl.col("kind") == "trial")
    assert trials["parent_run_id"].to_list() == [search] * 5


def test_steps_are_tokens(finished: tuple[str, Path]) -> None:
    trained = curves_of(finished[1], "pretraining")
    steps = trained.group_by("key").agg(pl.col("step").unique().sort())
    by_key = dict(steps.iter_rows())
    assert by_key["train/total_loss"] == list(range(256, 6_145, 256))
    assert by_key["val/total_loss"] == [2_048, 4_096, 6_144]
    calibrated = curves_of(finished[1], "calibration")
    assert calibrated["step"].unique().sort().to_list() == [200, 400, 800]


@pytest.mark.parametrize("kind", ["key", "value"])
def test_the_largest_budget_and_the_exact_basis_err_least_in_domain(
    finished: tuple[str, Path], kind: str
) -> None:
    reader = open_reader(Home.at(finished[1]))
    runs = runs_of(finished[1]).filter(pl.col("kind") == "calibration")["run_id"].to_list()
    niter = reader.params(runs).filter(pl.col("key") == "niter").select("run_id", niter="value")
    errors = live(reader.curves(runs, [f"{kind}/relative_error/maths"])).join(niter, on="run_id")
    by_point = {(row["niter"], row["step"]): row["value"] for row in errors.iter_rows(named=True)}
    assert by_point["exact", 800] < by_point["exact", 200]
    assert by_point["exact", 800] <= by_point["1", 800]


def test_corpora_are_logged_as_datasets_with_digests(finished: tuple[str, Path]) -> None:
    with sqlite3.connect(finished[1] / "mlflow.db") as database:
        rows = database.execute("SELECT DISTINCT name, digest FROM datasets").fetchall()
    assert sorted(name for name, _ in rows) == ["maths", "other"]
    assert all(len(digest) == 16 for _, digest in rows)


def test_a_second_run_does_nothing(
    finished: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study, home = finished
    before = runs_of(home)
    page = home / "reports" / "small" / "index.html"
    written = page.stat().st_mtime_ns
    assert suite("run", study, home=home) == 0
    assert runs_of(home).equals(before)
    assert page.stat().st_mtime_ns == written
    assert str(page) in capsys.readouterr().out


def test_a_search_goes_on_when_more_trials_are_asked_for(copied: tuple[str, Path]) -> None:
    study, home = copied
    before = runs_of(home).filter(pl.col("kind") == "trial")["run_id"]
    assert suite("run", study, "--set", "searches[0].trials=7", home=home) == 0
    runs = runs_of(home)
    assert runs.filter(pl.col("kind") == "search").height == 1
    trials = runs.filter(pl.col("kind") == "trial")
    assert trials.height == 7
    assert set(before) < set(trials["run_id"])
    assert trials["cell"].is_unique().all()


def test_the_same_study_from_scratch_gives_the_same_curves(
    finished: tuple[str, Path], tmp_path: Path
) -> None:
    study, home = finished
    assert suite("run", study, home=tmp_path / "again") == 0
    for kind in ("pretraining", "law", "calibration"):
        assert curves_of(home, kind).equals(curves_of(tmp_path / "again", kind)), kind


@pytest.mark.slow
def test_a_killed_cell_goes_on_in_its_run(finished: tuple[str, Path], tmp_path: Path) -> None:
    study, undisturbed = finished
    home = tmp_path / "home"
    shutil.copytree(undisturbed / "cache", home / "cache")
    command = [sys.executable, "-m", "suite.cli", "run", study, "--home", str(home)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(home.glob("checkpoints/*/tokens-*.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cut_off = runs_of(home).filter(pl.col("status") == "RUNNING")
    assert cut_off.height == 1
    assert suite("run", study, home=home) == 0
    runs = runs_of(home)
    assert dict(runs.group_by("kind").len().iter_rows()) == PLANNED
    assert cut_off["run_id"].item() in runs.filter(pl.col("status") == "FINISHED")["run_id"]
    tags = open_reader(Home.at(home)).tags([cut_off["run_id"].item()])
    assert dict(tags.select("key", "value").iter_rows())["suite.attempts"] == "2"
    for kind in ("pretraining", "law", "calibration"):
        assert curves_of(undisturbed, kind).equals(curves_of(home, kind)), kind


@pytest.mark.slow
def test_sigterm_stops_at_a_boundary_and_the_run_is_killed_not_running(
    finished: tuple[str, Path], tmp_path: Path
) -> None:
    study, undisturbed = finished
    home = tmp_path / "home"
    shutil.copytree(undisturbed / "cache", home / "cache")
    longer = ["--set", "pretraining.tokens=2_000_000", "--set", "pretraining.recurrences=[2]"]
    command = [sys.executable, "-m", "suite.cli", "run", study, "--home", str(home), *longer]
    command += ["--set", "law=null", "--set", "calibration=null", "--set", "searches=[]"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(home.glob("checkpoints/*/tokens-*.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "run the same command again" in errors
    runs = runs_of(home)
    assert runs["status"].to_list() == ["KILLED"]
    curves = open_reader(Home.at(home)).curves(runs["run_id"].to_list(), ["train/total_loss"])
    saved = max(home.glob("checkpoints/*/tokens-*.ckpt")).stem.removeprefix("tokens-")
    assert curves["step"].max() == int(saved)


def test_verify_is_silent_until_a_value_changes_and_then_names_it(
    copied: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study, home = copied
    assert suite("verify", study, home=home) == 0
    capsys.readouterr()
    manifest = read_manifest(home / "reports" / "small" / "manifest.json")
    point = manifest.entries.filter(pl.col("panel") == "loss_grid", pl.col("series") == "Real").row(
        5, named=True
    )
    with sqlite3.connect(home / "mlflow.db") as database:
        changed = database.execute(
            "UPDATE metrics SET value = 1.25 WHERE run_uuid = ? AND key = ? AND step = ?",
            (point["run_id"], point["key"], point["step"]),
        )
        assert changed.rowcount == 1
    assert suite("verify", study, home=home) == 1
    said = capsys.readouterr().out
    for part in ("loss_grid", point["run_id"], repr(point["value"]), "1.25"):
        assert part in said


def test_a_moved_home_reports_and_verifies(copied: tuple[str, Path]) -> None:
    study, home = copied
    before = (home / "reports" / "small" / "manifest.json").read_bytes()
    shutil.rmtree(home / "reports")
    assert suite("report", study, home=home) == 0
    assert suite("verify", study, home=home) == 0
    assert (home / "reports" / "small" / "manifest.json").read_bytes() == before


def test_a_report_is_kept_as_artifacts_of_its_run(finished: tuple[str, Path]) -> None:
    _, home = finished
    run_id = runs_of(home).filter(pl.col("kind") == "report")["run_id"].item()
    kept = home / "artifacts" / "small" / run_id / "artifacts" / "report"
    for file in (home / "reports" / "small").iterdir():
        assert (kept / file.name).read_bytes() == file.read_bytes()


def test_r_squared_follows_from_the_points_that_parity_draws(finished: tuple[str, Path]) -> None:
    _, home = finished
    reader = open_reader(Home.at(home))
    runs = runs_of(home)
    law = runs.filter(pl.col("kind") == "law")["run_id"].item()
    tracked = live(reader.curves([law]))
    claimed = dict(tracked.filter(pl.col("step") == 0).select("key", "value").iter_rows())
    trained = runs.filter(pl.col("kind") == "pretraining")
    real = live(reader.curves(trained["run_id"].to_list(), ["train/total_loss"])).join(
        trained.select("run_id", "cell"), on="run_id"
    )
    predicted = tracked.with_columns(cell=pl.col("key").str.strip_prefix("predicted/"))
    both = real.join(predicted, on=["cell", "step"], suffix="_predicted").filter(
        pl.col("step") >= 0.2 * 6_144
    )
    left = (both["value"] - both["value_predicted"]).pow(2).sum()
    spread = (both["value"] - both["value"].mean()).pow(2).sum()
    assert claimed["law/r2/all"] == pytest.approx(1 - left / spread, rel=1e-12)


def test_going_back_to_earlier_settings_brings_their_report_back(
    copied: tuple[str, Path],
) -> None:
    study, home = copied
    manifest = home / "reports" / "small" / "manifest.json"
    first = read_manifest(manifest).entries
    assert suite("run", study, "--set", "law.starts=4", home=home) == 0
    assert not read_manifest(manifest).entries.equals(first)
    before = runs_of(home).height
    assert suite("run", study, home=home) == 0
    assert read_manifest(manifest).entries.equals(first)
    assert runs_of(home).filter(pl.col("kind") != "report").height <= before


def test_a_diverged_cell_fails_keeps_its_curve_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.replace("warmup_tokens: 1_024", "warmup_tokens: 0, learning_rate: 1e18")
    study, home = study_file(tmp_path, text), tmp_path / "home"
    assert suite("run", study, home=home) == 1
    said = capsys.readouterr().err
    runs = runs_of(home)
    failed = runs.filter(pl.col("kind") == "pretraining", pl.col("status") == "FAILED")
    assert failed.height == 4, "every cell was tried"
    reader = open_reader(Home.at(home))
    tags = reader.tags(failed["run_id"].to_list()).filter(pl.col("key") == "suite.failure")
    curve = live(reader.curves(failed["run_id"].to_list(), ["train/total_loss"]))
    for run_id in failed["run_id"]:
        last = curve.filter(pl.col("run_id") == run_id).sort("step").row(-1, named=True)
        assert last["value"] != last["value"], "the NaN itself is tracked"
        reason = tags.filter(pl.col("run_id") == run_id)["value"].item()
        assert f"at {last['step']:,} tokens" in reason
        assert reason in said
    page = (home / "reports" / "small" / "index.html").read_text()
    assert "FAILED" in page
    attempts = runs.height
    assert suite("run", study, home=home) == 1
    assert runs_of(home).filter(pl.col("kind") == "pretraining").height == 4
    assert runs_of(home).height <= attempts + 1


def test_a_second_process_is_told_who_holds_the_study(
    finished: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    study, home = finished
    with Home.at(home).hold("small"):
        code = subprocess.run(
            [sys.executable, "-m", "suite.cli", "run", study, "--home", str(home)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert code.returncode == 1
    assert f"process {os.getpid()}" in code.stderr
    assert "Traceback" not in code.stderr


def test_no_pickle_is_needed_to_read_what_a_run_leaves(finished: tuple[str, Path]) -> None:
    _, home = finished
    left = {path.suffix for path in (home / "checkpoints").rglob("*") if path.is_file()}
    assert left <= {".safetensors", ".json", ".jinja"}
    for basis in (home / "artifacts").rglob("basis/*.safetensors"):
        header_length = int.from_bytes(basis.read_bytes()[:8], "little")
        header = json.loads(basis.read_bytes()[8 : 8 + header_length])
        assert header["components"]["shape"] == [64, 12]
        assert "components" in header["__metadata__"]["apply"]
