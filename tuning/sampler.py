"""A TPE sampler that draws no combination of a finite space twice, resumed or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuning.spaces import AXES, Combination, axes, combination_of

# A draw takes milliseconds; the first 40 trials in a space of 200 needed up to four for an
# unseen combination. The last ones would need ever more, and are as good as random anyway.
_DRAWS = 32


class UnseenSampler(BaseSampler):
    """TPE over whole combinations; one that a trial already has is drawn again.

    TPE models the ranks of values along each axis, not the values as categories: between 4,000
    and 16,000 tokens lie 8,000. It is asked in a study of its own, in memory, where a draw that
    was of no use stays a running trial, which TPE's constant liar keeps away from.

    The random state is seeded by the search's seed and the number of combinations drawn, so a
    resumed search neither repeats its first draws nor depends on how often it was stopped.

    Args:
        space: every combination.
        seed: seed of the search.
        startup_trials: trials drawn at random before TPE models the space.
    """

    def __init__(
        self, space: Sequence[Combination], *, seed: int, startup_trials: int = 10
    ) -> None:
        self._space = tuple(space)
        self._axes = axes(space)
        self._seed = seed
        self._startup_trials = startup_trials

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The whole space: parameters are drawn together or not at all."""
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """TPE's first unseen combination; a random one at the start, or where TPE finds none.

        Raises:
            ValueError: if every combination has been tried.
        """
        trials = study.get_trials(deepcopy=False)
        others = [other for other in trials if other.number != trial.number]
        tried = {combination_of(other.params) for other in others}
        unseen = [combination for combination in self._space if combination not in tried]
        if not unseen:
            raise ValueError("every combination has been tried")
        # not the trial's number: a trial that died before it was drawn has one, too
        state = random.Random(f"{self._seed} {len(tried - {None})}")
        finished = [other for other in others if other.state == TrialState.COMPLETE]
        drawn = None
        if len(finished) >= self._startup_trials:
            drawn = self._modelled(study, finished, set(unseen), seed=state.getrandbits(32))
        return asdict(drawn or state.choice(unseen))

    def _modelled(
        self, study: Study, finished: list[FrozenTrial], unseen: set[Combination], *, seed: int
    ) -> Combination | None:
        sampler = TPESampler(seed=seed, n_startup_trials=0, multivariate=True)
        model = optuna.create_study(directions=study.directions, sampler=sampler)
        ranks: dict[str, BaseDistribution] = {
            name: IntDistribution(0, len(axis) - 1) for name, axis in self._axes.items()
        }
        for trial in finished:
            params = {name: self._axes[name].index(trial.params[name]) for name in AXES}
            model.add_trial(create_trial(params=params, distributions=ranks, values=trial.values))
        for _ in range(_DRAWS):
            drawn = model.ask(ranks).params
            combination = Combination(**{name: self._axes[name][drawn[name]] for name in AXES})
            if combination in unseen:
                return combination
        return None

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse a parameter that is not of the space."""
        raise ValueError(f"{param_name!r} is not a parameter of this search")


def distributions(space: Sequence[Combination]) -> dict[str, BaseDistribution]:
    """Optuna's categorical distributions of a space, in the order of ``Combination``."""
    return {name: CategoricalDistribution(axis) for name, axis in axes(space).items()}


optuna.logging.set_verbosity(optuna.logging.WARNING)
