"""A study in a real store, small but with every kind of run, and its export."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import polars as pl
import pytest
from mlflow.entities import Metric, Param, RunTag

from suite.exchange.export import export_study
from suite.exchange.layout import CONTENTS_NAME
from suite.fingerprint import fingerprint
from suite.reports.build import build_report
from suite.tracking.curves import Attempt
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.store import DatasetRecord, Store

Point = tuple[str, float, int, int]  # key, value, ms, tokens
EPOCH = 1_790_000_000_000
STUDY = "small"
SIZES = {"narrow": 1_000, "middle": 2_000, "wide": 4_000}
TOKENS = (256, 512, 768)


@dataclass
class StudyWriter:
    """Writes runs with chosen times, through MLflow's client."""

    store: Store
    study: str = STUDY
    runs: int = 0

    def add(
        self,
        kind: str | None,
        name: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        status: str = "FINISHED",
        parent: str | None = None,
    ) -> str:
        self.runs += 1
        started = EPOCH + 60_000 * self.runs
        own = {"suite.study": self.study, "suite.cell": f"{self.runs:016x}", **(tags or {})}
        own |= {} if kind is None else {"suite.kind": kind}
        own |= {} if parent is None else {"mlflow.parentRunId": parent}
        client = self.store.client
        run_id = str(
            client.create_run(
                self.store.experiment(self.study), start_time=started, tags=own, run_name=name
            ).info.run_id
        )
        client.log_batch(
            run_id,
            metrics=[Metric(*point) for point in points],
            params=[
                Param(key, value if isinstance(value, str) else json.dumps(value))
                for key, value in (params or {}).items()
            ],
        )
        if status != "RUNNING":
            self.store.end_run(run_id, status, started + 30_000)
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.store.client.log_batch(run_id, tags=[RunTag(*item) for item in tags.items()])


def attempt(number: int, started: int, resumed_from: int) -> dict[str, str]:
    """The tag of an attempt of a process that is gone."""
    key, value = Attempt(
        number=number,
        started=started,
        resumed_from=resumed_from,
        host="elsewhere",
        pid=1,
        device="cpu",
        ended=started + 10,
        outcome="KILLED" if number == 1 else "FINISHED",
    ).to_tag()
    return {key: value, "suite.attempts": str(number)}


def write_study(home: Home, folder: Path) -> None:
    """Six trained cells (one resumed, one diverged), a law, a calibration, a search, a report."""
    store = Store(home)
    writer = StudyWriter(store)
    cells: dict[str, str] = {}
    resumed = ""
    for recurrence in (1, 2):
        for size, parameters in SIZES.items():
            diverged = (size, recurrence) == ("wide", 2)
            loss = {step: 2 + (100 + recurrence) / parameters + 300 / step for step in TOKENS}
            if diverged:
                loss[768] = math.nan
            points = [
                ("train/total_loss", value, EPOCH + step, step) for step, value in loss.items()
            ]
            points.append(("val/total_loss", -math.inf if diverged else 2.5, EPOCH + 768, 768))
            run_id = writer.add(
                "pretraining",
                f"pretrain {size} Tm={recurrence}",
                points=points,
                params={
                    "size.name": size,
                    "recurrence": recurrence,
                    "parameters.total": parameters,
                    "tokens": 768,
                },
                tags={"suite.failure": "it diverged", "suite.settled": "true"} if diverged else {},
                status="FAILED" if diverged else "FINISHED",
            )
            cells[f"{writer.runs:016x}"] = run_id
            resumed = resumed or run_id
    store.log_datasets(
        resumed,
        [
            DatasetRecord(
                name="maths",
                digest="0123456789abcdef",
                source="embedded",
                context="training",
                profile={"documents": 300},
            )
        ],
    )
    # the first cell was killed at 512 tokens and went on from 256: its old 512 is overtaken
    writer.tag(resumed, attempt(1, EPOCH, -1) | attempt(2, EPOCH + 600, 256))
    again = [("train/total_loss", 9.0, EPOCH + 500, 768), ("train/total_loss", 9.5, EPOCH + 2, 512)]
    store.log_points(resumed, again)
    fitted = list(cells.items())
    warning = f"run {fitted[-1][1]}: 1 of 3 points of train/total_loss are not finite"
    writer.add(
        "law",
        "law looplm_total",
        params={
            "form": "looplm_total",
            "metric": "train/total_loss",
            "parameters": "total",
            "fit_from": 0.1,
        },
        points=[("law/E", 1.5, EPOCH, 0), ("law/r2/all", 0.99, EPOCH, 0)]
        + [(f"predicted/{cell}", 2.25, EPOCH + step, step) for cell in cells for step in TOKENS],
        tags={
            **{f"suite.input.{cell}": run_id for cell, run_id in fitted[:4]},
            **{f"suite.held_out.{cell}": run_id for cell, run_id in fitted[4:]},
            "suite.law.warnings": json.dumps([warning]),
        },
    )
    failed = writer.add(
        "calibration",
        "calibrate wide Tm=2 on maths niter=1",
        params={
            "model.label": "wide Tm=2",
            "calibrate_on": "maths",
            "evaluate_on": ["maths"],
            "niter": "1",
            "rank": 12,
            "budgets": [200, 400],
        },
        points=[
            (f"{kind}/relative_error/maths", 0.5, EPOCH + step, step)
            for kind in ("key", "value")
            for step in (200, 400)
        ],
        status="FAILED",
    )
    writer.tag(failed, {"suite.failure": f"the model of run {fitted[-1][1]} diverged <b>\x1b[31m"})
    search = writer.add(
        "search",
        "search cheap",
        params={
            "name": "cheap",
            "objectives": ["value/relative_error", "calibration_seconds"],
            "model.label": "wide Tm=2",
            "calibrate_on": "maths",
            "evaluate_on": "maths",
        },
    )
    for number in range(2):
        writer.add(
            "trial",
            f"cheap {number}",
            params={"niter": "0", "tokens": 200, "rank": 4 + number, "trial.number": number},
            points=[
                ("objective/value/relative_error", 0.5 - number / 4, EPOCH, 200),
                ("objective/calibration_seconds", 1.0 + number, EPOCH, 200),
            ],
            parent=search,
        )
    writer.add("pretraining", "größe <i>&", status="RUNNING", tags=attempt(1, EPOCH, -1))
    out = home.reports / STUDY
    report = build_report(open_reader(home), STUDY, None, out)
    digest = sha256(report.manifest_path.read_bytes()).hexdigest()
    cell = {"suite.cell": fingerprint({"kind": "report", "manifest": digest})}
    kept = writer.add("report", f"report {STUDY}", params={"manifest": digest}, tags=cell)
    for file in report.files:
        store.log_artifact(kept, file, "report")
    basis = folder / "größe, 100 % 移動.bin"
    basis.write_bytes(bytes(range(256)) * 5_000)
    store.log_artifact(failed, basis, "basis/deep")


@pytest.fixture(scope="session")
def studied_home(tmp_path_factory: pytest.TempPathFactory, blank_database: Path) -> Home:
    """A home with one study; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("studied")
    root = folder / "a home"
    root.mkdir()
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    shutil.copyfile(blank_database, home.database)
    write_study(home, folder)
    return home


@pytest.fixture(scope="session")
def studied_export(studied_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of ``studied_home``; tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("export") / "out"
    export_study(studied_home, STUDY, folder)
    return folder


@pytest.fixture
def copied_home(studied_home: Home, tmp_path: Path) -> Home:
    shutil.copytree(studied_home.root, tmp_path / "copied")
    return Home.at(tmp_path / "copied")


def reseal(folder: Path) -> None:
    """Make ``study.json`` tell the truth about files that a test has changed."""
    contents = json.loads((folder / CONTENTS_NAME).read_text())
    contents["files"] = {
        str(path.relative_to(folder)): {
            "sha256": sha256(path.read_bytes()).hexdigest(),
            "size": path.stat().st_size,
        }
        for path in folder.rglob("*")
        if path.is_file() and path.name != CONTENTS_NAME
    }
    (folder / CONTENTS_NAME).write_text(json.dumps(contents))


@pytest.fixture(name="reseal")
def _reseal() -> Callable[[Path], None]:
    return reseal


def frames_of(folder: Path) -> dict[str, pl.DataFrame]:
    """All tables of an export, with run ids replaced by the names of the runs."""
    runs = pl.read_parquet(folder / "runs.parquet")
    names = dict(runs.select("run_id", "name").iter_rows())
    frames = {path.stem: pl.read_parquet(path) for path in folder.glob("*.parquet")}
    curves = [pl.read_parquet(path) for path in (folder / "curves").iterdir()]
    frames["curves"] = pl.concat(curves)
    for name, frame in frames.items():
        if name == "tags":
            frame = frame.filter(~pl.col("key").str.starts_with("suite.imported."))
        named = frame.with_columns(
            pl.col(column).str.replace_many(list(names), list(names.values()))
            for column, kind in frame.schema.items()
            if kind == pl.String
        )
        frames[name] = named.sort(pl.all())
    return frames


@pytest.fixture(name="frames_of")
def _frames_of() -> Callable[[Path], dict[str, pl.DataFrame]]:
    return frames_of
