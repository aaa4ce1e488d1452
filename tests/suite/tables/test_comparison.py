from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, get_form
from suite.laws.intervals import bootstrap
from suite.laws.profile import profile

SuiteFit = Callable[..., tuple[int, str, str]]
FEW = ("--n", "params", "--starts", 4)

pytestmark = pytest.mark.usefixtures("plain_figures")


def error_without(form: str, runs: pl.DataFrame, held_out: np.ndarray) -> np.ndarray:
    """Relative errors of a law on rows that it was not fitted to, by hand."""
    columns = {"parameters": runs["params"].to_numpy(), "tokens": runs["tokens"].to_numpy()}
    loss = runs["loss"].to_numpy()
    kept = {name: values[~held_out] for name, values in columns.items()}
    found = fit(get_form(form), kept, loss[~held_out], starts=4)
    asked = {name: values[held_out] for name, values in columns.items()}
    return np.abs(found.predict(asked) / loss[held_out] - 1)


@pytest.mark.parametrize("options", [(), ("--hold-out", "size=L")])
def test_laws_are_compared_on_rows_that_they_did_not_see(
    options: tuple[str, ...],
    suite_fit: SuiteFit,
    runs_csv: Path,
    runs: pl.DataFrame,
    tmp_path: Path,
) -> None:
    code, text, err = suite_fit(
        runs_csv, *FEW, "--compare", "parameters", *options, "--out", tmp_path / "fit"
    )
    assert code == 0, err
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())["comparison"]
    sizes = runs["params"].to_numpy()
    levels = [1e9] if options else [5e7, 2e8, 1e9]
    for form in ("chinchilla", "parameters"):
        errors = [error_without(form, runs, sizes == level) for level in levels]
        entry = found["mean_relative_error"][form]
        assert entry["by_split"] == pytest.approx([part.mean() for part in errors], rel=1e-6)
        assert entry["pooled"] == pytest.approx(np.concatenate(errors).mean(), rel=1e-6)
        assert f"  {form}: mean relative {entry['pooled']:.3%}" in text
    splits = ["the rows of --hold-out"] if options else ["N = 5e+07", "N = 2e+08", "N = 1e+09"]
    assert found["held_out"] == splits


def test_the_profile_is_that_of_the_bootstrap(
    suite_fit: SuiteFit, runs_csv: Path, runs: pl.DataFrame, tmp_path: Path
) -> None:
    code, text, err = suite_fit(
        runs_csv, *FEW, "--group", "run", "--bootstrap", 400, "--profile", "beta",
        "--out", tmp_path / "fit",
    )  # fmt: skip
    assert code == 0, err
    columns = {"parameters": runs["params"].to_numpy(), "tokens": runs["tokens"].to_numpy()}
    loss, run = runs["loss"].to_numpy(), runs["run"].to_numpy()
    expected = profile(bootstrap(CHINCHILLA, columns, loss, run, starts=4, resamples=400), "beta")
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())["profiles"]["beta"]
    assert found["interval"] == pytest.approx([expected.lower, expected.upper], rel=1e-9)
    assert f"profile of beta: {expected.estimate:.6g}, 95% interval {expected.lower:.6g}" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--profile", "beta"), "--profile: the resamples say how far"),
        (("--profile", "A", "--bootstrap", 400), "'A' has no profile in 'chinchilla'; there are E"),
        (("--compare", "chinchilla"), "--compare: the law chinchilla is given twice"),
        (("--compare", "chinchila"), "no law is called 'chinchila'"),
        (("--compare", "data_constrained"), "--compare: data_constrained cannot be compared"),
        (("--compare", "looplm_total"), "--t: runs.csv has no column 'recurrence'"),
        (("--compare", "parameters", "--form", "tokens"), "--compare: 'tokens' reads no N"),
        (
            ("--compare", "parameters", "--group", "run", "--final", 1),
            "--compare: --final takes rows by tokens",
        ),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(
    options: tuple[str, ...], message: str, suite_fit: SuiteFit, runs_csv: Path
) -> None:
    code, _, err = suite_fit(runs_csv, *FEW, *options)
    assert code == 2
    assert message in err
