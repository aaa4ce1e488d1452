"""A home that holds a finished law of a grid whose true law is known."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from lightning_modules.looplm.sizes import PRESETS, Shape, count_parameters, resolve
from suite.cli import main
from suite.laws.fit import unidentified_symbols
from suite.laws.forms import LOOPLM_TOTAL
from suite.laws.intervals import bootstrap
from suite.laws.kept import KeptLaw, LastPoint
from suite.tracking.home import Home
from suite.tracking.store import Store, flatten

STUDY = "grid"
TRUTH = {
    "E": 1.5, "A": 300.0, "t1": 2e6, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
    "C": 0.5, "t3": 0.5, "gamma": 0.8,
}  # fmt: skip
LEVELS = (2, 4, 8)
TOKENS = 2e10
SEQUENCE = 2048
Run = tuple[int, str, str]


@dataclass(frozen=True)
class Tracked:
    """What the home holds."""

    home: Home
    law_run: str
    law: KeptLaw
    shapes: dict[str, Shape]
    cells: dict[str, str]


@pytest.fixture(scope="module")
def law() -> KeptLaw:
    """The law of 15 cells, of 6 points each, with noise."""
    rng = np.random.default_rng(0)
    sizes = {name: resolve(size, vocab_size=32_000) for name, size in PRESETS.items()}
    rows = [
        (name, float(count_parameters(shape).total), level, d)
        for name, shape in sizes.items()
        for level in LEVELS
        for d in np.linspace(2e9, TOKENS, 6)
    ]
    columns = {
        key: np.array([row[at] for row in rows], dtype=float)
        for key, at in (("parameters", 1), ("recurrence", 2), ("tokens", 3))
    }
    run = np.repeat(np.arange(15), 6)
    noise = 0.004 * rng.standard_normal(15)[run] + 0.005 * rng.standard_normal(90)
    loss = LOOPLM_TOTAL.predict(TRUTH, columns) * np.exp(noise)
    found = bootstrap(LOOPLM_TOTAL, columns, loss, run, starts=4, resamples=100)
    assert found.unidentified == unidentified_symbols(LOOPLM_TOTAL, columns)
    points = [
        LastPoint(
            cell=f"{name}-{level}",
            size=name,
            recurrence=level,
            parameters=float(count_parameters(shape).total),
            tokens=TOKENS,
            looped=float(count_parameters(shape).looped),
        )
        for name, shape in sizes.items()
        for level in LEVELS
    ]
    return KeptLaw.of(found, run=run, variables=columns, loss=loss, points=points)


@pytest.fixture(scope="module")
def tracked(
    law: KeptLaw, blank_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tracked]:
    """Fifteen pretraining runs, an older law, the law, and one that failed after it."""
    root = tmp_path_factory.mktemp("predict")
    shutil.copyfile(blank_database, root / "mlflow.db")
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    store = Store(home)
    shapes = {name: resolve(size, vocab_size=32_000) for name, size in PRESETS.items()}
    cells = {}
    for name, shape in shapes.items():
        for level in LEVELS:
            cell = f"{name}-{level}"
            cells[cell] = add_run(
                store,
                "pretraining",
                {
                    "size": {"name": name},
                    "shape": asdict(shape),
                    "recurrence": level,
                    "sequence_length": SEQUENCE,
                },
                {"suite.cell": cell},
            )
    tags = {f"suite.input.{cell}": run_id for cell, run_id in cells.items()}
    settings = {"form": law.form, "parameters": "total"}
    older = replace(law, objective=9.0)
    add_law(store, older, settings, tags)
    run_id = add_law(store, law, settings, tags)
    add_run(store, "law", settings, tags, status="FAILED")
    yield Tracked(home=home, law_run=run_id, law=law, shapes=shapes, cells=cells)
    store.close()


def add_run(
    store: Store,
    kind: str,
    params: dict[str, object],
    tags: dict[str, str],
    *,
    study: str = STUDY,
    status: str = "FINISHED",
) -> str:
    """A run that has ended."""
    run_id = store.create_run(study, name=kind, tags={"suite.kind": kind, **tags})
    store.log_params(run_id, flatten(params))
    store.end_run(run_id, status, at=1_790_000_000_000)
    return run_id


def add_law(
    store: Store,
    law: KeptLaw | None,
    params: dict[str, object],
    tags: dict[str, str],
    *,
    study: str = STUDY,
    text: str | None = None,
    status: str = "FINISHED",
) -> str:
    """A law run that keeps a law, or other text."""
    run_id = add_run(store, "law", params, tags, study=study, status=status)
    content = law.to_json() if law is not None else text
    if content is not None:
        folder = store.home.artifacts / study / run_id / "artifacts" / "law"
        folder.mkdir(parents=True)
        (folder / "fit.json").write_text(content)
    return run_id


@pytest.fixture
def suite_predict(capsys: pytest.CaptureFixture[str], tracked: Tracked) -> Callable[..., Run]:
    """Runs ``suite predict`` in the home; gives exit code, output and errors, unbroken."""

    def run(*arguments: object, study: str = STUDY, home: Path | None = None) -> Run:
        place = str(home or tracked.home.root)
        try:
            code = main(["predict", study, "--home", place, *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    return run


@pytest.fixture
def keep_law(tracked: Tracked) -> Iterator[Callable[..., str]]:
    """Adds a study with one law run that keeps a law, or other text; gives the study's name."""
    store = Store(tracked.home)
    number = 0

    def keep(
        law: KeptLaw | None = None, *, text: str | None = None, status: str = "FINISHED"
    ) -> str:
        nonlocal number
        number += 1
        study = f"other-{number}-{uuid4().hex[:8]}"
        tags = {f"suite.input.{cell}": run_id for cell, run_id in tracked.cells.items()}
        add_law(store, law, {"parameters": "total"}, tags, study=study, text=text, status=status)
        return study

    yield keep
    store.close()
