"""Every command and every study that the README shows is run, and every picture is there."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from suite.cli import main
from suite.study_file import parse_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SHELL = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
STUDIES = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
# The demo's own lengths take minutes; its stages are all run, on fewer tokens and trials.
SHORTER = [
    "pretraining.tokens=4096",
    "pretraining.evaluation_tokens=1024",
    "law.starts=8",
    "law.resamples=100",
    "law.test_starts=4",
    "searches[0].trials=3",
]


def test_the_readme_shows_commands_and_studies() -> None:
    assert "suite run demo" in SHELL
    assert "make demo" in SHELL
    assert len(STUDIES) == 2


@pytest.mark.parametrize("command", [line for line in SHELL if line.startswith("make ")])
def test_make_knows_the_target(command: str) -> None:
    done = subprocess.run(
        [*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def write_table(path: Path) -> None:
    """Losses of a law, of 5 sizes and 4 lengths, with the names that the README gives."""
    rows = [
        f"{n:g},{d:g},{1.7 + 400 / n**0.34 + 1_500 / d**0.37}"
        for n in (1e7, 3e7, 1e8, 3e8, 1e9)
        for d in (1e9, 3e9, 1e10, 3e10)
    ]
    path.write_text("\n".join(["params,tokens,loss", *rows]))


def test_the_suite_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUITE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "runs.csv")
    for line in [line for line in SHELL if line.startswith("suite ")]:
        arguments = shlex.split(line)[1:]
        if arguments[0] == "ui":
            continue  # serves until it is stopped; tests/suite/test_ui.py starts it
        if arguments[:2] == ["run", "demo"]:
            arguments += [part for setting in SHORTER for part in ("--set", setting)]
        assert main(arguments) == 0, f"{line}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.strip(), f"{line} says something"
    for home in ("home", "elsewhere"):
        assert (tmp_path / home / "reports" / "demo" / "index.html").exists()
    assert main(["verify", "demo", "--home", "elsewhere"]) == 0


def test_the_pretraining_study_of_the_readme_runs(tmp_path: Path) -> None:
    study = tmp_path / "my-grid.yaml"
    study.write_text(next(text for text in STUDIES if "my-grid" in text))
    quick = ["--set", "law.resamples=100", "--set", "law.tests=[]"]
    quick += ["--set", "pretraining.tokens=12_000"]
    assert main(["run", str(study), "--home", str(tmp_path / "home"), *quick]) == 0


def test_the_calibration_study_of_the_readme_runs_on_a_small_checkpoint(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from suite.corpora.byte_level import ByteTokenizer

    text = next(text for text in STUDIES if "my-calibration" in text)
    assert parse_study(text).calibration is not None
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=4,
        )
    )
    model.save_pretrained(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    (tmp_path / "data").mkdir()
    sentences = (" ".join(f"{n} times {k} makes {n * k}." for k in range(9)) for n in range(2_000))
    lines = [f'{{"text": "{text}"}}' for text in sentences]
    (tmp_path / "data" / "notes.jsonl").write_text("\n".join(lines))
    text = text.replace("HuggingFaceTB/SmolLM2-135M", "model")
    study = tmp_path / "my-calibration.yaml"
    study.write_text(text.replace("rank: 512", "rank: 64"))
    assert main(["run", str(study), "--home", str(tmp_path / "home")]) == 0


def test_pictures_of_the_readme_are_there() -> None:
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert len(shown) == 6
    for path in shown:
        assert (ROOT / path).read_bytes().startswith(b"\x89PNG")
