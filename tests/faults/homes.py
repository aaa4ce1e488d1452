"""The study that is disturbed, and what has to be true of its home afterwards."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import polars as pl

from suite.tracking.curves import attempts_from_tags, live
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

WHOLE = """
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
  starts: 3
  tests: [first]
  ablations: false
  test_starts: 3
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
report: {panels: [loss_grid]}
"""
TRAINING = """
name: small
seed: 3
corpora:
  maths: {source: embedded, path: worked_math, max_documents: 300}
pretraining:
  corpus: maths
  tokenizer: byte
  sizes: [{name: narrow, num_hidden_layers: 1, hidden_size: 16}]
  recurrences: [1]
  tokens: 12_288
  sequence_length: 32
  batch_size: 8
  evaluate_every: 2_048
  evaluation_tokens: 1_024
  optimizer: {warmup_tokens: 1_024}
"""
MEASURED_TIME = ("speed/", "calibration/seconds", "objective/calibration_seconds")


def own_store(root: Path) -> Home:
    """A home on its own database, whatever the environment says."""
    return Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")


def frames_of(home: Path, study: str = "small") -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Runs, tags and every point, superseded ones too."""
    reader = open_reader(own_store(home))
    runs = reader.runs(study)
    ids = runs["run_id"].to_list()
    return runs, reader.tags(ids), reader.curves(ids)


def repeatable(home: Path, study: str = "small") -> pl.DataFrame:
    """Live points by cell, without measured times, which no two runs share."""
    runs, _, curves = frames_of(home, study)
    points = live(curves).join(runs.select("run_id", "kind", "cell"), on="run_id")
    measured = pl.any_horizontal(pl.col("key").str.starts_with(key) for key in MEASURED_TIME)
    return points.filter(~measured).select("kind", "cell", "key", "step", "value").sort(pl.all())


def params_of(home: Path) -> pl.DataFrame:
    reader = open_reader(own_store(home))
    runs = reader.runs("small")
    runs = runs.filter(pl.col("kind") != "report")  # its parameter is a digest of run ids
    params = reader.params(runs["run_id"].to_list())
    # Optuna's numbers count trials that died before they were drawn, too
    params = params.filter(pl.col("key") != "trial.number")
    return params.join(runs, on="run_id").select("cell", "key", "value").sort(pl.all())


def artifacts_of(home: Path) -> dict[tuple[str, str], object]:
    """Bases by cell and name, and the names of a report's files, which tell of run ids.

    Provenance and tracebacks are left out, because they belong to attempts, not to cells; so are
    copies that a death cut short.
    """
    runs, _, _ = frames_of(home)
    found: dict[tuple[str, str], object] = {}
    for cell, kind, run_id in runs.select("cell", "kind", "run_id").iter_rows():
        root = home / "artifacts" / "small" / run_id / "artifacts"
        for file in sorted(root.rglob("*")):
            name = str(file.relative_to(root))
            if file.suffix == ".part" or name.startswith(("provenance", "failures")):
                continue
            if file.suffix == ".safetensors":
                found[cell, name] = _tensors(file.read_bytes())
            elif file.is_file():
                found[kind, name] = "there"
    return found


def _tensors(content: bytes) -> tuple[object, bytes]:
    """Header and data; the order of the header's keys differs from file to file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def complaints(home: Path, reference: Path) -> list[str]:
    """What is not true of a finished home that has to be; nothing, if all is well."""
    found = []
    runs, tags, curves = frames_of(home)
    expected, _, _ = frames_of(reference)
    for name, frame in (("planned", expected), ("there", runs)):
        if frame["status"].unique().to_list() != ["FINISHED"]:
            found.append(f"{name}: {frame.select('name', 'status').rows()}")
    kinds = [dict(frame.group_by("kind").len().iter_rows()) for frame in (expected, runs)]
    if kinds[0] != kinds[1]:
        found.append(f"runs by kind {kinds[1]}, not {kinds[0]}")
    if not runs["cell"].is_unique().all():
        found.append(f"a cell has two runs: {runs.select('name', 'cell').rows()}")
    counted = curves.filter(~pl.col("superseded"))
    if not counted.select("run_id", "key", "step").is_unique().all():
        found.append(f"doubled: {counted.filter(counted.is_duplicated()).rows()[:5]}")
    if not repeatable(home).equals(repeatable(reference), null_equal=True):
        both = repeatable(home).join(
            repeatable(reference),
            on=["kind", "cell", "key", "step"],
            how="full",
            suffix="_expected",
        )
        unlike = both.filter(~pl.col("value").eq_missing(pl.col("value_expected")))
        found.append(f"curves differ: {unlike.rows()[:8]}")
    if not params_of(home).equals(params_of(reference)):
        found.append("parameters differ")
    if artifacts_of(home) != artifacts_of(reference):
        kept, wanted = artifacts_of(home), artifacts_of(reference)
        differing = [key for key in kept | wanted if kept.get(key) != wanted.get(key)]
        found.append(f"artifacts differ: {differing}")
    left = sorted(path.name for path in (home / "spool").glob("*"))
    if left:
        found.append(f"left in the spool: {left}")
    return found + untrue_attempts(runs, tags) + _damage(home)


def untrue_attempts(runs: pl.DataFrame, tags: pl.DataFrame) -> list[str]:
    found = []
    for run_id, name in runs.select("run_id", "name").iter_rows():
        mine = dict(tags.filter(pl.col("run_id") == run_id).select("key", "value").iter_rows())
        attempts = attempts_from_tags(mine)
        outcomes = [attempt.outcome for attempt in attempts]
        if mine.get("suite.attempts") != str(len(attempts)):
            found.append(f"{name}: {mine.get('suite.attempts')} attempts, tags {outcomes}")
        if outcomes[-1:] != ["FINISHED"] or not set(outcomes[:-1]) <= {"CUT_OFF", "FAILED"}:
            found.append(f"{name}: attempts ended {outcomes}")
        starts = [attempt.started for attempt in attempts]
        ends = [attempt.ended or 0 for attempt in attempts]
        if starts != sorted(set(starts)) or any(map(int.__gt__, starts, ends)):
            found.append(f"{name}: attempts from {starts} to {ends}")
    return found


def _damage(home: Path) -> list[str]:
    with sqlite3.connect(home / "mlflow.db") as database:
        found = [
            f"{pragma}: {rows}"
            for pragma, good in (("integrity_check", [("ok",)]), ("foreign_key_check", []))
            if (rows := database.execute(f"PRAGMA {pragma}").fetchall()) != good
        ]
        doubled = database.execute(
            "SELECT name, count(*) FROM inputs JOIN datasets ON dataset_uuid = source_id "
            "GROUP BY destination_id, name HAVING count(*) > 1"
        ).fetchall()
    return found + [f"dataset {name} logged {times} times" for name, times in doubled]


def write_study(folder: Path, text: str = WHOLE, *, name: str = "small") -> str:
    """The study as a file."""
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("name: small", f"name: {name}"))
    return str(path)
