"""Names and paths made to harm: each is refused in plain words, or shown as the text it is."""

from __future__ import annotations

import html
import io
import json
import unicodedata
import xml.etree.ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from suite.cli import main
from suite.corpora import load_corpus
from suite.corpora.pretrained import pretrained_tokenizer
from suite.errors import InputError
from suite.models import find_checkpoint
from suite.planning import plan_study, print_plan
from suite.progress import Display
from suite.reports.build import build_report
from suite.study import CorpusSpec, ModelSpec
from suite.study_file import parse_study
from suite.study_yaml import read_yaml
from suite.terminal import shown
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import Store, flatten, now_ms

MakeHome = Callable[[str], Home]

HOSTILE = {
    "html": "<script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "parent": "../../escaped",
    "absolute": "/etc/passwd",
    "backslash": "..\\..\\escaped",
    "drive": "C:\\Windows",
    "someone's home": "~nobody-of-that-name/x",
    "escape": "\x1b]0;owned\x07\x1b[2J",
    "C1 control": "\x9b2J",
    "line break": "one\ntwo",
    "carriage return": "fine\rowned",
    "nul": "a\0b",
    "right to left": "txt.\u202egpj",
    "line separator": "a\u2028b",
    "unpaired surrogate": "a\ud800",
    "markup": "[/red][link=file:///etc/passwd]x",
    "mathematics": r"$\frac{",
    "percent": "%s%n%(x)s{0}{x.__class__}",
    "dots": "..",
    "leading dot": ".hidden",
    "leading dash": "-rf",
    "blank": " ",
    "look-alike": "d\u0435mo",  # the second letter is Cyrillic
    "full width": "\uff0e\uff0e\uff0fx",
    "device": "CON",
    "shell": "$(touch owned); `touch owned`",
    "very long": "x" * 5_000,
    "too long for a file": "y" * 300,
}

STUDY: dict[str, Any] = {
    "name": "mine",
    "title": "a title",
    "corpora": {"text": {"source": "files", "path": "*.txt", "column": "text", "where": []}},
    "pretraining": {
        "corpus": "text",
        "tokenizer": "byte",
        "sizes": [{"name": "one", "num_hidden_layers": 1, "hidden_size": 16}],
        "recurrences": [1],
        "tokens": 2_048,
        "sequence_length": 32,
        "batch_size": 8,
    },
    "calibration": {
        "models": [
            {"size": "one", "recurrence": 1, "label": "a label"},
            {"path": "./folder", "revision": "main", "gguf_file": "a.gguf"},
        ],
        "calibrate_on": ["text"],
        "evaluate_on": ["text"],
        "budgets": [100, 200],
        "niter": [1],
        "rank": 8,
        "sequence_length": 32,
    },
    "searches": [
        {"name": "cheap", "over": {"niter": [1], "tokens": [100], "rank": [4]}, "trials": 1}
    ],
}
TEXTS = [
    ("name",),
    ("title",),
    ("corpora", "text", "path"),
    ("corpora", "text", "column"),
    ("corpora", "text", "source"),
    ("pretraining", "corpus"),
    ("pretraining", "tokenizer"),
    ("pretraining", "sizes", 0, "name"),
    ("calibration", "models", 0, "label"),
    ("calibration", "models", 0, "size"),
    ("calibration", "models", 1, "path"),
    ("calibration", "models", 1, "revision"),
    ("calibration", "models", 1, "gguf_file"),
    ("calibration", "evaluate_on", 0),
    ("searches", 0, "name"),
]


def with_text(place: tuple[str | int, ...], value: str) -> str:
    """YAML of the study with one text replaced."""
    study = json.loads(json.dumps(STUDY))
    here = study
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return yaml.safe_dump(study)


def obeyed(text: str) -> set[str]:
    """Characters that a terminal would obey, or that reorder what it shows."""
    return {
        character
        for character in text
        if character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")
    }


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("place", TEXTS, ids=lambda place: ".".join(map(str, place)))
def test_a_hostile_text_in_a_study_is_refused_or_shown_as_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: tuple[str | int, ...],
    hostile: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    study = tmp_path / "mine.yaml"
    study.write_text(with_text(place, HOSTILE[hostile]))
    code = main(["plan", str(study)])
    said = capsys.readouterr()
    assert code in (0, 2)
    assert bool(said.err) == (code == 2)
    assert obeyed(said.out + said.err) == set()
    assert "Traceback" not in said.err
    assert [*tmp_path.iterdir()] == [study]


KEYS = [("corpora",), ("pretraining",), ()]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("place", KEYS, ids=lambda place: ".".join(place) or "top")
def test_a_hostile_key_is_refused_and_shown_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[str, ...], hostile: str
) -> None:
    data = json.loads(json.dumps(STUDY))
    here = data
    for step in place:
        here = here[step]
    here[HOSTILE[hostile]] = {"source": "embedded"} if place == ("corpora",) else 1
    study = tmp_path / "mine.yaml"
    study.write_text(yaml.safe_dump(data))
    code = main(["plan", str(study)])
    said = capsys.readouterr().err
    assert code == (0 if (place, hostile) == (("corpora",), "device") else 2)
    assert obeyed(said) == set()
    assert "Traceback" not in said


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_override_is_refused_and_shown_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hostile: str
) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(yaml.safe_dump(STUDY))
    for override in (f"{HOSTILE[hostile]}=1", f"pretraining.{HOSTILE[hostile]}=1"):
        assert main(["plan", str(study), f"--set={override}"]) == 2
        said = capsys.readouterr().err
        assert obeyed(said) == set()
        assert "Traceback" not in said


NOT_A_FOLDER = sorted({*HOSTILE} - {"dots", "blank"})  # `..` and ` ` may well be folders


@pytest.mark.parametrize("hostile", NOT_A_FOLDER)
@pytest.mark.parametrize("what", ["corpus", "model", "gguf", "tokenizer"])
def test_what_cannot_be_found_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, hostile: str
) -> None:
    import transformers

    def nothing(*arguments: object, **settings: object) -> None:
        raise OSError(f"there is nothing by that name: {arguments}")

    for owner, name in (
        (transformers.AutoConfig, "from_pretrained"),
        (transformers.AutoTokenizer, "from_pretrained"),
    ):
        monkeypatch.setattr(owner, name, nothing)
    (tmp_path / "model").mkdir()
    path = HOSTILE[hostile]
    key = "a.key"

    looks: dict[str, Callable[[], object]] = {
        "corpus": lambda: (
            load_corpus("text", CorpusSpec(source="files", path=path), base=tmp_path).documents
        ),
        "tokenizer": lambda: pretrained_tokenizer(path, key=key, base=tmp_path),
        "model": lambda: find_checkpoint(ModelSpec(path=path), base=tmp_path, key=key),
        "gguf": lambda: find_checkpoint(
            ModelSpec(path="model", gguf_file=path), base=tmp_path, key=key
        ),
    }
    with pytest.raises(InputError):
        looks[what]()


def test_a_gguf_file_is_a_name_and_not_a_pattern(tmp_path: Path) -> None:
    """Square brackets and stars in the name of a file are part of it."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")

    def identity(content: bytes) -> str:
        (tmp_path / "m[1]*.gguf").write_bytes(content)
        spec = ModelSpec(path=str(tmp_path), gguf_file="m[1]*.gguf")
        return find_checkpoint(spec, base=tmp_path, key="calibration.models[0]").identity

    assert identity(b"one") != identity(b"two")
    (tmp_path / "inside").mkdir()
    spec = ModelSpec(path=str(tmp_path / "inside"), gguf_file="../m[1]*.gguf")
    with pytest.raises(InputError, match="without a folder"):
        find_checkpoint(spec, base=tmp_path, key="calibration.models[0]")


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch owned']",
        "!!python/name:os.system",
        "a: !!python/object/new:subprocess.Popen [[touch, owned]]",
        "!include /etc/passwd",
    ],
)
def test_yaml_makes_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not valid YAML"):
        read_yaml(text, source="study")
    assert [*tmp_path.iterdir()] == []


def test_aliases_that_stand_for_billions_of_values_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(InputError, match="more than 100,000 values"):
        read_yaml("\n".join(lines), source="study")
    assert len(read_yaml("\n".join(lines[:4]), source="study")["a3"]) == 10


def test_text_that_a_console_would_take_for_markup_is_shown_as_it_is() -> None:
    label = "[/red] [bold]x[/bold] [link=file:///etc/passwd]y"
    screen = io.StringIO()
    console = Console(file=screen, width=200, force_terminal=True, color_system="truecolor")
    study = parse_study(with_text(("calibration", "models", 0, "label"), label))
    plan = plan_study(study, peak_flops=1e12, double_peak_flops=1e12, utilisation=0.5)
    print_plan(plan, console)
    with Display(console) as display, display.task(label, 2) as advance:
        advance(1, label)
        display.note(label)
        display._progress.refresh()
    # in the plan, in the note, as the bar's description and as its remark
    assert screen.getvalue().count(label) >= 4
    assert "\x1b]8" not in screen.getvalue(), "no link was made"


HARMLESS = ["CON", "a..b", "manifest.json", "x" * 100]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_name_that_a_study_may_have_stays_in_the_home(
    make_home: MakeHome, tmp_path: Path, name: str
) -> None:
    home = make_home("home")
    study = parse_study(with_text(("name",), name))
    before = {path for path in tmp_path.rglob("*") if home.root not in path.parents}
    with home.hold(study.name):
        run_id = calibrated(home, study.name, label="a label")
        file = tmp_path / "home" / "note.txt"
        file.write_text("kept")
        Store(home).log_artifact(run_id, file, "report")
        report = build_report(open_reader(home), study.name, None, home.reports / study.name)
    assert {path for path in tmp_path.rglob("*") if home.root not in path.parents} == before
    assert report.page == home.root / "reports" / name / "index.html"
    assert (home.artifacts / name / run_id / "artifacts" / "report" / "note.txt").is_file()


def calibrated(home: Home, study: str, *, label: str) -> str:
    """A finished calibration run of a model that is called ``label``; returns its id."""
    from mlflow.entities import Metric

    store = Store(home)
    tags = {"suite.kind": "calibration", "suite.cell": "0" * 16, "suite.attempts": "1"}
    run_id = store.create_run(study, name=f"calibrate {label}", tags=tags)
    settings = {
        "model": {"label": label},
        "calibrate_on": "text",
        "evaluate_on": ["text"],
        "niter": "1",
        "rank": 8,
        "budgets": [100, 200],
    }
    store.log_params(run_id, flatten(settings))
    points = [
        Metric(f"{matrix}/relative_error/text", 1 / tokens, 1, tokens)
        for matrix in ("key", "value")
        for tokens in (100, 200)
    ]
    store.client.log_batch(run_id, metrics=points)
    store.end_run(run_id, "FINISHED", now_ms())
    return run_id


TRACKED = ("html", "image", "escape", "C1 control", "line break", "right to left", "mathematics")


def test_names_in_a_store_that_others_made_are_text_in_every_file_of_a_report(
    make_home: MakeHome,
) -> None:
    """Such as those of an imported folder, which no study file has checked."""
    home = make_home("home")
    for hostile in TRACKED:
        calibrated(home, "mine", label=HOSTILE[hostile])
    report = build_report(open_reader(home), "mine", None, home.reports / "mine")
    page = report.page.read_text(encoding="utf-8")
    assert obeyed(page) == set()
    for hostile in TRACKED:
        assert shown(HOSTILE[hostile]) in html.unescape(page), hostile
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    drawings = [path for path in report.figures if path.suffix == ".svg"]
    assert drawings
    for drawing in drawings:
        parts = xml.etree.ElementTree.parse(drawing).iter()
        kinds = {part.tag.rpartition("}")[2] for part in parts}
        assert not kinds & {"script", "image", "foreignObject", "a"}
    written = {path for path in home.reports.rglob("*") if path.is_file()}
    assert written == set(report.files), "no file has a name from outside"
