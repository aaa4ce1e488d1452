from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.errors import SuiteError
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import DatasetRecord, Store, flatten

MakeHome = Callable[[str], Home]


def new_run(store: Store, study: str = "demo", name: str = "a run") -> str:
    return store.create_run(study, name=name, tags={})


def test_four_processes_may_make_the_schema_at_once(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.tracking.client", "suite.tracking.store"])
    processes = [context.Process(target=Store, args=(home,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    run_id = new_run(Store(home))
    assert open_reader(home).runs("demo")["run_id"].to_list() == [run_id]


def test_the_working_directory_stays_clean(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    store = Store(home)
    file = tmp_path / "file.txt"
    file.write_text("x")
    store.log_artifact(new_run(store), file)
    assert not list(elsewhere.iterdir())
    assert {path.name for path in home.root.iterdir()} == {"mlflow.db", "store.lock", "artifacts"}


def test_a_study_has_one_experiment(home: Home) -> None:
    first, second = Store(home), Store(home)
    assert first.experiment("demo") == second.experiment("demo") == first.experiment("demo")
    assert first.experiment("other") != first.experiment("demo")


def test_an_experiment_deleted_by_hand_is_named_with_its_cure(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    identity = store.experiment("demo")
    store.client.delete_experiment(identity)
    with pytest.raises(SuiteError) as caught:
        Store(home).experiment("demo")
    assert "'demo' was deleted" in str(caught.value)
    assert f"mlflow experiments restore -x {identity}" in str(caught.value)
    assert open_reader(home).runs("demo").is_empty()
    store.client.restore_experiment(identity)
    assert Store(home).experiment("demo") == identity
    assert open_reader(home).runs("demo")["run_id"].to_list() == [run_id]


def test_two_homes_in_one_process_do_not_mix(make_home: MakeHome, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("x")
    homes = [make_home("one"), make_home("two")]
    stores = [Store(home) for home in homes]
    runs = [new_run(store, name=store.home.root.name) for store in stores]
    for store, run_id in zip(stores, runs, strict=True):
        store.log_params(run_id, {"home": store.home.root.name})
        store.log_artifact(run_id, file)
    for home, run_id in zip(homes, runs, strict=True):
        reader = open_reader(home)
        assert reader.runs("demo").select("run_id", "name").rows() == [(run_id, home.root.name)]
        assert reader.params(runs).rows() == [(run_id, "home", home.root.name)]
        assert [path.name for path in (home.artifacts / "demo").iterdir()] == [run_id]


def test_an_artifact_is_a_copy_inside_the_home(home: Home, tmp_path: Path) -> None:
    store = Store(home)
    run_id = new_run(store)
    file = tmp_path / "page ü.html"
    file.write_bytes(b"\x00one")
    store.log_artifact(run_id, file, "report/figures")
    store.log_artifact(run_id, file)
    file.unlink()
    folder = home.artifacts / "demo" / run_id / "artifacts"
    assert (folder / "report" / "figures" / "page ü.html").read_bytes() == b"\x00one"
    assert (folder / "page ü.html").read_bytes() == b"\x00one"
    assert store.client.get_run(run_id).info.artifact_uri == (
        f"mlflow-artifacts:/demo/{run_id}/artifacts"
    )


def test_an_experiment_with_a_place_of_its_own_keeps_it(home: Home, tmp_path: Path) -> None:
    """Made by hand, or on a server: artifacts then go where MLflow would put them."""
    store = Store(home)
    store.client.create_experiment("demo", artifact_location=str(tmp_path / "elsewhere"))
    run_id = new_run(store)
    file = tmp_path / "file.txt"
    file.write_text("x")
    store.log_artifact(run_id, file, "folder")
    kept = tmp_path / "elsewhere" / run_id / "artifacts" / "folder" / "file.txt"
    assert kept.read_text() == "x"
    assert not home.artifacts.exists()


def test_a_home_may_move_with_all_that_it_holds(make_home: MakeHome, tmp_path: Path) -> None:
    before = make_home("home")
    store = Store(before)
    run_id = new_run(store, name="größe 1")
    file = tmp_path / "page.html"
    file.write_text("one")
    store.log_artifact(run_id, file, "report")
    moved = tmp_path / "other disk" / "zuhause – 家 50% #1"  # noqa: RUF001 - a dash that is not ASCII
    shutil.move(before.root, moved)

    home = Home.at(moved)
    assert open_reader(home).runs("demo")["name"].to_list() == ["größe 1"]
    store = Store(home)
    file.write_text("two")
    store.log_artifact(run_id, file, "report")
    kept = home.artifacts / "demo" / run_id / "artifacts" / "report" / "page.html"
    assert kept.read_text() == "two"
    assert not before.root.exists()
    # of the study, the database holds no path at all
    with sqlite3.connect(home.database) as database:
        dump = [line for line in database.iterdump() if "/home" in line or "zuhause" in line]
    assert not [line for line in dump if "Default" not in line]


def test_a_parameter_that_mlflow_would_cut_is_kept_whole_as_an_artifact(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    params = {"fits": "y" * 6_000, "a/key: long": "ß" * 6_001}
    store.log_params(run_id, params)
    store.log_params(run_id, params)  # the same again is fine
    logged = store.client.get_run(run_id).data.params
    assert logged["fits"] == params["fits"]
    digest = hashlib.sha256(params["a/key: long"].encode()).hexdigest()
    name = f"a_key__long-{digest[:16]}.txt"
    assert logged["a/key: long"] == (
        f"sha256:{digest} of 6001 characters in the artifact params/{name}"
    )
    kept = home.artifacts / "demo" / run_id / "artifacts" / "params" / name
    assert kept.read_text(encoding="utf-8") == params["a/key: long"]


def test_artifacts_do_not_follow_an_edited_location_out_of_the_home(
    home: Home, tmp_path: Path
) -> None:
    run_id = new_run(Store(home))
    with sqlite3.connect(home.database) as database:
        database.execute("UPDATE runs SET artifact_uri = 'mlflow-artifacts:/../../out'")
    (tmp_path / "note").write_text("x")
    with pytest.raises(SuiteError, match=r"leads out of .*home/artifacts"):
        Store(home).log_artifact(run_id, tmp_path / "note")
    assert not (home.root.parent / "out").exists()


def test_a_tag_that_mlflow_would_cut_is_refused(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    store.set_tags(run_id, {"t": "x" * 8_000})
    with pytest.raises(SuiteError, match="the tag t has 8001 characters"):
        store.set_tags(run_id, {"t": "x" * 8_001})
    with pytest.raises(SuiteError, match="the tag t has 8001 characters"):
        store.create_run("demo", name="n", tags={"t": "x" * 8_001})
    assert len(open_reader(home).runs("demo")) == 1


def test_more_params_and_tags_than_fit_into_one_request(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    many = {f"key.{number:03}": str(number) for number in range(250)}
    store.log_params(run_id, many)
    store.set_tags(run_id, many)
    reader = open_reader(home)
    assert reader.params([run_id]).select("key", "value").rows() == sorted(many.items())
    assert set(many.items()) < set(reader.tags([run_id]).select("key", "value").rows())


def test_tags_are_replaced_and_dropped(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    store.set_tags(run_id, {"a": "1", "b": "ü"})
    store.set_tags(run_id, {"a": "2"})
    store.drop_tags(run_id, {"b"})
    tags = store.client.get_run(run_id).data.tags
    assert tags["a"] == "2"
    assert "b" not in tags
    assert tags["suite.study"] == "demo"


def test_corpora_are_datasets_of_the_run_once(home: Home) -> None:
    store = Store(home)
    run_id = new_run(store)
    record = DatasetRecord(
        name="prosa ü",
        digest="0123456789abcdef",
        source="files:data/*.jsonl",
        context="training",
        profile={"num_documents": 3},
    )
    store.log_datasets(run_id, [record])
    store.log_datasets(run_id, [record])
    inputs = store.client.get_run(run_id).inputs
    assert inputs is not None
    (logged,) = inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("prosa ü", "0123456789abcdef")
    assert json.loads(logged.dataset.source) == {"source": "files:data/*.jsonl"}
    assert json.loads(logged.dataset.profile or "") == {"num_documents": 3}
    assert {tag.key: tag.value for tag in logged.tags} == {"mlflow.data.context": "training"}


def test_telemetry_is_off(home: Home) -> None:
    Store(home)
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize(
    ("settings", "flat"),
    [
        ({}, {}),
        ({"a": {"b": {"c": 1}, "d": "x"}, "e": 2.5}, {"a.b.c": "1", "a.d": "x", "e": "2.5"}),
        ({"a": None, "b": True, "c": False}, {"a": "null", "b": "true", "c": "false"}),
        ({"a": [1, "exact", None]}, {"a": '[1, "exact", null]'}),
        ({"a": (0.9, 0.95), "b": ()}, {"a": "[0.9, 0.95]", "b": "[]"}),
        (
            {"a": 3e-4, "b": 1e-10, "c": 20_000_000_000},
            {"a": "0.0003", "b": "1e-10", "c": "2" + "0" * 10},
        ),
        ({"a": "größe", "b": ["größe"]}, {"a": "größe", "b": '["größe"]'}),
        ({"a": {}}, {}),
    ],
)
def test_settings_flatten_to_stable_text(settings: dict[str, object], flat: dict[str, str]) -> None:
    assert flatten(settings) == flat


@pytest.mark.parametrize("value", [{1}, object(), b"x", Path("x")])
def test_settings_without_a_stable_text_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match=rf"a\.b holds a {type(value).__name__}"):
        flatten({"a": {"b": value}})


def test_a_schema_that_is_cut_off_leaves_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import suite.tracking.store as module

    home = Home.at(tmp_path / "home")
    whole = module._make_database

    def cut_off(path: Path) -> None:
        whole(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_make_database", cut_off)
    with pytest.raises(KeyboardInterrupt):
        Store(home)
    assert not home.database.exists()
    monkeypatch.undo()
    assert Store(home).experiment("study")
