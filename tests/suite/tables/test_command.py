from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from suite.cli import main
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED, LOOPLM_TOTAL
from suite.laws.repeated_intervals import bootstrap_repeated

SuiteFit = Callable[..., tuple[int, str, str]]
FEW = ("--n", "params", "--starts", 4)
ALL_FIXED = tuple(
    word for name in ("E", "A", "alpha", "B", "beta") for word in ("--fix", f"{name}=1")
)


@dataclass(frozen=True)
class Written:
    """A fit with its figures, drawn once for all tests that look at them."""

    table: Path
    out: Path
    printed: str


@pytest.fixture(scope="module")
def written(runs: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("written")
    runs.write_csv(root / "runs.csv")
    out, printed = root / "new" / "fit", io.StringIO()
    arguments = ["fit", root / "runs.csv", *FEW, "--group", "run", "--out", out]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        assert main([str(argument) for argument in arguments]) == 0
    return Written(table=root / "runs.csv", out=out, printed=printed.getvalue())


def test_a_fit_prints_what_a_person_needs_and_writes_it(
    written: Written, runs: pl.DataFrame
) -> None:
    out, text = written.out, written.printed
    columns = {name: runs[column].to_numpy() for name, column in
               (("parameters", "params"), ("tokens", "tokens"))}  # fmt: skip
    expected = fit(CHINCHILLA, columns, runs["loss"].to_numpy(), starts=4)
    assert text.startswith("L = E + A/N^alpha + B/D^beta\n")
    assert f"{expected.parameters['E']:.6g}" in text
    assert "24 fitted of 6 groups" in text
    assert f"{expected.objective:.10g} (Huber, delta 0.001)" in text
    found = json.loads((out / "fit.json").read_text())
    assert found["objective"] == expected.objective
    assert {name: entry["value"] for name, entry in found["parameters"].items()} == (
        expected.parameters
    )
    assert found["law"]["variables"] == {"parameters": "params", "tokens": "tokens"}
    points = pl.read_csv(out / "points.csv")
    assert points["row"].to_list() == list(range(1, 25))
    np.testing.assert_array_equal(points["predicted"], expected.predict(columns))
    names = {f"{name}.{end}" for name in ("parity", "residuals", "curves", "contours")
             for end in ("png", "svg")}  # fmt: skip
    assert {path.name for path in out.iterdir()} == names | {"fit.json", "points.csv"}
    assert [path.name for path in out.parent.iterdir()] == ["fit"]


def test_the_same_fit_gives_the_same_bytes_and_replaces_an_earlier_one(
    written: Written, suite_fit: SuiteFit, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    (again / "fit.json").write_text('{"law": "an earlier one"}')
    (again / "law.png").write_bytes(b"of another law")
    assert suite_fit(written.table, *FEW, "--group", "run", "--out", again)[0] == 0
    assert {path.name for path in again.iterdir()} == {path.name for path in written.out.iterdir()}
    for path in written.out.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("plain_figures")
def test_a_folder_of_other_things_is_left_alone(
    suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    code, _, err = suite_fit(runs_csv, *FEW, "--out", out)
    assert (code, "holds no earlier fit" in err) == (2, True)
    assert suite_fit(runs_csv, *FEW, "--out", tmp_path / "fit")[0] == 0
    (tmp_path / "fit" / "notes.txt").write_text("on the fit")
    code, _, err = suite_fit(runs_csv, *FEW, "--out", tmp_path / "fit")
    assert (code, "an earlier fit and 'notes.txt'" in err) == (2, True)
    assert (out / "thesis.txt").read_text() == "years of work"


@pytest.mark.usefixtures("plain_figures")
def test_a_failure_while_writing_leaves_the_earlier_fit_whole(
    suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "fit"
    assert suite_fit(runs_csv, *FEW, "--out", out)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("suite.tables.folder.to_json", full)
    code, _, err = suite_fit(runs_csv, *FEW, "--seed", 7, "--out", out)
    assert (code, "No space left on device" in err) == (1, True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"fit", "runs.csv"}


@pytest.mark.usefixtures("plain_figures")
def test_held_out_rows_are_judged_apart(
    suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path
) -> None:
    code, text, _ = suite_fit(
        runs_csv, *FEW, "--group", "run", "--hold-out", "size=L", "--out", tmp_path / "fit"
    )
    assert code == 0
    assert "16 fitted, 8 held out of 6 groups" in text
    assert "held out: mean relative" in text
    points = pl.read_csv(tmp_path / "fit" / "points.csv")
    assert points.filter("held_out")["parameters"].unique().to_list() == [1e9]
    errors = json.loads((tmp_path / "fit" / "fit.json").read_text())["errors"]
    held_out = points.filter("held_out")["residual"].abs().mean()
    assert errors["mean_relative_error_held_out"] == pytest.approx(held_out, rel=1e-12)


def test_a_factor_brings_units_together(
    suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    runs.with_columns(pl.col("params") / 1e6).write_csv(tmp_path / "millions.csv")
    code, text, _ = suite_fit(tmp_path / "millions.csv", *FEW)
    assert code == 0
    assert "warning: parameters goes down to 50: below 1,000" in text
    runs.write_csv(tmp_path / "ones.csv")
    plain = suite_fit(tmp_path / "ones.csv", *FEW)[1]
    scaled = suite_fit(tmp_path / "millions.csv", "--n", "params*1e6", "--starts", 4)[1]
    assert "warning" not in scaled
    assert scaled.splitlines()[3:] == plain.splitlines()[3:]


@pytest.mark.usefixtures("plain_figures")
def test_intervals_are_asked_for(suite_fit: SuiteFit, runs_csv: Path, tmp_path: Path) -> None:
    code, text, _ = suite_fit(
        runs_csv, *FEW, "--group", "run", "--bootstrap", 400, "--out", tmp_path / "fit"
    )
    assert code == 0
    assert "95% interval" in text
    found = json.loads((tmp_path / "fit" / "fit.json").read_text())
    for name in ("B", "beta"):
        entry = found["parameters"][name]
        low, high = entry["interval"]
        assert low <= entry["value"] <= high
    # A quarter of the draws of six runs miss one of the three sizes.
    assert [found["parameters"][name]["interval"] for name in ("E", "A", "alpha")] == [
        [None, None]
    ] * 3
    assert "the drawn runs do not identify E, A and alpha" in text
    assert text.count("not identified") == 3
    points = pl.read_csv(tmp_path / "fit" / "points.csv")
    assert (points["lower"] <= points["predicted"]).all()
    assert (points["predicted"] <= points["upper"]).all()


def test_a_law_that_is_not_identified_says_so(suite_fit: SuiteFit, tmp_path: Path) -> None:
    axes = np.meshgrid([5e7, 2e8, 1e9], [2.0, 4.0, 8.0], np.geomspace(1e9, 2e10, 4))
    n, t, d = (axis.ravel() for axis in axes)
    truth = {
        "E": 1.5, "A": 300.0, "t1": 2e6, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
        "C": 0.5, "t3": 0.5, "gamma": 0.8,
    }  # fmt: skip
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(len(n)))
    loss = LOOPLM_TOTAL.predict(truth, {"parameters": n, "tokens": d, "recurrence": t}) * noise
    table = pl.DataFrame({"n": n, "d": d, "loops": t, "loss": loss})
    table.write_parquet(tmp_path / "loops.parquet")
    options = ["--n", "n", "--d", "d", "--t", "loops", "--starts", 8]
    code, text, _ = suite_fit(tmp_path / "loops.parquet", *options, "--form", "looplm_total")
    assert code == 0
    assert "warning: recurrence has 3 levels and the law spends 4 parameters on it" in text


REPEATED = {
    "E": 1.87, "A": 521.0, "alpha": 0.35, "B": 1488.0, "beta": 0.35, "R_D": 15.4, "R_N": 5.3
}  # fmt: skip


def repeated_columns(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """60 runs that go over their data up to 44 times."""
    unique = 10 ** rng.uniform(8, 10.5, 60)
    return {
        "parameters": 10 ** rng.uniform(7.5, 10, 60),
        "tokens": unique * rng.choice([1, 2, 4, 16, 44], 60),
        "unique_tokens": unique,
    }


@pytest.mark.parametrize(("fixed", "words"), [(False, 0), (True, 5)])
def test_repeated_data_from_the_command_line(
    fixed: bool, words: int, suite_fit: SuiteFit, tmp_path: Path
) -> None:
    truth, rng = REPEATED, np.random.default_rng(0)
    columns = repeated_columns(rng)
    loss = DATA_CONSTRAINED.predict(truth, columns)
    pl.DataFrame({**columns, "loss": loss}).write_csv(tmp_path / "t.csv")
    plain = ("E", "A", "alpha", "B", "beta")
    fix = [word for name in plain for word in ("--fix", f"{name}={truth[name]}")]
    code, text, err = suite_fit(
        tmp_path / "t.csv", "--form", "data_constrained", "--starts", 4, *(fix if fixed else ())
    )
    assert code == 0, err
    assert "15.4" in text
    assert "5.3" in text
    assert text.count("fixed") == words


@pytest.mark.parametrize(
    ("edit", "options", "message"),
    [
        ({"loss": (3, 0.0)}, (), r"--loss: loss is 0 in line 5 of t.csv (1 such row of 24); a law"),
        ({"loss": (3, -2.0)}, (), r"loss is -2 in line 5"),
        ({"loss": (9, np.nan)}, (), r'loss is nan in line 11 of t.csv (1 such row of 24); a law '
         'needs positive finite values, from 1e-100 to 1e100: '
         'correct them or leave them out with --where "loss > 0"'),
        ({"tokens": (0, np.inf)}, (), r'tokens is inf in line 2'),
        ({"loss": (4, None)}, (), r"loss is empty in line 6"),
        ({}, ("--loss", "los"), "has no column 'los' (did you mean 'loss'?); it has run, size"),
        ({}, ("--n", "size"), "size is 'S' in line 2 of t.csv (24 such rows of 24); a number"),
        ({}, ("--group", "cell"), "--group: t.csv has no column 'cell'"),
        ({}, ("--form", "chinchila"), "no law is called 'chinchila'; there are chinchilla"),
        ({}, ("--form", "parameters + widths"), "'widths' in 'parameters + widths' is no term"),
        ({}, ("--form", "looplm_total"), "--t: t.csv has no column 'recurrence'"),
        ({}, ("--where", "size == 'S'"), "--n: params (parameters) is 5e+07 in all 8 points that "
         "are left to fit after --where; the law 'chinchilla' needs at least two levels of N"),
        ({}, ("--where", "tokens == 1e9"), "--d: tokens (tokens) is 1e+09 in all 6 points that "
         "are left to fit after --where; the law 'chinchilla' needs at least two levels of D"),
        ({}, ("--drop-highest", "20"), "4 points are left to fit after --drop-highest, and the law "
         "'chinchilla' has 5 parameters"),
        ({}, ("--drop-highest", "24"), "--drop-highest: got 24 of 24 points"),
        ({}, ("--hold-out", "size=XL"), "--hold-out: no row has size=XL; size is L, M, S"),
        ({}, ("--hold-out", "params > 0"), "0 points are left to fit after --hold-out"),
        ({}, ("--final", "3"), "--final: it takes the last rows of each group, so name --group"),
        ({}, ("--fix", "E=1"), "--fix: it is for the plain law within data_constrained"),
        ({}, ("--fix", "E"), "'E' is not NAME=VALUE, such as alpha=0.35"),
        ({}, ("--delta", "0"), "'0' is not a number above 0, nor inf"),
        ({}, ("--starts", "0"), "0 is too few"),
        ({}, ("--bootstrap", "20"), "--bootstrap: resamples is 20"),
        ({}, ("--bootstrap", "393", "--group", "run"), "--bootstrap: got 393; with 6 groups fewer "
         "than two of them lie beyond each end of a 95% interval, so give at least 394"),
        ({}, ("--form", "data_constrained", "--fix", "E=1"), "--fix: got no A, alpha, B, beta; the "
         "plain law is fixed as a whole, by a value for each of E, A, alpha, B, beta and no other"),
        ({}, ("--form", "data_constrained", "--fix", "E=1", "--fix", "E=2"), "--fix: E is given "
         "twice; give each once"),
        ({}, ("--form", "data_constrained", *ALL_FIXED, "--fix", "R_D=3"), "--fix: got 'R_D', "
         "which it has not"),
        ({}, ("--form", "data_constrained", *ALL_FIXED[:-1], "beta=nan"), "--fix: beta is nan; it "
         "must be positive and finite"),
        ({}, ("--form", "data_constrained", "--unique", "tokens", "--bootstrap", "100",
         "--profile", "alpha"), "--profile: there are no profiles of data_constrained"),
        ({}, ("--form", "data_constrained", "--unique", "tokens", "--bootstrap", "20"),
         "--bootstrap: resamples is 20"),
        ({}, ("--predict", "params=1e9"), "--predict: the law 'chinchilla' needs a value for each "
         "of params, tokens, and no other; got params"),
        ({}, ("--predict", "params=1e9,parameters=1e9,tokens=1"), "and no other; got params, "),
        ({}, ("--predict", "params=1e9,tokens=5e12,loops=2"), "got params, tokens, loops"),
        ({}, ("--final", "0"), "argument --final: 0 is too few; give at least 1"),
        ({}, ("--predict", "N=1e9,params=1e9,D=1"), "and no other; got N, params, D"),
        ({}, ("--predict", "params"), "'params' is not NAME=VALUE, such as tokens=5T"),
        ({}, ("--predict", "params=-1,tokens=1"), "'-1' is not a positive number"),
        ({}, ("--flops", "1e21", "--form", "tokens"), "--flops: C = 6 N D settles the cost of "
         "laws of N and D alone, and 'tokens' reads tokens"),
        ({}, ("--flops", "0"), "'0' is not a positive number"),
        ({}, ("--from-mlflow", "x"), "give either TABLE, a file, or --from-mlflow EXPERIMENT"),
    ],
)  # fmt: skip
def test_bad_input_is_told_what_to_mend_and_writes_nothing(
    edit: dict[str, tuple[int, float | None]],
    options: tuple[str, ...],
    message: str,
    suite_fit: SuiteFit,
    runs: pl.DataFrame,
    tmp_path: Path,
) -> None:
    table = {name: runs[name].to_list() for name in runs.columns}
    for name, (row, value) in edit.items():
        table[name][row] = value
    pl.DataFrame(table, strict=False).write_csv(tmp_path / "t.csv")
    code, out, err = suite_fit(tmp_path / "t.csv", *FEW, *options, "--out", tmp_path / "fit")
    assert message in err
    assert (code, out) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_fewer_rows_than_parameters_are_refused(
    suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    runs[[0, 7, 14, 23]].write_csv(tmp_path / "t.csv")
    code, out, err = suite_fit(tmp_path / "t.csv", *FEW)
    assert (code, out) == (2, "")
    assert (
        "4 points are left to fit, and the law 'chinchilla' has 5 parameters; at least 5 points "
        "are needed"
    ) in err


@pytest.mark.parametrize(
    ("name", "cure"),
    [("n", '"n > 0"'), ("model size", "rename the column to one word"), ("a=b", "rename")],
)
def test_the_cure_for_a_bad_row_can_be_typed(
    name: str, cure: str, suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    table = runs.with_columns(params=pl.when(pl.col("params") > 5e8).then(0).otherwise("params"))
    table.rename({"params": name}).write_csv(tmp_path / "t.csv")
    code, _, err = suite_fit(tmp_path / "t.csv", "--n", name, "--starts", 2)
    assert code == 2
    assert cure in err


def test_agreement_is_that_of_the_best_direction(suite_fit: SuiteFit, tmp_path: Path) -> None:
    axes = np.meshgrid([5e7, 2e8, 5e8, 1e9], [1.0, 2.0, 4.0, 8.0], np.geomspace(1e9, 2e10, 3))
    n, t, d = (axis.ravel() for axis in axes)
    loss = 1.5 + 300 / n**0.35 + 900 / d**0.32 + 0.2 / t
    pl.DataFrame({"parameters": n, "tokens": d, "recurrence": t, "loss": loss}).write_csv(
        tmp_path / "t.csv"
    )
    form = "parameters + tokens + rising recurrence"
    text = suite_fit(tmp_path / "t.csv", "--form", form, "--starts", 8)[1]
    assert "starts agreeing   100.0% of 6 in the best direction (2 of 8 went in others)" in text


@pytest.mark.parametrize("fixed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_repeated_data_have_intervals_over_runs(
    fixed: bool, suite_fit: SuiteFit, tmp_path: Path, plain_figures: None
) -> None:
    truth, rng = REPEATED, np.random.default_rng(0)
    columns = repeated_columns(rng)
    loss = DATA_CONSTRAINED.predict(truth, columns) * np.exp(0.004 * rng.standard_normal(60))
    pl.DataFrame({**columns, "loss": loss}).write_csv(tmp_path / "t.csv")
    plain = ("E", "A", "alpha", "B", "beta")
    fix = [word for name in plain for word in ("--fix", f"{name}={truth[name]}")]
    at = "parameters=6.34e9,tokens=242e9,unique_tokens=25e9"
    code, text, err = suite_fit(
        tmp_path / "t.csv", "--form", "data_constrained", "--starts", 4, "--bootstrap", 100,
        "--predict", at, "--out", tmp_path / "fit", *(fix if fixed else ()),
    )  # fmt: skip
    assert code == 0, err
    written = json.loads((tmp_path / "fit" / "fit.json").read_text())
    found = bootstrap_repeated(
        columns, loss, np.arange(60), starts=4, resamples=100,
        plain={name: truth[name] for name in plain} if fixed else None,
    )  # fmt: skip
    sentence = "warning: E, A, alpha, B, beta are fixed in every resample: the intervals take them"
    assert (sentence in text) is fixed
    for name, told in written["parameters"].items():
        interval = found.interval(name)
        if fixed and name in plain:
            assert (told["value"], told["interval"]) == (truth[name], [None, None])
        else:
            assert told["interval"] == pytest.approx([interval.lower, interval.upper], rel=1e-9)
            assert f"{interval.lower:.6g} to {interval.upper:.6g}" in text
    (prediction,) = written["predictions"]
    band = found.predict({k: np.array([v]) for k, v in prediction["variables"].items()})
    assert prediction["loss"]["interval"] == pytest.approx([band.lower[0], band.upper[0]], rel=1e-9)
    assert "not identified" not in text


def test_data_of_one_amount_of_unique_text_are_fitted(suite_fit: SuiteFit, tmp_path: Path) -> None:
    truth = {
        "E": 1.87, "A": 521.0, "alpha": 0.35, "B": 1488.0, "beta": 0.35, "R_D": 15.4, "R_N": 5.3
    }  # fmt: skip
    n, d = (
        axis.ravel()
        for axis in np.meshgrid(np.geomspace(3e7, 1e10, 6), 1e9 * np.array([0.5, 1, 2, 4, 16, 44]))
    )
    columns = {"parameters": n, "tokens": d, "unique_tokens": np.full(36, 1e9)}  # fmt: skip
    loss = DATA_CONSTRAINED.predict(truth, columns)
    pl.DataFrame({**columns, "loss": loss}).write_csv(tmp_path / "t.csv")
    code, text, err = suite_fit(tmp_path / "t.csv", "--form", "data_constrained", "--starts", 4)
    assert code == 0, err
    assert "15.4" in text


def test_what_is_odd_but_possible_is_a_warning(
    suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    pl.concat([runs, runs.head(2)]).write_csv(tmp_path / "twice.csv")
    code, text, _ = suite_fit(tmp_path / "twice.csv", *FEW, "--t", "tokens")
    assert code == 0
    assert "warning: 2 points repeat another point exactly" in text
    assert "warning: --t is not read by the law chinchilla" in text
    runs.with_columns(pl.col("loss").exp()).write_csv(tmp_path / "perplexity.csv")
    code, text, _ = suite_fit(tmp_path / "perplexity.csv", *FEW)
    assert code == 0
    assert "a perplexity is no loss, its logarithm is" in text


def test_names_with_markup_are_printed_as_they_are(
    suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "[red]$x_1$.csv"
    runs.rename({"params": "$n_{[bold]"}).write_csv(path)
    code, text, _ = suite_fit(path, "--n", "$n_{[bold]", "--starts", 2, "--out", tmp_path / "fit")
    assert code == 0
    assert "[red]$x_1$.csv" in text


def test_names_cannot_command_the_terminal(
    suite_fit: SuiteFit, runs: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "a\x1b[2J\u202e.csv"
    runs.rename({"params": "n\x1b[31m"}).write_csv(path)
    code, text, err = suite_fit(path, "--n", "n\x1b[31m", "--t", "x", "--starts", 2)
    assert code == 0
    assert r"a\x1b[2J\u202e.csv" in text
    assert "\x1b[" not in text + err
    code, text, err = suite_fit(path, "--n", "none", "--starts", 2)
    assert code == 2
    assert "\x1b" not in err
