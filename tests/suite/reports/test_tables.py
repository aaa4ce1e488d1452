from __future__ import annotations

from typing import Any

from suite.reports.tables import Table, build_tables
from suite.reports.tracked import read_tracked


def tables(maker: Any) -> dict[str, Table]:
    return {table.name: table for table in build_tables(read_tracked(maker.reader, "demo"))}


def texts(table: Table, label: str) -> dict[str, str]:
    row = table.rows[table.labels.index(label)]
    return {column: entry.text for column, entry in zip(table.columns, row, strict=True)}


def test_study_with_every_stage_has_every_table(demo: Any) -> None:
    of_the_law = ["law parameters", "law", "held-out cells"]
    others = ["cells", "key errors", "value errors", "front"]
    assert list(tables(demo)) == [*of_the_law, *others]


def test_each_number_leads_to_the_tracked_value(demo: Any) -> None:
    origins = [
        entry.origin
        for table in tables(demo).values()
        for row in table.rows
        for entry in row
        if entry.origin is not None and entry.origin.step is not None
    ]
    assert len(origins) > 50
    for origin in origins:
        assert demo.reader.point(origin.run_id, origin.key, origin.step)["value"] == origin.value


def test_cells_give_final_losses_and_role(demo: Any) -> None:
    table = tables(demo)["cells"]
    assert table.labels == ("small Tm=2", "small Tm=4", "medium Tm=2", "medium Tm=4")
    row = texts(table, "medium Tm=4")
    run = demo.reader.run_named("pretrain medium Tm=4")
    last = demo.reader.point(run, "train/total_loss", 1_000_000)["value"]
    assert row["train/total_loss"] == f"{last:.4g}"
    assert (row["N"], row["Tm"], row["tokens"], row["law"]) == (
        "172,673",
        "4",
        "1,000,000",
        "held out",
    )


def test_failed_cell_shows_reason_and_last_values(maker: Any) -> None:
    maker.pretraining(
        sizes={"small": 1000}, recurrences=(2,), fail={("small", 2): "loss is NaN"}, points=60
    )
    row = texts(tables(maker)["cells"], "small Tm=2")
    assert row["status"] == "FAILED: loss is NaN"
    assert (row["tokens"], row["planned"]) == ("333,333", "1,000,000")
    assert row["train/total_loss"] == "NaN"


def test_errors_are_listed_at_each_budget(demo: Any) -> None:
    table = tables(demo)["value errors"]
    assert table.columns[5:8] == ("1,000", "2,000", "4,000")
    row = texts(table, "small Tm=2: pydocs → worked_math niter=8")
    run = demo.reader.run_named("calibrate small Tm=2 on pydocs niter=8")
    value = demo.reader.point(run, "value/relative_error/worked_math", 4_000)["value"]
    assert row["4,000"] == f"{value:.4g}"
    order = [row[3].text for row in table.rows]
    assert order == ["8", "1", "exact", "8", "1", "exact"]


def test_budget_that_a_run_did_not_reach_is_a_dash(maker: Any) -> None:
    maker.calibration(models={"x": (0.1, 0.2)}, fail="out of memory")
    row = texts(tables(maker)["key errors"], "x: FineWeb → OpenR1 niter=8")
    assert (row["160,000"], row["status"]) == ("\u2013", "FAILED: out of memory")


def test_front_lists_only_trials_that_none_beats(maker: Any) -> None:
    maker.search(trials=20)
    rows = [
        (float(entries[5].origin.value), float(entries[6].origin.value))
        for entries in tables(maker)["front"].rows
    ]
    assert rows == sorted(rows)
    assert [cost for _, cost in rows] == sorted((cost for _, cost in rows), reverse=True)
