"""A study that was really run: killed while it is imported, verified, and not run again."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from suite.cli import main
from suite.exchange.export import export_study
from suite.exchange.load import import_study
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STUDY = """
name: small
seed: 3
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 300}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes:
    - {name: narrow, num_hidden_layers: 1, hidden_size: 16}
    - {name: middle, num_hidden_layers: 2, hidden_size: 16}
    - {name: wide, num_hidden_layers: 1, hidden_size: 32}
  recurrences: [1, 2]
  tokens: 4_096
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 512
  optimizer: {warmup_tokens: 1_024}
law:
  form: looplm_total
  fit_from: 0.2
  starts: 4
  hold_out: {sizes: [wide]}
calibration:
  models:
    - {size: wide, recurrence: 2}
  calibrate_on: [maths]
  evaluate_on: [maths]
  budgets: [200, 400]
  niter: [exact]
  rank: 12
  sequence_length: 64
  evaluation_tokens: 256
searches:
  - name: cheap
    over: {niter: [0, exact], tokens: [200], rank: [4, 8]}
    trials: 3
"""
IMPORT = """
import sys
from pathlib import Path
from suite.exchange.load import import_study
from suite.tracking.home import Home
import_study(Path(sys.argv[1]), Home.at(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A study file, and the export of its runs."""
    folder = tmp_path_factory.mktemp("study")
    path = folder / "small.yaml"
    path.write_text(STUDY)
    assert main(["run", str(path), "--home", str(folder / "home")]) == 0
    export_study(Home.at(folder / "home"), "small", folder / "out")
    return str(path), folder / "out"


def runs_of(home: Home, study: str = "small") -> pl.DataFrame:
    return open_reader(home).runs(study)


def test_an_imported_study_verifies_and_has_nothing_left_to_run(
    study: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, export = study
    home = Home.at(tmp_path / "elsewhere")
    import_study(export, home)
    before = runs_of(home)
    page = home.reports / "small" / "index.html"
    written = page.stat().st_mtime_ns
    for verb in ("verify", "run", "verify"):
        assert main([verb, path, "--home", str(home.root)]) == 0, capsys.readouterr()
    assert runs_of(home).equals(before)
    assert page.stat().st_mtime_ns == written
    assert main(["report", path, "--home", str(home.root)]) == 0
    assert main(["verify", path, "--home", str(home.root)]) == 0, "with present ids, too"


def test_a_study_under_another_name_verifies_and_has_nothing_left_to_run(
    study: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, export = study
    home = Home.at(tmp_path / "elsewhere")
    import_study(export, home, name="renamed")
    before = runs_of(home, "renamed")
    renamed = ["--set", "name=renamed", "--home", str(home.root)]
    for verb in ("verify", "run"):
        assert main([verb, path, *renamed]) == 0, capsys.readouterr()
    assert runs_of(home, "renamed").equals(before)


def progress(home: Home) -> int:
    """Runs that were begun, and again those that were written to the end."""
    if not home.database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(home.database)) as database:
        (begun,) = database.execute("SELECT count(*) FROM runs").fetchone()
        query = "SELECT count(*) FROM tags WHERE key = 'suite.imported.digest'"
        (whole,) = database.execute(query).fetchone()
    return int(begun) + int(whole)


def test_an_import_that_is_killed_again_and_again_ends_without_doubles(
    study: tuple[str, Path], tmp_path: Path
) -> None:
    path, export = study
    home, moments = Home.at(tmp_path / "elsewhere"), random.Random(7)
    for reached in (3, 14, 18, 23):
        process = subprocess.Popen([sys.executable, "-c", IMPORT, str(export), str(home.root)])
        while progress(home) < reached and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert progress(home) < 26
    assert import_study(export, home).known > 0
    runs = runs_of(home)
    exported = pl.read_parquet(export / "runs.parquet")
    assert runs.select("name", "status", "start_time", "end_time").equals(
        exported.select("name", "status", "start_time", "end_time")
    )
    points = open_reader(home).curves(runs["run_id"].to_list())
    assert points.height == pl.scan_parquet(export / "curves" / "*.parquet").collect().height
    assert main(["verify", path, "--home", str(home.root)]) == 0
