from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from suite.doctor.journal_check import readable_bytes
from suite.tracking.home import Home


@pytest.fixture
def journal(home: Home) -> Path:
    """The journal of a search with three trials."""
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(home.optuna_journal))), study_name="s"
    )
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    return home.optuna_journal


def num_trials(journal: Path) -> int:
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return len(optuna.load_study(storage=storage, study_name="s").trials)


def kept(home: Home) -> list[Path]:
    return sorted((home.root / "trash").glob("*/optuna*.journal"))


def test_a_whole_journal_is_counted(home: Home, journal: Path, examine: Callable[..., Any]) -> None:
    assert examine(home, fix=True).good("searches") == [
        "Optuna's journal can be read: 1 search(es), 3 trials"
    ]
    assert kept(home) == []


@pytest.mark.parametrize("torn", [b'{"op_code":5,"wor', b"\x00" * 9, b'{"a":1}{"b":2}\n'])
def test_half_a_record_at_the_end_is_cut_off_before_another_is_glued_to_it(
    home: Home, journal: Path, examine: Callable[..., Any], torn: bytes
) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    finding = examine(home).only("searches").finding
    assert finding.what.startswith(
        f"the last {len(torn)} bytes of Optuna's journal are no whole record"
    )
    assert examine(home, fix=True).left == []
    assert journal.read_bytes() == whole
    assert [path.read_bytes() for path in kept(home)] == [whole + torn]
    assert num_trials(journal) == 3
    assert examine(home, fix=True).good("searches")
    assert len(kept(home)) == 1


def test_a_damaged_record_that_others_follow_moves_the_journal_away(
    home: Home, journal: Path, examine: Callable[..., Any]
) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = b"\xff" + lines[2]
    journal.write_bytes(b"".join(lines))
    outcome = examine(home, fix=True).only("searches")
    assert outcome.finding.severity == "error"
    assert outcome.finding.what == "Optuna's journal cannot be read: line 3 is damaged"
    assert outcome.mended == f"moved to {kept(home)[0]}"
    assert not journal.exists()
    assert examine(home, fix=True).good("searches") == ["no search has been run yet"]


def test_records_that_make_no_sense_move_the_journal_away(
    home: Home, journal: Path, examine: Callable[..., Any]
) -> None:
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    del records[0]["study_name"]
    journal.write_text("".join(json.dumps(record) + "\n" for record in records))
    outcome = examine(home, fix=True).only("searches")
    assert outcome.finding.what == "Optuna's journal cannot be read: KeyError: 'study_name'"
    assert outcome.mended is not None


@pytest.mark.parametrize("moved", [False, True])
def test_a_lock_that_was_left_behind_is_removed(
    home: Home, journal: Path, examine: Callable[..., Any], moved: bool
) -> None:
    lock = journal.with_name("optuna.journal.lock")
    lock.symlink_to("/an/old/place/optuna.journal" if moved else journal)
    finding = examine(home).only("searches").finding
    assert finding.severity == "warning"
    assert "a lock of Optuna's own" in finding.what
    with home.hold("demo"):
        assert examine(home, fix=True).left == []
        assert lock.is_symlink()
    assert examine(home, fix=True).left == []
    assert not lock.is_symlink()
    assert num_trials(journal) == 3


record = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2)
line = record.map(lambda value: json.dumps(value).encode() + b"\n") | st.binary(max_size=8)


def read_by_optuna(path: Path) -> tuple[list[object], bool]:
    """Records that Optuna gives, and whether it goes through to the end."""
    found: list[object] = []
    try:
        for value in JournalFileBackend(str(path)).read_logs(0):
            found.append(value)
    except ValueError:
        return found, False
    return found, True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(line, max_size=6))
def test_what_is_cut_off_is_what_optuna_cannot_read(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"".join(lines))
    records, to_the_end = read_by_optuna(path)
    if not all(isinstance(value, dict) for value in records):
        return  # Optuna's own records are objects; it stumbles over others only later
    whole, wrong = readable_bytes(path)
    if wrong:
        assert not to_the_end
    path.write_bytes(path.read_bytes()[:whole])
    assert read_by_optuna(path) == (records, True)
    assert readable_bytes(path) == (whole, "")
