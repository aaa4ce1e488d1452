"""Exactly the trials that were asked for, however often the search was cut off."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from suite.errors import SuiteError
from suite.study import SearchSpace
from tuning import Combination, combinations, run_trials
from tuning.sampler import distributions

SPACE = combinations(SearchSpace(niter=(1, 8, "exact"), tokens=(100, 200, 400), rank=(4, 8)))


def cost_and_error(combination: Combination) -> tuple[float, float]:
    return float(combination.tokens), 1.0 / (combination.tokens * combination.rank)


class Search:
    """One search in its journal, run as often as a test likes.

    Attributes:
        evaluated: trial numbers and combinations, as they were evaluated.
    """

    def __init__(self, storage: Path, space: Sequence[Combination] = SPACE) -> None:
        self.storage = storage
        self.space = space
        self.evaluated: list[tuple[int, Combination]] = []

    def run(
        self,
        trials: int,
        *,
        seed: int = 0,
        fail_at: int | None = None,
        between: Callable[[], None] = lambda: None,
        values: Callable[[Combination], tuple[float, float]] = cost_and_error,
    ) -> None:
        def evaluate(number: int, combination: Combination) -> list[float]:
            self.evaluated.append((number, combination))
            if number == fail_at:
                raise OSError("the disk is full")
            return [*values(combination)]

        run_trials(
            storage=self.storage,
            name="search",
            space=self.space,
            trials=trials,
            seed=seed,
            objectives=2,
            evaluate=evaluate,
            between=between,
        )

    @property
    def combinations(self) -> list[Combination]:
        return [combination for _, combination in self.evaluated]

    def study(self) -> optuna.Study:
        storage = JournalStorage(JournalFileBackend(str(self.storage)))
        return optuna.load_study(study_name="search", storage=storage)

    def states(self) -> list[TrialState]:
        return [trial.state for trial in self.study().get_trials()]


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return Search(tmp_path / "deep" / "journal")


def test_trials_are_counted_over_all_invocations(search: Search) -> None:
    for trials, expected in ((3, 3), (3, 3), (11, 11), (5, 11), (12, 12)):
        search.run(trials)
        assert len(search.evaluated) == expected
        assert search.states() == [TrialState.COMPLETE] * expected
    assert len(set(search.combinations)) == 12
    assert [number for number, _ in search.evaluated] == [*range(12)]


def test_a_space_is_exhausted_exactly(search: Search) -> None:
    search.run(len(SPACE))
    assert sorted(search.combinations) == sorted(SPACE)
    search.run(len(SPACE))
    assert len(search.evaluated) == len(SPACE)
    with pytest.raises(ValueError, match="19 trials, but only 18 combinations"):
        search.run(len(SPACE) + 1)


def test_objectives_and_combinations_are_kept_as_they_are(search: Search) -> None:
    search.run(4)
    kept = [(trial.params, trial.values) for trial in search.study().get_trials()]
    assert kept == [(asdict(c), [*cost_and_error(c)]) for c in search.combinations]
    assert search.study().directions == [optuna.study.StudyDirection.MINIMIZE] * 2


@pytest.mark.parametrize("fail_at", [0, 5, 12])
def test_a_trial_that_was_cut_off_is_taken_up_again_and_counted_once(
    search: Search, tmp_path: Path, fail_at: int
) -> None:
    undisturbed = Search(tmp_path / "undisturbed")
    undisturbed.run(14)
    with pytest.raises(OSError, match="disk"):
        search.run(14, fail_at=fail_at)
    assert search.states() == [TrialState.COMPLETE] * fail_at + [TrialState.RUNNING]
    before = search.evaluated[-1]
    search.run(14)
    assert search.evaluated[fail_at + 1] == before
    assert search.states() == [TrialState.COMPLETE] * 14
    # With the same history, the rest is drawn as if nothing had happened.
    del search.evaluated[fail_at]
    assert search.evaluated == undisturbed.evaluated


def test_fewer_trials_than_are_finished_leave_a_cut_off_one_alone(search: Search) -> None:
    with pytest.raises(OSError, match="disk"):
        search.run(8, fail_at=5)
    search.run(5)
    assert len(search.evaluated) == 6
    assert search.states()[-1] == TrialState.RUNNING


def test_a_stop_between_trials_loses_none(search: Search) -> None:
    asked = [0]

    def between() -> None:
        asked[0] += 1
        if asked[0] in (1, 4):
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search.run(6, between=between)
    assert search.states() == [TrialState.COMPLETE] * 2
    search.run(6, between=between)
    assert len(set(search.combinations)) == len(search.evaluated) == 6


def test_a_trial_cut_off_before_it_had_a_combination_is_given_up(search: Search) -> None:
    search.run(2)
    study = search.study()
    study.ask()  # a process lost before the first parameter,
    study.ask({"niter": distributions(SPACE)["niter"]})  # and one after it
    search.run(4)
    finished, lost = TrialState.COMPLETE, TrialState.FAIL
    assert search.states() == [finished, finished, lost, lost, finished, finished]
    assert len(set(search.combinations)) == 4


def test_an_objective_without_a_value_is_a_finished_trial(search: Search) -> None:
    def values(combination: Combination) -> tuple[float, float]:
        return 1.0, math.nan if combination.rank == 8 else 1.0

    with pytest.warns(UserWarning, match="nan"):
        search.run(len(SPACE), values=values)
    assert sorted(search.combinations) == sorted(SPACE)
    assert search.states().count(TrialState.FAIL) == len(SPACE) // 2
    search.run(len(SPACE), values=values)
    assert len(search.evaluated) == len(SPACE)


def test_searches_share_a_journal_by_name(tmp_path: Path) -> None:
    storage, found = tmp_path / "journal", {}
    for name in ("one", "two", "one"):
        evaluated: list[int] = found.setdefault(name, [])
        run_trials(
            storage=storage,
            name=name,
            space=SPACE,
            trials=3,
            seed=0,
            objectives=1,
            evaluate=lambda number, combination, seen=evaluated: [float(seen.append(number) or 1)],
        )
    assert found == {"one": [0, 1, 2], "two": [0, 1, 2]}
    assert all(json.loads(line) for line in storage.read_text().splitlines())


def test_a_damaged_journal_is_named_with_its_cure_and_trials_come_again(tmp_path: Path) -> None:
    search = Search(tmp_path / "optuna.journal")
    search.run(3)
    before = list(search.evaluated)
    with search.storage.open("a") as journal:
        journal.write('{"op_code": 4, "wor\n')
    with pytest.raises(SuiteError, match=r"optuna\.journal is damaged .* move it away"):
        search.run(4)
    search.storage.unlink()
    search.evaluated.clear()
    search.run(3)
    assert search.evaluated == before, "the caller finds the same trials among its tracked runs"
