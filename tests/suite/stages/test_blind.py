"""Blind predictions: on record before the cells that they predict, once, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.cells import Cell
from suite.errors import SuiteError
from suite.reports.tracked import read_tracked
from suite.stages.blind import predict_held_out
from suite.stages.context import StageContext
from suite.stages.law import run_law
from suite.stages.law_fit import log_prediction
from suite.stages.law_points import law_grid
from suite.stages.pretraining import run_held_out_pretraining, run_pretraining
from suite.stopping import StopRequested
from suite.tracking.curves import attempts_from_tags
from suite.tracking.home import Home
from suite.tracking.recorder import RunRecorder
from tests.suite.stages.grids import (
    STUDY,
    FakeTraining,
    context_of,
    copied,
    fitted_cells,
    params_of,
    points_of,
    runs_of,
    said,
    tags_of,
    training,
)

__all__ = ["fitted_cells", "training"]  # fixtures

# what is there already of the other T_m is not of this study
QUICK = (
    "law.tests=[]",
    "law.form=chinchilla",
    "law.resamples=0",
    "pretraining.recurrences=[1, 2]",
)
HELD_OUT = [f"pretrain large Tm={recurrence}" for recurrence in (1, 2)]
STAGES = (run_pretraining, predict_held_out, run_held_out_pretraining, run_law)


def run(
    home: Home,
    *edits: str,
    stages: Sequence[Callable[[StageContext], None]] = STAGES,
    text: str = STUDY,
) -> StageContext:
    context = context_of(home, *QUICK, *edits, text=text)
    for stage in stages:
        stage(context)
    return context


@pytest.fixture
def home(fitted_cells: Path, tmp_path: Path) -> Home:
    """A home where all cells have finished but those that are held out."""
    return copied(fitted_cells, tmp_path)


def cells_of(context: StageContext, *, held_out: bool) -> dict[str, str]:
    """Run ids by fingerprint."""
    assert context.study.law is not None
    rows = law_grid(context, context.study.law).iter_rows(named=True)
    return {row["cell"]: row["run_id"] for row in rows if row["held_out"] is held_out}


def tagged(context: StageContext, run_id: str, prefix: str) -> dict[str, str]:
    tags = tags_of(context, run_id).items()
    return {key.removeprefix(prefix): value for key, value in tags if key.startswith(prefix)}


def test_a_prediction_is_on_record_before_its_cells_begin(
    home: Home, training: FakeTraining
) -> None:
    context = run(home)
    assert training.trained == HELD_OUT
    (prediction,) = runs_of(context, "prediction")
    assert prediction["status"] == "FINISHED"
    fitted, held_out = (cells_of(context, held_out=which) for which in (False, True))
    run_id = prediction["run_id"]
    assert tagged(context, run_id, "suite.input.") == fitted
    assert tagged(context, run_id, "suite.predicts.") == dict.fromkeys(held_out, "true")
    for other in held_out.values():
        (row,) = [row for row in runs_of(context, "pretraining") if row["run_id"] == other]
        (attempt,) = attempts_from_tags(tags_of(context, other))
        first = context.reader.curves([other])["timestamp"].min()
        assert isinstance(first, int)
        assert prediction["end_time"] < min(row["start_time"], attempt.started, first)
    for other in fitted.values():
        assert context.reader.latest_timestamp(other) <= prediction["start_time"]


def test_a_prediction_is_what_the_law_says_later(home: Home, training: FakeTraining) -> None:
    context = run(home, "law.resamples=100")
    (prediction,), (law,) = (runs_of(context, kind) for kind in ("prediction", "law"))
    before, after = (points_of(context, one["run_id"]) for one in (prediction, law))
    held_out = cells_of(context, held_out=True)
    symbols = {key for key in after if key.startswith("law/") and key.count("/") == 1}
    symbols -= {"law/objective", "law/agreeing_share", "law/condition_number", "law/resamples",
                "law/converged_share"}  # fmt: skip
    ends = {f"{key}/{end}" for key in symbols for end in ("lower", "upper")}
    curves = {f"predicted/{cell}{end}" for cell in held_out for end in ("", "/lower", "/upper")}
    assert set(before) == set(after) & (symbols | ends | curves)
    assert set(before) >= symbols | {f"predicted/{cell}" for cell in held_out}
    for key, values in before.items():
        assert after[key] == pytest.approx(values, rel=1e-12), key
    settings = params_of(context, prediction["run_id"])
    of_law = params_of(context, law["run_id"])
    assert {key for key in settings if settings[key] != of_law.get(key)} == {
        "cells_digest",
        "predicted_digest",
        "predicted",
    }


@pytest.mark.parametrize("metric", ["train/total_loss", "val/total_loss"])
def test_a_prediction_is_made_at_the_tokens_that_the_cells_log_later(
    metric: str, home: Home, training: FakeTraining
) -> None:
    context = run(home, f"law.metric={metric}", "law.points_per_curve=7")
    (prediction,) = runs_of(context, "prediction")
    predicted = points_of(context, prediction["run_id"])
    for cell, run_id in cells_of(context, held_out=True).items():
        logged = points_of(context, run_id)[metric]
        assert set(predicted[f"predicted/{cell}"]) <= set(logged)
        assert max(predicted[f"predicted/{cell}"]) == max(logged) == 15_360
        assert len(predicted[f"predicted/{cell}"]) == min(7, len(logged))


def test_a_study_that_holds_nothing_out_predicts_nothing(
    home: Home, training: FakeTraining
) -> None:
    context = run(home, "law.hold_out={}")
    assert runs_of(context, "prediction") == []
    assert "prediction" not in said(context)
    run(home, "law=null")


def stop_at(name: str) -> Callable[[Cell], None]:
    def stop(cell: Cell) -> None:
        if cell.name == name:
            raise StopRequested

    return stop


def test_a_study_that_was_stopped_after_its_prediction_makes_no_other(
    home: Home, training: FakeTraining
) -> None:
    first = run(home, stages=STAGES[:2])  # and the process is gone
    (prediction,) = runs_of(first, "prediction")
    for name in HELD_OUT:
        training.before = stop_at(name)
        with pytest.raises(StopRequested):
            run(home)
    training.before = lambda cell: None
    context = run(home)
    assert training.trained[-2:] == HELD_OUT
    assert runs_of(context, "prediction") == [prediction]
    assert tags_of(context, prediction["run_id"])["suite.attempts"] == "1"
    assert "prediction" not in said(context)
    assert set(tagged(context, prediction["run_id"], "suite.predicts.")) == set(
        cells_of(context, held_out=True)
    )


def test_a_prediction_that_was_cut_off_goes_on_in_its_run(
    home: Home, training: FakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **settings: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("suite.stages.blind.log_prediction", die)
        with pytest.raises(KeyboardInterrupt):
            run(home)
    context = run(home)
    (prediction,) = runs_of(context, "prediction")
    assert prediction["status"] == "FINISHED"
    assert tags_of(context, prediction["run_id"])["suite.attempts"] == "2"
    assert training.trained == HELD_OUT


def test_cells_that_were_trained_before_are_not_predicted(
    home: Home, training: FakeTraining
) -> None:
    run(home, "law.hold_out={}")
    context = run(home)
    assert runs_of(context, "prediction") == []
    note = f"no prediction is made of {', '.join(map(repr, HELD_OUT))}: it would not be blind"
    assert note in said(context)
    assert note not in said(run(home)), "said once, with the law that it is about"


def test_a_law_that_changed_after_the_outcome_does_not_predict_it(
    home: Home, training: FakeTraining
) -> None:
    (prediction,) = runs_of(run(home), "prediction")
    context = run(home, "law.huber_delta=0.01")
    assert runs_of(context, "prediction") == [prediction]
    assert "it would not be blind" in said(context)
    # the law itself is as it was
    context = run(home, "law.tests=[first]", "law.test_starts=2")
    assert runs_of(context, "prediction") == [prediction]
    assert len(runs_of(context, "law")) == 3
    assert "prediction" not in said(context)


def test_only_cells_that_have_not_begun_are_predicted(home: Home, training: FakeTraining) -> None:
    training.before = stop_at("pretrain large Tm=1")
    with pytest.raises(StopRequested):
        run(home, "law.hold_out={}")
    training.before = lambda cell: None
    context = run(home)
    (prediction,) = runs_of(context, "prediction")
    assert params_of(context, prediction["run_id"])["predicted"] == '["pretrain large Tm=2"]'
    assert "no prediction is made of 'pretrain large Tm=1': it would not be blind" in said(context)


def test_cells_that_are_added_later_are_predicted_by_themselves(
    home: Home, training: FakeTraining
) -> None:
    run(home)
    large = "    - {name: large, num_hidden_layers: 2, hidden_size: 96}\n"
    more = STUDY.replace(large, large + large.replace("large", "huge").replace("96", "128"))
    context = run(home, "law.hold_out.sizes=[large, huge]", text=more)
    first, second = runs_of(context, "prediction")
    assert "huge" not in params_of(context, first["run_id"])["predicted"]
    assert "large" not in params_of(context, second["run_id"])["predicted"]
    assert len(tagged(context, second["run_id"], "suite.predicts.")) == 2
    assert "would not be blind" not in said(context)


class DivergedError(Exception):
    """What a cell raises that would diverge again."""

    settles_cell = True


def failing(name: str, error: Exception) -> Callable[[Cell], None]:
    def fail(cell: Cell) -> None:
        if cell.name == name:
            raise error

    return fail


# of cells that no home has yet
MORE = "pretraining.recurrences=[1, 3]"
HELD_OUT_OF_MORE = ["pretrain large Tm=1", "pretrain large Tm=3"]


def test_held_out_cells_wait_for_a_fitted_cell_that_may_still_finish(
    home: Home, training: FakeTraining
) -> None:
    training.before = failing("pretrain small Tm=3", RuntimeError("out of memory"))
    context = run(home, MORE)
    assert runs_of(context, "prediction") == []
    assert set(training.trained).isdisjoint(HELD_OUT_OF_MORE)
    assert set(context.failures) == {"pretrain small Tm=3", "held-out cells"}
    told = context.failures["held-out cells"]
    assert told.startswith(f"{', '.join(map(repr, HELD_OUT_OF_MORE))} did not begin")
    assert "the law is fitted to 'pretrain small Tm=3' too, which did not finish" in told
    assert told.endswith(
        "run the study again, or take them out of law.hold_out to train them without a prediction"
    )
    training.before = lambda cell: None
    context = run(home, MORE)
    assert training.trained[-3:] == ["pretrain small Tm=3", *HELD_OUT_OF_MORE]
    (prediction,) = runs_of(context, "prediction")
    first = min(
        row["start_time"]
        for row in runs_of(context, "pretraining")
        if row["name"] in HELD_OUT_OF_MORE
    )
    assert prediction["end_time"] < first
    assert context.failures == {}


def test_the_law_is_fitted_without_a_cell_that_failed_for_good(
    home: Home, training: FakeTraining
) -> None:
    training.before = failing("pretrain small Tm=3", DivergedError("diverged at 5,120 tokens"))
    context = run(home, MORE)
    assert training.trained[-2:] == HELD_OUT_OF_MORE
    (prediction,) = runs_of(context, "prediction")
    (law,) = runs_of(context, "law")
    inputs = tagged(context, prediction["run_id"], "suite.input.")
    assert inputs == tagged(context, law["run_id"], "suite.input.")
    assert len(inputs) == 5  # of 3 sizes x 2
    assert set(context.failures) == {"pretrain small Tm=3"}
    assert len(runs_of(run(home, MORE), "prediction")) == 1


def test_held_out_cells_wait_for_a_prediction_that_failed(
    home: Home, training: FakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr("suite.stages.blind.fit_law", fail)
        context = run(home, stages=STAGES[:3])
    assert training.trained == []
    assert context.failures["predict chinchilla"] == "RuntimeError: no"
    assert "their prediction failed; run the study again" in context.failures["held-out cells"]
    # whoever does not want the prediction may say so
    run(home, "law.hold_out={recurrences: [2]}", stages=STAGES[:1])
    assert training.trained == HELD_OUT[:1]
    context = run(home, "law.hold_out.recurrences=[2]")
    assert training.trained == HELD_OUT
    assert context.failures == {}


def test_a_held_out_cell_that_had_begun_goes_on_while_others_wait(
    home: Home, training: FakeTraining
) -> None:
    training.before = stop_at("pretrain large Tm=1")
    with pytest.raises(StopRequested):
        run(home)
    edits = ("law.huber_delta=0.01", "pretraining.recurrences=[1, 3]")
    training.before = failing("pretrain small Tm=3", RuntimeError("out of memory"))
    context = run(home, *edits)
    assert "pretrain large Tm=1" in training.trained
    assert "pretrain large Tm=3" not in training.trained
    assert context.failures["held-out cells"].startswith("'pretrain large Tm=3' did not begin")


def delete(home: Home, name: str) -> None:
    context = context_of(home)
    (run_id,) = [row["run_id"] for row in runs_of(context, "pretraining") if row["name"] == name]
    context.store.delete_run(run_id)


def test_a_prediction_that_read_a_deleted_run_is_made_again_while_it_is_blind(
    home: Home, training: FakeTraining
) -> None:
    (first,) = runs_of(run(home, stages=STAGES[:2]), "prediction")
    delete(home, "pretrain small Tm=1")
    context = run(home)
    assert training.trained == ["pretrain small Tm=1", *HELD_OUT]
    old, new = runs_of(context, "prediction")
    assert (old["run_id"], old["cell"]) == (first["run_id"], new["cell"])
    assert tagged(context, new["run_id"], "suite.input.") == cells_of(context, held_out=False)
    assert len(runs_of(run(home), "prediction")) == 2


def test_a_prediction_that_read_a_deleted_run_is_not_made_again_after_the_outcome(
    home: Home, training: FakeTraining
) -> None:
    (first,) = runs_of(run(home), "prediction")
    delete(home, "pretrain small Tm=1")
    context = run(home)
    assert runs_of(context, "prediction") == [first]
    assert "it would not be blind" in said(context)
    assert len(runs_of(context, "law")) == 2


def blindness(context: StageContext) -> dict[str, str]:
    """What the report says of each held-out cell."""
    tracked = read_tracked(context.reader, context.study.name)
    return {cell.name: tracked.blindness[cell.run_id].words for cell in tracked.pretraining
            if tracked.held_out(cell)}  # fmt: skip


def test_deleting_what_was_trained_before_does_not_earn_the_mark(
    home: Home, training: FakeTraining
) -> None:
    run(home, "law.hold_out={}")
    known = {row["name"]: row["run_id"] for row in runs_of(context_of(home), "pretraining")}
    delete(home, HELD_OUT[0])
    delete(home, HELD_OUT[1])
    context = run(home)
    assert len(runs_of(context, "prediction")) == 1
    assert blindness(context) == {
        name: f"run {known[name]}, which was deleted, had measured the same cell before the "
        "prediction was complete"
        for name in HELD_OUT
    }


def test_deleting_a_prediction_that_did_not_come_true_leaves_a_trace(
    home: Home, training: FakeTraining
) -> None:
    first = run(home, "law.huber_delta=0.01", stages=STAGES[:2])
    (wrong,) = runs_of(first, "prediction")
    context = run(home)
    assert set(blindness(context).values()) == {"blind, one of 2 predictions on record"}
    context.store.delete_run(wrong["run_id"])
    said_of_it = "blind, one of 2 predictions on record, of which 1 was deleted"
    assert blindness(context) == dict.fromkeys(HELD_OUT, said_of_it)


class KilledError(BaseException):
    """What no stage catches, so that the run is left as a killed process leaves it."""


def interrupting(error: BaseException, after: int) -> Callable[..., None]:
    """Puts predicted curves on record, and fails when it is asked for one more."""
    recorded: list[str] = []

    def log(recorder: RunRecorder, cell: str, *more: Any, **settings: Any) -> None:
        if len(recorded) == after:
            raise error
        recorded.append(cell)
        log_prediction(recorder, cell, *more, **settings)

    return log


CUT_OFF: list[tuple[BaseException, int, str]] = [
    (SuiteError("the tracker is full"), 0, "FAILED"),
    (SuiteError("the tracker is full"), 1, "FAILED"),
    (RuntimeError("out of memory"), 1, "FAILED"),
    (StopRequested(), 1, "KILLED"),
    (KeyboardInterrupt(), 1, "KILLED"),
    (KilledError(), 1, "RUNNING"),
]
by_error = pytest.mark.parametrize(
    ("error", "after", "status"),
    CUT_OFF,
    ids=[f"{type(error).__name__} after {after}" for error, after, _ in CUT_OFF],
)


def cut_off(home: Home, patch: pytest.MonkeyPatch, error: BaseException, after: int) -> str:
    """Run the study until its prediction is cut off; its run."""
    with patch.context() as patched:
        patched.setattr("suite.stages.blind.log_prediction", interrupting(error, after))
        with contextlib.suppress(StopRequested, KeyboardInterrupt, KilledError):
            run(home)
    (prediction,) = runs_of(context_of(home), "prediction")
    return str(prediction["run_id"])


@by_error
def test_after_a_prediction_that_was_cut_off_the_next_run_makes_a_blind_one(
    home: Home,
    training: FakeTraining,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    after: int,
    status: str,
) -> None:
    run_id = cut_off(home, monkeypatch, error, after)
    (prediction,) = runs_of(context_of(home), "prediction")
    assert prediction["status"] == status
    assert training.trained == [], "held-out cells wait"
    context = run(home)
    assert context.failures == {}
    assert training.trained == HELD_OUT
    (prediction,) = [row for row in runs_of(context, "prediction") if row["status"] == "FINISHED"]
    begun = [row for row in runs_of(context, "pretraining") if row["name"] in HELD_OUT]
    assert prediction["end_time"] < min(row["start_time"] for row in begun)
    held_out = cells_of(context, held_out=True)
    assert set(tagged(context, prediction["run_id"], "suite.predicts.")) == set(held_out)
    assert blindness(context) == dict.fromkeys(HELD_OUT, "blind")
    # nothing of the attempt that was cut off counts any more
    live_points = points_of(context, prediction["run_id"])
    law = runs_of(context, "law")[-1]  # of all cells; one of those that were there came before
    for cell in held_out:
        expected = points_of(context, law["run_id"])[f"predicted/{cell}"]
        assert live_points[f"predicted/{cell}"] == pytest.approx(expected, rel=1e-12)
    assert prediction["run_id"] == run_id
    assert tags_of(context, run_id)["suite.attempts"] == "2"


@by_error
def test_a_prediction_that_was_cut_off_earns_no_mark(
    home: Home,
    training: FakeTraining,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    after: int,
    status: str,
) -> None:
    """Not even where it names its cells and has their curves, as it does before it ends."""
    run_id = cut_off(home, monkeypatch, error, after)
    context = context_of(home, *QUICK)
    named = {f"suite.predicts.{cell}": "true" for cell in cells_of(context, held_out=True)}
    context.store.set_tags(run_id, named)
    # whoever trains the cells anyway, and then asks for the mark
    run(home, "law.hold_out={}", stages=STAGES[:1])
    assert training.trained == HELD_OUT
    context = run(home, stages=STAGES[3:])
    assert blindness(context) == dict.fromkeys(
        HELD_OUT, f"the prediction is {status}, not FINISHED"
    )
