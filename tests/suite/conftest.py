"""Homes for tests: each its own folder, on a copy of one MLflow database made a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.tracking.companion import Companion
from suite.tracking.home import Home

MakeHome = Callable[[str], Home]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in ("SUITE_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _no_companion_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a companion only where a test asks for one at once, not after seconds of waiting."""
    wanted = Companion.wanted

    def wanted_at_once(self: Companion) -> None:
        if self._after == 0.0:
            wanted(self)

    monkeypatch.setattr(Companion, "wanted", wanted_at_once)


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs; its schema takes seconds to make."""
    from suite.tracking.store import Store

    root = tmp_path_factory.mktemp("blank")
    home = Home(root=root, tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    Store(home)
    return home.database


@pytest.fixture
def make_home(tmp_path: Path, blank_database: Path) -> MakeHome:
    """Makes a home of a name, with a database of its own."""

    def make(name: str) -> Home:
        home = Home.at(tmp_path / name)
        home.create()
        shutil.copyfile(blank_database, home.database)
        return home

    return make


@pytest.fixture
def home(make_home: MakeHome) -> Home:
    """A home with a database and no runs."""
    return make_home("home")
