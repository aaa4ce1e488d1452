from __future__ import annotations

import math
from typing import Any

import numpy as np

from suite.reports.tracked import read_tracked


def test_one_cell_for_each_size_and_recurrence(demo: Any) -> None:
    tracked = read_tracked(demo.reader, "demo")
    cells = {(cell.size, cell.recurrence): cell for cell in tracked.pretraining}
    assert set(cells) == {("small", 2), ("small", 4), ("medium", 2), ("medium", 4)}
    cell = cells["medium", 4]
    assert (cell.parameters, cell.non_embedding, cell.tokens) == (172_673, 86_336, 1_000_000)
    assert (cell.status, cell.failure, cell.objective) == ("FINISHED", None, "entropy, beta 0.05")
    assert tracked.left_out == ()
    assert tracked.notes == ()


def test_unknown_study_is_empty(demo: Any) -> None:
    assert read_tracked(demo.reader, "another").empty


def test_newest_run_of_a_grid_point_wins_and_the_other_is_named(demo: Any) -> None:
    older = demo.reader.run_named("pretrain small Tm=2")
    demo.pretraining(sizes={"small": 60_001}, recurrences=(2,), points=20)
    tracked = read_tracked(demo.reader, "demo")
    (cell,) = [c for c in tracked.pretraining if (c.size, c.recurrence) == ("small", 2)]
    assert cell.parameters == 60_001
    (left,) = tracked.left_out
    assert left.run_id == older
    assert cell.run_id in left.reason


def test_law_that_read_another_run_is_told(demo: Any) -> None:
    older = demo.reader.run_named("pretrain small Tm=2")
    (row,) = [row for row in demo.reader.rows if row["run_id"] == older]
    demo.pretraining(sizes={"small": 59_713}, recurrences=(2,), points=20)
    newer = demo.reader.rows[-1]["run_id"]
    demo.reader.rows[-1]["cell"] = row["cell"]
    (note,) = read_tracked(demo.reader, "demo").notes
    assert older in note
    assert newer in note


def test_cell_unknown_to_the_law_is_told(demo: Any) -> None:
    demo.pretraining(sizes={"large": 734_977}, recurrences=(2,), points=20)
    (note,) = read_tracked(demo.reader, "demo").notes
    assert note.startswith(
        "The law neither fitted nor held out the cell pretrain large Tm=2 (FINISHED, run "
    )


def test_mixed_forms_of_the_objective_are_told(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=20)
    first = maker.reader.rows[0]["run_id"]
    maker.reader.texts[first]["params"]["objective.form"] = "kl"
    (note,) = read_tracked(maker.reader, "demo").notes
    assert "entropy, beta 0.05; kl, beta 0.05" in note


def test_failed_cells_are_kept_with_their_reason(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, fail={("small", 4): "NaN at 333,333 tokens"})
    failed = [c for c in read_tracked(maker.reader, "demo").pretraining if not c.finished]
    assert [(c.recurrence, c.status, c.failure) for c in failed] == [
        (4, "FAILED", "NaN at 333,333 tokens")
    ]


def test_run_without_settings_is_left_out_with_the_reason(demo: Any) -> None:
    run = demo.reader.add("pretraining", "died early", status="FAILED")
    broken = demo.reader.add("calibration", "odd", params={"model.label": "x"})
    left = {item.run_id: item.reason for item in read_tracked(demo.reader, "demo").left_out}
    assert left[run] == "failed pretraining run: it has no parameter size.name"
    assert left[broken] == "finished calibration run: it has no parameter calibrate_on"


def test_unreadable_setting_is_named_with_its_value(demo: Any) -> None:
    run = demo.reader.run_named("pretrain small Tm=2")
    demo.reader.texts[run]["params"]["recurrence"] = "two"
    (left,) = read_tracked(demo.reader, "demo").left_out
    assert "its recurrence is 'two', which cannot be read" in left.reason


def test_newest_finished_law_is_used(demo: Any) -> None:
    first = demo.reader.run_named("law looplm_total")
    second = demo.fit()
    third = demo.fit()
    demo.reader.rows[-1]["status"] = "FAILED"
    tracked = read_tracked(demo.reader, "demo")
    assert tracked.law is not None
    assert tracked.law.run_id == second
    reasons = {item.run_id: item.reason for item in tracked.left_out}
    assert reasons == {first: f"run {second} is a newer fit", third: "law run with status FAILED"}


def test_superseded_points_are_not_in_any_curve(demo: Any) -> None:
    run = demo.reader.run_named("pretrain small Tm=2")
    before = read_tracked(demo.reader, "demo").curve(run, "train/total_loss")
    demo.reader.log(run, "train/total_loss", [50_000, 123_456], [99.0, 98.0], superseded=True)
    after = read_tracked(demo.reader, "demo").curve(run, "train/total_loss")
    np.testing.assert_array_equal(after.step, before.step)
    np.testing.assert_array_equal(after.value, before.value)


def test_curves_keep_what_is_not_finite(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, recurrences=(2,), points=20)
    run = maker.reader.rows[0]["run_id"]
    maker.reader.log(run, "train/total_loss", [2_000_000, 2_000_001], [math.inf, math.nan])
    curve = read_tracked(maker.reader, "demo").curve(run, "train/total_loss")
    assert curve.value[-2] == math.inf
    assert math.isnan(curve.value[-1])
    assert curve.step.tolist() == sorted(curve.step.tolist())


def test_trials_belong_to_their_search_in_order_of_number(demo: Any) -> None:
    demo.search(name="other", trials=3)
    tracked = read_tracked(demo.reader, "demo")
    assert {s.search: [t.number for t in s.trials] for s in tracked.searches} == {
        "kv_budget": list(range(8)),
        "other": [0, 1, 2],
    }


def test_reports_of_earlier_days_change_nothing(demo: Any) -> None:
    before = read_tracked(demo.reader, "demo")
    demo.reader.add("report", "report")
    after = read_tracked(demo.reader, "demo")
    assert before.pretraining == after.pretraining
    assert after.left_out == ()
