from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.forms import CHINCHILLA
from suite.laws.kept import KeptLaw
from suite.laws.next_cell import Candidate, rank_candidates, variance_removed

NOISE = 0.3


def gaussian(draws: int, covariance: np.ndarray) -> np.ndarray:
    """Draws whose mean is 0 and whose sample covariance is the one given, exactly."""
    raw = np.random.default_rng(0).standard_normal((draws, len(covariance)))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(np.atleast_2d(np.cov(raw.T)))).T
    return white @ np.linalg.cholesky(covariance).T


def test_a_linear_gaussian_model_gives_its_posterior_variance() -> None:
    rng = np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    covariance = root @ root.T
    theta = gaussian(400, covariance)
    target, designs = rng.standard_normal(3), rng.standard_normal((6, 3))
    variance, removed = variance_removed(theta @ target, theta @ designs.T, NOISE)
    assert variance == pytest.approx(target @ covariance @ target)
    for design, part in zip(designs, removed, strict=True):
        # The posterior of theta by precisions, a route without covariances of predictions.
        precision = np.linalg.inv(covariance) + np.outer(design, design) / NOISE**2
        left = target @ np.linalg.inv(precision) @ target
        assert variance - part == pytest.approx(left, rel=1e-9)


def test_measuring_the_target_itself_leaves_the_noise() -> None:
    target = gaussian(300, np.array([[4.0]]))[:, 0]
    variance, removed = variance_removed(target, target[:, None], NOISE)
    # Of two measurements of one number the precisions add up.
    assert variance - removed[0] == pytest.approx(1 / (1 / 4.0 + 1 / NOISE**2))
    assert variance_removed(target, target[:, None], 0.0)[1][0] == pytest.approx(4.0)


def test_what_is_known_or_unrelated_removes_nothing() -> None:
    both = gaussian(300, np.eye(2))
    measured = np.stack([np.full(300, 7.0), both[:, 1]], axis=1)
    np.testing.assert_allclose(variance_removed(both[:, 0], measured, 0.0)[1], 0, atol=1e-12)


def cell(name: str, n: float, d: float, flops: float) -> Candidate:
    return Candidate(
        size=name,
        parameters=n,
        recurrence=2,
        tokens=d,
        flops=flops,
        variables={"parameters": n, "tokens": d, "recurrence": 2.0},
    )


def law(resamples: np.ndarray) -> KeptLaw:
    return KeptLaw(
        form="chinchilla",
        parameters={"E": 1.8, "A": 400.0, "alpha": 0.34, "B": 2000.0, "beta": 0.37},
        symbols=("E", "A", "alpha", "B", "beta"),
        resamples=resamples,
        num_runs=15,
        unidentified=(),
        objective=1e-3,
        noise={"cell": 0.002, "point": 0.01},
        points=(),
    )


@pytest.fixture
def uncertain_size() -> KeptLaw:
    """A law that knows all but the exponent of N."""
    rng = np.random.default_rng(0)
    rows = np.tile([1.8, 400.0, 0.34, 2000.0, 0.37], (300, 1))
    rows[:, 2] += 0.01 * rng.standard_normal(300)
    rows[:, 1] *= np.exp(np.log(3e8) * (rows[:, 2] - 0.34))  # the loss at 3e8 stays
    return law(rows)


def test_the_cell_that_turns_on_what_is_open_comes_first(uncertain_size: KeptLaw) -> None:
    candidates = [
        cell("known", 3e8, 2e10, 4e19),
        cell("near", 4e8, 2e10, 5e19),
        cell("far", 3e9, 2e10, 4e20),
    ]
    target = {"parameters": 1e10, "tokens": 1e11}
    ranked = rank_candidates(uncertain_size, target, candidates)
    assert [found.candidate.size for found in ranked] == ["far", "near", "known"]
    assert 0.5 < ranked[0].removed < 0.7
    assert ranked[-1].removed == pytest.approx(0, abs=1e-9)
    for found in ranked:
        assert found.removed_per_flop == found.removed / found.candidate.flops
    logs = np.log([CHINCHILLA.predict(dict(zip(uncertain_size.symbols, row, strict=True)),
        {name: np.array([value]) for name, value in target.items()})[0]
        for row in uncertain_size.resamples])  # fmt: skip
    before = logs.std(ddof=1)
    assert ranked[0].deviation_left == pytest.approx(before * np.sqrt(1 - ranked[0].removed))
    assert ranked[-1].deviation_left == pytest.approx(before)


def test_there_must_be_resamples_and_candidates(uncertain_size: KeptLaw) -> None:
    target = {"parameters": 1e10, "tokens": 1e11}
    with pytest.raises(InputError, match=r"without resamples.*set law\.resamples to 500"):
        rank_candidates(law(np.empty((0, 5))), target, [cell("a", 1e9, 1e10, 1e20)])
    with pytest.raises(InputError, match="no cell to choose from"):
        rank_candidates(uncertain_size, target, [])
