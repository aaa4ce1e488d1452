"""The law stage: what it tracks of a fit, and when it fits again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import sqlalchemy as sa

from suite.laws.fit import fit
from suite.laws.forms import get_form
from suite.laws.held_out import FitSettings, HeldOutTest, held_out_test
from suite.laws.intervals import bootstrap
from suite.laws.kept import KeptLaw
from suite.laws.points import prepare_points
from suite.stages.context import StageContext
from suite.stages.law import law_cell, run_law
from suite.stages.law_points import law_cells, read_points
from suite.stages.law_tests import split_points
from suite.stages.pretraining import run_held_out_pretraining, run_pretraining
from suite.stopping import StopRequested
from suite.study import LawSpec
from suite.tracking.curves import live
from suite.tracking.home import Home
from tests.suite.stages.grids import (
    TRUTH,
    FakeTraining,
    all_cells,
    context_of,
    copied,
    fitted_cells,
    params_of,
    points_of,
    runs_of,
    said,
    tags_of,
    training,
    true_loss,
)

__all__ = ["all_cells", "fitted_cells", "training"]  # fixtures

LAWS = ("full", "without_parameters", "without_tokens", "without_recurrence", "without_constant")
NO_TESTS = "law.tests=[]"
THREE_RECURRENCES = "pretraining.recurrences=[1, 2, 4]"


@pytest.fixture
def home(all_cells: Path, tmp_path: Path) -> Home:
    """A home whose cells have finished."""
    return copied(all_cells, tmp_path)


def spec_of(context: StageContext) -> LawSpec:
    assert context.study.law is not None
    return context.study.law


def only_law(context: StageContext) -> str:
    (run,) = runs_of(context, "law")
    assert run["status"] == "FINISHED", said(context)
    return str(run["run_id"])


def at_zero(context: StageContext, run_id: str) -> dict[str, float]:
    """Metrics of a run at step 0."""
    points = points_of(context, run_id)
    return {key: values[0] for key, values in points.items() if 0 in values}


def kept_law(context: StageContext, run_id: str) -> KeptLaw:
    folder = context.home.artifacts / "grid" / run_id / "artifacts"
    return KeptLaw.from_json((folder / "law" / "fit.json").read_text())


def warnings_of(context: StageContext, run_id: str) -> list[str]:
    return list(json.loads(tags_of(context, run_id)["suite.law.warnings"]))


def test_everything_that_readers_are_promised_is_tracked(home: Home) -> None:
    context = context_of(home, "law.tests=[size, recurrence, first, cell]", "law.ablations=false")
    run_law(context)
    run_id = only_law(context)
    measured = at_zero(context, run_id)
    fitted = law_cells(context, spec_of(context)).filter(~pl.col("held_out"))["cell"]
    splits = {
        "recurrence": ["recurrence:1", "recurrence:2", "recurrence:4", "recurrence:8"],
        "first": ["first:0.25", "first:0.5", "first:0.75"],
        "cell": [f"cell:{cell[:12]}" for cell in fitted],
    }
    tests = {
        f"law/held_out/{split}/full/{number}"
        for of_kind in splits.values()
        for split in of_kind
        for number in ("mean_relative_error", "r2_all")
    }
    pooled = {f"law/held_out/{kind}/full/pooled_error" for kind in splits}
    ends = {f"law/{name}/{end}" for name in TRUTH for end in ("lower", "upper")}
    assert set(measured) == {
        *(tests | pooled | ends),
        *(f"law/{name}" for name in TRUTH),
        *("law/resamples", "law/converged_share"),
        *("law/objective", "law/agreeing_share", "law/condition_number"),
        *("law/r2/all", "law/r2/fitted", "law/r2/held_out"),
        *("law/mean_relative_error/fitted", "law/mean_relative_error/held_out"),
    }
    assert (measured["law/resamples"], measured["law/converged_share"]) == (100, 1.0)
    assert json.loads(tags_of(context, run_id)["suite.law.unidentified"]) == []
    assert tags_of(context, run_id)["suite.law.caveats"] == "{}"
    assert warnings_of(context, run_id) == [
        "100 resamples leave fewer than 2 beyond each end of a 95% interval over 12 runs, so its "
        "ends hang on single draws: take at least 145",
        "held-out tests by size were left out: the points that each of them leaves do not identify "
        "A, alpha; more sizes than such a term has parameters must be left to fit",
    ]
    errors = [measured[f"law/held_out/{name}/full/mean_relative_error"] for name in splits["cell"]]
    assert 0.001 < min(errors) < max(errors) < 0.03
    assert measured["law/held_out/cell/full/pooled_error"] == pytest.approx(np.mean(errors))


def test_a_law_is_tested_without_each_of_its_terms(home: Home) -> None:
    context = context_of(home, "law.tests=[recurrence]", "law.resamples=0")
    run_law(context)
    measured = at_zero(context, only_law(context))
    errors = {law: measured[f"law/held_out/recurrence/{law}/pooled_error"] for law in LAWS}
    assert {key for key in measured if "/pooled_error" in key} == {
        f"law/held_out/recurrence/{law}/pooled_error" for law in LAWS
    }
    assert errors["full"] < min(errors["without_parameters"], errors["without_tokens"])
    law = spec_of(context)
    points = read_points(context, law, law_cells(context, law))
    left = points.variables["recurrence"] != 2
    for name, text in (
        ("full", law.form),
        ("without_recurrence", "parameters + tokens"),
    ):
        alone = fit(
            get_form(text),
            {key: values[left] for key, values in points.variables.items()},
            points.loss[left],
            starts=law.test_starts,
        )
        predicted = alone.predict({key: values[~left] for key, values in points.variables.items()})
        error = np.abs(predicted / points.loss[~left] - 1).mean()
        tracked = measured[f"law/held_out/recurrence:2/{name}/mean_relative_error"]
        assert tracked == pytest.approx(error, rel=1e-9)


def test_intervals_are_those_of_a_bootstrap_over_runs(home: Home) -> None:
    context = context_of(home, NO_TESTS)
    run_law(context)
    run_id = only_law(context)
    law = spec_of(context)
    points = read_points(context, law, law_cells(context, law))
    form = get_form(law.form)
    found = bootstrap(
        form,
        points.variables,
        points.loss,
        points.run,
        starts=law.starts,
        resamples=law.resamples,
        seed=context.study.seed,
    )
    measured = at_zero(context, run_id)
    for name in TRUTH:
        interval = found.interval(name)
        tracked = [measured[f"law/{name}{end}"] for end in ("", "/lower", "/upper")]
        assert tracked == pytest.approx(
            [interval.estimate, interval.lower, interval.upper], rel=1e-12
        )
    curves = points_of(context, run_id)
    kept = kept_law(context, run_id)
    for row in law_cells(context, law).iter_rows(named=True):
        lines = [curves[f"predicted/{row['cell']}{end}"] for end in ("", "/lower", "/upper")]
        steps = sorted(lines[0])
        assert steps == sorted(points_of(context, row["run_id"])["train/total_loss"])
        assert all(sorted(line) == steps for line in lines)
        columns = {
            "parameters": np.full(len(steps), float(row["parameters"])),
            "recurrence": np.full(len(steps), float(row["recurrence"])),
            "tokens": np.array(steps, dtype=np.float64),
        }
        for band in (found.predict(columns), kept.predict(columns)):
            for line, values in zip(lines, (band.estimate, band.lower, band.upper), strict=True):
                assert [line[step] for step in steps] == pytest.approx(list(values), rel=1e-12)


def test_a_law_is_kept_with_where_it_was_fitted(home: Home) -> None:
    context = context_of(home, NO_TESTS, THREE_RECURRENCES)
    run_law(context)
    run_id = only_law(context)
    kept = kept_law(context, run_id)
    assert kept.form == "parameters + tokens + rising recurrence"
    measured = at_zero(context, run_id)
    assert kept.parameters == {name: measured[f"law/{name}"] for name in kept.symbols}
    assert kept.resamples.shape == (100, len(TRUTH))
    assert kept.num_runs == 9
    assert [(p["size"], p["recurrence"], p["tokens"]) for p in kept.points] == [
        (size, recurrence, 15_360.0)
        for recurrence in (1, 2, 4)
        for size in ("tiny", "small", "medium")
    ]
    # residuals of 9 fitted runs are a little smaller than the noise that was put in
    assert 0.001 < kept.noise["cell"] < 0.006
    assert kept.noise["point"] == pytest.approx(0.01, rel=0.15)


def test_what_points_do_not_identify_has_no_interval(home: Home) -> None:
    context = context_of(home, NO_TESTS, "law.form=looplm_total", THREE_RECURRENCES)
    run_law(context)
    run_id = only_law(context)
    unidentified = json.loads(tags_of(context, run_id)["suite.law.unidentified"])
    assert unidentified == ["E", "A", "alpha", "t1", "C", "gamma", "t3"]
    measured = at_zero(context, run_id)
    assert {key for key in measured if key.endswith("/lower")} == {
        f"law/{name}/lower" for name in ("B", "beta", "t2")
    }
    assert kept_law(context, run_id).unidentified == tuple(unidentified)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (["law.resamples=0"], "law.resamples is 0"),
        (["law.hold_out.recurrences=[4]", "law.hold_out.sizes=[medium, large]"], "4 cells were"),
    ],
)
def test_a_law_without_intervals_says_why(edits: list[str], reason: str, home: Home) -> None:
    context = context_of(home, NO_TESTS, THREE_RECURRENCES, *edits)
    run_law(context)
    run_id = only_law(context)
    measured = at_zero(context, run_id)
    assert measured["law/resamples"] == 0
    assert "law/converged_share" not in measured
    assert not [key for key in points_of(context, run_id) if key.endswith(("lower", "upper"))]
    (warning,) = [text for text in warnings_of(context, run_id) if "no intervals" in text]
    assert reason in warning
    assert kept_law(context, run_id).resamples.shape == (0, len(TRUTH))
    law = spec_of(context)
    points = read_points(context, law, law_cells(context, law))
    alone = fit(get_form(law.form), points.variables, points.loss, starts=law.starts)
    assert {name: measured[f"law/{name}"] for name in TRUTH} == alone.parameters


def test_tests_that_the_grid_does_not_allow_are_left_out_and_named(home: Home) -> None:
    context = context_of(
        home, "law.form=chinchilla", "pretraining.recurrences=[1, 2]", "law.ablations=false"
    )
    run_law(context)
    run_id = only_law(context)
    warnings = [text for text in warnings_of(context, run_id) if "left out" in text]
    for warning, start in zip(
        warnings,
        (
            "held-out tests by size were left out: the points that each of them leaves do not",
            "held-out tests by recurrence were left out: pretraining.recurrences has 2 levels",
        ),
        strict=True,
    ):
        assert warning.startswith(start)
        assert f"note    {warning}" in said(context)
    keys = {key for key in at_zero(context, run_id) if key.endswith("/pooled_error")}
    assert keys == {f"law/held_out/{kind}/full/pooled_error" for kind in ("first",)}


SMOOTHED = ("law.smoothing=5", "law.form=chinchilla", "law.resamples=0", "law.ablations=false")


def first_tests(context: StageContext) -> dict[str, HeldOutTest]:
    """Tests by the first share of tokens, as the stage makes them, by their names."""
    law = spec_of(context)
    points = read_points(context, law, law_cells(context, law))
    form, settings = get_form(law.form), FitSettings(starts=law.test_starts)
    return {
        part.split.name: held_out_test(form, part.variables, part.loss, part.split, settings)
        for part in split_points("first", law, points)[0]
    }


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_what_was_logged_after_the_split_does_not_move_the_law_before_it_by_a_bit(
    share: float, home: Home
) -> None:
    context = context_of(home, *SMOOTHED)
    before = first_tests(context)
    engine = sa.create_engine(home.tracking_uri)
    with engine.begin() as connection:
        changed = connection.execute(
            sa.text(
                "UPDATE metrics SET value = value * (1.2 + 0.1 * (step % 7)) "
                "WHERE key = 'train/total_loss' AND step > :step"
            ),
            {"step": share * 15_360},
        )
    assert changed.rowcount > 0
    after = first_tests(context)
    name = f"first:{share:g}"
    assert after[name].fit.parameters == before[name].fit.parameters
    assert after[name].fit.objective == before[name].fit.objective
    assert after[name].goodness.mean_relative_error_held_out != (
        before[name].goodness.mean_relative_error_held_out
    )
    for later in (other for other in before if other > name):
        assert after[later].fit.parameters != before[later].fit.parameters


def test_tests_by_the_first_share_are_fits_of_curves_that_end_there(home: Home) -> None:
    context = context_of(home, *SMOOTHED, "law.tests=[first]", "law.fit_from=0.1")
    run_law(context)
    measured = at_zero(context, only_law(context))
    law = spec_of(context)
    cells = law_cells(context, law).filter(~pl.col("held_out"))
    curves = live(context.reader.curves(cells["run_id"].to_list(), ["train/total_loss"]))
    last = 15_360
    for share in (0.25, 0.5, 0.75):
        begun = curves.filter(pl.col("step") <= share * last)
        reached = begun["step"].max()
        assert isinstance(reached, int)
        # the window opens where it does for the whole curve
        early = prepare_points(cells, begun, replace(law, fit_from=0.1 * last / reached))
        fitted = fit(get_form("chinchilla"), early.variables(), early.loss, starts=law.test_starts)
        rest = curves.filter(pl.col("step") > share * last)
        late = prepare_points(cells, rest, replace(law, fit_from=0.0))
        error = np.abs(fitted.predict(late.variables()) / late.loss - 1).mean()
        tracked = measured[f"law/held_out/first:{share:g}/full/mean_relative_error"]
        assert tracked == pytest.approx(error, rel=1e-12)


def test_a_window_that_opens_after_a_share_leaves_the_longer_ones(home: Home) -> None:
    context = context_of(home, *SMOOTHED, "law.tests=[first]", "law.fit_from=0.3")
    run_law(context)
    run_id = only_law(context)
    assert {key for key in at_zero(context, run_id) if key.startswith("law/held_out/first:")} == {
        f"law/held_out/first:{share}/full/{number}"
        for share in ("0.5", "0.75")
        for number in ("mean_relative_error", "r2_all")
    }
    (warning,) = [text for text in warnings_of(context, run_id) if "left out" in text]
    assert warning.startswith(
        "the held-out test by the first 25% of tokens was left out: law.fit_from: it is 0.3, and no"
    )


def test_a_window_that_opens_after_every_share_leaves_no_such_test(home: Home) -> None:
    context = context_of(home, *SMOOTHED, "law.tests=[first]", "law.fit_from=0.8")
    run_law(context)
    run_id = only_law(context)
    assert not [key for key in at_zero(context, run_id) if key.startswith("law/held_out/")]
    assert sum("law.fit_from: it is 0.8" in text for text in warnings_of(context, run_id)) == 3


def test_held_out_cells_take_no_part_in_the_tests(home: Home) -> None:
    quick = ("law.tests=[cell]", "law.ablations=false", "law.resamples=0")
    context = context_of(home, *quick)
    run_law(context)
    before = at_zero(context, only_law(context))
    again = context_of(home, *quick, "law.hold_out.recurrences=[4]")
    run_law(again)
    assert len(runs_of(again, "law")) == 2
    newest = at_zero(again, runs_of(again, "law")[-1]["run_id"])
    names = {row["cell"][:12]: row["name"] for row in runs_of(again, "pretraining")}
    keys = [key for key in newest if key.startswith("law/held_out/cell:")]
    assert set(keys) < set(before)
    assert all(newest[key] != before[key] for key in keys)
    tested = {names[key.split(":")[1][:12]] for key in before if "/cell:" in key}
    assert len(tested) == 12
    assert not [name for name in tested if "large" in name]


def test_predictions_that_hang_on_what_is_not_identified_have_no_interval(home: Home) -> None:
    context = context_of(home, NO_TESTS, "law.hold_out={recurrences: [4, 8]}")
    run_law(context)
    run_id = only_law(context)
    ((sentence, cells),) = json.loads(tags_of(context, run_id)["suite.law.caveats"]).items()
    assert sentence.startswith("the answer hangs on C, gamma, which the points do not identify")
    grid = law_cells(context, spec_of(context))
    assert sorted(cells) == sorted(grid.filter(pl.col("held_out"))["cell"])
    logged = points_of(context, run_id)
    for cell, held_out in grid.select("cell", "held_out").iter_rows():
        assert f"predicted/{cell}" in logged
        assert (f"predicted/{cell}/lower" in logged) is not held_out


@pytest.mark.parametrize(
    "edit",
    [
        "law.resamples=0",
        "law.resamples=101",
        "law.tests=[size]",
        "law.ablations=false",
        "law.test_starts=5",
        "law.starts=13",
        "law.huber_delta=0.1",
        "law.form=chinchilla",
        "law.metric=val/total_loss",
        "law.hold_out={sizes: [tiny]}",
    ],
)
def test_every_setting_makes_another_law(edit: str, home: Home) -> None:
    assert fingerprint_of(home, edit) != fingerprint_of(home)


def fingerprint_of(home: Home, *edits: str) -> str:
    context = context_of(home, *edits)
    law = spec_of(context)
    return law_cell(context, law, law_cells(context, law)).fingerprint


def test_only_a_law_with_tests_by_the_first_share_names_how_their_points_are_made(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = ("law.tests=[size, first]", "law.tests=[size, cell]")
    before = [fingerprint_of(home, edit) for edit in edits]
    monkeypatch.setattr("suite.stages.law_tests._FIRST_SHARE", "both sides smoothed as one")
    after = [fingerprint_of(home, edit) for edit in edits]
    assert [new == old for new, old in zip(after, before, strict=True)] == [False, True]
    context = context_of(home, edits[1])
    law = spec_of(context)
    assert "first_share" not in law_cell(context, law, law_cells(context, law)).settings


@pytest.mark.parametrize(
    "edit",
    ["law.tests=[first, size, recurrence]", "law.form=parameters+tokens  + rising recurrence"],
)
def test_the_order_and_the_spelling_of_settings_do_not(edit: str, home: Home) -> None:
    assert fingerprint_of(home, edit) == fingerprint_of(home)


def test_a_law_of_the_loop_step_is_fitted_to_the_losses_of_all_steps(home: Home) -> None:
    context = context_of(
        home,
        "pretraining.recurrences=[4]",
        "law={form: parameters + tokens + step, metric: train/loss_at_step, starts: 12}",
        "law.hold_out.sizes=[large]",
        "law.resamples=0",
        "law.test_starts=4",
    )
    run_law(context)
    run_id = only_law(context)
    assert params_of(context, run_id)["metric"] == "train/loss_at_step/4"
    measured = at_zero(context, run_id)
    assert {key for key in measured if key.endswith("/pooled_error")} == {
        f"law/held_out/first/{law}/pooled_error"
        for law in ("full", "without_parameters", "without_tokens", "without_step",
                    "without_constant")
    }  # fmt: skip
    assert measured["law/mean_relative_error/held_out"] < 0.03
    num_points = int(params_of(context, run_id)["num_points"])
    curve = points_of(context, law_cells(context, spec_of(context))["run_id"][0])
    window = [step for step in curve["train/total_loss"] if step >= 0.1 * 15_360]
    assert num_points == 3 * 4 * len(window)
    (large,) = law_cells(context, spec_of(context)).filter(size="large").iter_rows(named=True)
    predicted = points_of(context, run_id)[f"predicted/{large['cell']}"]
    steps = np.array(sorted(predicted), dtype=np.float64)
    truth = true_loss(large["parameters"], steps, 4)
    assert [predicted[int(step)] for step in steps] == pytest.approx(list(truth), rel=0.03)


def test_a_fitted_law_is_not_fitted_again(home: Home) -> None:
    context = context_of(home, NO_TESTS)
    run_law(context)
    run_id = only_law(context)
    run_law(context_of(home, NO_TESTS))
    assert only_law(context) == run_id
    assert tags_of(context, run_id)["suite.attempts"] == "1"


@pytest.mark.parametrize("name", ["pretrain small Tm=2", "pretrain large Tm=2"])
def test_a_law_that_read_a_deleted_run_is_fitted_again(
    name: str, home: Home, training: FakeTraining
) -> None:
    edits = (NO_TESTS, "law.resamples=0")
    run_law(context_of(home, *edits))
    context = context_of(home, *edits)
    (cell,) = [row for row in runs_of(context, "pretraining") if row["name"] == name]
    context.store.delete_run(cell["run_id"])
    for stage in (run_pretraining, run_held_out_pretraining, run_law, run_law):
        stage(context)
    assert training.trained == [name]
    old, new = runs_of(context, "law")
    assert (old["cell"], old["status"], new["status"]) == (new["cell"], "FINISHED", "FINISHED")
    kind = "held_out" if "large" in name else "input"
    before, after = (
        tags_of(context, run["run_id"])[f"suite.{kind}.{cell['cell']}"] for run in (old, new)
    )
    assert before == cell["run_id"] != after


def test_a_signal_stops_the_stage_within_its_fits_and_it_goes_on_later(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("law.tests=[first]", "law.ablations=false")
    context = context_of(home, *quick)
    checked = 0

    def check() -> None:
        nonlocal checked
        checked += 1
        if checked == 5:
            raise StopRequested

    monkeypatch.setattr(context.stop, "check", check)
    with pytest.raises(StopRequested):
        run_law(context)
    (run,) = runs_of(context, "law")
    assert run["status"] == "KILLED"
    again = context_of(home, *quick)
    run_law(again)
    assert only_law(again) == run["run_id"]
