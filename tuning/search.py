"""Runs the trials of one search, exactly as many as were asked for in all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tuning.sampler import UnseenSampler, distributions
from tuning.spaces import Combination


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
    counts once. Every objective is minimised.

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(storage))),
            study_name=name,
            directions=["minimize"] * objectives,
            sampler=UnseenSampler(space, seed=seed),
            load_if_exists=True,
        )
    for cut_off in study.get_trials(states=(TrialState.RUNNING,)):
        between()
        combination = Combination(**cut_off.params) if len(cut_off.params) == 3 else None
        if combination is None:
            study.tell(cut_off.number, state=TrialState.FAIL)
            continue
        study.tell(cut_off.number, list(evaluate(cut_off.number, combination)))
    while _finished(study) < trials:
        between()
        trial = study.ask(distributions(space))
        combination = Combination(**trial.params)
        study.tell(trial, list(evaluate(trial.number, combination)))


def _finished(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
