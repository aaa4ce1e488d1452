from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from suite.cli import main
from suite.tables.figures import displays
from suite.tables.outcome import Outcome

Run = tuple[int, str, str]


@pytest.fixture(scope="session")
def oracle() -> Callable[[str], Path]:
    """Path of one of the public tables that correct fits are known for."""
    default = Path(__file__).resolve().parents[4] / "shared" / "oracles"
    folder = Path(os.environ.get("SUITE_ORACLES", default))

    def find(name: str) -> Path:
        if not (folder / name).is_file():
            pytest.skip(f"there is no {name} in {folder}; SUITE_ORACLES names another folder")
        return folder / name

    return find


@pytest.fixture
def suite_fit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Runs ``suite fit``; gives its exit code, output and errors, both without line breaks."""

    def run(*arguments: object) -> Run:
        try:
            code = main(["fit", *map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    return run


@pytest.fixture(scope="session")
def runs() -> pl.DataFrame:
    """Curves of six runs, a few points each, that a known law and a little noise have made."""
    rng = np.random.default_rng(0)
    rows = [
        (f"{size}-{budget}", size, n, d, 1.7 + 400 / n**0.34 + 900 / d**0.32)
        for size, n in (("S", 5e7), ("M", 2e8), ("L", 1e9))
        for budget in ("short", "long")
        for d in np.geomspace(1e9, 5e9 if budget == "short" else 2e10, 4)
    ]
    table = pl.DataFrame(rows, schema=["run", "size", "params", "tokens", "loss"], orient="row")
    noise = np.exp(0.003 * rng.standard_normal(len(table)))
    return table.with_columns(loss=pl.col("loss") * noise)


@pytest.fixture
def runs_csv(runs: pl.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "runs.csv"
    runs.write_csv(path)
    return path


@pytest.fixture
def plain_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures in place of drawn ones, for tests of all else that a fit writes."""

    def draw(outcome: Outcome) -> dict[str, Figure]:
        return {name: Figure(figsize=(1, 1)) for name in displays(outcome)}

    monkeypatch.setattr("suite.tables.figures.draw", draw)
