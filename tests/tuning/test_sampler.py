"""The sampler steers, repeats nothing, and depends on seed and history alone."""

from __future__ import annotations

import random
from statistics import mean

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution

from suite.study import Niter, SearchSpace
from tuning import Combination, combinations
from tuning.sampler import UnseenSampler, distributions

NITER: tuple[Niter, ...] = (0, 1, 2, 4, "exact")
SPACE = combinations(
    SearchSpace(niter=NITER, tokens=tuple(range(1000, 11_000, 1000)), rank=(8, 16, 32, 64))
)


def objectives(combination: Combination) -> tuple[float, float]:
    """Error and cost of a made-up calibration, whose shape is that of real ones."""
    iterations = 8 if combination.niter == "exact" else int(combination.niter)
    error = 1 / (1 + combination.tokens / 2000) + 8 / combination.rank + 0.1 / (1 + iterations)
    cost = combination.tokens / 1000 * (1 + 0.02 * combination.rank)
    return error, cost + 0.3 * iterations * combination.rank / 8


def pareto_front() -> set[Combination]:
    values = {combination: objectives(combination) for combination in SPACE}
    return {
        one
        for one, (error, cost) in values.items()
        if not any(
            other != (error, cost) and other[0] <= error and other[1] <= cost
            for other in values.values()
        )
    }


def draw(trials: int, *, seed: int, space: tuple[Combination, ...] = SPACE) -> list[Combination]:
    study = optuna.create_study(
        directions=["minimize", "minimize"], sampler=UnseenSampler(space, seed=seed)
    )
    drawn = []
    for _ in range(trials):
        trial = study.ask(distributions(space))
        drawn.append(Combination(**trial.params))
        study.tell(trial, [*objectives(drawn[-1])])
    return drawn


def test_it_finds_more_of_the_front_than_chance_does() -> None:
    """40 trials of 200, of which 27 are on the front; chance finds 27 / 5 of them."""
    front = pareto_front()
    assert len(front) == 27
    found = [len(front & set(draw(40, seed=seed))) for seed in range(4)]
    chance = [len(front & set(random.Random(seed).sample(SPACE, 40))) for seed in range(400)]
    assert mean(chance) == pytest.approx(27 / 5, abs=0.3)
    assert mean(found) > 10
    # The worst seed does better than nine of ten by chance.
    assert min(found) >= sorted(chance)[360]


def test_start_up_draws_are_spread_by_chance_and_not_by_the_model() -> None:
    drawn = [draw(10, seed=seed) for seed in range(40)]
    counts = {rank: sum(c.rank == rank for run in drawn for c in run) for rank in (8, 16, 32, 64)}
    assert all(70 <= count <= 130 for count in counts.values()), counts


@settings(deadline=None, max_examples=12)
@given(
    niter=st.lists(st.sampled_from(NITER), min_size=1, max_size=3, unique=True),
    tokens=st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
    rank=st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_space_is_drawn_empty_without_a_repeat(
    niter: list[Niter], tokens: list[int], rank: list[int], seed: int
) -> None:
    space = combinations(SearchSpace(niter=tuple(niter), tokens=tuple(tokens), rank=tuple(rank)))
    assert sorted(draw(len(space), seed=seed, space=space)) == sorted(space)


def test_an_empty_space_is_said_to_be_empty() -> None:
    with pytest.raises(ValueError, match="every combination has been tried"):
        draw(3, seed=0, space=SPACE[:2])


def test_draws_follow_from_seed_and_history() -> None:
    first = draw(14, seed=3)
    assert draw(14, seed=3) == first
    assert draw(14, seed=4) != first
    # The order in which a study lists its choices is not part of either, once TPE draws.
    study = optuna.create_study(
        directions=["minimize", "minimize"], sampler=UnseenSampler(SPACE[::-1], seed=3)
    )
    for combination in first[:12]:
        study.enqueue_trial(vars(combination))
        trial = study.ask(distributions(SPACE))
        study.tell(trial, [*objectives(combination)])
    assert Combination(**study.ask(distributions(SPACE)).params) == first[12]


def test_a_parameter_of_another_space_is_refused() -> None:
    study = optuna.create_study(sampler=UnseenSampler(SPACE, seed=0))
    with pytest.raises(ValueError, match="'colour' is not a parameter of this search"):
        study.ask({"colour": CategoricalDistribution(["red", "green"])})
