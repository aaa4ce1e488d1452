"""Which laws a study may have: forms that its grid can feed, and settings that fit together."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from suite.errors import InputError
from suite.fit_arguments import FIT_EPILOG
from suite.laws.forms import FORMS
from suite.study import LawSpec
from suite.study_file import parse_study

STUDY = """
name: s
corpora: {maths: {source: embedded, path: worked_math}}
pretraining:
  corpus: maths
  sizes: [53M, 134M, 374M]
  recurrences: [2, 4, 8]
  tokens: 10_000
law: {}
"""
ONE_T_M = "pretraining.recurrences=[4]"
STEPS = "law.metric=train/loss_at_step"


@pytest.mark.parametrize(
    "edits",
    [
        ["law.form=looplm_total"],
        ["law.form=chinchilla"],
        ["law.form=chinchilla", ONE_T_M],
        ["law.form=recurrence_equivalence"],
        ["law.form=equivalence + tokens"],
        ["law.form=shifted parameters + tokens"],
        ["law.form=tokens", ONE_T_M, "pretraining.sizes=[53M]"],
        ["law.form=looplm_stepwise", ONE_T_M, STEPS],
        ["law.form=looplm_stepwise", ONE_T_M, "law.metric=val/loss_at_step"],
        ["law.form=parameters + tokens + step", ONE_T_M, STEPS, "law.hold_out.sizes=[374M]"],
        ["law.resamples=0"],
        ["law.resamples=100", "law.tests=[]", "law.ablations=false", "law.test_starts=1"],
        ["law.tests=[cell, first, recurrence, size]"],
    ],
)
def test_laws_that_the_grid_can_feed_are_taken(edits: list[str]) -> None:
    assert parse_study(STUDY, overrides=edits).law is not None


def test_every_law_by_name_is_taken_or_refused_for_its_own_reason() -> None:
    refused = {}
    for name in FORMS:
        steps = [ONE_T_M, STEPS] if name == "looplm_stepwise" else []
        try:
            parse_study(STUDY, overrides=[f"law.form={name}", *steps])
        except InputError as error:
            refused[name] = error.key
    assert refused == {"power": "law.form", "data_constrained": "law.form"}


def test_a_law_that_is_entered_in_the_registry_is_one_that_a_study_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="no law is called 'new_law'; there are "):
        parse_study(STUDY, overrides=["law.form=new_law"])
    monkeypatch.setitem(FORMS, "new_law", replace(FORMS["chinchilla"], name="new_law"))
    study = parse_study(STUDY, overrides=["law.form=new_law"])
    assert study.law is not None
    assert study.law.form == "new_law"
    with pytest.raises(InputError, match=r"there are .*, looplm_total, new_law, power"):
        parse_study(STUDY, overrides=["law.form=newlaw"])


def test_texts_that_list_the_laws_list_those_of_the_registry() -> None:
    """They are read before the registry, with its numerics, is loaded."""
    listed = re.findall(r"FORM is one of (.*?), or a sum", " ".join(FIT_EPILOG.split()))
    assert sorted(re.split(", | and ", listed[0])) == sorted(FORMS)
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert set(FORMS) <= set(re.findall(r"\w+", readme))
    form = re.findall(r"form: (.*?) metric:", " ".join((LawSpec.__doc__ or "").split()))
    named = {name for name in re.findall(r"``(\w+)``", form[0])}
    assert named == set(FORMS) - {"power", "data_constrained"}


@pytest.mark.parametrize(
    ("edits", "key", "parts"),
    [
        (["law.form=chinchila"], "law.form", ["'chinchila'", "chinchilla", "looplm_total"]),
        (["law.form=tokens + token"], "law.form", ["'token' in", "is no term of a law"]),
        (["law.form=tokens + tokens"], "law.form", ["both spend the parameter B"]),
        (["law.form=5"], "law.form", ["got 5", "text"]),
        (["law.form=power"], "law.form", ["variable x of the user's choice", "`suite fit`"]),
        (["law.form=x + tokens"], "law.form", ["variable x of the user's choice"]),
        (["law.form=data_constrained"], "law.form", ["several amounts of unique text", "corpus"]),
        (
            ["law.form=looplm_stepwise", ONE_T_M],
            "law.metric",
            ["'train/total_loss'", "one of the loop step", "train/loss_at_step or val"],
        ),
        (
            ["law.form=looplm_stepwise", STEPS],
            "pretraining.recurrences",
            ["got [2, 4, 8]", "steps of one T_m", "at least 2"],
        ),
        (
            ["law.form=looplm_stepwise", STEPS, "pretraining.recurrences=[1]"],
            "pretraining.recurrences",
            ["got [1]", "at least 2"],
        ),
        ([STEPS], "law.metric", ["does not read the step", "train/total_loss"]),
        (["law.metric=loss"], "law.metric", ['got "loss"', "train/loss_at_step"]),
        (["law.form=recurrence_equivalence", ONE_T_M], "pretraining.recurrences", ["got 1 of"]),
        (
            ["law.form=equivalence + tokens", "law.hold_out.sizes=[53M, 134M]"],
            "law.hold_out",
            ["got 1 of pretraining.sizes left to fit"],
        ),
        (["law.resamples=99"], "law.resamples", ["got 99", "at least 100", "0 makes no"]),
        (["law.resamples=-1"], "law.resamples", ["got -1", "at least 0"]),
        (["law.tests=[size, size]"], "law.tests", ["'size' twice", "once"]),
        (["law.tests=[width]"], "law.tests[0]", ['"width"', "'size'", "'cell'"]),
        (["law.tests=size"], "law.tests", ["a list"]),
        (["law.test_starts=0"], "law.test_starts", ["got 0", "at least 1"]),
        (["law.ablations=maybe"], "law.ablations", ["true or false"]),
    ],
)
def test_wrong_settings_are_refused_with_their_key_and_the_cure(
    edits: list[str], key: str, parts: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        parse_study(STUDY, overrides=edits)
    assert caught.value.key == key
    for part in parts:
        assert part in str(caught.value)
