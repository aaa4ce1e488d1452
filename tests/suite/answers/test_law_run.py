from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from suite.answers.law_run import read_law_run
from suite.errors import InputError, SuiteError
from suite.laws.kept import KeptLaw, LastPoint
from suite.reports.tracked import SELECTED_TAG
from suite.tracking.home import Home
from suite.tracking.reader import RUN_SCHEMA, TEXT_SCHEMA


@dataclass
class Runs:
    """A reader of law runs that started one after the other."""

    rows: list[dict[str, object]] = field(default_factory=list)
    texts: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, run_id: str, *, status: str = "FINISHED", kind: str = "law", **tags: str) -> None:
        row = dict.fromkeys(RUN_SCHEMA) | {"run_id": run_id, "kind": kind, "status": status}
        self.rows.append(row | {"start_time": 1000 * (len(self.rows) + 1)})
        self.texts += [(run_id, key.replace("__", "."), value) for key, value in tags.items()]

    def runs(self, study: str | None) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=dict(RUN_SCHEMA))

    def tags(self, run_ids: list[str]) -> pl.DataFrame:
        rows = [row for row in self.texts if row[0] in run_ids]
        return pl.DataFrame(rows, schema=dict(TEXT_SCHEMA), orient="row")

    def params(self, run_ids: list[str]) -> pl.DataFrame:
        rows = [(run_id, "parameters", "non_embedding") for run_id in run_ids]
        return pl.DataFrame(rows, schema=dict(TEXT_SCHEMA), orient="row")

    def curves(self, run_ids: list[str], keys: list[str] | None = None) -> pl.DataFrame:
        raise NotImplementedError

    def latest_timestamp(self, run_id: str) -> int:
        raise NotImplementedError


def law(objective: float) -> KeptLaw:
    symbols = ("E", "A", "alpha", "B", "beta")
    return KeptLaw(
        form="chinchilla",
        parameters=dict.fromkeys(symbols, 1.0),
        symbols=symbols,
        resamples=np.empty((0, 5)),
        num_runs=5,
        unidentified=(),
        objective=objective,
        noise={"cell": 0.0, "point": 0.0},
        points=(LastPoint(cell="aa", size="S", recurrence=2, parameters=5e7, tokens=2e10),),
    )


@pytest.fixture
def place(tmp_path: Path) -> Home:
    """A home that keeps laws of three runs, told apart by their objectives."""
    for number, run_id in enumerate(("first", "second", "third"), start=1):
        folder = tmp_path / "artifacts" / "mine" / run_id / "artifacts" / "law"
        folder.mkdir(parents=True)
        (folder / "fit.json").write_text(law(float(number)).to_json())
    return Home(root=tmp_path, tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_the_newest_finished_law_is_read_with_its_cells(place: Home) -> None:
    reader = Runs()
    reader.add("first")
    reader.add("second", suite__input__aa="run-a", suite__held_out__bb="run-b", suite__study="x")
    reader.add("third", status="RUNNING")
    reader.add("fourth", kind="prediction")
    found = read_law_run(reader, place, "mine")
    assert (found.run_id, found.law.objective, found.counts) == ("second", 2.0, "non_embedding")
    assert found.cells == {"aa": "run-a", "bb": "run-b"}


def test_a_law_that_was_selected_later_goes_before_a_newer_one(place: Home) -> None:
    reader = Runs()
    reader.add("first", **{SELECTED_TAG.replace(".", "__"): "9000"})
    reader.add("second")
    assert read_law_run(reader, place, "mine").run_id == "first"


def test_a_server_is_asked_for_what_it_keeps(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def download_artifacts(self, run_id: str, path: str, target: str) -> str:
            assert (run_id, path) == ("far", "law/fit.json")
            file = Path(target) / "fit.json"
            file.write_text(law(7.0).to_json())
            return str(file)

    monkeypatch.setattr("suite.tracking.mlflow_client.make_client", lambda uri: Client())
    reader = Runs()
    reader.add("far")
    served = Home(root=place.root, tracking_uri="http://127.0.0.1:5000")
    assert read_law_run(reader, served, "mine").law.objective == 7.0


def test_a_study_without_a_finished_law_says_how_to_get_one(place: Home) -> None:
    reader = Runs()
    with pytest.raises(InputError, match=r"'mine' has no finished law in .*`suite run mine`"):
        read_law_run(reader, place, "mine")
    reader.add("first", status="KILLED")
    with pytest.raises(InputError, match=r"\(there are law runs with status KILLED\)"):
        read_law_run(reader, place, "mine")


def test_a_law_whose_artifact_is_elsewhere_says_so(place: Home) -> None:
    reader = Runs()
    reader.add("lost")
    with pytest.raises(InputError, match=r"law run lost keeps no law/fit.json .*FileNotFound"):
        read_law_run(reader, place, "mine")


def test_a_law_that_names_no_fitted_cell_is_refused(place: Home) -> None:
    kept = place.artifacts / "mine" / "first" / "artifacts" / "law" / "fit.json"
    kept.write_text(replace(law(1.0), points=()).to_json())
    reader = Runs()
    reader.add("first")
    with pytest.raises(SuiteError, match="law run first names no fitted cell; it was edited"):
        read_law_run(reader, place, "mine")
