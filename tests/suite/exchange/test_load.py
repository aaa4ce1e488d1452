from __future__ import annotations

import json
import math
import shutil
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric, Param, RunTag

from suite.errors import InputError, SuiteError
from suite.exchange import load, target
from suite.exchange.export import export_study
from suite.exchange.load import import_study
from suite.reports.manifest import read_manifest
from suite.reports.verify import verify
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import Store

MakeHome = Callable[[str], Home]
FramesOf = Callable[[Path], dict[str, pl.DataFrame]]


def dump(home: Home) -> list[str]:
    """Everything that the database holds."""
    with sqlite3.connect(home.database) as database:
        return list(database.iterdump())


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def runs_by_name(home: Home, study: str = "small") -> dict[str, str]:
    return dict(open_reader(home).runs(study).select("name", "run_id").iter_rows())


def tags_of(home: Home, run_id: str) -> dict[str, str]:
    return dict(open_reader(home).tags([run_id]).select("key", "value").iter_rows())


def verified(home: Home, study: str = "small") -> list[str]:
    """What `suite verify` finds, kept copies of the report included."""
    manifest = home.reports / study / "manifest.json"
    result = verify(open_reader(home), study, manifest, artifacts=home.artifacts / study)
    assert result.num_entries > 100
    assert result.ok == (not list(result.lines()))
    return list(result.lines())


@pytest.fixture(scope="module")
def imported_home(
    studied_export: Path, blank_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Home:
    """A home into which the study was imported; tests that change it copy it first."""
    root = tmp_path_factory.mktemp("imported") / "a new home ü"
    root.mkdir()
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    shutil.copyfile(blank_database, home.database)
    done = import_study(studied_export, home)
    assert (done.new, done.known, done.points, done.artifacts) == (13, 0, 54, 13)
    assert done.report == home.reports / "small"
    return home


@pytest.fixture
def copied_import(imported_home: Home, tmp_path: Path) -> Home:
    shutil.copytree(imported_home.root, tmp_path / "copy")
    return Home.at(tmp_path / "copy")


def test_export_import_export_gives_the_same_but_for_the_ids(
    studied_export: Path, imported_home: Home, tmp_path: Path, frames_of: FramesOf
) -> None:
    export_study(imported_home, "small", tmp_path / "again")
    before, after = frames_of(studied_export), frames_of(tmp_path / "again")
    assert before.keys() == after.keys() == {"runs", "params", "tags", "inputs", "curves"}
    for name, frame in before.items():
        assert frame.equals(after[name]), name
    assert files(studied_export / "report") == files(tmp_path / "again" / "report")
    assert sorted(files(studied_export / "artifacts").values()) == sorted(
        files(tmp_path / "again" / "artifacts").values()
    )


def test_the_report_shows_exactly_what_was_imported(
    studied_home: Home, imported_home: Home
) -> None:
    assert verified(studied_home) == []
    assert files(imported_home.reports) == files(studied_home.reports)
    assert verified(imported_home) == []
    texts = read_manifest(imported_home.reports / "small" / "manifest.json").entries["text"]
    assert texts.str.contains("the model of run").any(), "an id within a sentence"


def test_a_changed_value_is_still_seen(copied_import: Home) -> None:
    with sqlite3.connect(copied_import.database) as database:
        database.execute("UPDATE metrics SET value = 1.25 WHERE key = 'law/E'")
    run_id = runs_by_name(copied_import)["law looplm_total"]
    said = [line for line in verified(copied_import) if "law/E" in line]
    assert f"run {run_id}, law/E at 0 tokens: the report shows 1.5, the store has 1.25" in said[0]


def test_what_runs_say_of_each_other_follows_the_new_ids(
    studied_home: Home, imported_home: Home
) -> None:
    there, here = runs_by_name(studied_home), runs_by_name(imported_home)
    assert there.keys() == here.keys()
    assert not set(there.values()) & set(here.values())
    trial = tags_of(imported_home, here["cheap 1"])
    assert trial["mlflow.parentRunId"] == here["search cheap"]
    law = tags_of(imported_home, here["law looplm_total"])
    cells = [here[f"pretrain {size} Tm={tm}"] for tm in (1, 2) for size in ("narrow", "middle")]
    assert {value for key, value in law.items() if key.startswith("suite.input.")} == {
        *cells[:3],
        here["pretrain wide Tm=1"],
    }
    assert {value for key, value in law.items() if key.startswith("suite.held_out.")} == {
        cells[3],
        here["pretrain wide Tm=2"],
    }
    (warning,) = json.loads(law["suite.law.warnings"])
    assert warning.startswith(f"run {here['pretrain wide Tm=2']}: 1 of 3")
    for name, run_id in here.items():
        tags = tags_of(imported_home, run_id)
        assert tags["suite.imported.run_id"] == tags["suite.imported.run_ids"] == there[name]
        assert tags["suite.imported.studies"] == "small"
        left = {one for one in there.values() if one in json.dumps(tags)}
        assert left == {there[name]}


def test_importing_twice_changes_nothing(studied_export: Path, copied_import: Home) -> None:
    before, kept = dump(copied_import), files(copied_import.root)
    done = import_study(studied_export, copied_import)
    assert (done.new, done.known, done.points, done.artifacts) == (0, 13, 0, 0)
    assert dump(copied_import) == before
    after = files(copied_import.root)
    assert {name for name in after if after[name] != kept.get(name)} <= {"mlflow.db-journal"}


class CutOffError(Exception):
    """Stands for a process that ends here."""


def cut_off(monkeypatch: pytest.MonkeyPatch, of: type, method: str, call: int) -> None:
    """Let an import end at one call of a method, which is not carried out."""
    whole, calls = getattr(of, method), iter(range(1_000))

    def cut(*arguments: object) -> object:
        if next(calls) == call:
            raise CutOffError
        return whole(*arguments)

    monkeypatch.setattr(of, method, cut)


@pytest.mark.parametrize(
    ("of", "method", "call", "begun"),
    [
        (load._Import, "_create", 4, 4),
        (Store, "log_points", 5, 13),
        (Store, "set_tags", 25, 13),
    ],
)
def test_an_import_that_was_cut_off_goes_on(
    studied_export: Path,
    make_home: MakeHome,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    frames_of: FramesOf,
    of: type,
    method: str,
    call: int,
    begun: int,
) -> None:
    home = make_home("home")
    with monkeypatch.context() as patched:
        cut_off(patched, of, method, call)
        with pytest.raises(CutOffError):
            import_study(studied_export, home)
    left = open_reader(home).runs("small")
    assert left.height == begun
    whole = left.filter(pl.col("kind").is_not_null()).height
    assert whole < begun, "what is not whole counts in no report and no stage"
    done = import_study(studied_export, home)
    assert (done.new, done.known) == (13 - whole, whole)
    assert open_reader(home).runs("small").height == 13
    assert set(left["run_id"]) <= set(open_reader(home).runs("small")["run_id"])
    export_study(home, "small", tmp_path / "again")
    for name, frame in frames_of(studied_export).items():
        assert frame.equals(frames_of(tmp_path / "again")[name]), name


def test_a_report_that_was_not_reached_follows(studied_export: Path, copied_import: Home) -> None:
    shutil.rmtree(copied_import.reports)
    done = import_study(studied_export, copied_import)
    assert (done.new, done.report) == (0, copied_import.reports / "small")
    assert verified(copied_import) == []


def test_a_report_that_was_built_again_is_left_alone(
    studied_export: Path, copied_import: Home
) -> None:
    page = copied_import.reports / "small" / "index.html"
    page.write_text("built again")
    import_study(studied_export, copied_import)
    assert page.read_text() == "built again"


def test_other_runs_of_the_study_are_not_mixed_in(studied_export: Path, copied_home: Home) -> None:
    before = dump(copied_home)
    with pytest.raises(InputError, match=r"13 other runs there, such as .*--name NEW"):
        import_study(studied_export, copied_home)
    assert dump(copied_home) == before
    assert import_study(studied_export, copied_home, name="theirs").new == 13
    assert verified(copied_home, "theirs") == verified(copied_home, "small") == []
    law = runs_by_name(copied_home, "theirs")["law looplm_total"]
    assert tags_of(copied_home, law)["suite.study"] == "theirs"
    assert tags_of(copied_home, law)["suite.imported.studies"] == "small"


def test_an_import_of_an_import_keeps_the_first_ids(
    studied_home: Home, copied_import: Home, make_home: MakeHome, tmp_path: Path
) -> None:
    first, second = runs_by_name(studied_home), runs_by_name(copied_import)
    export_study(copied_import, "small", tmp_path / "second")
    third = make_home("third")
    import_study(tmp_path / "second", third, name="renamed")
    for name, run_id in runs_by_name(third, "renamed").items():
        tags = tags_of(third, run_id)
        assert tags["suite.imported.run_id"] == first[name]
        assert tags["suite.imported.run_ids"] == f"{first[name]} {second[name]}"
    assert verified(third, "renamed") == []


def test_runs_that_the_same_export_now_holds_otherwise_are_refused(
    studied_export: Path, copied_home: Home, copied_import: Home, tmp_path: Path
) -> None:
    run_id = runs_by_name(copied_home)["cheap 0"]
    Store(copied_home).log_points(run_id, [("more", 1.0, 1_790_000_000_999, 200)])
    export_study(copied_home, "small", tmp_path / "newer")
    before = dump(copied_import)
    with pytest.raises(InputError, match=rf"run {run_id} \(cheap 0\) .*something else.*--name NEW"):
        import_study(tmp_path / "newer", copied_import)
    assert dump(copied_import) == before


def test_runs_that_a_study_has_got_since_are_added(
    studied_export: Path, copied_home: Home, copied_import: Home, tmp_path: Path
) -> None:
    Store(copied_home).create_run("small", name="since", tags={"suite.kind": "trial"})
    export_study(copied_home, "small", tmp_path / "newer")
    done = import_study(tmp_path / "newer", copied_import)
    assert (done.new, done.known) == (1, 13)
    assert "since" in runs_by_name(copied_import)


def test_another_report_in_the_way_is_refused(studied_export: Path, make_home: MakeHome) -> None:
    home = make_home("home")
    page = home.reports / "small" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("mine")
    with pytest.raises(InputError, match="holds a report that is not the one of"):
        import_study(studied_export, home)
    assert page.read_text() == "mine"
    assert open_reader(home).runs("small").is_empty()


def test_a_home_without_room_is_refused_before_anything_is_written(
    studied_export: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home("home")
    monkeypatch.setattr(target.shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000))
    with pytest.raises(InputError, match=r"needs [\d,]+ bytes in .*home, where 1,000 are free"):
        import_study(studied_export, home)
    assert open_reader(home).runs("small").is_empty()


@pytest.mark.parametrize("name", ["a/b", "..", "Default", ""])
def test_a_new_name_is_checked(studied_export: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"^--name: .* is no name of a study"):
        import_study(studied_export, Home.at(tmp_path / "home"), name=name)
    assert not (tmp_path / "home").exists()


def test_a_store_that_loses_points_is_told_of(
    studied_export: Path, make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home("home")
    whole = Store.log_points
    monkeypatch.setattr(
        Store, "log_points", lambda store, run, points: whole(store, run, points[1:])
    )
    with pytest.raises(SuiteError, match=r"does not give back run .* 5 points for 6"):
        import_study(studied_export, home)
    assert open_reader(home).runs("small")["kind"].is_null().all()


STATUSES = ["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]
KEYS = st.from_regex(r"[\w.:-][\w. :-]{0,20}[\w:-](/[\w:-]{1,10})?", fullmatch=True).filter(
    lambda key: ".." not in key and not key.startswith((".", "mlflow", "suite"))
)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
STEPS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.floats()
RUNS = st.lists(
    st.fixed_dictionaries(
        {
            "status": st.sampled_from(STATUSES),
            "ended": st.none() | st.integers(1, 2**40),
            "points": st.lists(st.tuples(KEYS, VALUES, st.integers(0, 2**50), STEPS), max_size=8),
            "params": st.dictionaries(KEYS, TEXTS, max_size=4),
            "tags": st.dictionaries(KEYS, TEXTS, max_size=4),
        }
    ),
    min_size=1,
    max_size=3,
)


def write(store: Store, study: str, number: int, run: Mapping[str, object]) -> None:
    client = store.client
    made = client.create_run(
        store.experiment(study), start_time=1_000 + number, run_name=f"run {number} ü"
    )
    run_id = made.info.run_id
    points, params, tags = run["points"], run["params"], run["tags"]
    assert isinstance(points, list)
    assert isinstance(params, dict)
    assert isinstance(tags, dict)
    client.log_batch(
        run_id,
        metrics=[Metric(*point) for point in points],
        params=[Param(*item) for item in params.items()],
        tags=[RunTag(*item) for item in tags.items()],
    )
    if isinstance(run["ended"], int):
        client.set_terminated(run_id, status="FAILED", end_time=run["ended"])
    client.update_run(run_id, status=str(run["status"]))


@settings(
    max_examples=3,
    phases=(Phase.explicit, Phase.generate),  # an example takes a second, shrinking takes many
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(RUNS)
def test_any_runs_come_back_as_they_were(
    make_home: MakeHome,
    tmp_path_factory: pytest.TempPathFactory,
    frames_of: FramesOf,
    runs: list[dict[str, object]],
) -> None:
    folder = tmp_path_factory.mktemp("any")
    source, there = make_home(f"{folder.name}-a"), make_home(f"{folder.name}-b")
    store = Store(source)
    for number, run in enumerate(runs):
        write(store, "any", number, run)
    export_study(source, "any", folder / "one")
    import_study(folder / "one", there)
    export_study(there, "any", folder / "two")
    one, two = frames_of(folder / "one"), frames_of(folder / "two")
    for name, frame in one.items():
        assert frame.equals(two[name]), name
    largest = sys.float_info.max  # MLflow keeps infinities as it
    logged = {
        (key, step, at, repr(value + 0.0 if abs(value) < largest else value * math.inf))
        for run in runs
        for key, value, at, step in run["points"]  # type: ignore[attr-defined]
    }
    read = two["curves"].select("key", "step", "timestamp", "value").iter_rows()
    assert {(*row[:3], repr(row[3])) for row in read} == logged
