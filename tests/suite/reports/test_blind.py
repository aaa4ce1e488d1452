"""The mark "predicted blind": given where all of the store supports it, refused for any doubt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.reports import build_report, verify
from suite.reports.blind import Clock, time_of
from suite.reports.records import Blindness
from suite.reports.tracked import read_tracked
from tests.suite.reports.law_store import PREDICTED, predict

LOSS = "train/total_loss"
LAW = "law looplm_total"
CELL = "pretrain medium Tm=4"


@dataclass
class Scene:
    """A store whose two held-out cells were predicted blind, for a test to forge."""

    reader: Any

    @property
    def prediction(self) -> str:
        return str(self.reader.run_named(PREDICTED))

    @property
    def cell(self) -> str:
        return str(self.reader.run_named(CELL))

    @property
    def fingerprint(self) -> str:
        return str(self.row(self.cell)["cell"])

    def row(self, run_id: str) -> dict[str, Any]:
        (row,) = [row for row in self.reader.rows if row["run_id"] == run_id]
        assert isinstance(row, dict)
        return row

    def tags(self, run_id: str) -> dict[str, str]:
        tags = self.reader.texts[run_id]["tags"]
        assert isinstance(tags, dict)
        return tags

    def drop(self, run_id: str, key: str, step: int | None = None) -> None:
        kept = [
            point
            for point in self.reader.points
            if (point["run_id"], point["key"]) != (run_id, key)
            or (step is not None and point["step"] != step)
        ]
        assert len(kept) < len(self.reader.points)
        self.reader.points = kept

    def judgements(self) -> dict[str, Blindness]:
        tracked = read_tracked(self.reader, "demo")
        names = {cell.run_id: cell.name for cell in tracked.pretraining}
        return {names[run_id]: found for run_id, found in tracked.blindness.items()}


@pytest.fixture
def scene(judged: Any) -> Scene:
    return Scene(judged.reader)


def test_held_out_cells_of_an_untouched_store_were_predicted_blind(scene: Scene) -> None:
    judgements = scene.judgements()
    assert list(judgements) == ["pretrain medium Tm=2", CELL]
    for name, found in judgements.items():
        start = scene.row(scene.reader.run_named(name))["start_time"]
        assert (found.blind, found.words, found.prediction) == (True, "blind", scene.prediction)
        assert found.recorded == scene.row(scene.prediction)["end_time"]
        assert found.began == start - 1  # its first attempt
        assert found.recorded < found.began


def test_a_study_without_held_out_cells_has_no_judgement(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    assert read_tracked(maker.reader, "demo").blindness == {}
    maker.fit()
    assert read_tracked(maker.reader, "demo").blindness == {}


def unnamed(scene: Scene) -> None:
    del scene.tags(scene.prediction)[f"suite.predicts.{scene.fingerprint}"]


def unfinished(scene: Scene) -> None:
    scene.row(scene.prediction)["status"] = "FAILED"


def endless(scene: Scene) -> None:
    scene.row(scene.prediction)["end_time"] = None


def ended_late(scene: Scene) -> None:
    scene.row(scene.prediction)["end_time"] = scene.row(scene.cell)["start_time"] + 1


def added_to_late(scene: Scene) -> None:
    """Points may be logged to a finished run, which leaves its end as it was."""
    key = f"predicted/{scene.fingerprint}"
    scene.reader.point(scene.prediction, key, 1_000_000)["timestamp"] += 10_000_000


def attempted_early(scene: Scene) -> None:
    tags = scene.tags(scene.cell)
    attempt = json.loads(tags["suite.attempt.1"])
    attempt["started"] = scene.row(scene.prediction)["end_time"]
    tags["suite.attempt.1"] = json.dumps(attempt)


def started_early(scene: Scene) -> None:
    scene.row(scene.cell)["start_time"] = scene.row(scene.prediction)["end_time"]


def measured_early(scene: Scene) -> None:
    point = scene.reader.point(scene.cell, LOSS, 50_000)
    point["timestamp"] = scene.row(scene.prediction)["end_time"]


def measured_early_and_overtaken(scene: Scene) -> None:
    """A point that no figure draws any more was known all the same."""
    scene.reader.log(scene.cell, LOSS, [700_000], [4.0], superseded=True)
    scene.reader.points[-1]["timestamp"] = scene.row(scene.prediction)["start_time"]


def without_attempts(scene: Scene) -> None:
    del scene.tags(scene.cell)["suite.attempt.1"]


def with_edited_attempts(scene: Scene) -> None:
    scene.tags(scene.cell)["suite.attempt.1"] = "{}"


def with_a_word_for_a_time(scene: Scene) -> None:
    tags = scene.tags(scene.cell)
    tags["suite.attempt.1"] = json.dumps(json.loads(tags["suite.attempt.1"]) | {"started": "now"})


def without_start(scene: Scene) -> None:
    scene.row(scene.cell)["start_time"] = None


def without_points(scene: Scene) -> None:
    for key in (LOSS, "val/total_loss", "val/bits_per_byte"):
        scene.drop(scene.cell, key)


def measured_before_by_another_run(scene: Scene) -> None:
    scene.reader.add(
        "pretraining", "an earlier go", cell=scene.fingerprint, status="FAILED", start=5
    )


def measured_before_in_another_study(scene: Scene) -> None:
    scene.reader.add(
        "pretraining", "elsewhere", cell=scene.fingerprint, status="KILLED", start=5, study="other"
    )


def measured_before_with_other_settings(scene: Scene) -> None:
    scene.reader.add(
        "pretraining",
        "an earlier go",
        start=5,
        params={"size.name": "medium", "recurrence": 4, "parameters.total": 172_673, "tokens": 5},
    )


def measured_before_and_deleted(scene: Scene) -> None:
    measured_before_by_another_run(scene)
    scene.reader.delete(scene.reader.run_named("an earlier go"))


def measured_before_in_another_study_and_deleted(scene: Scene) -> None:
    measured_before_in_another_study(scene)
    scene.reader.delete(scene.reader.run_named("elsewhere"))


def measured_before_with_other_settings_and_deleted(scene: Scene) -> None:
    measured_before_with_other_settings(scene)
    scene.reader.delete(scene.reader.run_named("an earlier go"))


def measured_at_an_unknown_time_and_deleted(scene: Scene) -> None:
    measured_before_and_deleted(scene)
    scene.row(scene.reader.run_named("an earlier go"))["start_time"] = None


def input_deleted(scene: Scene) -> None:
    scene.reader.delete(scene.reader.run_named("pretrain small Tm=2"))


def prediction_deleted(scene: Scene) -> None:
    scene.reader.delete(scene.prediction)


def fitted_to_the_cell(scene: Scene) -> None:
    scene.tags(scene.prediction)[f"suite.input.{scene.fingerprint}"] = "f" * 32


def fitted_to_the_run(scene: Scene) -> None:
    scene.tags(scene.prediction)["suite.input.another"] = scene.cell


def fitted_to_nothing(scene: Scene) -> None:
    tags = scene.tags(scene.prediction)
    for key in [key for key in tags if key.startswith("suite.input.")]:
        del tags[key]


def input_gone(scene: Scene) -> None:
    scene.tags(scene.prediction)["suite.input.another"] = "f" * 32


def input_went_on(scene: Scene) -> None:
    run = scene.reader.run_named("pretrain small Tm=2")
    point = scene.reader.point(run, LOSS, 1_000_000)
    point["timestamp"] = scene.row(scene.prediction)["start_time"] + 1


def other_parameter(scene: Scene) -> None:
    scene.reader.point(scene.prediction, "law/alpha", 0)["value"] *= 1 + 1e-6


def parameter_missing_there(scene: Scene) -> None:
    scene.drop(scene.prediction, "law/alpha")


def parameter_missing_here(scene: Scene) -> None:
    scene.drop(scene.reader.run_named(LAW), "law/alpha")


def parameters_missing(scene: Scene) -> None:
    for name in (LAW, PREDICTED):
        for symbol in ("A", "B", "E", "alpha", "beta"):
            scene.drop(scene.reader.run_named(name), f"law/{symbol}")


def curve_missing(scene: Scene) -> None:
    scene.drop(scene.prediction, f"predicted/{scene.fingerprint}")


def end_missing(scene: Scene) -> None:
    scene.drop(scene.prediction, f"predicted/{scene.fingerprint}", 1_000_000)


def other_curve(scene: Scene) -> None:
    law = scene.reader.run_named(LAW)
    scene.reader.point(law, f"predicted/{scene.fingerprint}", 500_000)["value"] *= 1.00001


def interval_made_later(scene: Scene) -> None:
    for end in ("lower", "upper"):
        scene.drop(scene.prediction, f"predicted/{scene.fingerprint}/{end}")


def interval_taken_away(scene: Scene) -> None:
    scene.drop(scene.reader.run_named(LAW), f"predicted/{scene.fingerprint}/upper")


def wider_interval(scene: Scene) -> None:
    law = scene.reader.run_named(LAW)
    scene.reader.point(law, f"predicted/{scene.fingerprint}/upper", 1_000_000)["value"] *= 1.001


def nothing_drawn(scene: Scene) -> None:
    scene.drop(scene.reader.run_named(LAW), f"predicted/{scene.fingerprint}")


REFUSED: dict[str, tuple[Callable[[Scene], None], str]] = {
    "no prediction names it": (unnamed, "no prediction of this cell is on record"),
    "not finished": (unfinished, "the prediction is FAILED, not FINISHED"),
    "no end": (endless, "the prediction does not say when it ended"),
    "ended late": (ended_late, "the prediction ended at 2026-"),
    "added to late": (added_to_late, "the prediction got its last point at 2026-"),
    "first attempt": (attempted_early, "but the first attempt at the cell began at 2026-"),
    "start": (started_early, "but the run of the cell began at 2026-"),
    "first point": (measured_early, "but the first point of the cell was logged at 2026-"),
    "overtaken point": (measured_early_and_overtaken, "but the first point of the cell was logged"),
    "no attempts": (without_attempts, "does not say when the first attempt at the cell began"),
    "edited attempts": (
        with_edited_attempts, "does not say when the first attempt at the cell began"
    ),
    "attempt at a word": (
        with_a_word_for_a_time, "does not say when the first attempt at the cell began"
    ),
    "no start": (without_start, "does not say when the run of the cell began"),
    "no points": (without_points, "does not say when the first point of the cell was logged"),
    "another run": (measured_before_by_another_run, "had measured the same cell before"),
    "another study": (
        measured_before_in_another_study, "had measured the same cell in the study 'other' before"
    ),
    "other settings": (
        measured_before_with_other_settings,
        "had measured the same size and T_m with other settings before the prediction",
    ),
    "another run, deleted": (
        measured_before_and_deleted, ", which was deleted, had measured the same cell before"
    ),
    "another study, deleted": (
        measured_before_in_another_study_and_deleted,
        ", which was deleted, had measured the same cell in the study 'other' before",
    ),
    "other settings, deleted": (
        measured_before_with_other_settings_and_deleted,
        ", which was deleted, had measured the same size and T_m with other settings before",
    ),
    "unknown time, deleted": (
        measured_at_an_unknown_time_and_deleted, ", which was deleted, had measured the same cell "
    ),
    "input deleted": (input_deleted, ", which the prediction was fitted to, was deleted"),
    "prediction deleted": (prediction_deleted, "the prediction of this cell, run "),
    "fitted to the cell": (fitted_to_the_cell, "was fitted to this very cell"),
    "fitted to the run": (fitted_to_the_run, "was fitted to this very cell"),
    "fitted to nothing": (fitted_to_nothing, "does not say which runs it was fitted to"),
    "input gone": (input_gone, f"the points of run {'f' * 32}, which the prediction was fitted to"),
    "input went on": (input_went_on, "but the prediction began at 2026-"),
    "other parameter": (other_parameter, "alpha is 0.31 in the law drawn here and was 0.310000"),
    "parameter missing there": (parameter_missing_there, "law of the prediction has no alpha"),
    "parameter missing here": (parameter_missing_here, "the drawn law has no alpha"),
    "parameters missing": (parameters_missing, "the law drawn here has no parameters on record"),
    "curve missing": (curve_missing, "no predicted curve of this cell is on record"),
    "end missing": (end_missing, "no prediction for 1000000 tokens, where the curve ends, is on"),
    "other curve": (other_curve, "at 500000 tokens "),
    "interval made later": (
        interval_made_later, "is drawn here, and nothing was predicted as the lower end of the int"
    ),
    "interval taken away": (interval_taken_away, " tokens nothing is drawn here, and "),
    "wider interval": (wider_interval, "was predicted as the upper end of the interval"),
    "nothing drawn": (nothing_drawn, "no predicted curve of this cell is drawn"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_mark_is_refused_with_the_reason(scene: Scene, case: str) -> None:
    forge, words = REFUSED[case]
    forge(scene)
    found = scene.judgements()[CELL]
    assert not found.blind
    assert words in found.words


def test_one_forged_cell_leaves_the_mark_of_the_other(scene: Scene) -> None:
    measured_early(scene)
    assert {name: found.blind for name, found in scene.judgements().items()} == {
        "pretrain medium Tm=2": True,
        CELL: False,
    }


def test_parameters_may_differ_in_their_last_digits(scene: Scene) -> None:
    scene.reader.point(scene.prediction, "law/alpha", 0)["value"] *= 1 + 1e-8
    assert scene.judgements()[CELL].blind


def test_parameters_that_are_not_identified_may_differ(scene: Scene) -> None:
    scene.reader.point(scene.prediction, "law/B", 0)["value"] = 123.0
    assert scene.judgements()[CELL].blind
    scene.tags(scene.reader.run_named(LAW))["suite.law.unidentified"] = "[]"
    assert scene.judgements()[CELL].words == (
        "B is 9.0 in the law drawn here and was 123.0 in the prediction"
    )


def test_runs_that_began_after_the_prediction_take_nothing_away(scene: Scene) -> None:
    late = scene.row(scene.cell)["start_time"] + 5
    cell = scene.fingerprint
    scene.reader.add("pretraining", "again", cell=cell, status="FAILED", start=late, study="other")
    # of another study, which may call anything "medium"
    size = {"size.name": "medium", "recurrence": 4}
    scene.reader.add("pretraining", "namesake", start=5, params=size, study="other")
    assert scene.judgements()[CELL].blind


def test_deleted_runs_that_began_after_the_prediction_take_nothing_away(scene: Scene) -> None:
    late = scene.row(scene.prediction)["end_time"] + 1
    again = scene.reader.add("pretraining", "again", cell=scene.fingerprint, start=late)
    scene.reader.delete(again)
    # a run of another cell, and one of another study that may call anything "medium"
    scene.reader.delete(scene.reader.add("pretraining", "another cell", start=5))
    size = {"size.name": "medium", "recurrence": 4}
    namesake = scene.reader.add("pretraining", "namesake", start=5, params=size, study="other")
    scene.reader.delete(namesake)
    found = scene.judgements()[CELL]
    assert (found.blind, found.words) == (True, "blind")
    # to the millisecond: what began as the prediction ended may have been known
    scene.row(again)["start_time"] -= 1
    assert not scene.judgements()[CELL].blind


def test_a_prediction_that_did_not_come_true_is_counted_when_it_is_deleted(scene: Scene) -> None:
    law = scene.reader.run_named(LAW)
    wrong = predict(scene.reader, law, name="wrong", ago=40_000)
    scene.reader.point(wrong, "law/alpha", 0)["value"] = 0.5
    # whatever became of its tags
    scene.tags(wrong).update({"suite.attempts": "many", "suite.attempt.1": "[]"})
    scene.reader.delete(wrong)
    found = scene.judgements()[CELL]
    assert (found.blind, found.prediction) == (True, scene.prediction)
    assert found.words == "blind, one of 2 predictions on record, of which 1 was deleted"
    scene.reader.delete(predict(scene.reader, law, name="wrong too", ago=40_000))
    assert scene.judgements()[CELL].words.endswith("one of 3 predictions on record, of which 2 "
                                                   "were deleted")  # fmt: skip


@pytest.mark.parametrize("made", ["late", "unfinished", "of another cell"])
def test_a_deleted_prediction_that_could_not_earn_the_mark_is_not_counted(
    scene: Scene, made: str
) -> None:
    other = predict(scene.reader, scene.reader.run_named(LAW), name="other", ago=40_000)
    if made == "late":
        scene.row(other)["end_time"] = scene.row(scene.cell)["start_time"]
    elif made == "unfinished":
        scene.row(other)["status"] = "KILLED"
    else:
        del scene.tags(other)[f"suite.predicts.{scene.fingerprint}"]
    scene.reader.delete(other)
    assert scene.judgements()[CELL].words == "blind"


def test_a_cell_that_was_predicted_and_deleted_is_listed_so(scene: Scene) -> None:
    cell = scene.fingerprint
    scene.reader.delete(scene.cell)
    assert read_tracked(scene.reader, "demo").foretold[cell] == "deleted"
    scene.reader.forget(scene.cell)
    assert read_tracked(scene.reader, "demo").foretold[cell] == "not begun"


def test_a_cell_whose_twin_in_another_study_was_deleted_has_not_begun(scene: Scene) -> None:
    cell = scene.fingerprint
    measured_before_in_another_study_and_deleted(scene)
    scene.reader.delete(scene.cell)
    assert read_tracked(scene.reader, "demo").foretold[cell] == "deleted"
    scene.reader.forget(scene.cell)
    assert read_tracked(scene.reader, "demo").foretold[cell] == "not begun"


def test_one_of_several_predictions_is_told_so(scene: Scene) -> None:
    """Many may be recorded, and the law drawn that came true."""
    other = predict(scene.reader, scene.reader.run_named(LAW), name="other", ago=20_000)
    scene.reader.point(other, "law/alpha", 0)["value"] = 0.5
    found = scene.judgements()[CELL]
    assert found.blind
    assert found.prediction == scene.prediction
    assert found.words == "blind, one of 2 predictions on record"
    scene.row(other)["status"] = "FAILED"
    assert scene.judgements()[CELL].words == "blind"


def test_the_newest_prediction_gives_the_reason(scene: Scene) -> None:
    other = predict(scene.reader, scene.reader.run_named(LAW), name="other", ago=20_000)
    for run_id in (scene.prediction, other):
        scene.reader.point(run_id, "law/alpha", 0)["value"] = 0.5
    found = scene.judgements()[CELL]
    assert (found.blind, found.prediction) == (False, other)


def test_a_prediction_that_cannot_be_read_is_left_out_with_the_reason(scene: Scene) -> None:
    scene.tags(scene.prediction)["suite.attempts"] = "many"
    (left,) = read_tracked(scene.reader, "demo").left_out
    assert left.run_id == scene.prediction
    assert not scene.judgements()[CELL].blind


@pytest.mark.parametrize(
    ("case", "shown"),
    [
        ("ended late", "not blind: the prediction ended at"),
        ("start", "not blind: the prediction ended at"),
        ("input went on", "not blind: run "),
        ("other parameter", "not blind: alpha is 0.31"),
    ],
)
def test_verify_names_a_mark_that_the_store_no_longer_supports(
    scene: Scene, tmp_path: Path, case: str, shown: str
) -> None:
    report = build_report(scene.reader, "demo", ["parity"], tmp_path / "out")
    assert verify(scene.reader, "demo", report.manifest_path).ok
    REFUSED[case][0](scene)
    found = verify(scene.reader, "demo", report.manifest_path)
    marks = {
        difference.axes: (difference.old, str(difference.new).startswith(shown))
        for difference in found.differences
        if difference.key == "run:blind"
    }
    assert marks["medium Tm=4"] == ("blind", True)


def test_a_prediction_run_that_is_deleted_is_named(scene: Scene, tmp_path: Path) -> None:
    report = build_report(scene.reader, "demo", ["parity"], tmp_path / "out")
    run = scene.prediction
    assert run in verify(scene.reader, "demo", report.manifest_path).run_ids
    scene.reader.forget(run)
    found = verify(scene.reader, "demo", report.manifest_path)
    assert f"run {run}: it is not in the store; it was deleted" in "\n".join(found.lines())


def test_marks_outlast_an_import(scene: Scene, tmp_path: Path) -> None:
    """An import gives every run a new id, in the tags that name runs too."""
    input_went_on(scene)  # a reason that names a run
    report = build_report(scene.reader, "demo", ["parity"], tmp_path / "out")
    new = {row["run_id"]: row["run_id"].replace("0", "e") for row in scene.reader.rows}
    for holder in (*scene.reader.rows, *scene.reader.points):
        holder["run_id"] = new[holder["run_id"]]
    for row in scene.reader.rows:
        row["parent_run_id"] = new.get(row["parent_run_id"])
    for old, texts in list(scene.reader.texts.items()):
        texts["tags"] = {key: new.get(value, value) for key, value in texts["tags"].items()}
        texts["tags"] |= {"suite.imported.run_ids": old, "suite.imported.studies": "demo"}
        scene.reader.texts[new[old]] = scene.reader.texts.pop(old)
    found = verify(scene.reader, "demo", report.manifest_path)
    assert (found.ok, list(found.lines())) == (True, [])
    small = scene.reader.run_named("pretrain small Tm=2")
    assert scene.judgements()[CELL].words.startswith(f"run {small}, which the prediction was ")


def test_times_are_written_to_the_millisecond() -> None:
    assert time_of(1_790_000_000_042) == "2026-09-21 14:13:20.042 UTC"
    assert time_of(-1) == "1969-12-31 23:59:59.999 UTC"
    assert time_of(2**62) == f"{2**62} ms after 1970"


def test_a_clock_begins_with_the_earliest_that_is_known() -> None:
    assert Clock(start=None).began is None
    assert Clock(start=5, first_attempt=4, first_point=3).began == 3
    assert Clock(start=None, first_attempt=4).began == 4
