"""A TPE sampler that draws no combination of a finite space twice, resumed or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tuning.spaces import Combination


class UnseenSampler(BaseSampler):
    """TPE over whole combinations; one that a trial already has is replaced by an unseen one.

    The random state is seeded by the search's seed and the number of trials there are, so a
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
        """TPE's combination, or a random unseen one where TPE's was tried."""
        seen = {
            tuple(other.params.values())
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number
        }
        unseen = [c for c in self._space if tuple(asdict(c).values()) not in seen]
        if not unseen:
            raise ValueError("every combination has been tried")
        state = random.Random(f"{self._seed} {trial.number}")
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) >= self._startup_trials:
            tpe = TPESampler(seed=state.getrandbits(32), n_startup_trials=0)
            drawn = tpe.sample_relative(study, trial, search_space)
            if tuple(drawn.values()) in {tuple(asdict(c).values()) for c in unseen}:
                return drawn
        return asdict(state.choice(unseen))

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
    return {
        name: CategoricalDistribution(
            tuple(dict.fromkeys(asdict(combination)[name] for combination in space))
        )
        for name in ("niter", "tokens", "rank")
    }


optuna.logging.set_verbosity(optuna.logging.WARNING)
