"""Optuna's journal after a death in the middle of a write, or with its lock held."""

from __future__ import annotations

import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from suite.study import SearchSpace
from tuning import Combination, combinations, run_trials

SPACE = combinations(SearchSpace(niter=(0, 2, "exact"), tokens=(100, 200), rank=(4, 8)))


def search(storage: Path, trials: int) -> list[Combination]:
    """Run trials; the combinations that were evaluated."""
    evaluated: list[Combination] = []

    def evaluate(number: int, combination: Combination) -> list[float]:
        evaluated.append(combination)
        return [float(combination.tokens * combination.rank)]

    run_trials(
        storage=storage,
        name="search",
        space=SPACE,
        trials=trials,
        seed=0,
        objectives=1,
        evaluate=evaluate,
    )
    return evaluated


@pytest.mark.parametrize("torn", [1, 10, 60])
def test_a_line_that_was_cut_off_is_forgotten(tmp_path: Path, torn: int) -> None:
    undisturbed = search(tmp_path / "undisturbed", 6)
    journal = tmp_path / "journal"
    before = search(journal, 3)
    content = journal.read_bytes()
    journal.write_bytes(content[:-torn])
    again = search(journal, 6)
    assert before[:2] + again[-4:] == undisturbed


@pytest.mark.parametrize("target", ["journal", "moved away with its home"])
def test_the_lock_of_a_dead_process_does_not_hold_up_the_next(tmp_path: Path, target: str) -> None:
    journal = tmp_path / "journal"
    search(journal, 2)
    (tmp_path / "journal.lock").symlink_to(tmp_path / target)
    began = time.monotonic()
    assert len(search(journal, 4)) == 2
    assert time.monotonic() - began < 10.0


def test_a_trial_that_died_before_it_was_drawn_changes_no_later_one(tmp_path: Path) -> None:
    undisturbed = search(tmp_path / "undisturbed", 6)
    before = search(tmp_path / "journal", 3)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    optuna.load_study(study_name="search", storage=storage).ask()
    assert before + search(tmp_path / "journal", 6) == undisturbed
