from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from suite.reports import build_report, verify
from suite.reports.entries import Table
from suite.reports.law_tables import law_tables
from suite.reports.tables import build_tables
from suite.reports.tracked import read_tracked
from tests.suite.reports.law_store import PREDICTED, RATIOS, SPLITS

LAW = "law looplm_total"
DASH = "\u2013"


def tables(maker: Any) -> dict[str, Table]:
    return {table.name: table for table in build_tables(read_tracked(maker.reader, "demo"))}


def row(table: Table, label: str) -> dict[str, str]:
    entries = table.rows[table.labels.index(label)]
    return {column: entry.text for column, entry in zip(table.columns, entries, strict=True)}


def test_a_full_law_has_every_table(judged: Any) -> None:
    named = [table.name for table in law_tables(read_tracked(judged.reader, "demo"))]
    assert named == ["law parameters", "law", "held-out cells", "held-out tests", "ablation"]
    assert list(tables(judged))[:5] == named


def test_without_a_law_there_is_no_table_of_it(maker: Any) -> None:
    maker.pretraining(sizes={"small": 1000}, points=5)
    assert law_tables(read_tracked(maker.reader, "demo")) == ()


def test_each_caption_is_one_sentence(judged: Any) -> None:
    for table in law_tables(read_tracked(judged.reader, "demo")):
        assert table.caption.endswith(".")
        assert ". " not in table.caption


def test_parameters_have_intervals_and_remarks(judged: Any) -> None:
    table = tables(judged)["law parameters"]
    assert table.labels == ("A", "B", "E", "alpha", "beta")
    assert row(table, "alpha") == {
        "parameter": "alpha",
        "value": "0.31",
        "lower 95 %": "0.3038",
        "upper 95 %": "0.3162",
        "remark": DASH,
    }
    assert list(row(table, "B").values())[1:] == ["9", DASH, DASH, "not identified"]


def test_a_law_of_before_has_parameters_without_intervals(demo: Any) -> None:
    table = tables(demo)["law parameters"]
    assert list(row(table, "alpha").values())[1:] == ["0.31", DASH, DASH, DASH]
    assert not {"held-out tests", "ablation"} & set(tables(demo))


def test_diagnostics_have_scores_resamples_and_settings(judged: Any) -> None:
    table = tables(judged)["law"]
    law = {label: entries[1].text for label, entries in zip(table.labels, table.rows, strict=True)}
    assert (law["R², all points"], law["R², held-out cells only"]) == ("0.9981", "0.9712")
    assert law["share of starts that agree"] == "0.75"
    assert law["resamples of the runs"] == "500"
    assert law["share of resamples that converged"] == "0.996"
    assert law["condition number"] == "1.234e+04"
    assert law["setting fit_from"] == "0.1"
    assert law["setting hold_out.sizes"] == '["medium"]'
    assert not set(law) & {"E", "alpha", "condition_number"}


def test_held_out_cells_give_measured_and_predicted_and_the_mark(judged: Any) -> None:
    reader = judged.reader
    run, law = reader.run_named("pretrain medium Tm=4"), reader.run_named(LAW)
    (cell,) = [row["cell"] for row in reader.rows if row["run_id"] == run]
    steps = range(100_000, 1_000_001, 50_000)  # what the fit leaves out is left out here too
    real = [reader.point(run, "train/total_loss", step)["value"] for step in steps]
    predicted = [reader.point(law, f"predicted/{cell}", step)["value"] for step in steps]
    errors = [other / one - 1 for one, other in zip(real, predicted, strict=True)]
    table = tables(judged)["held-out cells"]
    assert table.labels == ("medium Tm=2", "medium Tm=4")
    assert row(table, "medium Tm=4") == {
        "cell": "medium Tm=4",
        "status": "FINISHED",
        "tokens": "1,000,000",
        "measured": f"{real[-1]:.4g}",
        "predicted": f"{predicted[-1]:.4g}",
        "lower 95 %": f"{0.98 * predicted[-1]:.4g}",
        "upper 95 %": f"{1.02 * predicted[-1]:.4g}",
        "error": f"{100 * errors[-1]:+.2f} %".replace("-", "\u2212"),
        "mean |error|": f"{100 * statistics.mean(map(abs, errors)):.2f} %",
        "prediction": "blind",
        "prediction complete": "2026-09-21 14:16:05.000 UTC",
        "cell began": "2026-09-21 14:17:19.999 UTC",
        "prediction run": reader.run_named(PREDICTED),
        "run": run,
        "remark": DASH,
    }


def test_predicted_cells_are_listed_however_they_ended(judged: Any) -> None:
    reader = judged.reader
    run, law = reader.run_named("pretrain medium Tm=4"), reader.run_named(LAW)
    (cell,) = [row for row in reader.rows if row["run_id"] == run]
    cell["status"] = "FAILED"
    reader.texts[run]["tags"]["suite.failure"] = "diverged at 600,000 tokens"
    del reader.texts[law]["tags"][f"suite.held_out.{cell['cell']}"]  # a law reads what finished
    prediction = reader.texts[reader.run_named(PREDICTED)]["tags"]
    prediction["suite.predicts.0123456789abcdef"] = "true"
    table = tables(judged)["held-out cells"]
    assert table.labels == ("medium Tm=2", "medium Tm=4", "cell 0123456789abcdef")
    found = row(table, "medium Tm=4")
    assert found["status"] == "FAILED: diverged at 600,000 tokens"
    assert found["prediction"] == "not blind: the law of this report has not read the cell"
    assert row(table, "cell 0123456789abcdef")["status"] == "not begun"
    reader.texts[law]["tags"][f"suite.input.{cell['cell']}"] = run
    found = row(tables(judged)["held-out cells"], "medium Tm=4")
    assert found["prediction"] == "not blind: the law of this report was fitted to the cell"
    reader.rows[-1]["status"] = "RUNNING"  # the prediction, which counts when it is over
    assert tables(judged)["held-out cells"].labels == ("medium Tm=2",)


def test_what_a_prediction_hangs_on_is_a_remark(judged: Any, tmp_path: Path) -> None:
    reader = judged.reader
    (cell,) = [row["cell"] for row in reader.rows if row["name"] == "pretrain medium Tm=4"]
    tags = reader.texts[reader.run_named(LAW)]["tags"]
    tags["suite.law.caveats"] = json.dumps({"it hangs on C": [cell], "and on t": [cell]})
    table = tables(judged)["held-out cells"]
    assert row(table, "medium Tm=4")["remark"] == "it hangs on C; and on t"
    assert row(table, "medium Tm=2")["remark"] == DASH
    report = build_report(reader, "demo", ["pareto"], tmp_path / "out")
    assert verify(reader, "demo", report.manifest_path).ok
    tags["suite.law.caveats"] = "[]"
    assert [left.name for left in read_tracked(reader, "demo").left_out] == [LAW]


def test_held_out_cells_without_a_prediction_run_say_so(demo: Any) -> None:
    found = row(tables(demo)["held-out cells"], "medium Tm=4")
    assert found["prediction"] == "not blind: no prediction of this cell is on record"
    assert (found["prediction complete"], found["prediction run"]) == (DASH, DASH)
    assert (found["lower 95 %"], found["upper 95 %"]) == (DASH, DASH)
    assert found["cell began"] == "2026-09-21 14:17:19.999 UTC"


def test_held_out_cells_that_the_law_does_not_predict_are_listed(demo: Any) -> None:
    demo.reader.points = [p for p in demo.reader.points if not p["key"].startswith("predicted/")]
    found = row(tables(demo)["held-out cells"], "medium Tm=4")
    assert (found["measured"], found["predicted"], found["error"]) == (DASH, DASH, DASH)


def test_a_last_loss_that_is_not_finite_is_told_as_it_is(judged: Any) -> None:
    run = judged.reader.run_named("pretrain medium Tm=4")
    judged.reader.point(run, "train/total_loss", 1_000_000)["value"] = math.nan
    found = row(tables(judged)["held-out cells"], "medium Tm=4")
    assert (found["measured"], found["error"]) == ("NaN", "NaN")
    assert 0 < float(found["mean |error|"].removesuffix(" %")) < 5


def test_held_out_tests_stand_in_order_with_both_numbers(judged: Any) -> None:
    table = tables(judged)["held-out tests"]
    assert table.labels == (
        "size medium",
        "size small",
        "Tm = 4",
        "Tm = 16",
        "tokens after the first 0.25 of each curve",
        "tokens after the first 0.75 of each curve",
        "cell small Tm=4",
    )
    for place, _ in enumerate(SPLITS):
        _, error, r2 = (entry.text for entry in table.rows[place])
        assert (error, r2) == (f"{0.01 * (place + 1):.4g}", f"{0.99 - 0.001 * place:.4g}")


def test_ablation_gives_errors_and_their_ratio_to_the_full_law(judged: Any) -> None:
    table = tables(judged)["ablation"]
    assert table.labels == (
        "full law",
        "without the N term",
        "without the token term",
        "without the Tm term",
        "without the constant",
    )
    assert table.columns[:3] == ("law", "sizes: error", "sizes: ratio")
    for entries, ratio in zip(table.rows, RATIOS.values(), strict=True):
        texts = [entry.text for entry in entries]
        assert texts[2::2] == [f"{ratio:.2f}"] * 3
        assert texts[1::2] == [f"{error * ratio:.4g}" for error in (0.015, 0.035, 0.055)]


def test_a_law_that_was_not_ablated_has_one_row(judged: Any) -> None:
    judged.reader.points = [p for p in judged.reader.points if "/without_" not in p["key"]]
    assert tables(judged)["ablation"].labels == ("full law",)


def test_terms_of_other_laws_are_named_by_their_variable(judged: Any) -> None:
    law = judged.reader.run_named(LAW)
    judged.reader.log(law, "law/held_out/size/without_step/pooled_error", [0], [0.03])
    judged.reader.log(law, "law/held_out/size/without_repeats/pooled_error", [0], [0.06])
    table = tables(judged)["ablation"]
    assert row(table, "without the loop-step term")["sizes: ratio"] == "2.00"
    found = row(table, "without the repeats term")
    assert (found["sizes: ratio"], found["Tm: error"], found["Tm: ratio"]) == ("4.00", DASH, DASH)


def test_each_number_leads_to_the_tracked_value(judged: Any) -> None:
    origins = [
        entry.origin
        for table in law_tables(read_tracked(judged.reader, "demo"))
        for entries in table.rows
        for entry in entries
        if entry.origin is not None and entry.origin.step is not None
    ]
    assert len(origins) > 50
    for origin in origins:
        assert judged.reader.point(origin.run_id, origin.key, origin.step)["value"] == origin.value


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("law/alpha/upper", ("table: law parameters", "alpha", "upper 95 %")),
        ("law/converged_share", ("table: law", "share of resamples that converged", "value")),
        (
            "law/held_out/recurrence:16/full/r2_all",
            ("table: held-out tests", "Tm = 16", "R², all points"),
        ),
        (
            "law/held_out/first/without_tokens/pooled_error",
            ("table: ablation", "without the token term", "later tokens: error"),
        ),
    ],
)
def test_verify_names_an_edited_number(
    judged: Any, tmp_path: Path, key: str, place: tuple[str, str, str]
) -> None:
    report = build_report(judged.reader, "demo", ["pareto"], tmp_path / "out")
    assert verify(judged.reader, "demo", report.manifest_path).ok
    point = judged.reader.point(judged.reader.run_named(LAW), key, 0)
    old, point["value"] = point["value"], 0.123
    found = verify(judged.reader, "demo", report.manifest_path).differences
    assert [(d.panel, d.axes, d.series, d.old, d.new) for d in found] == [(*place, old, 0.123)]


def test_verify_names_a_remark_that_was_taken_away(judged: Any, tmp_path: Path) -> None:
    report = build_report(judged.reader, "demo", ["pareto"], tmp_path / "out")
    law = judged.reader.run_named(LAW)
    judged.reader.texts[law]["tags"]["suite.law.unidentified"] = "[]"
    (found,) = verify(judged.reader, "demo", report.manifest_path).differences
    assert (found.kind, found.axes, found.old) == ("missing", "B", "not identified")
