"""Runs the trials of one search, exactly as many as were asked for in all."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
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
    with warnings.catch_warnings(), _readable(storage):
        warnings.simplefilter("ignore", ExperimentalWarning)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(storage))),
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
