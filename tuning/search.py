"""Runs the trials of one search, exactly as many as were asked for in all."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState

from suite.errors import SuiteError
from tuning.sampler import UnseenSampler, distributions
from tuning.spaces import Combination, combination_of


def run_trials(
    *,
    storage: Path,
    name: str,
    space: Sequence[Combination],
    trials: int,
    seed: int,
    objectives: int,
    evaluate: Callable[[int, Combination], Sequence[float]],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Evaluate combinations until ``trials`` of them are finished.

    A trial that an earlier process left running is taken up again with its combination, and
    counts once. Every objective is minimised. A trial with a NaN objective is finished too, but
    Optuna keeps it as FAIL, without its values.

    Args:
        storage: Optuna's journal file.
        name: name of the Optuna study; the same name goes on where it stopped.
        space: every combination, at least ``trials`` of them.
        trials: finished trials in total.
        seed: seed of the sampler.
        objectives: number of objectives.
        evaluate: takes the trial's number and combination, returns its objectives.
        between: called between trials; may raise to stop the search with all trials saved.

    Raises:
        ValueError: if the space has fewer combinations than trials.
    """
    if trials > len(space):
        raise ValueError(f"{trials} trials, but only {len(space)} combinations")
    storage.parent.mkdir(parents=True, exist_ok=True)
    _forget_torn_line(storage)
    with warnings.catch_warnings(), _readable(storage):
        warnings.simplefilter("ignore", ExperimentalWarning)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(storage), _Lock(storage))),
            study_name=name,
            directions=["minimize"] * objectives,
            sampler=UnseenSampler(space, seed=seed),
            load_if_exists=True,
        )
    cut_off = study.get_trials(states=(TrialState.RUNNING,))
    while _finished(study) < trials:
        between()
        trial = cut_off.pop(0) if cut_off else study.ask(distributions(space))
        combination = combination_of(trial.params)
        if combination is None:
            study.tell(trial.number, state=TrialState.FAIL)
        else:
            study.tell(trial.number, list(evaluate(trial.number, combination)))


class _Lock(JournalFileOpenLock):
    """A lock on the journal that ends with its process.

    Optuna's own outlives a process that was killed: the next one waits for half a minute, and
    for ever where the home was moved meanwhile, because that lock is a link to the old place.
    """

    def __init__(self, storage: Path) -> None:
        self._lock = FileLock(f"{storage}.held")

    def acquire(self) -> bool:
        """Wait for it."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Give it up."""
        self._lock.release()


def _forget_torn_line(storage: Path) -> None:
    """Cut off what a full disk or a power cut has left of a line, lest the next be joined to it."""
    if not storage.exists():
        return
    with FileLock(f"{storage}.held"), storage.open("rb+") as journal:
        journal.truncate(journal.read().rfind(b"\n") + 1)


def _finished(study: optuna.Study) -> int:
    """Trials that were evaluated; one that was cut off before it had a combination was not."""
    return sum(
        trial.state.is_finished() and combination_of(trial.params) is not None
        for trial in study.get_trials(deepcopy=False)
    )


@contextmanager
def _readable(storage: Path) -> Iterator[None]:
    """Say which file is damaged, and what to do, where Optuna cannot read its journal."""
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError) as error:
        raise SuiteError(
            f"Optuna's journal {storage} is damaged ({error}); move it away and run again: "
            "finished trials are taken from their tracked runs"
        ) from error
