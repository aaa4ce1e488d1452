"""Inputs that a study file cannot show to be wrong: text, models and places on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from suite.cli import main

STUDY = """
name: mine
corpora:
  text: {{source: files, path: {path}, column: {column}}}
pretraining:
  corpus: text
  tokenizer: byte
  sizes: [{{name: one, num_hidden_layers: 1, hidden_size: 16}}]
  recurrences: [1]
  tokens: 2_048
  sequence_length: 32
  batch_size: 8
calibration:
  models: [{model}]
  calibrate_on: [text]
  evaluate_on: [text]
  budgets: [100, {budget}]
  niter: [1]
  rank: 8
  sequence_length: 32
  evaluation_tokens: 64
"""
LINES = "".join(f'{{"text": "document number {n} says {n * n} twice"}}\n' for n in range(120))


def nothing(folder: Path) -> None:
    (folder / "data").mkdir()


def good(folder: Path) -> None:
    nothing(folder)
    (folder / "data" / "a.jsonl").write_text(LINES)


def broken_line(folder: Path) -> None:
    nothing(folder)
    (folder / "data" / "a.jsonl").write_text(LINES + '{"text": "unclosed\n' + LINES)


def empty_texts(folder: Path) -> None:
    nothing(folder)
    (folder / "data" / "a.jsonl").write_text('{"text": ""}\n{"text": "  "}\n')


def latin_1(folder: Path) -> None:
    nothing(folder)
    (folder / "data" / "a.txt").write_bytes("café\n".encode("latin-1"))


def parquet(folder: Path) -> None:
    nothing(folder)
    pl.DataFrame({"body": ["a", "b"], "score": [1.0, 2.0]}).write_parquet(folder / "data/a.parquet")


CELL = "{size: one, recurrence: 1}"
CASES: dict[str, tuple[Callable[[Path], None], dict[str, str], list[str]]] = {
    "missing file": (nothing, {}, ["corpora.text", "data/*.jsonl"]),
    "broken jsonl line": (broken_line, {}, ["corpora.text", "a.jsonl", "121"]),
    "empty corpus": (empty_texts, {}, ["corpora.text", "no document with any text"]),
    "not UTF-8": (latin_1, {"path": "data/*.txt"}, ["corpora.text", "a.txt", "UTF-8"]),
    "column absent": (parquet, {"path": "data/*.parquet"}, ["corpora.text", "text", "body, score"]),
    "budget above the corpus": (
        good,
        {"budget": "900_000"},
        ["calibration.budgets", "900,000", "at most that many"],
    ),
    "no such folder": (good, {"model": "{path: ./nowhere}"}, ["calibration.models[0]", "nowhere"]),
    "cell that is not pretrained": (
        good,
        {"model": "{size: one, recurrence: 4}"},
        ["calibration.models[0].recurrence", "4", "1"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_message_before_any_work(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, changed, fragments = CASES[case]
    make(tmp_path)
    settings = {"path": "data/*.jsonl", "column": "text", "model": CELL, "budget": "200"} | changed
    study, home = tmp_path / "mine.yaml", tmp_path / "home"
    study.write_text(STUDY.format(**settings))
    assert main(["run", str(study), "--home", str(home)]) == 2
    said = capsys.readouterr().err.strip()
    for fragment in fragments:
        assert fragment in said
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert not (home / "mlflow.db").exists(), "no run was started"
    assert not list(home.glob("**/*.part")), "nothing is half-written"


def test_a_home_that_cannot_be_written_is_said_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good(tmp_path)
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY.format(path="data/*.jsonl", column="text", model=CELL, budget="200"))
    # below a file, where not even root can make a folder
    assert main(["run", str(study), "--home", str(study / "home")]) == 2
    said = capsys.readouterr().err
    assert str(study / "home") in said
    assert "--home" in said


@pytest.mark.parametrize(
    ("setting", "key", "fragment"),
    [
        (
            "pretraining.sizes[1]={name: twin, num_hidden_layers: 2, hidden_size: 16}",
            "pretraining.sizes[1]",
            "the same shape as 'tiny'",
        ),
        (
            "calibration.models[1]={size: medium, recurrence: 1, label: again}",
            "calibration.models[1]",
            "a model that stands before under another label",
        ),
        ("calibration.models[0].label=" + 101 * "x", "calibration.models[0].label", "at most 100"),
        (
            "calibration.trainer.accelerator=mps",
            "calibration.trainer.accelerator",
            "no such device",
        ),
        ("law.hold_out.sizes=[small, medium, large]", "law.hold_out", "at least two"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_before_any_work(
    setting: str, key: str, fragment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "demo", "--home", str(tmp_path / "home"), "--set", setting]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {key}: ")
    assert fragment in said
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("stage", ["pretraining", "calibration"])
def test_several_devices_are_refused_before_any_work(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = f"{stage}.trainer.devices=2"
    assert main(["run", "demo", "--home", str(tmp_path / "home"), "--set", several]) == 2
    assert f"{stage}.trainer.devices: got 2;" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("verb", ["report", "verify"])
def test_a_home_without_runs_names_the_cure(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "demo", "--home", str(tmp_path / "home")]) == 2
    assert "suite run" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()
