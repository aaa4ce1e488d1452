from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_modules.looplm.sizes import training_flops_per_token

Predict = Callable[..., tuple[int, str, str]]
KeepLaw = Callable[..., str]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def rows_of(text: str) -> list[list[str]]:
    """Cells of every printed row of a table."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in lines]


def number(text: str) -> float:
    scale = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1], 1.0)
    return float(text.rstrip("KMBT")) * scale


def test_a_size_is_answered_at_every_recurrence(suite_predict: Predict, tracked: Any) -> None:
    code, out, err = suite_predict("--size", "374M", "--tokens", "15B")
    assert (code, err) == (0, "")
    rows = rows_of(out)[-3:]
    n = next(p["parameters"] for p in tracked.law.points if p["size"] == "374M")
    for level, row in zip((2, 4, 8), rows, strict=True):
        at = {"parameters": n, "tokens": 1.5e10, "recurrence": float(level)}
        band = tracked.law.predict({name: np.array([value]) for name, value in at.items()})
        assert row[0] == str(level)
        assert row[1] == f"{band.estimate[0]:.4f}"
        assert row[2] == f"{band.lower[0]:.4f} to {band.upper[0]:.4f}"
        cost = training_flops_per_token(tracked.shapes["374M"], level, 2048) * 1.5e10
        assert row[3] == f"{cost:.3g}"
    assert "warning" not in out
    assert f"run {tracked.law_run}" in out
    assert "fitted to 15 cells, 100 resamples" in out


def test_tokens_default_to_those_of_the_study(suite_predict: Predict) -> None:
    short = suite_predict("--size", "53M", "--recurrence", 4)[1]
    long = suite_predict("--size", "53M", "--recurrence", 4, "--tokens", "2e10")[1]
    assert short == long
    assert "D = 20B tokens" in short


def test_a_budget_is_allocated_at_every_recurrence(suite_predict: Predict) -> None:
    code, out, err = suite_predict("--flops", "3e20")
    assert (code, err) == (0, "")
    rows = rows_of(out)[-3:]
    assert [row[0].strip("*") for row in rows] == ["2", "4", "8"]
    losses = [float(row[5]) for row in rows]
    best = next(row for row in rows if row[0].startswith("*"))
    assert float(best[5]) == min(losses)
    assert sum(int(row[7].rstrip("%")) for row in rows) == pytest.approx(100, abs=1)
    for row in rows:
        low, high = map(number, row[2].split(" to "))
        assert low <= number(row[1]) <= high
        low, high = map(float, row[6].split(" to "))
        assert low < float(row[5]) < high


def test_one_recurrence_alone_is_allocated(suite_predict: Predict) -> None:
    all_levels = rows_of(suite_predict("--flops", "3e20")[1])
    one = rows_of(suite_predict("--flops", "3e20", "--recurrence", 8)[1])
    assert one[-1][1:7] == all_levels[-1][1:7]
    assert len(all_levels) - len(one) == 2


def test_the_next_cell_is_ranked_for_what_was_asked(suite_predict: Predict) -> None:
    code, out, err = suite_predict(
        "--next", "--size", "1.36B", "--recurrence", 8, "--tokens", "80B"
    )
    assert (code, err) == (0, "")
    assert "of the loss at N = 1.36B, T_m 8, D = 80B (as asked)" in out
    in_all, per_flop = rows_of(out)[-10:-5], rows_of(out)[-5:]
    # What is asked for is itself a candidate; measuring it leaves little but the noise.
    assert in_all[0][:3] == ["1.36B", "8", "80B"]
    shares = [float(row[4].rstrip("%")) for row in in_all]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 80
    rates = [float(row[4].rstrip("%")) / float(row[3]) for row in per_flop]
    assert rates == sorted(rates, reverse=True)
    assert min(float(row[4].rstrip("%")) for row in per_flop) >= 10


def test_without_a_question_it_looks_ten_cells_ahead(suite_predict: Predict, tracked: Any) -> None:
    code, out, _ = suite_predict()
    assert code == 0
    cost = 10 * training_flops_per_token(tracked.shapes["1.36B"], 8, 2048) * 2e10
    assert f"compute-optimal for {cost:.3g} FLOPs" in out
    assert f"(the best use of {cost:.3g} FLOPs, 10 times the largest fitted cell)" in out
    assert "warning: D" in out


def test_answers_that_hang_on_what_is_not_identified_say_so(suite_predict: Predict) -> None:
    out = suite_predict("--size", "374M", "--recurrence", 16)[1]
    assert (
        "warning: the answer hangs on C, gamma, t3, which the points do not identify: trust "
        "neither it nor its interval at other T_m than were fitted" in out
    )
    assert "no cell with T_m 16 was fitted, only with 2, 4, 8" in out
    assert "not identified" in out
    assert "hangs on" not in suite_predict("--size", "5e8", "--recurrence", 8)[1]


def test_extrapolations_say_how_far(suite_predict: Predict) -> None:
    out = suite_predict("--size", "13B", "--recurrence", 4, "--tokens", "1T")[1]
    assert "N 1.3e+10 lies above the fitted sizes (5.32e+07 to 1.36e+09)" in out
    assert "D 1e+12 lies beyond the fitted tokens (up to 2e+10)" in out


def test_a_law_without_resamples_answers_without_intervals(
    suite_predict: Predict, keep_law: KeepLaw, tracked: Any
) -> None:
    plain = replace(tracked.law, resamples=np.empty((0, 10)))
    study = keep_law(plain)
    code, out, err = suite_predict("--size", "374M", "--flops", "3e20", study=study)
    assert (code, err) == (0, "")
    assert "warning: the law was fitted without resamples, so there are no intervals; set" in out
    assert "its interval" not in out
    code, out, err = suite_predict("--next", study=study)
    assert code == 2
    assert "set law.resamples to 500" in err
    assert suite_predict(study=study)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--size", "9Q"), "--size: got '9Q'; give one of the study's sizes (53M, 134M, 374M, "),
        (("--size", "-1"), "--size: got '-1'; give one of"),
        (("--size", "0"), "--size: got '0'"),
        (("--tokens", "1B"), "--tokens: it needs --size, whose tokens these are"),
        (("--flops", "zero"), "'zero' is not a positive number; write 13e9, or 13B"),
        (("--flops", "nan"), "'nan' is not a positive number"),
        (("--recurrence", "0"), "'0' is not a whole number from 1"),
        (("--recurrence", "1.5"), "'1.5' is not a whole number"),
    ],
)
def test_bad_questions_are_told_what_to_mend(
    arguments: tuple[str, ...], message: str, suite_predict: Predict
) -> None:
    code, out, err = suite_predict(*arguments)
    assert message in err
    assert (code, out) == (2, "")


def test_without_a_law_it_says_how_to_get_one(
    suite_predict: Predict, keep_law: KeepLaw, tracked: Any, tmp_path: Path
) -> None:
    code, _, err = suite_predict(study="demo")
    assert code == 2
    assert "the study 'demo' has no finished law" in err
    assert "`suite run demo`" in err
    study = keep_law(tracked.law, status="FAILED")
    code, _, err = suite_predict(study=study)
    assert (code, "(there are law runs with status FAILED)" in err) == (2, True)
    code, _, err = suite_predict(study="demo", home=tmp_path / "empty")
    assert (code, "holds no runs yet" in err) == (2, True)


def test_a_law_that_was_damaged_is_refused(
    suite_predict: Predict, keep_law: KeepLaw, tracked: Any
) -> None:
    code, _, err = suite_predict(study=keep_law(None))
    assert code == 2
    assert re.search(r"law run \w+ keeps no law/fit.json that can be read here", err)
    edited = json.loads(tracked.law.to_json()) | {"num_runs": "many"}
    code, _, err = suite_predict(study=keep_law(None, text=json.dumps(edited)))
    assert code == 1
    assert "this is no kept law: 'many' stands where a count should; it was edited" in err
