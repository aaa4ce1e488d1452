"""Each kind of tampering with a store or a report is named, with the place and what was done."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from suite.reports import Verification, build_report, verify
from suite.reports.manifest import MANIFEST_NAME
from suite.stages.report import report_cell
from suite.tracking.curves import Attempt
from suite.tracking.home import Home
from suite.tracking.provenance import capture_provenance
from suite.tracking.reader import open_reader
from suite.tracking.store import Store

LOSS = "train/total_loss"
FIRST, SECOND = "pretrain small Tm=2", "pretrain small Tm=4"
EXACT, NITER_8 = (f"calibrate small Tm=2 on pydocs niter={niter}" for niter in ("exact", "8"))
LAW = "law looplm_total"
HELD_OUT, PREDICTION = "pretrain medium Tm=4", "predict looplm_total"
PARITY = f"parity, {LAW}, Fitted"
MARK = f"table: held-out cells, medium Tm=4, prediction: run {{{HELD_OUT}}}, run:blind"
PANELS = ("parity",)  # drawing takes most of the time; the tables show the rest
TABLES = ("metrics", "latest_metrics", "params", "tags")


@dataclass(frozen=True)
class Scene:
    """A home with a study that has been reported on, for a test to tamper with."""

    home: Home
    runs: Mapping[str, str]

    @property
    def report(self) -> Path:
        return self.home.reports / "demo"

    @property
    def kept(self) -> Path:
        return self.artifacts / self.runs["report demo"] / "artifacts" / "report"

    @property
    def artifacts(self) -> Path:
        return self.home.artifacts / "demo"

    def sql(self, statement: str, *values: object) -> None:
        """Change the database; it must have something to change."""
        with sqlite3.connect(self.home.database) as database:
            changed = database.execute(statement, values).rowcount
        database.close()
        assert changed > 0

    def value(self, name: str, key: str, step: int) -> float:
        with sqlite3.connect(self.home.database) as database:
            (value,) = database.execute(
                "SELECT value FROM metrics WHERE run_uuid = ? AND key = ? AND step = ?",
                (self.runs[name], key, step),
            ).fetchone()
        database.close()
        return float(value)

    def set_value(self, name: str, key: str, step: int, value: float) -> None:
        self.sql(
            "UPDATE metrics SET value = ? WHERE run_uuid = ? AND key = ? AND step = ?",
            value, self.runs[name], key, step,
        )  # fmt: skip

    def set_tag(self, name: str, key: str, value: str) -> None:
        self.sql(
            "UPDATE tags SET value = ? WHERE run_uuid = ? AND key = ?", value, self.runs[name], key
        )

    def exchange(self, table: str, one: str, other: str) -> None:
        for before, after in ((one, "x"), (other, one), ("x", other)):
            self.sql(
                f"UPDATE {table} SET run_uuid = ? WHERE run_uuid = ?",
                self.runs.get(after, after), self.runs.get(before, before),
            )  # fmt: skip

    def edit_manifest(self, change: Callable[[dict[str, Any]], None], folder: Path) -> None:
        document = json.loads((folder / MANIFEST_NAME).read_text())
        change(document)
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"
        (folder / MANIFEST_NAME).write_text(text)

    def rebuild(self) -> None:
        build_report(open_reader(self.home), "demo", PANELS, self.report)

    def keep(self) -> str:
        """Keep the report on disk as a run, as the report stage does."""
        store = Store(self.home)
        cell = report_cell("demo", self.report / MANIFEST_NAME)
        tags = {"suite.kind": "report", "suite.cell": cell.fingerprint, "suite.attempts": "1"}
        run_id = store.create_run(
            "demo", name=cell.name, tags=tags | capture_provenance().to_tags()
        )
        store.log_params(run_id, {"manifest": str(cell.settings["manifest"])})
        for file in self.report.iterdir():
            store.log_artifact(run_id, file, "report")
        store.client.set_terminated(run_id, "FINISHED")
        return run_id

    def check(self) -> Verification:
        return verify(
            open_reader(self.home),
            "demo",
            self.report / MANIFEST_NAME,
            artifacts=self.artifacts,
        )


def write_store(reader: Any, store: Store) -> dict[str, str]:
    """Put the runs of a reader in memory into a store; returns run ids by name.

    The run ``SECOND`` has two attempts: the second resumed at 400,000 tokens, and the first had
    gone on to 430,000.
    """
    from mlflow.entities import Metric, Param, RunTag

    experiment = store.experiment("demo")
    ids: dict[str, str] = {}
    for row in reader.rows:
        points = [p for p in reader.points if p["run_id"] == row["run_id"]]
        first = min((p["timestamp"] for p in points), default=row["start_time"])
        attempt = Attempt(
            number=1, started=first - 1, resumed_from=-1, host="h", pid=1, device="cpu",
            ended=first, outcome="FINISHED",
        )  # fmt: skip
        attempts = [attempt]
        metrics = [Metric(p["key"], p["value"], p["timestamp"], p["step"]) for p in points]
        if row["name"] == SECOND:
            at = next(p["timestamp"] for p in points if p["step"] > 400_000)
            metrics.append(Metric(LOSS, 9.5, at - 1, 430_000))
            overtaken = f"predicted/{row['cell']}"
            attempts.append(
                Attempt(number=2, started=at, resumed_from=400_000, host="h", pid=2, device="cpu")
            )
        if row["name"] == LAW:
            metrics.append(Metric(overtaken, 9.0, first, 430_000))
        tags = {
            **reader.texts[row["run_id"]]["tags"],
            "suite.study": "demo",
            "suite.cell": row["cell"],
            "suite.attempts": str(len(attempts)),
            "suite.git.commit": "c" * 40,
            "suite.git.dirty": "false",
            "suite.package.torch": "2.13.0",
            **dict(attempt.to_tag() for attempt in attempts),
        }
        for old, new in ids.items():
            tags = {key: value.replace(old, new) for key, value in tags.items()}
        if row["parent_run_id"]:
            tags["mlflow.parentRunId"] = ids[row["parent_run_id"]]
        run = store.client.create_run(
            experiment, start_time=row["start_time"], run_name=row["name"]
        )
        ids[row["run_id"]] = run.info.run_id
        params = reader.texts[row["run_id"]]["params"]
        store.client.log_batch(
            run.info.run_id,
            metrics=metrics,
            params=[Param(*item) for item in params.items()],
            tags=[RunTag(*item) for item in tags.items()],
        )
        store.client.set_terminated(run.info.run_id, row["status"], row["end_time"])
    return {row["name"]: ids[row["run_id"]] for row in reader.rows}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """What the first test has made for all: the untouched home and its run ids."""
    return {}


@pytest.fixture
def scene(
    made: dict[str, Any],
    judged: Any,
    blank_database: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scene:
    """A copy of the untouched home."""
    if not made:
        home = Home.at(tmp_path_factory.mktemp("untouched"))
        shutil.copyfile(blank_database, home.database)
        made["home"], made["runs"] = home, write_store(judged.reader, Store(home))
        scene = Scene(home, made["runs"])
        scene.rebuild()
        made["runs"]["report demo"] = scene.keep()
    home = Home.at(tmp_path / "home")
    shutil.copytree(made["home"].root, home.root)
    return Scene(home, made["runs"])


def change_value(scene: Scene) -> None:
    scene.set_value(FIRST, LOSS, 500_000, 1.25)


def change_step(scene: Scene) -> None:
    scene.sql(
        "UPDATE metrics SET step = 500001 WHERE run_uuid = ? AND key = ? AND step = 500000",
        scene.runs[FIRST], LOSS,
    )  # fmt: skip


def delete_row(scene: Scene) -> None:
    scene.sql(
        "DELETE FROM metrics WHERE run_uuid = ? AND key = ? AND step = 500000",
        scene.runs[FIRST], LOSS,
    )  # fmt: skip


def delete_curve(scene: Scene) -> None:
    scene.sql("DELETE FROM metrics WHERE run_uuid = ? AND key = ?", scene.runs[FIRST], LOSS)


def delete_run(scene: Scene) -> None:
    scene.sql("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", scene.runs[FIRST])


def remove_run(scene: Scene) -> None:
    for table in (*TABLES, "runs"):
        scene.sql(f"DELETE FROM {table} WHERE run_uuid = ?", scene.runs[FIRST])


def insert_point(scene: Scene) -> None:
    scene.sql(
        "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
        "SELECT key, 1.5, timestamp, run_uuid, 1010000, 0 FROM metrics "
        "WHERE run_uuid = ? AND key = ? AND step = 500000",
        scene.runs[FIRST], LOSS,
    )  # fmt: skip


def insert_newer_point(scene: Scene) -> None:
    scene.sql(
        "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
        "SELECT key, 1.5, timestamp + 1, run_uuid, step, 0 FROM metrics "
        "WHERE run_uuid = ? AND key = ? AND step = 500000",
        scene.runs[FIRST], LOSS,
    )  # fmt: skip


def change_param(scene: Scene) -> None:
    scene.sql(
        "UPDATE params SET value = '99000' WHERE run_uuid = ? AND key = 'parameters.total'",
        scene.runs[FIRST],
    )


def delete_param(scene: Scene) -> None:
    scene.sql("DELETE FROM params WHERE run_uuid = ? AND key = 'rank'", scene.runs[EXACT])


def change_status(scene: Scene) -> None:
    scene.sql("UPDATE runs SET status = 'KILLED' WHERE run_uuid = ?", scene.runs[FIRST])


def silence_law(scene: Scene) -> None:
    scene.set_tag(LAW, "suite.law.warnings", "[]")


def forget_held_out(scene: Scene) -> None:
    scene.sql(
        "UPDATE tags SET key = replace(key, 'held_out', 'input') WHERE run_uuid = ? "
        "AND key LIKE 'suite.held_out.%'",
        scene.runs[LAW],
    )


def end_prediction_late(scene: Scene) -> None:
    scene.sql("UPDATE runs SET end_time = end_time + 10000000 WHERE run_uuid = ?",
              scene.runs[PREDICTION])  # fmt: skip


def delete_prediction(scene: Scene) -> None:
    scene.sql(
        "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", scene.runs[PREDICTION]
    )


def begin_held_out_early(scene: Scene) -> None:
    scene.sql("UPDATE runs SET start_time = 5 WHERE run_uuid = ?", scene.runs[HELD_OUT])


def change_prediction(scene: Scene) -> None:
    scene.sql(
        "UPDATE metrics SET value = 0.5 WHERE run_uuid = ? AND key = 'law/alpha'",
        scene.runs[PREDICTION],
    )


def resume_later(scene: Scene) -> None:
    """The point that the second attempt overtook counts again."""
    attempt = Attempt(
        number=2, started=1_790_000_000_000, resumed_from=900_000, host="h", pid=2, device="cpu"
    )
    scene.set_tag(SECOND, *attempt.to_tag())


def remove_attempt(scene: Scene) -> None:
    scene.sql("DELETE FROM tags WHERE run_uuid = ? AND key = 'suite.attempt.2'", scene.runs[SECOND])


def rename_run(scene: Scene) -> None:
    scene.sql("UPDATE runs SET name = 'pretrain large' WHERE run_uuid = ?", scene.runs[FIRST])


STORE: dict[str, tuple[Callable[[Scene], None], tuple[str, ...]]] = {
    "value": (
        change_value,
        (PARITY, f"run {{{FIRST}}}, {LOSS} at 500000", "has 1.25"),
    ),
    "step": (change_step, (PARITY, f"run {{{FIRST}}}", "500000", "has no such value")),
    "row": (delete_row, (PARITY, f"run {{{FIRST}}}", "500000", "has no such value")),
    "curve": (delete_curve, (PARITY, f"run {{{FIRST}}}, {LOSS}", "14 more missing")),
    "run deleted": (delete_run, (f"run {{{FIRST}}}: it is not in the store",)),
    "run removed": (remove_run, (f"run {{{FIRST}}}: it is not in the store",)),
    "metrics exchanged, one": (
        lambda scene: scene.exchange("metrics", FIRST, SECOND),
        (PARITY, f"run {{{FIRST}}}, {LOSS} at 100000 ", "the store has"),
    ),
    "metrics exchanged, other": (
        lambda scene: scene.exchange("metrics", FIRST, SECOND),
        (PARITY, f"run {{{SECOND}}}, {LOSS} at 100000 ", "the store has"),
    ),
    "params exchanged": (
        lambda scene: scene.exchange("params", FIRST, SECOND),
        ("table: cells, small Tm=2, Tm", f"run {{{SECOND}}}, param:recurrence", "has '2'"),
    ),
    "tags exchanged": (
        lambda scene: scene.exchange("tags", FIRST, SECOND),
        (f"run {{{FIRST}}} ({FIRST})", f"its tag mlflow.runName is '{SECOND}'"),
    ),
    "tags exchanged, calibration": (
        lambda scene: scene.exchange("tags", EXACT, NITER_8),
        (f"run {{{EXACT}}} ({EXACT})", f"its tag mlflow.runName is '{NITER_8}'"),
    ),
    "runs exchanged": (
        lambda scene: [scene.exchange(table, FIRST, SECOND) for table in TABLES],
        (f"run {{{FIRST}}} ({FIRST})", "its tags are those of another run"),
    ),
    "point inserted": (
        insert_point, ("table: cells", f"run {{{FIRST}}}, {LOSS} at 1010000", "has 1.5")
    ),
    "newer point": (insert_newer_point, (PARITY, f"run {{{FIRST}}}", "500000", "has 1.5")),
    "param": (
        change_param,
        ("table: cells", f"run {{{FIRST}}}, param:parameters.total", "'59713'", "'99000'"),
    ),
    "param deleted": (
        delete_param, ("table: key errors", f"run {{{EXACT}}}, param:rank", "no such value")
    ),
    "status": (change_status, ("table: cells", f"run {{{FIRST}}}, run:status", "'KILLED'")),
    "warnings of the law": (
        silence_law,
        ("index.html: the page says", "'Read with care | Law: gamma and t3 are not identified'"),
    ),
    "held-out cells": (
        forget_held_out,
        ("parity, law looplm_total, Held out", "has no such value"),
    ),
    "prediction ended late": (
        end_prediction_late,
        (MARK, "shows 'blind'", "not blind: the prediction ended at"),
    ),
    "prediction deleted": (delete_prediction, (f"run {{{PREDICTION}}}: it is not in the store",)),
    "prediction deleted, mark": (
        delete_prediction,
        (MARK, f"not blind: the prediction of this cell, run {{{PREDICTION}}}, was deleted"),
    ),
    "held-out cell began early": (
        begin_held_out_early, (MARK, "but the run of the cell began at 1970-01-01")
    ),
    "another law predicted": (
        change_prediction, (MARK, "alpha is 0.31 in the law drawn here and was 0.5 in")
    ),
    "attempt": (
        resume_later, (PARITY, f"run {{{SECOND}}}, {LOSS} at 430000", "has 9.5")
    ),
    "attempt removed": (
        remove_attempt, (f"run {{{SECOND}}} ({SECOND})", "attempts 1", "suite.attempts is '2'")
    ),
    "attempt unreadable": (
        lambda scene: scene.set_tag(SECOND, "suite.attempt.2", "{}"),
        (f"run {{{SECOND}}} ({SECOND})", "suite.attempt.2 does not describe an attempt"),
    ),
    "name": (rename_run, (f"run {{{FIRST}}} (pretrain large)", f"is '{FIRST}'")),
}  # fmt: skip


def names(found: Verification, scene: Scene, parts: tuple[str, ...]) -> bool:
    """Whether one line says all of it; {name} stands for the id of the run."""
    for name, run_id in scene.runs.items():
        parts = tuple(part.replace(f"{{{name}}}", run_id) for part in parts)
    return any(all(part in line for part in parts) for line in found.lines())


def assert_named(scene: Scene, *parts: str) -> Verification:
    found = scene.check()
    assert not found.ok
    assert not found.passes()
    assert names(found, scene, parts), "\n".join(found.lines())
    return found


def test_an_untouched_store_and_report_give_nothing_to_say(scene: Scene) -> None:
    found = scene.check()
    assert (found.ok, list(found.lines()), found.warnings) == (True, [], ())
    assert found.passes(strict=True)
    assert set(found.run_ids) <= set(scene.runs.values())
    assert scene.runs[LAW] in found.run_ids


@pytest.mark.parametrize("case", STORE)
def test_tampering_with_the_store_is_named(scene: Scene, case: str) -> None:
    tamper, parts = STORE[case]
    tamper(scene)
    assert_named(scene, *parts)


def edit_figure(scene: Scene, folder: Path) -> str:
    """Change a figure; returns its digest."""
    figure = folder / "parity.png"
    figure.write_bytes(figure.read_bytes() + b"x")
    return sha256(figure.read_bytes()).hexdigest()


def edit_page(scene: Scene, folder: Path) -> str:
    page = folder / "index.html"
    page.write_text(page.read_text().replace("0.9712", "0.9999"))
    return sha256(page.read_bytes()).hexdigest()


def add_file(scene: Scene, folder: Path) -> None:
    (folder / "loss_grid2.png").write_bytes(b"\x89PNG")


def change_entry(scene: Scene, folder: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        group = next(
            g for g in document["entries"]
            if (g["panel"], g["run_id"], g["key"]) == ("parity", scene.runs[FIRST], LOSS)
        )  # fmt: skip
        group["value"][group["step"].index(500_000)] = 1.25

    scene.edit_manifest(change, folder)


def change_run_id(scene: Scene, folder: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        for group in document["entries"]:
            if group["run_id"] == scene.runs[FIRST]:
                group["run_id"] = "f" * 32

    scene.edit_manifest(change, folder)


def change_digest(scene: Scene, folder: Path) -> None:
    scene.edit_manifest(lambda d: d["artifacts"].update({"parity.png": "0" * 64}), folder)


FILES: dict[str, tuple[Callable[[Scene, Path], object], tuple[str, ...]]] = {
    "figure": (edit_figure, ("parity.png was edited",)),
    "page": (edit_page, ("index.html was edited",)),
    "figure removed": (
        lambda scene, folder: (folder / "parity.svg").unlink(), ("parity.svg is missing",)
    ),
    "file added": (add_file, ("loss_grid2.png is not part of the report",)),
    "value in the manifest": (change_entry, ()),
    "run id in the manifest": (change_run_id, ()),
    "digest in the manifest": (change_digest, ("parity.png was edited", f"has {'0' * 64}")),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_tampering_with_the_report_is_named(scene: Scene, case: str) -> None:
    tamper, parts = FILES[case]
    tamper(scene, scene.report)
    manifest = {
        "value in the manifest": (PARITY, f"run {{{FIRST}}}", "the report shows 1.25"),
        "run id in the manifest": (f"run {'f' * 32}: it is not in the store",),
    }
    assert_named(scene, *manifest.get(case, (str(scene.report), *parts)))


@pytest.mark.parametrize("case", FILES)
def test_tampering_with_the_kept_copy_is_named(scene: Scene, case: str) -> None:
    tamper, parts = FILES[case]
    tamper(scene, scene.kept)
    assert_named(scene, str(scene.kept), *parts)
    if "manifest" in case:
        record = f"the parameter manifest of report run {{{'report demo'}}}"
        assert_named(scene, str(scene.kept / MANIFEST_NAME), "was edited", record)


def test_a_kept_copy_that_is_gone_is_named(scene: Scene) -> None:
    shutil.rmtree(scene.artifacts)
    assert_named(scene, f"{scene.kept / MANIFEST_NAME} is missing")


@pytest.mark.parametrize("edit", [edit_figure, edit_page])
def test_a_file_edited_together_with_the_manifest_is_named(
    scene: Scene, edit: Callable[[Scene, Path], str]
) -> None:
    digest = edit(scene, scene.report)
    name = "parity.png" if edit is edit_figure else "index.html"
    scene.edit_manifest(lambda d: d["artifacts"].update({name: digest}), scene.report)
    assert_named(scene, f"{scene.report / name} is not what the store gives", digest)


def test_a_value_edited_in_the_store_and_in_the_manifest_is_named(scene: Scene) -> None:
    old = scene.value(FIRST, LOSS, 500_000)
    change_value(scene)

    def change(document: dict[str, Any]) -> None:
        for group in document["entries"]:
            if (group["run_id"], group["key"]) == (scene.runs[FIRST], LOSS):
                group["value"] = [1.25 if value == old else value for value in group["value"]]

    scene.edit_manifest(change, scene.report)
    found = assert_named(scene, f"{scene.report / 'parity.png'} is not what the store gives")
    assert not found.differences
    place = (f"run {{{FIRST}}}, {LOSS} at 500000", f"shows {old!r}, the store has 1.25")
    assert names(found, scene, ("report kept with run {report demo}: parity", *place))


@pytest.mark.parametrize(
    ("tamper", "kept", "parts"),
    [
        (change_value, True, (f"run {{{FIRST}}}, {LOSS} at 500000", "the store has 1.25")),
        (delete_row, False, (f"run {{{FIRST}}}, {LOSS} at 500000", "the store has no such value")),
        (change_param, True, (f"run {{{FIRST}}}, param:parameters.total", "has '99000'")),
    ],
)
def test_a_report_built_anew_does_not_cover_tampering(
    scene: Scene, tamper: Callable[[Scene], None], kept: bool, parts: tuple[str, ...]
) -> None:
    tamper(scene)
    scene.rebuild()
    if kept:
        scene.keep()
    found = assert_named(scene, "report kept with run {report demo}", *parts)
    assert (found.differences, found.edited, found.words) == ((), (), ())


def test_a_kept_copy_replaced_together_with_all_else_is_named(scene: Scene) -> None:
    change_value(scene)
    scene.rebuild()
    shutil.copytree(scene.report, scene.kept, dirs_exist_ok=True)
    record = "the parameter manifest of report run {report demo} has"
    assert_named(scene, f"{scene.kept / MANIFEST_NAME} was edited", record)
    digest = sha256((scene.report / MANIFEST_NAME).read_bytes()).hexdigest()
    run_id = scene.runs["report demo"]
    scene.sql("UPDATE params SET value = ? WHERE run_uuid = ?", digest, run_id)
    assert_named(scene, "report run {report demo}: its tag suite.cell is", "one of them was edited")
    scene.sql("DELETE FROM params WHERE run_uuid = ?", run_id)
    assert_named(scene, f"{scene.kept / MANIFEST_NAME} was edited")


def test_the_report_run_deleted_to_hide_an_edited_figure_is_no_use(scene: Scene) -> None:
    scene.sql(
        "UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?",
        scene.runs["report demo"],
    )
    digest = edit_figure(scene, scene.report)
    scene.edit_manifest(lambda d: d["artifacts"].update({"parity.png": digest}), scene.report)
    assert_named(scene, f"{scene.report / 'parity.png'} is not what the store gives")


def test_a_study_that_has_grown_agrees_with_its_new_report(scene: Scene) -> None:
    store = Store(scene.home)
    tags = {"suite.kind": "calibration", "suite.cell": "new", "suite.attempts": "1"}
    run_id = store.create_run("demo", name="calibrate more", tags=tags)
    store.log_params(
        run_id,
        {
            "model.label": "other", "calibrate_on": "pydocs", "evaluate_on": '["pydocs"]',
            "niter": "1", "rank": "8", "budgets": "[1000]",
        },
    )  # fmt: skip
    store.client.log_metric(run_id, "key/relative_error/pydocs", 0.5, step=1_000)
    store.client.set_terminated(run_id, "FINISHED")
    assert not scene.check().ok
    scene.rebuild()
    found = scene.check()
    assert (found.ok, list(found.lines())) == (True, [])
    scene.keep()
    assert scene.check().ok


def test_a_point_that_a_later_attempt_measured_again_was_not_edited(scene: Scene) -> None:
    """An earlier report shows the first attempt, which is still in the store."""
    first = scene.value(FIRST, LOSS, 500_000)
    insert_newer_point(scene)
    scene.rebuild()
    assert scene.value(FIRST, LOSS, 500_000) == first
    found = scene.check()
    assert (found.ok, list(found.lines())) == (True, [])


def test_a_run_that_only_an_earlier_report_shows_may_be_deleted_but_is_mentioned(
    scene: Scene,
) -> None:
    delete_run(scene)
    scene.rebuild()
    found = scene.check()
    assert found.ok
    assert found.warnings == (
        "an earlier report shows 1 run that is not in the store any more: " + scene.runs[FIRST],
    )
    assert not found.passes(strict=True)


def test_words_of_another_version_of_the_suite_are_a_warning(scene: Scene) -> None:
    scene.set_tag("report demo", "suite.source", "0" * 64)
    assert scene.check().warnings == ()
    silence_law(scene)
    found = scene.check()
    assert found.ok
    (warning,) = found.warnings
    assert "another version of the suite" in warning
    assert "Law: gamma and t3 are not identified" in warning
