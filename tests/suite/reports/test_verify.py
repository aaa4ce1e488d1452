from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.errors import InputError
from suite.reports import Report, Verification, build_report, verify

LOSS = "train/total_loss"


def check(maker: Any, report: Report) -> Verification:
    return verify(maker.reader, "demo", report.manifest_path)


def test_untouched_store_agrees(demo: Any, demo_report: Report) -> None:
    found = check(demo, demo_report)
    assert found.ok
    assert list(found.lines()) == []
    assert found.num_entries == demo_report.manifest.entries.height
    assert demo.reader.run_named("pretrain small Tm=2") in found.run_ids


def test_changed_value_names_panel_run_and_both_values(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("pretrain small Tm=4")
    point = demo.reader.point(run, LOSS, 500_000)
    old = point["value"]
    point["value"] = 1.25
    found = check(demo, demo_report)
    assert not found.ok
    assert {(d.kind, d.panel, d.run_id, d.step) for d in found.differences} == {
        ("changed", "loss_grid", run, 500_000),
        ("changed", "parity", run, 500_000),
        ("changed", "residuals", run, 500_000),
    }
    assert str(found.differences[0]) == (
        f"loss_grid, Tm = 4, N = 60K, Real: run {run}, {LOSS} at 500000 tokens: "
        f"the report shows {old!r}, the store has 1.25"
    )


def test_shifted_step_is_missing_there_and_added_here(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("pretrain small Tm=4")
    demo.reader.point(run, LOSS, 500_000)["step"] = 500_001
    grid = [d for d in check(demo, demo_report).differences if d.panel == "loss_grid"]
    assert {(d.kind, d.step) for d in grid} == {("missing", 500_000), ("added", 500_001)}


def test_deleted_row_is_missing(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("calibrate small Tm=2 on pydocs niter=8")
    key = "value/relative_error/worked_math"
    demo.reader.points.remove(demo.reader.point(run, key, 2_000))
    assert {
        (d.kind, d.panel, d.run_id, d.key, d.step) for d in check(demo, demo_report).differences
    } == {
        ("missing", "error_grid", run, key, 2_000),
        ("missing", "table: value errors", run, key, 2_000),
    }


def test_deleted_run_is_missing_everywhere(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("pretrain medium Tm=2")
    demo.reader.forget(run)
    found = check(demo, demo_report)
    gone = [d for d in found.differences if d.run_id == run]
    assert {d.kind for d in gone} == {"missing"}
    assert {d.panel for d in gone} == {
        "loss_grid", "parity", "residuals", "table: cells", "table: held-out cells"
    }  # fmt: skip
    assert any(f"run {run}" in line and "more missing" in line for line in found.lines(limit=3))


def test_deleted_stage_is_missing_rather_than_an_error(demo: Any, demo_report: Report) -> None:
    for row in list(demo.reader.rows):
        demo.reader.forget(row["run_id"])
    found = check(demo, demo_report)
    assert len(found.differences) == found.num_entries
    assert {d.kind for d in found.differences} == {"missing"}


def test_swapped_run_names_both_runs(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("pretrain small Tm=2")
    for holder in (*demo.reader.rows, *demo.reader.points):
        if holder["run_id"] == run:
            holder["run_id"] = "f" * 32
    demo.reader.texts["f" * 32] = demo.reader.texts.pop(run)
    kinds = {
        (d.kind, d.run_id) for d in check(demo, demo_report).differences if d.panel == "loss_grid"
    }
    assert ("missing", run) in kinds
    assert ("added", "f" * 32) in kinds


@pytest.mark.parametrize(
    ("name", "key", "value", "panel"),
    [
        ("pretrain small Tm=2", "parameters.total", "99000", "table: cells"),
        ("law looplm_total", "huber_delta", "0.5", "table: law"),
        ("calibrate small Tm=2 on pydocs niter=8", "rank", "7", "table: key errors"),
    ],
)
def test_changed_setting_is_named(
    demo: Any, demo_report: Report, name: str, key: str, value: str, panel: str
) -> None:
    run = demo.reader.run_named(name)
    old = demo.reader.texts[run]["params"][key]
    demo.reader.texts[run]["params"][key] = value
    changed = [
        (d.kind, d.old, d.new)
        for d in check(demo, demo_report).differences
        if (d.panel, d.run_id, d.key) == (panel, run, f"param:{key}")
    ]
    assert ("changed", old, value) in changed


def test_changed_score_of_the_law_is_named(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("law looplm_total")
    demo.reader.point(run, "law/r2/held_out", 0)["value"] = 0.999
    assert {(d.panel, d.axes, d.old, d.new) for d in check(demo, demo_report).differences} == {
        ("parity", "law looplm_total", 0.9712, 0.999),
        ("table: law", "R², held-out cells only", 0.9712, 0.999),
    }


def test_newer_runs_are_added(demo: Any, demo_report: Report) -> None:
    demo.search(name="later", trials=2)
    assert {(d.kind, d.panel) for d in check(demo, demo_report).differences} == {
        ("added", "pareto"),
        ("added", "table: front"),
    }


def test_logged_reports_are_no_difference(demo: Any, demo_report: Report) -> None:
    demo.reader.add("report", "report")
    assert check(demo, demo_report).ok


def test_panels_asked_for_are_those_rebuilt(demo: Any, tmp_path: Path) -> None:
    chosen = build_report(demo.reader, "demo", ["parity"], tmp_path / "out")
    assert check(demo, chosen).ok


@pytest.mark.parametrize("name", ["parity.png", "parity.svg", "index.html"])
def test_edited_and_missing_artifacts_are_named(demo: Any, tmp_path: Path, name: str) -> None:
    chosen = build_report(demo.reader, "demo", ["parity"], tmp_path / "out")
    path = chosen.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    (edited,) = check(demo, chosen).edited
    assert edited.path == path
    assert "was edited" in str(edited)
    path.unlink()
    (line,) = check(demo, chosen).lines()
    assert line == f"{path} is missing"


def test_manifest_cannot_point_out_of_its_folder(
    demo: Any, demo_report: Report, tmp_path: Path
) -> None:
    document = json.loads(demo_report.manifest_path.read_text())
    document["artifacts"] = {"../../etc/passwd": "0" * 64}
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document))
    (edited,) = verify(demo.reader, "demo", path).edited
    assert edited.path == tmp_path / "passwd"
    assert edited.found is None


def test_manifest_of_another_study_is_refused(demo: Any, demo_report: Report) -> None:
    with pytest.raises(InputError, match="is of the study 'demo', not of 'other'"):
        verify(demo.reader, "other", demo_report.manifest_path)


def test_missing_manifest_is_refused_with_the_cure(demo: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="suite report"):
        verify(demo.reader, "demo", tmp_path / "manifest.json")


def test_a_file_that_is_not_part_of_the_report_is_named(demo: Any, tmp_path: Path) -> None:
    chosen = build_report(demo.reader, "demo", ["parity"], tmp_path / "out")
    (chosen.folder / "parity2.png").write_bytes(b"")
    (chosen.folder / ".DS_Store").write_bytes(b"")
    (line,) = check(demo, chosen).lines()
    assert line == (
        f"{chosen.folder / 'parity2.png'} is not part of the report; the manifest does not name it"
    )


def test_words_that_no_entry_holds_are_compared(demo: Any, demo_report: Report) -> None:
    run = demo.reader.run_named("law looplm_total")
    demo.reader.texts[run]["tags"]["suite.law.warnings"] = '["all is well"]'
    found = check(demo, demo_report)
    assert not found.ok
    assert list(found.lines()) == [
        "index.html: the page says 'Law: gamma and t3 are not identified', the store gives "
        "'Law: all is well'"
    ]


def test_warnings_name_runs_of_a_dirty_tree_and_fail_only_when_strict(
    demo: Any, demo_report: Report
) -> None:
    for texts in demo.reader.texts.values():
        texts["tags"] |= {"suite.git.commit": "a" * 40, "suite.git.dirty": "false"}
    assert check(demo, demo_report).warnings == ()
    assert check(demo, demo_report).passes(strict=True)
    run = demo.reader.run_named("pretrain small Tm=2")
    demo.reader.texts[run]["tags"]["suite.git.dirty"] = "true"
    found = check(demo, demo_report)
    assert found.warnings[0] == (
        "made from a source tree with changes that no commit holds: 1 of "
        f"{len(found.run_ids)} runs: pretrain small Tm=2 ({run})"
    )
    assert list(found.lines()) == []
    assert found.passes()
    assert not found.passes(strict=True)


def test_runs_that_the_report_does_not_show_bring_no_warning(
    demo: Any, demo_report: Report
) -> None:
    for texts in demo.reader.texts.values():
        texts["tags"] |= {"suite.git.commit": "a" * 40, "suite.git.dirty": "false"}
    dirty = {"suite.git.commit": "b" * 40, "suite.git.dirty": "true"}
    demo.reader.add("report", "report demo", tags=dirty)
    assert check(demo, demo_report).warnings == ()


def test_a_report_of_imported_runs_agrees_under_their_new_ids(
    demo: Any, demo_report: Report
) -> None:
    """An import gives every run a new id, and leaves the files as they were."""
    new = {row["run_id"]: row["run_id"].replace("0", "e") for row in demo.reader.rows}
    for holder in (*demo.reader.rows, *demo.reader.points):
        holder["run_id"] = new[holder["run_id"]]
    for row in demo.reader.rows:
        row["parent_run_id"] = new.get(row["parent_run_id"])
    for old, texts in list(demo.reader.texts.items()):
        texts["tags"] = {key: new.get(value, value) for key, value in texts["tags"].items()}
        texts["tags"] |= {"suite.imported.run_ids": old, "suite.imported.studies": "demo"}
        demo.reader.texts[new[old]] = demo.reader.texts.pop(old)
    demo.reader.study = "renamed"
    found = verify(demo.reader, "renamed", demo_report.manifest_path)
    assert (found.ok, list(found.lines())) == (True, [])
    assert set(found.run_ids) <= set(new.values())
    demo.reader.point(new[f"{1:032x}"], LOSS, 500_000)["value"] = 1.25
    (line, *_) = verify(demo.reader, "renamed", demo_report.manifest_path).lines()
    assert new[f"{1:032x}"] in line
