from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_modules.looplm.sizes import PRESETS
from suite.errors import InputError
from suite.study import CorpusSpec, LawSpec, SizeSpec, Study
from suite.study_file import load_study, locate_study, parse_study, shipped_studies

STUDY = """\
name: tiny
corpora: {prose: {source: embedded, path: pydocs}, maths: {source: embedded}}
pretraining:
  corpus: prose
  tokenizer: byte
  sizes:
    - {name: small, num_hidden_layers: 2, hidden_size: 32}
    - {name: large, num_hidden_layers: 3, hidden_size: 64}
    - {name: third, num_hidden_layers: 1, hidden_size: 48}
  recurrences: [1, 4]
  tokens: 8192
law: {hold_out: {sizes: [large]}}
calibration:
  models: [{size: small, recurrence: 1}, {path: some/model}]
  calibrate_on: [prose]
  evaluate_on: [maths, prose]
  budgets: [100, 200]
  niter: [1, exact]
  rank: 16
searches:
  - name: kv
    over: {niter: [1, 2], tokens: [100], rank: [4, 8]}
    trials: 4
"""

# An edit of the study above; the key path that the message names; what else it says.
REFUSED: list[tuple[str, str, list[str]]] = [
    # unknown keys, with the nearest known one
    ("nmae=x", "nmae", ["unknown key 'nmae'", "did you mean 'name'?"]),
    ("trainer={}", "trainer", ["unknown key 'trainer'", "Known keys here: name, title, seed"]),
    (
        "pretraining.recurences=[1]",
        "pretraining.recurences",
        ["unknown key", "did you mean 'recurrences'?"],
    ),
    (
        "pretraining.optimizer.learning_rte=0.1",
        "pretraining.optimizer.learning_rte",
        ["did you mean 'learning_rate'?", "weight_decay"],
    ),
    ("corpora.prose.sourse=hub", "corpora.prose.sourse", ["did you mean 'source'?", "held_out"]),
    (
        "pretraining.sizes[1].hidden=64",
        "pretraining.sizes[1].hidden",
        ["did you mean 'hidden_size'?"],
    ),
    (
        "calibration.models[0].shape={layer: 1}",
        "calibration.models[0].shape.layer",
        ["did you mean 'layers'?", "head_dim"],
    ),
    ("searches[0].over.ranks=[1]", "searches[0].over.ranks", ["did you mean 'rank'?"]),
    ("law.hold_out.size=[large]", "law.hold_out.size", ["did you mean 'sizes'?"]),
    ("report.panel=[parity]", "report.panel", ["did you mean 'panels'?"]),
    # missing keys
    ("searches[0]={name: kv}", "searches[0].over", ["missing", "required"]),
    (
        "pretraining.sizes[0]={name: a, hidden_size: 32}",
        "pretraining.sizes[0].num_hidden_layers",
        ["missing", "required"],
    ),
    ("corpora.files={source: files}", "corpora.files.path", ["missing", "'files' needs it"]),
    ("calibration.models[0]={size: small}", "calibration.models[0].recurrence", ["1, 4"]),
    # wrong types
    ("pretraining.tokens=many", "pretraining.tokens", ['"many"', "a whole number"]),
    ("pretraining.tokens=1.5", "pretraining.tokens", ["1.5", "a whole number"]),
    ("pretraining.tokens=true", "pretraining.tokens", ["true", "a whole number"]),
    ("pretraining.tokens=null", "pretraining.tokens", ["null", "a whole number"]),
    ("pretraining.tokens=2024-01-31", "pretraining.tokens", ["2024-01-31", "a whole number"]),
    ("pretraining.recurrences=2", "pretraining.recurrences", ["got 2", "a list"]),
    ("pretraining.sizes={}", "pretraining.sizes", ["got {}", "a list"]),
    ("pretraining.sizes[0]=53", "pretraining.sizes[0]", ["got 53", "a mapping"]),
    ("pretraining.tokenizer=5", "pretraining.tokenizer", ["got 5", "text"]),
    ("pretraining.gate_bias=low", "pretraining.gate_bias", ['"low"', "a number"]),
    ("corpora.prose=embedded", "corpora.prose", ['"embedded"', "a mapping"]),
    ("corpora=[prose]", "corpora", ['["prose"]', "a mapping"]),
    ("corpora.prose.where=score > 1", "corpora.prose.where", ['"score > 1"', "a list"]),
    (
        "law.hold_out=[wide]",
        "law.hold_out",
        ['["wide"]', "a mapping with keys of sizes, recurrences"],
    ),
    ("law=looplm_total", "law", ['"looplm_total"', "a mapping"]),
    (
        "calibration.models[1].trust_remote_code=maybe",
        "calibration.models[1].trust_remote_code",
        ['"maybe"', "true or false"],
    ),
    ("calibration.trainer=null", "calibration.trainer", ["null", "a mapping"]),
    (
        "calibration.trainer.devices=all",
        "calibration.trainer.devices",
        ['"all"', "a whole number or 'auto'"],
    ),
    # values out of range
    ("seed=-1", "seed", ["got -1", "at least 0"]),
    ("seed=4294967296", "seed", ["got 4294967296", "below 4294967296"]),
    ("pretraining.tokens=-5", "pretraining.tokens", ["got -5", "at least 1"]),
    ("pretraining.tokens=2047", "pretraining.tokens", ["got 2047", "2048 tokens"]),
    ("pretraining.recurrences[0]=0", "pretraining.recurrences[0]", ["got 0", "at least 1"]),
    (
        "pretraining.recurrences=[]",
        "pretraining.recurrences",
        ["got []", "a list of 1 or more items"],
    ),
    ("pretraining.sequence_length=1", "pretraining.sequence_length", ["got 1", "at least 2"]),
    (
        "pretraining.optimizer.learning_rate=0",
        "pretraining.optimizer.learning_rate",
        ["got 0", "above 0"],
    ),
    (
        "pretraining.optimizer.learning_rate=.nan",
        "pretraining.optimizer.learning_rate",
        ["nan", "a finite number"],
    ),
    ("pretraining.gate_bias=-.inf", "pretraining.gate_bias", ["-inf", "a finite number"]),
    (
        "pretraining.optimizer.betas=[0.9]",
        "pretraining.optimizer.betas",
        ["[0.9]", "an item at position 1"],
    ),
    (
        "pretraining.optimizer.betas=[0.9, 0.9, 0.9]",
        "pretraining.optimizer.betas",
        ["[0.9, 0.9, 0.9]", "2 or fewer"],
    ),
    (
        "pretraining.optimizer.schedule=cosin",
        "pretraining.optimizer.schedule",
        ['"cosin"', "'constant', 'cosine' or 'linear'"],
    ),
    ("pretraining.trainer.devices=0", "pretraining.trainer.devices", ["0", "at least 1 or 'auto'"]),
    ("pretraining.trainer.precision=16", "pretraining.trainer.precision", ["16", "'16-mixed'"]),
    ("pretraining.objective.beta=-0.1", "pretraining.objective.beta", ["-0.1", "at least 0"]),
    ("pretraining.micro_batch_size=3", "pretraining.micro_batch_size", ["3", "divide", "16"]),
    ("pretraining.tokenizer=bpe-257", "pretraining.tokenizer", ["'bpe-257'", "at least 258"]),
    ("pretraining.tokenizer=bpe-many", "pretraining.tokenizer", ["'bpe-many'", "at least 258"]),
    ("pretraining.tokenizer=bpe-²", "pretraining.tokenizer", ["'bpe-²'", "at least 258"]),
    ("corpora.prose.held_out=1.0", "corpora.prose.held_out", ["got 1.0", "below 1"]),
    (
        "corpora.prose.source=web",
        "corpora.prose.source",
        ['"web"', "'embedded', 'files', 'hub' or 'mixture'"],
    ),
    ("law.fit_from=1.0", "law.fit_from", ["got 1.0", "below 1"]),
    ("calibration.niter=-1", "calibration.niter", ["got -1", "a list"]),
    ("calibration.niter=[-1]", "calibration.niter[0]", ["got -1", "at least 0 or 'exact'"]),
    ("calibration.niter=[1, -1]", "calibration.niter[1]", ["got -1", "at least 0 or 'exact'"]),
    (
        "calibration.niter=[precise]",
        "calibration.niter[0]",
        ['"precise"', "a whole number or 'exact'"],
    ),
    ("calibration.niter=[1.5]", "calibration.niter[0]", ["1.5", "a whole number or 'exact'"]),
    ("calibration.rank=0", "calibration.rank", ["got 0", "at least 1"]),
    ("calibration.budgets[0]=0", "calibration.budgets[0]", ["got 0", "at least 1"]),
    ("calibration.sinks=1024", "calibration.sinks", ["got 1024", "1024 positions", "fewer"]),
    ("report.panels=[loss]", "report.panels[0]", ['"loss"', "'loss_grid'"]),
    # names
    ("name=a/b", "name", ["'a/b'", "letters, digits"]),
    ("name=../up", "name", ["'../up'", "starts with a letter or digit"]),
    ("name=..", "name", ["'..'"]),
    ("name=Default", "name", ["'Default'", "MLflow"]),
    ("name=2024", "name", ["2024", "text"]),
    (f"name={'n' * 101}", "name", ["at most 100"]),
    ("corpora.a/b={source: embedded}", "corpora", ["'a/b'", "letters, digits"]),
    ("pretraining.sizes[0].name=a/b", "pretraining.sizes[0].name", ["'a/b'"]),
    ("searches[0].name=a b", "searches[0].name", ["'a b'"]),
    # things that do not exist
    ("corpora={}", "corpora", ["got {}", "at least one"]),
    ("pretraining.corpus=web", "pretraining.corpus", ["'web'", "prose, maths"]),
    ("calibration.calibrate_on=[web]", "calibration.calibrate_on[0]", ["'web'", "prose, maths"]),
    ("calibration.evaluate_on[1]=web", "calibration.evaluate_on[1]", ["'web'", "prose, maths"]),
    ("searches[0].evaluate_on=web", "searches[0].evaluate_on", ["'web'", "prose, maths"]),
    ("searches[0].model=2", "searches[0].model", ["got 2", "positions 0 to 1"]),
    ("pretraining.sizes[0]=54M", "pretraining.sizes[0]", ["'54M'", "53M, 134M, 374M", "shape"]),
    ("law.hold_out.sizes=[huge]", "law.hold_out.sizes[0]", ["'huge'", "small, large, third"]),
    ("law.hold_out.recurrences=[2]", "law.hold_out.recurrences[0]", ["2", "1, 4"]),
    ("pretraining=null", "law", ["the stage pretraining", "missing"]),
    ("calibration=null", "searches", ["the stage calibration", "missing"]),
    # models
    (
        "calibration.models[0].size=huge",
        "calibration.models[0].size",
        ["does not pretrain", "'huge'", "small, large, third"],
    ),
    (
        "calibration.models[0].recurrence=2",
        "calibration.models[0].recurrence",
        ["does not pretrain", "T_m = 2", "1, 4"],
    ),
    ("calibration.models[0]={}", "calibration.models[0]", ["neither", "size and recurrence"]),
    (
        "calibration.models[0].path=x",
        "calibration.models[0]",
        ["both size and path", "either", "or path"],
    ),
    (
        "calibration.models[1].recurrence=4",
        "calibration.models[1].recurrence",
        ["got 4", "with size"],
    ),
    (
        "calibration.models[0].revision=main",
        "calibration.models[0].revision",
        ["'main'", "with path"],
    ),
    (
        "calibration.models=[{path: a/m}, {path: b/m}]",
        "calibration.models",
        ["'m' twice", "another label"],
    ),
    # numbers that do not fit together
    ("calibration.budgets=[200, 100]", "calibration.budgets[1]", ["100 after 200", "increase"]),
    ("calibration.budgets=[100, 100]", "calibration.budgets[1]", ["100 after 100", "increase"]),
    ("calibration.rank=65", "calibration.rank", ["got 65", "p = 64", "small Tm=1", "at most"]),
    (
        "calibration.models[1].shape={layers: 1, heads: 3, head_dim: 5, parameters: 9}",
        "calibration.rank",
        ["got 16", "p = 15", "model"],
    ),
    ("searches[0].over.rank=[65]", "searches[0].over.rank[0]", ["got 65", "p = 64"]),
    ("searches[0].over.rank=[8, 101]", "searches[0].over.rank[1]", ["got 101", "100"]),
    ("searches[0].trials=5", "searches[0].trials", ["got 5", "4 combinations"]),
    (
        "pretraining.sizes[0].hidden_size=40",
        "pretraining.sizes[0]",
        ["hidden_size 40", "multiple of 16"],
    ),
    ("pretraining.sizes[0].vocab_size=256", "pretraining.sizes[0]", ["256", "257 tokens"]),
    (
        "law.hold_out.sizes=[small, large, third]",
        "law.hold_out",
        ["['small', 'large', 'third']", "nothing is left to fit"],
    ),
    (
        "law.hold_out.sizes=[small, large]",
        "law.hold_out",
        ["got 1 of pretraining.sizes left to fit", "at least two", "hold out fewer"],
    ),
    (
        "law.hold_out.recurrences=[4]",
        "law.hold_out",
        ["got 1 of pretraining.recurrences left to fit", "at least two"],
    ),
    (
        "law.hold_out.recurrences=[1, 4]",
        "law.hold_out",
        ["[1, 4]", "nothing is left to fit", "leave out fewer"],
    ),
    # given twice
    ("pretraining.sizes[1].name=small", "pretraining.sizes", ["'small' twice", "once"]),
    ("pretraining.recurrences=[4, 4]", "pretraining.recurrences", ["4 twice", "once"]),
    ("calibration.niter=[1, 1]", "calibration.niter", ["1 twice", "once"]),
    ("calibration.evaluate_on=[maths, maths]", "calibration.evaluate_on", ["'maths' twice"]),
    ("searches[0].over.rank=[4, 4]", "searches[0].over.rank", ["4 twice"]),
    (
        "searches[0].objectives=[calibration_seconds, calibration_seconds]",
        "searches[0].objectives",
        ["'calibration_seconds' twice"],
    ),
    ("report.panels=[parity, parity]", "report.panels", ["'parity' twice"]),
]


def edited(edit: str) -> str:
    """Text of the study after an edit that is made here, by other means than ``--set``."""
    data = yaml.safe_load(STUDY)
    path, _, value = edit.partition("=")
    here: Any = data
    *steps, last = [int(s) if s.isdigit() else s for s in re.split(r"[.\[\]]+", path.strip("]"))]
    for step in steps:
        if isinstance(here, dict):
            here.setdefault(step, {})
        here = here[step]
    here[last] = yaml.safe_load(value)
    return yaml.safe_dump(data, allow_unicode=True, sort_keys=False)


def refusal(text: str, overrides: list[str]) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_study(text, overrides=overrides)
    return caught.value


@pytest.mark.parametrize(("edit", "key", "fragments"), REFUSED, ids=[case[0] for case in REFUSED])
def test_refuses_in_one_line_that_names_key_value_and_what_is_allowed(
    edit: str, key: str, fragments: list[str]
) -> None:
    in_file = refusal(edited(edit), [])
    message = str(in_file)
    assert in_file.exit_code == 2
    assert in_file.key == key
    assert message.startswith(f"{key}: ")
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message
    assert str(refusal(STUDY, [edit])) == message


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("", ["must hold a mapping", "name, corpora"]),
        ("- name: x", ["must hold a mapping"]),
        ("{}", ["name: ", "missing", "required"]),
        ("{name: x}", ["corpora: ", "missing", "required"]),
        ("{name: x, corpora: {a: {source: embedded}}}", ["pretraining: ", "calibration"]),
        (
            STUDY.replace("law:", "law: {form: chinchilla}\nlaw:"),
            ["law: ", "line 13", "second time"],
        ),
        (STUDY.replace("recurrences: [1, 4]", "recurrences: [1, 4"), ["not valid YAML", "line 11"]),
        (
            "{name: x, corpora: {a: {source: embedded}}, calibration: {models: [{size: s, "
            "recurrence: 1}], calibrate_on: [a], evaluate_on: [a], budgets: [9], rank: 1}}",
            ["calibration.models[0].size: ", "'s'", "pretrains no model"],
        ),
    ],
)
def test_refuses_a_file_that_is_no_study(text: str, fragments: list[str]) -> None:
    message = str(refusal(text, []))
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_a_panel_needs_its_stage() -> None:
    for panel, stage in [
        ("loss_grid", "pretraining"),
        ("parity", "law"),
        ("residuals", "law"),
        ("error_grid", "calibration"),
        ("pareto", "searches"),
    ]:
        data = yaml.safe_load(STUDY)
        data["report"] = {"panels": [panel]}
        assert parse_study(yaml.safe_dump(data)).report.panels == (panel,)
        for missing in {"law", stage} | ({"searches"} if stage == "calibration" else set()):
            del data[missing]
        if stage == "pretraining":
            data["calibration"]["models"] = [{"path": "m"}]
        error = refusal(yaml.safe_dump(data), [])
        assert error.key == "report.panels[0]"
        assert repr(panel) in str(error)
        assert stage in str(error)


def test_an_unknown_key_is_named_before_the_key_that_it_leaves_missing() -> None:
    error = refusal(STUDY.replace("tokens: 8192", "token: 8192"), [])
    assert error.key == "pretraining.token"
    assert "did you mean 'tokens'?" in str(error)


def test_corpora_may_be_called_like_a_type() -> None:
    error = refusal(STUDY, ["corpora.int={source: embedded, held_out: 2.0}"])
    assert error.key == "corpora.int.held_out"


def test_long_values_are_cut_in_the_message() -> None:
    error = refusal(STUDY, [f"pretraining.tokens={'x' * 5000}"])
    assert error.key == "pretraining.tokens"
    assert len(str(error)) < 400
    assert "a whole number" in str(error)


@pytest.mark.parametrize(
    ("edit", "read"),
    [
        ("pretraining.optimizer.learning_rate=3e-4", 3e-4),
        ("pretraining.optimizer.learning_rate=1", 1.0),
        ("pretraining.tokens=20_000", 20_000),
        ("pretraining.recurrences[1]=8", (1, 8)),
        ("pretraining.recurrences.1=8", (1, 8)),
        ("calibration.niter=[exact, 0]", ("exact", 0)),
        ("pretraining.trainer.devices=auto", "auto"),
        ("law.form=chinchilla", "chinchilla"),
        ("searches[0].over.tokens=[100, 50]", (100, 50)),
        ("title=a = b", "a = b"),
        ("name=demo.v2_x-1", "demo.v2_x-1"),
    ],
)
def test_overrides_reach_any_value(edit: str, read: object) -> None:
    here: Any = parse_study(STUDY, overrides=[edit])
    path = edit.partition("=")[0].replace("recurrences[1]", "recurrences").replace(".1", "")
    for step in re.findall(r"\w+", path):
        here = here[int(step)] if step.isdigit() else getattr(here, step)
    assert here == read
    assert type(here) is type(read)


def test_later_overrides_lie_over_earlier_ones() -> None:
    study = parse_study(
        STUDY,
        overrides=["law={smoothing: 3}", "law.fit_from=0.5", "seed=1", "seed=2"],
    )
    assert study.law == LawSpec(smoothing=3, fit_from=0.5)
    assert study.seed == 2


def test_an_override_can_remove_a_stage() -> None:
    study = parse_study(STUDY, overrides=["law=null", "searches=[]", "calibration=null"])
    assert (study.law, study.searches, study.calibration) == (None, (), None)


def test_an_override_changes_one_of_two_aliased_places() -> None:
    text = STUDY.replace("tokens: 8192", "tokens: 8192\n  trainer: &t {num_workers: 1}")
    text = text.replace("rank: 16", "rank: 16\n  trainer: *t")
    study = parse_study(text, overrides=["calibration.trainer.num_workers=2"])
    assert study.pretraining is not None
    assert study.calibration is not None
    assert study.pretraining.trainer.num_workers == 1
    assert study.calibration.trainer.num_workers == 2


@pytest.mark.parametrize(
    ("override", "fragments"),
    [
        ("seed", ["KEY=VALUE", "'seed'"]),
        ("=5", ["KEY=VALUE"]),
        ("..=5", ["KEY=VALUE"]),
        ("[]=5", ["KEY=VALUE"]),
        ("a..b=5", ["KEY=VALUE", "'a..b=5'"]),
        ("searches[x].name=b", ["KEY=VALUE"]),
        ("searches[-1].name=b", ["KEY=VALUE"]),
        ("searches[1].name=b", ["searches[1].name: ", "'1'", "positions 0 to 0"]),
        ("searches.kv.trials=1", ["searches.kv.trials: ", "'kv'", "positions 0 to 0"]),
        ("searches[²].trials=1", ["KEY=VALUE"]),
        ("report.panels[0]=parity", ["report.panels: ", '{"0": "parity"}', "a list"]),
        ("pretraining.tokens.x=5", ["pretraining.tokens.x: ", "8192", "no part 'x'"]),
        ("pretraining.tokens=[", ["--set pretraining.tokens is not valid YAML"]),
        ("law={form: a, form: b}", ["law.form: ", "second time"]),
        ("seed=.nan", ["seed: ", "nan", "finite"]),
    ],
)
def test_refuses_overrides_that_lead_nowhere(override: str, fragments: list[str]) -> None:
    message = str(refusal(STUDY, [override]))
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_an_empty_list_has_no_positions() -> None:
    error = refusal(STUDY, ["searches=[]", "searches[0].name=b"])
    assert "it is empty" in str(error)


def test_every_shipped_study_loads() -> None:
    shipped = shipped_studies()
    assert set(shipped) >= {"demo", "looplm-scaling", "kv-calibration"}
    for name, path in shipped.items():
        study, base = load_study(name)
        assert study.name == name
        assert study.title
        assert base == path.parent


def test_presets_have_the_published_shapes() -> None:
    study, _ = load_study("looplm-scaling")
    assert study.pretraining is not None
    assert study.pretraining.sizes == tuple(PRESETS.values())
    assert [(s.name, s.num_hidden_layers, s.hidden_size) for s in study.pretraining.sizes] == [
        ("53M", 6, 512),
        ("134M", 12, 768),
        ("374M", 24, 1024),
        ("778M", 24, 1536),
        ("1.36B", 24, 2048),
    ]
    assert study.pretraining.optimizer.learning_rate == 3e-4
    assert study.pretraining.tokens == 20_000_000_000


def test_defaults_are_those_of_the_records() -> None:
    study = parse_study(STUDY)
    assert study == Study(
        name="tiny",
        corpora={
            "prose": CorpusSpec(source="embedded", path="pydocs"),
            "maths": CorpusSpec(source="embedded"),
        },
        pretraining=study.pretraining,
        law=study.law,
        calibration=study.calibration,
        searches=study.searches,
    )
    assert study.pretraining is not None
    assert study.pretraining.sizes[0] == SizeSpec(name="small", num_hidden_layers=2, hidden_size=32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        study.seed = 1  # type: ignore[misc]


def test_relative_paths_start_from_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "söme studies" / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(b"\xef\xbb\xbf" + STUDY.encode())
    monkeypatch.chdir(file.parent)
    study, base = load_study("mine.yaml")
    assert study.name == "tiny"
    assert base == file.parent.resolve()


def test_a_missing_study_is_told_apart_from_a_mistyped_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no study 'dem': did you mean 'demo'\?"):
        locate_study("dem")
    with pytest.raises(InputError, match=r"shipped studies: demo, kv-calibration, looplm-scaling"):
        locate_study(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match="no study"):
        locate_study(str(tmp_path))


def test_a_study_file_must_be_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("title: é".encode("latin-1"))
    with pytest.raises(InputError) as caught:
        load_study(str(file))
    assert str(caught.value) == (
        f"the study file {file} is not UTF-8 text: byte 7 is 0xe9; save it as UTF-8"
    )


def test_a_study_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(InputError) as caught:
        load_study(str(file))
    assert str(caught.value) == f"cannot read the study file {file}: Permission denied"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PATHS = [
    *(case[0].partition("=")[0] for case in REFUSED),
    "pretraining",
    "calibration",
    "report",
    "searches",
    "law.hold_out",
    "calibration.models",
]


@given(st.sampled_from(PATHS), JSON)
@example("searches[0]", {"\n": None})
@settings(max_examples=150, deadline=None)
def test_any_value_anywhere_is_taken_or_refused_in_one_line(path: str, value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True, default_flow_style=True, width=10**6)
    message = ""
    try:
        parse_study(STUDY, overrides=[f"{path}={text}"])
    except InputError as error:
        message = str(error)
    assert "\n" not in message
