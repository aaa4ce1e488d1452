"""Check of Optuna's journal: whether it can be read, and whether a lock was left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from suite.doctor.examination import TRASH, Examination
from suite.doctor.findings import Finding, ok


def check_journal(exam: Examination) -> Iterator[Finding]:
    """Whether searches can go on where they stopped."""
    journal = exam.home.optuna_journal
    yield from _lock(exam, journal)
    if not journal.is_file():
        yield ok("no search has been run yet")
        return
    whole, wrong = readable_bytes(journal)
    size = journal.stat().st_size
    if wrong:
        yield _unreadable(exam, journal, wrong)
        return
    if whole < size:
        yield _torn(exam, journal, whole, size)
    if whole == journal.stat().st_size:  # by now, where it was cut
        yield _contents(exam, journal)


def _unreadable(exam: Examination, journal: Path, wrong: str) -> Finding:
    return exam.mendable(
        f"Optuna's journal cannot be read: {wrong}",
        str(journal),
        severity="error",
        remedy=f"moves it to {exam.home.root / TRASH}; the next run makes a new one, and takes "
        "finished trials from their tracked runs",
        mend=lambda: f"moved to {exam.set_aside(journal)}",
    )


def _torn(exam: Examination, journal: Path, whole: int, size: int) -> Finding:
    return exam.mendable(
        f"the last {size - whole:,} bytes of Optuna's journal are no whole record; searches fail "
        "on them now, or once the next record is glued to them",
        str(journal),
        remedy=f"cuts it off, and keeps the journal as it is in {exam.home.root / TRASH}",
        mend=_cut(exam, journal, whole),
    )


def _lock(exam: Examination, journal: Path) -> Iterator[Finding]:
    lock = journal.with_name(journal.name + ".lock")
    if not lock.is_symlink() and not lock.exists():
        return
    if at_work := exam.at_work():
        yield ok(f"Optuna's journal is locked, as it may be while there is {at_work}")
        return

    def mend() -> str:
        lock.unlink(missing_ok=True)
        return "removed"

    yield exam.mendable(
        "a lock of Optuna's own lies beside the journal; `suite run` does not heed it, but a "
        "program that opens the journal with Optuna's own lock waits for it",
        str(lock),
        remedy="removes the lock",
        mend=mend,
    )


def readable_bytes(journal: Path) -> tuple[int, str]:
    """How much of a journal Optuna can read.

    Returns:
        Bytes of whole records from the start, and what is wrong with a record that others
        follow; empty where only the last may be incomplete.
    """
    whole, damaged_line = 0, 0
    with journal.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if damaged_line:
                return whole, f"line {damaged_line} is damaged"
            if _is_record(line):
                whole += len(line)
            else:
                damaged_line = number
    return whole, ""


def _is_record(line: bytes) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n") and isinstance(record, dict)


def _contents(exam: Examination, journal: Path) -> Finding:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        studies = storage.get_all_studies()
        trials = sum(storage.get_n_trials(study._study_id) for study in studies)
    except Exception as error:  # a record that makes no sense fails in many ways, with one cure
        return _unreadable(exam, journal, f"{type(error).__name__}: {error}")
    return ok(f"Optuna's journal can be read: {len(studies):,} search(es), {trials:,} trials")


def _cut(exam: Examination, journal: Path, whole: int) -> Callable[[], str]:
    def mend() -> str:
        kept = exam.place_in_trash(journal)
        shutil.copy2(journal, kept)
        os.truncate(journal, whole)
        return f"cut to its {whole:,} whole bytes; as it was it lies in {kept}"

    return mend
