from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from suite.doctor.checkpoint_checks import is_whole_model
from suite.tracking.home import Home
from suite.tracking.origins import RUN_ID_TAG
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

CHECK = "checkpoints and models"


def save_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.ones((8, 8))}, folder / "model.safetensors")


@pytest.fixture
def finished(store: Store, begin: Callable[..., RunRecorder]) -> Callable[[], str]:
    """A finished pretraining run with its model."""

    def make() -> str:
        recorder = begin("pretraining")
        recorder.end("FINISHED")
        save_model(store.home.checkpoints / recorder.run_id / "model")
        return recorder.run_id

    return make


def leave_states(home: Home, run_id: str) -> list[Path]:
    folder = home.checkpoints / run_id
    folder.mkdir(parents=True, exist_ok=True)
    states = [folder / f"tokens-{tokens:015d}.ckpt" for tokens in (64, 128)]
    for state in states:
        state.write_bytes(b"x" * 1_500)
    return states


def trashed(home: Home) -> list[str]:
    return sorted(path.name for path in (home.root / "trash").glob("*/checkpoints/*"))


def test_states_of_a_finished_run_are_removed_and_its_model_stays(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    run_id = finished()
    states = leave_states(store.home, run_id)
    finding = examine(store.home).only(CHECK).finding
    assert finding.what == f"run {run_id} is finished, but keeps 2 state(s) to resume from"
    assert finding.where == (f"{store.home.checkpoints / run_id}, 3.0 kB",)
    mended = examine(store.home, fix=True)
    assert mended.only(CHECK).mended == "removed; the model stays"
    assert not any(state.exists() for state in states)
    assert is_whole_model(store.home.checkpoints / run_id / "model")
    assert mended.good(CHECK)[-1] == "the models of 1 finished pretraining runs are there"


def test_states_of_a_run_that_is_not_finished_stay(
    store: Store, begin: Callable[..., RunRecorder], examine: Callable[..., Any]
) -> None:
    recorder = begin("pretraining")
    recorder.end("KILLED")
    states = leave_states(store.home, recorder.run_id)
    assert examine(store.home, fix=True).left == []
    assert all(state.exists() for state in states)


def test_states_stay_where_the_model_of_a_finished_run_is_gone(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    run_id = finished()
    states = leave_states(store.home, run_id)
    model = store.home.checkpoints / run_id / "model" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-8])
    finding = examine(store.home, fix=True).only(CHECK).finding
    assert (finding.severity, finding.mend) == ("warning", None)
    assert finding.what.startswith("the models of 1 finished pretraining run(s) are not there")
    assert finding.where == (str(model.parent),)
    assert all(state.exists() for state in states)


def test_checkpoints_of_a_deleted_run_go_to_the_trash_and_come_back(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    run_id, other = finished(), finished()
    store.client.delete_run(run_id)
    finding = examine(store.home).only(CHECK).finding
    assert finding.what == f"run {run_id} of 'demo' was deleted; its checkpoints are still here"
    assert examine(store.home, fix=True).left == []
    assert [path.name for path in store.home.checkpoints.iterdir()] == [other]
    assert trashed(store.home) == [run_id]
    assert examine(store.home, fix=True)[CHECK][0].finding.severity == "ok"

    store.client.restore_run(run_id)
    assert examine(store.home).left[0] == (
        f"run {run_id} was restored, but its checkpoints are in the trash"
    )
    mended = examine(store.home, fix=True)
    assert mended.left == []
    assert is_whole_model(store.home.checkpoints / run_id / "model")
    assert trashed(store.home) == []


def test_checkpoints_of_runs_that_are_not_in_the_store_go_to_the_trash(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    finished()
    for name in ("a" * 32, "b" * 32):
        leave_states(store.home, name)
    (store.home.checkpoints / "mine").mkdir()
    finding = examine(store.home).only(CHECK).finding
    assert finding.what.startswith("2 folder(s) of checkpoints belong to runs that sqlite:///")
    assert finding.where == tuple(
        f"{store.home.checkpoints / name}, 3.0 kB" for name in ("a" * 32, "b" * 32)
    )
    assert examine(store.home, fix=True).left == []
    assert trashed(store.home) == ["a" * 32, "b" * 32]
    assert (store.home.checkpoints / "mine").is_dir()


def test_when_no_checkpoint_is_of_the_store_they_are_taken_for_those_of_another(
    store: Store, examine: Callable[..., Any]
) -> None:
    leave_states(store.home, "a" * 32)
    for _ in range(2):
        outcome = examine(store.home, fix=True).only(CHECK)
        assert outcome.finding.mend is None
        assert "set MLFLOW_TRACKING_URI" in outcome.finding.remedy
        assert outcome.left
    assert len(list(store.home.checkpoints.glob("*/*.ckpt"))) == 2


def test_a_second_move_to_the_trash_replaces_nothing(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    finished()
    for content in ("first", "second"):
        states = leave_states(store.home, "a" * 32)
        states[0].write_text(content)
        assert examine(store.home, fix=True).left == []
    kept = (store.home.root / "trash").glob("*/checkpoints/*/tokens-000000000000064.ckpt")
    assert sorted(path.read_text() for path in kept) == ["first", "second"]


def test_a_deleted_run_of_a_study_at_work_keeps_its_checkpoints(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    run_id = finished()
    store.client.delete_run(run_id)
    with store.home.hold("demo"):
        finding = examine(store.home, fix=True).only(CHECK).finding
        assert (finding.severity, finding.mend) == ("note", None)
    with store.home.hold("another"):
        assert examine(store.home, fix=True).only(CHECK).mended is not None
    assert trashed(store.home) == [run_id]


def test_nothing_moves_while_the_store_cannot_be_read(
    store: Store, finished: Callable[[], str], examine: Callable[..., Any]
) -> None:
    finished()
    leave_states(store.home, "a" * 32)
    content = store.home.database.read_bytes()
    store.home.database.write_bytes(content[:4096] + b"\xff" * 100_000)
    examine(store.home, fix=True)
    store.home.database.write_bytes(content)
    assert not (store.home.root / "trash").exists()
    assert len(list(store.home.checkpoints.iterdir())) == 2


@pytest.mark.parametrize("imported", [False, True])
def test_imported_runs_need_no_model(
    store: Store, begin: Callable[..., RunRecorder], examine: Callable[..., Any], imported: bool
) -> None:
    recorder = begin("pretraining")
    if imported:
        recorder.set_tags({RUN_ID_TAG: "c" * 32})
    recorder.end("FINISHED")
    finding = examine(store.home).only(CHECK).finding
    assert finding.severity == ("note" if imported else "warning")


@pytest.mark.parametrize("lacking", ["", "config.json", "model.safetensors"])
def test_what_a_whole_model_is(tmp_path: Path, lacking: str) -> None:
    save_model(tmp_path / "model")
    if lacking:
        (tmp_path / "model" / lacking).unlink()
    assert is_whole_model(tmp_path / "model") == (not lacking)
