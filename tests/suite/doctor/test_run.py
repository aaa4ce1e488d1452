from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rich.console import Console

from suite.doctor import run as doctor
from suite.doctor.findings import Finding, Outcome, note, ok
from suite.doctor.run import lines, run_doctor, summary
from suite.errors import InputError, SuiteError
from suite.tracking.home import Home
from suite.tracking.processes import WorkingProcess
from suite.tracking.recorder import RunRecorder
from suite.tracking.spool import End, SpoolFile, SpoolWriter
from suite.tracking.store import Store

_KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("CREATE TABLE half AS WITH RECURSIVE n(i) AS "
                   "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n")
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_writer(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_WRITING, str(home.database)], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert home.database.with_name("mlflow.db-journal").stat().st_size > 0


def write_ahead(home: Home) -> None:
    with contextlib.closing(sqlite3.connect(home.database)) as connection:
        connection.execute("PRAGMA journal_mode = wal")


def spoil(home: Home) -> None:
    content = home.database.read_bytes()
    home.database.write_bytes(content[:4096] + b"\xff" * 100_000 + content[104_096:])


def leave_half_files(home: Home) -> None:
    """One of each kind of file that a process leaves when it is killed."""
    names = (
        ".mlflow.db.0f.part",
        ".mlflow.db.0f.part-journal",
        "artifacts/demo/r/.key.safetensors.0f.part",
        "cache/tokens/.0f.npy.1e.part",
        "checkpoints/r/tokens-000000000000064.part",
        "spool/x.1.offset-new",
        "spool/x.1.offset",
        "spool/x.1.lock",
        "reports/.demo-abc.part/index.html",
        "optuna.journal.lock1f.rename",
    )
    for name in names:
        path = home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    for path in home.root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)


def leave_journal(home: Home) -> None:
    optuna.create_study(storage=JournalStorage(JournalFileBackend(str(home.optuna_journal))))
    with home.optuna_journal.open("a") as journal:
        journal.write('{"op_co')
    home.optuna_journal.with_name("optuna.journal.lock").symlink_to("/nowhere/optuna.journal")


def leave_holder(home: Home) -> None:
    locks = home.root / "locks"
    locks.mkdir()
    (locks / "demo.lock").touch()
    host = os.uname().nodename
    (locks / "demo.json").write_text(json.dumps({"host": host, "pid": 2**22 + 1}))


def leave_cache(home: Home) -> None:
    for name in ("moments/a/tokens-64.safetensors", "tokens/a.npy", "tokenizers/a.json"):
        path = home.cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x93cut")


def remove_database(home: Home) -> None:
    home.database.unlink()


def empty_database(home: Home) -> None:
    home.database.write_bytes(b"")


def nothing(home: Home) -> None:
    """Leave the home as it is."""


ILLS: dict[str, Callable[[Home], None]] = {
    "none": nothing,
    "no database": remove_database,
    "an empty database": empty_database,
    "a damaged database": spoil,
    "a transaction cut off": kill_a_writer,
    "a write-ahead log": write_ahead,
    "half-made files": leave_half_files,
    "a torn journal with a lock": leave_journal,
    "the name of a process that is gone": leave_holder,
    "a damaged cache": leave_cache,
}


@pytest.mark.parametrize("ill", ILLS)
def test_to_look_is_to_change_nothing_and_to_mend_is_to_leave_nothing(
    home: Home,
    digest: Callable[[Path], dict[str, tuple[str, int]]],
    examine: Callable[..., Any],
    ill: str,
) -> None:
    ILLS[ill](home)
    before = digest(home.root)
    found = examine(home)
    assert digest(home.root) == before
    assert set(found) == {title for title, _ in doctor.CHECKS} - {"packages", "devices"}
    mended = examine(home, fix=True)
    assert all(outcome.failed is None for outcomes in mended.values() for outcome in outcomes)
    healthy = ill in ("none", "no database", "a write-ahead log")
    assert bool(found.left) != healthy
    if ill == "a damaged database":
        assert mended.left == ["the database is damaged; no command that needs it will work, and "
                               "--fix leaves it"]  # fmt: skip
    else:
        assert mended.left == []
    after = digest(home.root)
    again = examine(home, fix=True)
    assert again.left == mended.left
    assert all(o.mended is None for outcomes in again.values() for o in outcomes)
    # to take a lock is to touch it, and to read a write-ahead log to note how far it is read
    ignored = {".", "locks", "locks/demo.lock", "mlflow.db-wal", "mlflow.db-shm"}
    assert {k: v for k, v in digest(home.root).items() if k not in ignored} == {
        k: v for k, v in after.items() if k not in ignored
    }


def test_all_ills_at_once_are_mended_at_once(
    home: Home,
    begin: Callable[..., RunRecorder],
    leave_spool: Callable[..., SpoolFile],
    examine: Callable[..., Any],
) -> None:
    leave_spool(begin().run_id)
    for ill in ("half-made files", "a torn journal with a lock", "a damaged cache"):
        ILLS[ill](home)
    leave_holder(home)
    kill_a_writer(home)
    num_left = len(examine(home).left)
    mended = examine(home, fix=True)
    assert sum(o.mended is not None for outcomes in mended.values() for o in outcomes) == num_left
    assert mended.left == []
    assert examine(home).left == []


def test_what_was_mended_is_seen_by_later_checks_in_a_write_ahead_log_too(
    store: Store,
    leave_spool: Callable[..., SpoolFile],
    gone: WorkingProcess,
    digest: Callable[[Path], dict[str, tuple[str, int]]],
    examine: Callable[..., Any],
) -> None:
    run_id = store.create_run("demo", name="n", tags={"suite.kind": "law", "suite.cell": "0"})
    SpoolWriter(leave_spool(run_id), gone).append(End("FINISHED", 9_000))
    write_ahead(store.home)
    before = digest(store.home.root)
    examine(store.home)
    assert digest(store.home.root) == before
    mended = examine(store.home, fix=True)
    assert (mended.only("spool").mended, mended.left) == ("sent 3 values", [])
    assert mended.good("cut-off runs") == ["none of 1 runs is RUNNING without a process"]
    assert store.client.get_run(run_id).info.status == "FINISHED"


def test_a_home_that_is_empty_has_nothing_to_mend_and_stays_empty(
    tmp_path: Path, examine: Callable[..., Any]
) -> None:
    for fix in (False, True):
        assert examine(Home.at(tmp_path), fix=fix).left == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fix", [False, True])
@pytest.mark.parametrize(("kind", "said"), [("absent", "does not exist"), ("file", "not a folder")])
def test_a_home_that_is_none_is_bad_input(tmp_path: Path, fix: bool, kind: str, said: str) -> None:
    path = tmp_path / "home"
    if kind == "file":
        path.touch()
    with pytest.raises(InputError, match=f"{path}.* {said}; name another with --home"):
        run_doctor(Home.at(path), fix=fix)
    assert path.exists() == (kind == "file")


def test_a_store_that_is_away_is_told_and_what_waits_is_kept(
    home: Home,
    begin: Callable[..., RunRecorder],
    leave_spool: Callable[..., SpoolFile],
    digest: Callable[[Path], dict[str, tuple[str, int]]],
    examine: Callable[..., Any],
) -> None:
    spool = leave_spool("a" * 32, values=7)
    away = Home(root=home.root, tracking_uri="http://me:secret@127.0.0.1:9")
    before = digest(home.root)
    for fix in (False, True):
        found = examine(away, fix=fix)
        lost = found.only("tracking store").finding
        assert lost.severity == "error"
        assert "http://127.0.0.1:9 does not answer" in lost.what
        assert "secret" not in repr(found)
        waiting = found.only("spool").finding
        assert waiting.what == f"7 values of run {'a' * 32} wait to be sent"
        assert waiting.mend is None
    assert spool.path.exists()
    assert {k: v for k, v in digest(home.root).items() if k != "."} == {
        k: v for k, v in before.items() if k != "."
    }


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Puts other checks in the place of all."""

    def use(found: dict[str, Any]) -> None:
        named = [(name, lambda exam, f=f: f()) for name, f in found.items()]
        monkeypatch.setattr(doctor, "CHECKS", tuple(named))

    return use


def broken() -> Iterator[Finding]:
    yield ok("this much")
    raise ZeroDivisionError("by zero")


def refused() -> Iterator[Finding]:
    raise SuiteError("the tag was edited")
    yield


def cannot() -> str:
    raise PermissionError(13, "Permission denied", "/somewhere")


def test_a_check_that_breaks_does_not_keep_others_from_theirs(
    home: Home, checks: Callable[[dict[str, Any]], None]
) -> None:
    checks({"one": broken, "two": refused, "three": lambda: iter([note("last")])})
    told = [(title, outcome.finding.what) for title, outcome in doctor.examine(home)]
    assert told == [
        ("one", "this much"),
        ("one", "this could not be looked at (ZeroDivisionError: by zero)"),
        ("two", "the tag was edited"),
        ("three", "last"),
    ]


def test_what_cannot_be_mended_is_left_with_the_reason(
    home: Home, checks: Callable[[dict[str, Any]], None]
) -> None:
    ill = Finding(severity="warning", what="ill", remedy="cures", mend=cannot)
    checks({"one": lambda: iter([ill])})
    ((_, outcome),) = doctor.examine(home, fix=True)
    assert outcome.left
    assert list(lines(outcome, fix=True)) == [
        ("warning", "ill"),
        ("failed", "[Errno 13] Permission denied: '/somewhere'"),
        ("to do", "cures"),
    ]


def test_what_is_printed(home: Home, checks: Callable[[dict[str, Any]], None]) -> None:
    places = tuple(f"place {number}" for number in range(12))
    ill = Finding(severity="warning", what="ill", where=places, remedy="cures", mend=lambda: "gone")
    checks(
        {
            "names": lambda: iter([ok("fine"), note("\x1b[31mred\n\udc80 [b]é", remedy="look")]),
            "ills": lambda: iter([ill]),
        }
    )
    told = io.StringIO()
    console = Console(file=told, highlight=False, width=20)
    assert run_doctor(home, console=console) == 1
    assert run_doctor(home, console=console, fix=True) == 0
    first = "".join(f"           place {number}\n" for number in range(10))
    names = (
        "names\n  ok       fine\n  note     \\x1b[31mred\\n\\udc80 [b]é\n  hint     look\n"
        f"ills\n  warning  ill\n{first}           and 2 more\n"
    )
    assert told.getvalue() == (
        f"{names}  --fix    cures\n"
        "1 thing(s) to mend: `suite doctor --fix` mends 1, 0 left for you\n"
        f"{names}  mended   gone\n"
        "1 thing(s) mended, 0 left for you\n"
    )


@pytest.mark.parametrize(
    ("outcome", "left"),
    [
        (Outcome(finding=ok("")), False),
        (Outcome(finding=note("")), False),
        (Outcome(finding=Finding(severity="warning", what="")), True),
        (Outcome(finding=Finding(severity="error", what="")), True),
        (Outcome(finding=Finding(severity="warning", what="", mend=str)), True),
        (Outcome(finding=Finding(severity="error", what="", mend=str), mended="x"), False),
        (Outcome(finding=Finding(severity="error", what="", mend=str), failed="x"), True),
    ],
)
def test_what_counts_as_left(outcome: Outcome, left: bool) -> None:
    assert outcome.left == left
    assert (summary([outcome], fix=False) == "nothing to mend") == (not left)


def test_a_study_that_runs_is_not_disturbed(
    home: Home, examine: Callable[..., Any], digest: Callable[[Path], dict[str, tuple[str, int]]]
) -> None:
    code = (
        "import sys; from suite.tracking.home import Home\n"
        "with Home.at(sys.argv[1]).hold('demo'): print(flush=True); input()\n"
    )
    leave_journal(home)
    leave_cache(home)
    leave_half_files(home)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        before = digest(home.root)
        for fix in (False, True):
            found = examine(home, fix=fix)
            assert found.left == []
            assert found.good("studies at work") == [
                f"process {worker.pid} on {os.uname().nodename} works on 'demo'; it is left alone"
            ]
        changed = {name for name, was in before.items() if digest(home.root).get(name) != was}
        assert changed <= {".", "locks/demo.lock"}
        worker.communicate("\n")
    assert len(examine(home, fix=True).left) == 0
    assert not list(home.cache.rglob("*.npy"))


def test_it_holds_studies_only_while_it_mends(home: Home, examine: Callable[..., Any]) -> None:
    leave_holder(home)
    examined = doctor.examine(home, fix=True)
    next(examined)
    with pytest.raises(SuiteError, match=f"process {os.getpid()} on"), home.hold("demo"):
        raise AssertionError
    examined.close()
    with home.hold("demo"):
        assert examine(home).good("studies at work") == [
            f"process {os.getpid()} on {os.uname().nodename} works on 'demo'; it is left alone"
        ]


def test_it_needs_no_mlflow_to_look_at_a_home(home: Home) -> None:
    code = (
        "import sys\n"
        "from suite.doctor import run\n"
        "from suite.tracking.home import Home\n"
        "run.CHECKS = tuple(c for c in run.CHECKS if c[0] != 'devices')\n"
        "list(run.examine(Home.at(sys.argv[1])))\n"
        "print(sorted({'mlflow', 'torch', 'lightning', 'transformers'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(home.root)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_home_that_was_copied_elsewhere_is_as_whole(
    home: Home, tmp_path: Path, begin: Callable[..., RunRecorder], examine: Callable[..., Any]
) -> None:
    begin().end("FINISHED")
    copy = tmp_path / "größer, with spaces"
    shutil.copytree(home.root, copy)
    assert examine(Home.at(copy), fix=True).left == []
