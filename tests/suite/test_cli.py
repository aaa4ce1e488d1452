from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import suite.cli
from suite.cli import main
from suite.errors import InputError, SuiteError
from suite.tracking.home import Home

HEAVY = ("torch", "lightning", "mlflow", "optuna", "transformers", "polars", "matplotlib")
BAD_STUDY = "name: a/b\ncorpora: {prose: {source: embedded, path: pydocs}}\n"


def modules_after(arguments: list[str]) -> set[str]:
    """Heavy libraries that a fresh process has loaded once the command is done."""
    program = (
        "import sys\n"
        "from suite.cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('LOADED', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.rsplit("LOADED", 1)[1].split()
    return {name.partition(".")[0] for name in loaded} & set(HEAVY)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(list(arguments))
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_takes_less_than_half_a_second_of_cpu() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "suite.cli", "--help"], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    for verb in suite.cli._VERBS:
        assert f"\n    {verb} " in done.stdout
    assert "Exit codes: 0 done, 1 the study failed or differs, 2 the input is wrong" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["predict", "--help"], ["studies"], ["plan", "looplm-scaling"]],
)
def test_what_computes_nothing_loads_no_heavy_library(arguments: list[str]) -> None:
    assert modules_after(arguments) == set()


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: suite")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"suite {suite.__version__}\n", "")


def test_studies_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "studies")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "demo",
        "kv-calibration",
        "looplm-scaling",
        "smollm2",
    ]
    assert "3 x 5 grid" in out


def test_a_plan_shows_cells_and_totals_and_makes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "plan", "looplm-scaling", "--utilisation", "0.5")
    assert (code, err) == (0, "")
    assert "15 cells" in out
    assert "device-hours at 50% of 989 TFLOP/s" in out
    assert not list(tmp_path.iterdir())


def test_settings_reach_the_study(capsys: pytest.CaptureFixture[str]) -> None:
    edits = ["pretraining.sizes=[53M]", "law=null", "name=mine"]
    settings = [argument for edit in edits for argument in ("--set", edit)]
    code, out, _ = run(capsys, "plan", "looplm-scaling", *settings)
    assert code == 0
    assert "mine: 3 cells" in out


@pytest.mark.parametrize("verb", ["plan", "run", "report", "verify", "predict"])
@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["none"], ["no study 'none'", "demo, kv-calibration, looplm-scaling, smollm2"]),
        (["demo", "--set", "calibration.niter=[-1]"], ["calibration.niter[0]", "got -1"]),
        (["demo", "--set", "calibration.nitre=[1]"], ["did you mean 'niter'?"]),
        (["demo", "--set", "seed"], ["--set takes KEY=VALUE"]),
        (["bad.yaml"], ["name: got 'a/b'", "letters, digits"]),
        (["latin.yaml"], ["latin.yaml is not UTF-8"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    arguments: list[str],
    fragments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text(BAD_STUDY)
    Path("latin.yaml").write_bytes(b"title: \xe9")
    place = [] if verb == "plan" else ["--home", "home"]
    code, out, err = run(capsys, verb, *arguments, *place)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for fragment in fragments:
        assert fragment in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "latin.yaml"]


@pytest.mark.parametrize("verb", ["report", "verify", "ui"])
def test_a_home_without_runs_is_wrong_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str
) -> None:
    study = [] if verb == "ui" else ["demo"]
    code, out, err = run(capsys, verb, *study, "--home", str(tmp_path / "none"))
    assert (code, out) == (2, "")
    assert "holds no runs yet; start with `suite run" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_home_that_cannot_be_written_stops_a_run_before_it_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, "run", "demo", "--home", str(tmp_path / "file" / "home"))
    assert (code, out) == (2, "")
    assert "cannot be written" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["fly"], ["invalid choice: 'fly'"]),
        (["run"], ["STUDY"]),
        (["run", "demo", "--force"], ["--force"]),
        (["plan", "demo", "--utilisation", "0"], ["--utilisation", "'0' is not a number above 0"]),
        (["plan", "demo", "--utilisation", "1.1"], ["1.1 is more than 1"]),
        (["plan", "demo", "--utilisation", "nan"], ["'nan' is not a number above 0"]),
        (["plan", "demo", "--utilisation", "half"], ["'half' is not a number above 0"]),
        (["plan", "demo", "--peak-tflops", "-1"], ["--peak-tflops"]),
        (["plan", "demo", "--peak-tflops", "inf"], ["'inf' is not a number above 0"]),
        (["ui", "--port", "0"], ["'0' is not a port; give 1 to 65535"]),
        (["ui", "--port", "65536"], ["'65536' is not a port"]),
        (["ui", "--port", "http"], ["'http' is not a port"]),
    ],
)
def test_wrong_arguments_show_the_usage_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], fragments: list[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: suite")
    assert "Traceback" not in err
    for fragment in fragments:
        assert fragment in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("got 5; at most 4", key="a.b"), 2, "error: a.b: got 5; at most 4\n"),
        (SuiteError("another process works on it"), 1, "error: another process works on it\n"),
        (
            RuntimeError("out of memory"),
            1,
            "error: RuntimeError: out of memory\n(--debug shows where it came from)\n",
        ),
        (KeyboardInterrupt(), 130, "stopped; run the same command again\n"),
    ],
)
def test_failures_have_their_exit_codes_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    message: str,
) -> None:
    def fail(_: Any) -> int:
        raise error

    monkeypatch.setitem(suite.cli._VERBS, "studies", fail)
    assert run(capsys, "studies") == (code, "", message)
    if not isinstance(error, KeyboardInterrupt):
        debugged, _, err = run(capsys, "studies", "--debug")
        assert debugged == code
        assert err.startswith("Traceback (most recent call last)")
        assert "in fail\n" in err
        assert err.endswith(message.replace("(--debug shows where it came from)\n", ""))


def test_a_reader_that_leaves_early_is_no_crash() -> None:
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "suite.cli", "studies"],
        env=buffered,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_home_that_is_empty_text_or_a_file_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "report", "demo", "--home", "")
    assert (code, err) == (2, "error: --home is empty; give a folder, or leave --home out\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; give a folder with --home or SUITE_HOME"):
        Home.at(tmp_path / "file").create()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("verb", ["report", "verify"])
def test_a_name_is_looked_for_in_the_store_and_what_keeps_it_from_that_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    blank_database: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    home = tmp_path / "home"
    code, _, err = run(capsys, verb, "own", "--home", str(home))
    assert code == 2
    assert "no study 'own': it must be a YAML file or one of the shipped studies" in err
    assert f"its runs cannot be looked for: {home} holds no runs yet" in err
    home.mkdir()
    shutil.copyfile(blank_database, home / "mlflow.db")
    code, _, err = run(capsys, verb, "own", "--home", str(home))
    assert code == 2
    assert f"and sqlite:///{home / 'mlflow.db'} has no runs of it" in err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:1")
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", "0")
    code, _, err = run(capsys, verb, "own", "--home", str(home))
    assert code in (1, 2)
    assert "its runs cannot be looked for: " in err
    assert "http://127.0.0.1:1" in err
    assert "secret" not in err


def test_sigterm_ends_a_command_with_a_word_and_the_usual_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def waits(options: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        return 0

    monkeypatch.setitem(suite.cli._VERBS, "studies", waits)
    assert run(capsys, "studies") == (130, "", "stopped; run the same command again\n")
    assert signal.getsignal(signal.SIGTERM) is before
