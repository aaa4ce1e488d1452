from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from suite.errors import InputError, SuiteError
from suite.tracking.client_reader import ClientReader
from suite.tracking.home import Home
from suite.tracking.reader import open_reader
from suite.tracking.sql_reader import SqlReader


def test_a_home_is_read_by_sql(home: Home) -> None:
    assert isinstance(open_reader(home), SqlReader)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_is_read_by_mlflows_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    checked: list[ClientReader] = []
    monkeypatch.setattr(ClientReader, "check", lambda self: checked.append(self))
    reader = open_reader(Home(root=tmp_path, tracking_uri=f"{scheme}://tracking.example:5000"))
    assert checked == [reader]


def test_reading_a_database_loads_no_mlflow(home: Home) -> None:
    """It takes seconds, and a report has no use for it."""
    program = (
        "import sys\n"
        "from suite.tracking.home import Home\n"
        "from suite.tracking.reader import open_reader\n"
        f"open_reader(Home.at({str(home.root)!r})).runs(None)\n"
        "print([name for name in ('mlflow', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_home_without_runs_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no runs yet; start with `suite run STUDY`"):
        open_reader(Home.at(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_database_that_is_not_there_is_not_made_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(InputError, match=r"none\.db holds no MLflow runs yet"):
        open_reader(Home.at(tmp_path / "home"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"this is no database at all, but a text file"])
def test_a_file_that_is_no_mlflow_database(tmp_path: Path, content: bytes) -> None:
    home = Home.at(tmp_path)
    home.database.write_bytes(content)
    with pytest.raises(InputError, match=r"mlflow\.db") as caught:
        open_reader(home)
    assert "\n" not in str(caught.value)
    assert home.database.read_bytes() == content


def test_a_database_of_something_else(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with sqlite3.connect(home.database) as database:
        database.execute("CREATE TABLE tracks (name TEXT)")
    with pytest.raises(InputError, match="holds no MLflow runs yet"):
        open_reader(home)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("./mlruns", r"'\./mlruns' is neither a database, such as sqlite:///\.\.\. or postgresql"),
        ("databricks", "'databricks' is neither a database"),
        ("file:///tmp/mlruns", "'file:///tmp/mlruns' is neither a database"),
        ("oracle+none://h/d", r"'oracle\+none://h/d' is neither a database"),
        ("postgres://me:secret@h/d", "'postgres://h/d' is neither a database"),
        ("postgresql+pg8000://h/d", "the database driver pg8000 is not installed; `pip install"),
        (
            "postgresql://me:secret@127.0.0.1:1/d",
            r"^postgresql://me:\*\*\*@127.0.0.1:1/d cannot be read as an MLflow database: [^\n]*$",
        ),
    ],
)
def test_an_address_that_names_no_store(tmp_path: Path, uri: str, message: str) -> None:
    if uri.startswith("postgresql:"):
        pytest.importorskip("psycopg", reason="PostgreSQL: its driver psycopg is not installed")
    with pytest.raises(InputError, match=message) as caught:
        open_reader(Home(root=tmp_path, tracking_uri=uri))
    assert "secret" not in str(caught.value)
    assert issubclass(InputError, SuiteError)
