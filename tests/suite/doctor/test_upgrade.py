from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import mlflow.store.db.utils as mlflow_db
import pytest
import sqlalchemy as sa
from alembic import command
from mlflow import MlflowClient
from mlflow.store.tracking.dbmodels.initial_models import Base as InitialBase

from suite.doctor import upgrade as upgrading
from suite.doctor.revisions import head_revision, revision_order
from suite.doctor.store_checks import stored_revision
from suite.doctor.upgrade import back_up, upgrade
from suite.errors import SuiteError
from suite.tracking.home import Home

OLD = "acf3f17fdcc7"  # of MLflow 2.3, which had neither datasets nor traces
RUN = "0123456789abcdef0123456789abcdef"
ROWS = """
INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage)
VALUES (1, 'demo', 'mlflow-artifacts:/demo', 'active');
INSERT INTO runs (run_uuid, name, experiment_id, status, start_time, end_time, lifecycle_stage,
                  artifact_uri, source_type, source_name, entry_point_name, user_id)
VALUES (:run, 'old', 1, 'FINISHED', 1000, 2000, 'active', 'mlflow-artifacts:/demo/r', 'LOCAL',
        '', '', 'me');
INSERT INTO tags (run_uuid, key, value) VALUES (:run, 'suite.kind', 'law');
INSERT INTO params (run_uuid, key, value) VALUES (:run, 'form', 'looplm_total');
INSERT INTO metrics (run_uuid, key, value, timestamp, step, is_nan)
VALUES (:run, 'loss', 0.1, 1500, 64, 0), (:run, 'loss', 0.2, 1600, 128, 0);
INSERT INTO latest_metrics (run_uuid, key, value, timestamp, step, is_nan)
VALUES (:run, 'loss', 0.2, 1600, 128, 0);
""".replace(":run", f"'{RUN}'")


@pytest.fixture(scope="module")
def old_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run in it, as an MLflow of years ago has left it."""
    path = tmp_path_factory.mktemp("old") / "mlflow.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    InitialBase.metadata.create_all(engine)
    config = mlflow_db._get_alembic_config(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLD)
    engine.dispose()
    with closing(sqlite3.connect(path)) as connection_:
        connection_.executescript(ROWS)
    return path


@pytest.fixture
def old_home(tmp_path: Path, old_database: Path) -> Home:
    home = Home.at(tmp_path / "an old home")
    home.create()
    shutil.copyfile(old_database, home.database)
    return home


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The run with all that it holds."""
    queries = {
        "runs": "SELECT run_uuid, name, status, start_time, end_time, artifact_uri FROM runs",
        "tags": "SELECT key, value FROM tags",
        "params": "SELECT key, value FROM params",
        "metrics": "SELECT key, value, timestamp, step, is_nan FROM metrics ORDER BY step",
    }
    with closing(sqlite3.connect(path)) as connection:
        return {name: connection.execute(query).fetchall() for name, query in queries.items()}


def upgrade_here(path: Path) -> None:
    """What the command of MLflow does, without a process of its own."""
    engine = sa.create_engine(f"sqlite:///{path}")
    mlflow_db._upgrade_db(engine)
    engine.dispose()


@pytest.mark.parametrize(
    "own_process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "command"]
)
def test_an_old_schema_is_upgraded_and_its_run_survives(
    old_home: Home,
    examine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    own_process: bool,
) -> None:
    if not own_process:
        monkeypatch.setattr(upgrading, "_upgrade_with_mlflow", upgrade_here)
    before, content = rows(old_home.database), old_home.database.read_bytes()
    steps = len(revision_order()) - 1 - revision_order().index(OLD)
    found = examine(old_home).only("schema")
    assert f"the schema {OLD} is {steps} step(s) behind MLflow" in found.finding.what
    assert old_home.database.read_bytes() == content

    found = examine(old_home, fix=True)
    (backup,) = (old_home.root / "backups").iterdir()
    assert found.only("schema").mended == (
        f"upgraded from {OLD} to {head_revision()}; the old one is kept as {backup}"
    )
    assert found.left == []
    assert stored_revision(f"sqlite:///{old_home.database}") == head_revision()
    assert rows(old_home.database) == before == rows(backup)
    assert stored_revision(f"sqlite:///{backup}") == OLD
    assert sorted(path.name for path in old_home.root.iterdir()) == [
        "backups",
        "locks",
        "mlflow.db",
        "store.lock",
    ]
    client = MlflowClient(old_home.tracking_uri)
    run = client.get_run(RUN)
    assert (run.info.status, run.data.params) == ("FINISHED", {"form": "looplm_total"})
    history = [(point.step, point.value) for point in client.get_metric_history(RUN, "loss")]
    assert history == [(64, 0.1), (128, 0.2)]
    assert examine(old_home, fix=True).left == []
    assert len(list((old_home.root / "backups").iterdir())) == 1


def test_a_backup_never_replaces_another(old_home: Home) -> None:
    paths = {back_up(old_home, OLD) for _ in range(3)}
    assert len(paths) == 3
    assert all(rows(path) == rows(old_home.database) for path in paths)
    assert {path for path in (old_home.root / "backups").iterdir()} == paths


def cut_off(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE tags")
    raise KeyboardInterrupt("cut")


def lose_a_run(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM params")
        connection.commit()


def fail(path: Path) -> None:
    raise SuiteError("MLflow's upgrade fails (no such column)")


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        (cut_off, KeyboardInterrupt, "cut"),
        (lose_a_run, SuiteError, "params 1 -> 0"),
        (fail, SuiteError, "no such column"),
    ],
)
def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    old_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[Path], None],
    error: type[BaseException],
    said: str,
) -> None:
    content = old_home.database.read_bytes()
    monkeypatch.setattr(upgrading, "_upgrade_with_mlflow", step)
    with pytest.raises(error, match=said):
        upgrade(old_home, OLD)
    assert old_home.database.read_bytes() == content
    assert not list(old_home.root.glob(".*"))


def test_what_a_process_writes_during_an_upgrade_is_not_lost(
    old_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_meanwhile(path: Path) -> None:
        with closing(sqlite3.connect(old_home.database)) as connection:
            connection.execute("INSERT INTO tags VALUES ('new', 'tag', ?)", (RUN,))
            connection.commit()

    monkeypatch.setattr(upgrading, "_upgrade_with_mlflow", write_meanwhile)
    with pytest.raises(SuiteError, match=r"a process wrote to .* meanwhile"):
        upgrade(old_home, OLD)
    assert len(rows(old_home.database)["tags"]) == 2


def test_an_upgrade_without_space_is_refused(
    old_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = old_home.database.stat().st_size
    usage = shutil.disk_usage(old_home.root)._replace(free=3 * size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SuiteError, match="are needed for a backup and a copy"):
        upgrade(old_home, OLD)
    assert not (old_home.root / "backups").exists()


def test_a_schema_of_a_newer_mlflow_is_left_alone(home: Home, examine: Callable[..., Any]) -> None:
    with closing(sqlite3.connect(home.database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
        connection.commit()
    content = home.database.read_bytes()
    for fix in (False, True, True):
        outcome = examine(home, fix=fix).only("schema")
        assert outcome.finding.severity == "error"
        assert "the schema ffffffffffff is not known to MLflow" in outcome.finding.what
        assert (outcome.mended, outcome.failed, outcome.finding.mend) == (None, None, None)
    assert home.database.read_bytes() == content


def test_a_database_of_others_is_not_upgraded(
    old_home: Home, make_home: Callable[[str], Home], examine: Callable[..., Any]
) -> None:
    other = make_home("other")
    shared = Home(root=other.root, tracking_uri=old_home.tracking_uri)
    content = old_home.database.read_bytes()
    finding = examine(shared, fix=True).only("schema").finding
    assert finding.mend is None
    assert finding.remedy.endswith(f"`mlflow db upgrade {old_home.tracking_uri}`")
    assert old_home.database.read_bytes() == content
