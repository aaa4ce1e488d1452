"""Studies in a tracking store in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from suite.reports import Report, build_report
from tests.suite.reports.fake_reader import FakeReader
from tests.suite.reports.law_store import log_intervals, log_tests, predict


@dataclass
class StudyMaker:
    """Fills a reader with runs whose curves look like those of real studies."""

    reader: FakeReader = field(default_factory=FakeReader)
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    @staticmethod
    def law(parameters: float, tokens: np.ndarray, recurrence: float) -> np.ndarray:
        return (
            1.4
            + 210.0 / parameters**0.31
            + 9.0 / (tokens / 1e6 + 0.9) ** 0.55
            + 0.4 / (recurrence + 0.5) ** 0.8
        )

    def pretraining(
        self,
        *,
        sizes: Mapping[str, int],
        recurrences: Sequence[int] = (2, 4, 8),
        tokens: int = 1_000_000,
        points: int = 60,
        skip: Sequence[tuple[str, int]] = (),
        fail: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        for size, parameters in sizes.items():
            for recurrence in recurrences:
                if (size, recurrence) in skip:
                    continue
                message = (fail or {}).get((size, recurrence))
                steps = np.linspace(tokens / points, tokens, points).astype(int)
                scale = steps * (2e7 / tokens)
                loss = self.law(parameters, scale, recurrence)
                loss = loss + 0.05 * self._random.standard_normal(points)
                if message:
                    steps, loss = steps[: points // 3], loss[: points // 3]
                    loss[-1] = math.nan
                run = self.reader.add(
                    "pretraining",
                    f"pretrain {size} Tm={recurrence}",
                    status="FAILED" if message else "FINISHED",
                    params={
                        "size.name": size,
                        "recurrence": recurrence,
                        "parameters.total": parameters,
                        "parameters.non_embedding": parameters // 2,
                        "tokens": tokens,
                        "objective.form": "entropy",
                        "objective.beta": 0.05,
                    },
                    tags={"suite.failure": message} if message else {},
                )
                self.reader.log(run, "train/total_loss", steps, loss)
                self.reader.log(run, "val/total_loss", steps[9::10], loss[9::10] + 0.1)
                self.reader.log(run, "val/bits_per_byte", steps[9::10], loss[9::10] / 1.7)

    def fit(self, *, hold_out: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
        cells = [row for row in self.reader.rows if row["kind"] == "pretraining"]
        tags = {"suite.law.warnings": json.dumps(list(warnings))}
        for row in cells:
            size = self.reader.texts[str(row["run_id"])]["params"]["size.name"]
            kind = "held_out" if size in hold_out else "input"
            tags[f"suite.{kind}.{row['cell']}"] = str(row["run_id"])
        run = self.reader.add(
            "law",
            "law looplm_total",
            params={
                "form": "looplm_total",
                "metric": "train/total_loss",
                "parameters": "total",
                "fit_from": 0.1,
                "smoothing": 1,
                "points_per_curve": 200,
                "huber_delta": 0.001,
                "starts": 64,
                "hold_out.sizes": list(hold_out),
                "hold_out.recurrences": [],
                "num_points": 60 * len(cells),
            },
            tags=tags,
        )
        for symbol, value in {"E": 1.4, "A": 210.0, "alpha": 0.31, "B": 9.0, "beta": 0.55}.items():
            self.reader.log(run, f"law/{symbol}", [0], [value])
        scores = {
            "law/objective": 0.0123,
            "law/agreeing_share": 0.75,
            "law/r2/all": 0.9981,
            "law/r2/held_out": 0.9712,
            "law/mean_relative_error/fitted": 0.0081,
            "law/mean_relative_error/held_out": 0.0172,
        }
        for key, value in scores.items():
            self.reader.log(run, key, [0], [value])
        for row in cells:
            params = self.reader.texts[str(row["run_id"])]["params"]
            tokens = int(params["tokens"])
            steps = np.array(
                [
                    point["step"]
                    for point in self.reader.points
                    if point["run_id"] == row["run_id"] and point["key"] == "train/total_loss"
                ]
            )
            predicted = self.law(
                int(params["parameters.total"]),
                steps * (2e7 / tokens),
                int(params["recurrence"]),
            )
            self.reader.log(run, f"predicted/{row['cell']}", steps, predicted + 0.06)
        return run

    def calibration(
        self,
        *,
        models: Mapping[str, tuple[float, float]],
        calibrate_on: Sequence[str] = ("FineWeb",),
        evaluate_on: Sequence[str] = ("OpenR1", "FineWeb"),
        budgets: Sequence[int] = tuple(range(20_000, 160_001, 20_000)),
        niters: Sequence[str] = ("1", "8"),
        fail: str | None = None,
    ) -> None:
        steps = np.array(budgets)
        for model, floors in models.items():
            for source in calibrate_on:
                for niter in niters:
                    failed = fail is not None and niter == niters[-1]
                    run = self.reader.add(
                        "calibration",
                        f"calibrate {model} on {source} niter={niter}",
                        status="FAILED" if failed else "FINISHED",
                        params={
                            "model.label": model,
                            "calibrate_on": source,
                            "evaluate_on": list(evaluate_on),
                            "niter": niter,
                            "rank": 10_000,
                            "budgets": list(budgets),
                        },
                        tags={"suite.failure": fail} if failed and fail else {},
                    )
                    reached = steps[: len(steps) // 2] if failed else steps
                    gain = {"1": 1.03, "exact": 0.995}.get(niter, 1.0 + 0.02 / max(1, len(niter)))
                    for place, corpus in enumerate(evaluate_on):
                        carried = 1.0 if corpus == source else 1.08 + 0.05 * place
                        for matrix, floor in zip(("key", "value"), floors, strict=True):
                            error = floor * (1 + 0.4 * (steps[0] / reached) ** 0.9)
                            self.reader.log(
                                run,
                                f"{matrix}/relative_error/{corpus}",
                                reached,
                                error * carried * gain,
                            )
                            self.reader.log(
                                run,
                                f"{matrix}/relative_squared_error/{corpus}",
                                reached,
                                (error * carried * gain) ** 2,
                            )

    def search(
        self,
        *,
        name: str = "kv_budget",
        objectives: Sequence[str] = ("value/relative_error", "calibration_seconds"),
        trials: int = 30,
        failed: int = 0,
    ) -> str:
        parent = self.reader.add(
            "search",
            f"search {name}",
            params={
                "name": name,
                "objectives": list(objectives),
                "model.label": "53M Tm=2",
                "calibrate_on": "pydocs",
                "evaluate_on": "worked_math",
            },
        )
        for number in range(trials):
            tokens = int(self._random.choice([5_000, 10_000, 20_000, 40_000]))
            rank = int(self._random.choice([32, 64, 96]))
            niter = str(self._random.choice(["1", "2", "8", "exact"]))
            broken = number < failed
            run = self.reader.add(
                "trial",
                f"{name} {number}",
                status="FAILED" if broken else "FINISHED",
                parent=parent,
                params={"niter": niter, "tokens": tokens, "rank": rank, "trial.number": number},
            )
            if broken:
                continue
            cost = tokens / 550 + {"1": 1.0, "2": 1.8, "8": 6.0, "exact": 9.0}[niter]
            base = 0.2 * (1 + 3_000 / tokens) * (64 / rank) ** 0.5
            values = {
                "calibration_seconds": cost + float(self._random.random()),
                "value/relative_error": base * {"1": 1.05, "2": 1.02}.get(niter, 1.0),
                "key/relative_error": base * 0.4,
            }
            for objective in objectives:
                self.reader.log(run, f"objective/{objective}", [tokens], [values[objective]])
        return parent


def _demo() -> StudyMaker:
    """A study with every stage, small enough to draw in a second."""
    made = StudyMaker()
    made.pretraining(sizes={"small": 59_713, "medium": 172_673}, recurrences=(2, 4), points=20)
    made.fit(hold_out=("medium",), warnings=("gamma and t3 are not identified",))
    made.calibration(
        models={"small Tm=2": (0.08, 0.2)},
        calibrate_on=("pydocs",),
        evaluate_on=("worked_math", "pydocs"),
        budgets=(1_000, 2_000, 4_000),
        niters=("1", "8", "exact"),
    )
    made.search(trials=8)
    return made


@pytest.fixture
def maker() -> StudyMaker:
    return StudyMaker()


@pytest.fixture
def demo() -> StudyMaker:
    return _demo()


@pytest.fixture
def judged() -> StudyMaker:
    """``demo`` with all that a law stage tracks: intervals, tests and a blind prediction."""
    made = _demo()
    law = made.reader.run_named("law looplm_total")
    log_intervals(made.reader, law, unidentified=("B",))
    log_tests(made.reader, law)
    predict(made.reader, law)
    return made


@pytest.fixture(scope="session")
def demo_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of an untouched ``demo``; tests only read it."""
    out = tmp_path_factory.mktemp("report") / "demo"
    return build_report(_demo().reader, "demo", None, out)
