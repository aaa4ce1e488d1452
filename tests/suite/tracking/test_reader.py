from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric

import suite.tracking.reader
from suite.errors import InputError
from suite.tracking.curves import CURVE_SCHEMA
from suite.tracking.home import Home
from suite.tracking.reader import RUN_SCHEMA, TEXT_SCHEMA, live, open_reader
from suite.tracking.store import Store

MakeHome = Callable[[str], Home]


@pytest.fixture(scope="module")
def module_home(blank_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One home for tests that only add runs."""
    root = tmp_path_factory.mktemp("home")
    (root / "mlflow.db").write_bytes(blank_database.read_bytes())
    return Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")


def types(schema: object) -> dict[str, pl.DataType]:
    return {name: kind() for name, kind in dict(schema).items()}  # type: ignore[call-overload]


def test_an_empty_store_gives_empty_typed_frames(home: Home) -> None:
    reader = open_reader(home)
    assert dict(reader.runs("demo").schema) == types(RUN_SCHEMA)
    assert dict(reader.params([]).schema) == types(TEXT_SCHEMA)
    assert dict(reader.tags([]).schema) == types(TEXT_SCHEMA)
    assert dict(reader.curves([]).schema) == types(CURVE_SCHEMA)
    assert dict(reader.curves(["none"], ["x"]).schema) == types(CURVE_SCHEMA)


def test_an_empty_run_is_there_without_points(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="größe Tm=2", tags={})
    reader = open_reader(home)
    (row,) = reader.runs("demo").rows(named=True)
    assert row["run_id"] == run_id
    assert row["name"] == "größe Tm=2"
    assert row["status"] == "RUNNING"
    assert (row["kind"], row["cell"], row["end_time"], row["parent_run_id"]) == (None,) * 4
    assert dict(reader.runs("demo").schema) == types(RUN_SCHEMA)
    assert reader.curves([run_id]).is_empty()
    assert reader.params([run_id]).is_empty()


def test_runs_name_kind_cell_and_parent_and_come_by_start(home: Home) -> None:
    store = Store(home)
    parent = store.create_run("demo", name="p", tags={"suite.kind": "search", "suite.cell": "c0"})
    children = [
        store.create_run("demo", name=f"t{n}", tags={"suite.kind": "trial"}, parent=parent)
        for n in range(3)
    ]
    store.create_run("other", name="x", tags={"suite.kind": "trial"})
    store.set_status(parent, "FINISHED")
    runs = open_reader(home).runs("demo")
    assert set(runs["run_id"]) == {parent, *children}
    assert runs.equals(runs.sort("start_time", "run_id"))
    by_run = {row["run_id"]: row for row in runs.iter_rows(named=True)}
    assert by_run[parent]["kind"] == "search"
    assert by_run[parent]["cell"] == "c0"
    assert by_run[parent]["status"] == "FINISHED"
    assert by_run[parent]["end_time"] >= by_run[parent]["start_time"]
    assert {by_run[child]["parent_run_id"] for child in children} == {parent}


def test_deleted_runs_do_not_appear(home: Home) -> None:
    store = Store(home)
    kept, dropped = (store.create_run("demo", name=name, tags={}) for name in "ab")
    store.client.delete_run(dropped)
    assert open_reader(home).runs("demo")["run_id"].to_list() == [kept]


def test_values_come_back_as_they_were_logged(home: Home) -> None:
    values = [0.0, 1.0, -2.5, 5e-324, 1.5e308, math.pi, math.nan, math.inf, -math.inf]
    store = Store(home)
    run_id = store.create_run("demo", name="r", tags={})
    metrics = [Metric("loss", value, 100 + n, n) for n, value in enumerate(values)]
    store.client.log_batch(run_id, metrics=metrics)
    curves = open_reader(home).curves([run_id])
    assert [repr(value) for value in curves["value"]] == [repr(value) for value in values]
    assert curves["step"].to_list() == list(range(len(values)))
    assert curves["timestamp"].to_list() == [100 + n for n in range(len(values))]
    assert set(curves["attempt"]) == {1}
    assert not curves["superseded"].any()


def test_whole_numbers_first_do_not_make_a_column_of_integers(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="r", tags={})
    store.client.log_batch(
        run_id, metrics=[Metric("x", v, 1, n) for n, v in enumerate((1, 2, 0.5))]
    )
    assert open_reader(home).curves([run_id])["value"].to_list() == [1.0, 2.0, 0.5]


def test_steps_reach_beyond_32_bits(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="r", tags={})
    store.client.log_batch(run_id, metrics=[Metric("x", 1.0, 1, 20_000_000_000)])
    assert open_reader(home).curves([run_id])["step"].to_list() == [20_000_000_000]


def test_several_values_at_one_step_are_kept_and_the_newest_lives(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="r", tags={})
    points = [Metric("x", 1.0, 10, 5), Metric("x", 3.0, 12, 5), Metric("x", 2.0, 11, 5)]
    store.client.log_batch(run_id, metrics=points)
    store.client.log_batch(run_id, metrics=points[:1])  # an exact duplicate
    curves = open_reader(home).curves([run_id])
    assert curves["value"].to_list() == [1.0, 2.0, 3.0]
    assert live(curves)["value"].to_list() == [3.0]


def test_only_the_keys_that_are_asked_for(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="r", tags={})
    keys = ["train/total_loss", "val/total_loss", "value/relative_error/prose"]
    store.client.log_batch(run_id, metrics=[Metric(key, 1.0, 1, 0) for key in keys])
    reader = open_reader(home)
    assert reader.curves([run_id])["key"].to_list() == keys
    assert reader.curves([run_id], keys[1:])["key"].to_list() == keys[1:]
    assert reader.curves([run_id], ["none"]).is_empty()
    assert reader.curves([run_id], []).is_empty()


def test_many_runs_are_read_in_pieces(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(home)
    runs = [store.create_run("demo", name=f"r{n}", tags={"n": str(n)}) for n in range(5)]
    for n, run_id in enumerate(runs):
        store.log_params(run_id, {"n": str(n)})
        store.client.log_batch(run_id, metrics=[Metric("x", float(n), 1, 0)])
    reader = open_reader(home)
    whole = (reader.params(runs), reader.tags(runs), reader.curves(runs))
    monkeypatch.setattr(suite.tracking.reader, "_CHUNK", 2)
    pieces = (reader.params(runs), reader.tags(runs), reader.curves([*runs, *runs]))
    assert all(a.equals(b) for a, b in zip(whole, pieces, strict=True))
    assert sorted(whole[2]["value"]) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_is_read_in_unicode_was_written_in_unicode(home: Home) -> None:
    store = Store(home)
    run_id = store.create_run("demo", name="größe – 家", tags={"note": "naïve 家"})  # noqa: RUF001
    store.log_params(run_id, {"size.name": "größe", "quote": "it's; DROP TABLE runs --"})
    reader = open_reader(home)
    assert reader.runs("demo")["name"].to_list() == ["größe – 家"]  # noqa: RUF001
    assert ("note", "naïve 家") in reader.tags([run_id]).select("key", "value").rows()
    assert reader.params([run_id])["value"].to_list() == ["it's; DROP TABLE runs --", "größe"]
    assert reader.runs("demo' OR '1'='1").is_empty()


NAMES = count()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b/c"]),
            # the largest doubles are how MLflow writes the infinities
            st.floats()
            .filter(lambda x: not math.isfinite(x) or abs(x) < 1.797e308)
            .map(lambda x: x + 0.0),  # sqlite drops the sign of zero
            st.integers(0, 5),
            st.integers(0, 2**53),
        ),
        max_size=20,
        unique_by=lambda point: (point[0], point[2], point[3]),
    )
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_points_come_back(module_home: Home, points: list[tuple[str, float, int, int]]) -> None:
    store = Store(module_home)
    run_id = store.create_run("demo", name=str(next(NAMES)), tags={})
    metrics = [Metric(key, value, time, step) for key, value, time, step in points]
    store.client.log_batch(run_id, metrics=metrics)
    read = open_reader(module_home).curves([run_id]).select("key", "value", "timestamp", "step")
    assert sorted(map(repr, read.rows())) == sorted(map(repr, points))


def test_a_home_without_runs_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs yet; start with `suite run STUDY`"):
        open_reader(Home.at(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_server_cannot_be_read_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(InputError, match="is a server"):
        open_reader(Home.at(tmp_path))


def test_a_database_that_is_not_there_is_not_made_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(InputError, match=r"none\.db holds no MLflow runs yet"):
        open_reader(Home.at(tmp_path / "home"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"this is no database at all, but a text file"])
def test_a_file_that_is_no_mlflow_database(tmp_path: Path, content: bytes) -> None:
    home = Home.at(tmp_path)
    home.database.write_bytes(content)
    with pytest.raises(InputError, match=r"mlflow\.db") as caught:
        open_reader(home)
    assert "\n" not in str(caught.value)
    assert home.database.read_bytes() == content


def test_a_database_of_something_else(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with sqlite3.connect(home.database) as database:
        database.execute("CREATE TABLE tracks (name TEXT)")
    with pytest.raises(InputError, match="holds no MLflow runs yet"):
        open_reader(home)
