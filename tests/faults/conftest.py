"""Processes and homes for the fault tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.jobs import Preloaded


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUITE_HOME", "MLFLOW_TRACKING_URI", "SUITE_TRACKER_PATIENCE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    process = Preloaded(tmp_path_factory.mktemp("logs"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def blank_database(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs; its schema takes seconds to make."""
    root = tmp_path_factory.mktemp("blank")
    assert preloaded.run("make-store", str(root)).code() == 0
    return root / "mlflow.db"


@pytest.fixture
def new_home(tmp_path: Path, blank_database: Path) -> Callable[[str], Path]:
    """Makes a home with a database and no runs."""

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        shutil.copyfile(blank_database, tmp_path / name / "mlflow.db")
        return tmp_path / name

    return make
