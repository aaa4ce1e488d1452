"""How often intervals over runs hold the truth: 15 curves of known laws, many seeded noises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL, Form
from suite.laws.intervals import bootstrap

Columns = dict[str, np.ndarray]
Grid = Callable[..., Columns]

SIZES = [53e6, 134e6, 374e6, 778e6, 1.36e9]
OFFSET = 0.004  # of a whole curve, relative: what another seed changes
STEP_NOISE = 0.01  # of a logged loss
PERSISTENCE = 0.5  # of the step noise, from one point to the next
AT = {
    "parameters": np.array([3.74e8, 2.5e8, 3e9, 3.74e8, 3.74e8, 3.74e8]),
    "tokens": np.array([1e10, 2e10, 4e10, 2e10, 2e10, 2e10]),
    "recurrence": np.array([4.0, 3, 8, 2, 4, 8]),
}
SEEN, BETWEEN, BEYOND = "a size seen", "between sizes", "twice the size and tokens"


@dataclass(frozen=True)
class Case:
    """A law, its true parameters, and what is asked of the intervals.

    Attributes:
        form: the law.
        truth: the parameters.
        unidentified: symbols that the fit must say the points do not identify, in every data set.
        predictions: losses that are asked for.
        differences: of losses between recurrences.
        trade: symbols that trade against each other, so that intervals may hold the truth more
            often than they say: a shift makes up for an exponent, and each runs into the bound
            of its range in some resamples.
    """

    form: Form
    truth: dict[str, float]
    unidentified: tuple[str, ...]
    predictions: tuple[str, ...]
    differences: tuple[str, ...]
    trade: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every parameter that the points identify."""
        names = (symbol.name for symbol in self.form.symbols)
        return tuple(name for name in names if name not in self.unidentified)

    @property
    def names(self) -> tuple[str, ...]:
        return self.symbols + self.predictions + self.differences

    def quantities(self, parameters: dict[str, float]) -> np.ndarray:
        loss = self.form.predict(parameters, AT)
        found = [parameters[symbol] for symbol in self.symbols]
        found += list(loss[: len(self.predictions)])
        return np.array(found + list(-np.diff(loss[3:]))[: len(self.differences)])


CASES = {
    "chinchilla": Case(
        CHINCHILLA,
        {"E": 1.8, "A": 400.0, "alpha": 0.34, "B": 2000.0, "beta": 0.37},
        (),
        (SEEN, BETWEEN, BEYOND),
        (),
    ),
    "looplm_total": Case(
        LOOPLM_TOTAL,
        {
            "E": 1.5, "A": 300.0, "t1": 2e7, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
            "C": 0.5, "t3": 0.5, "gamma": 0.8,
        },
        # three T_m tell two differences, and the term spends four parameters with the shared E
        ("E", "C", "gamma", "t3"),
        (SEEN, BETWEEN, BEYOND),
        ("T_m 2 less T_m 4", "T_m 4 less T_m 8"),
        trade=("A", "t1", "alpha", "B", "t2", "beta"),
    ),
}  # fmt: skip


def noisy(exact: np.ndarray, seed: int) -> np.ndarray:
    """Losses of 15 curves with an offset each and noise that lasts."""
    rng = np.random.default_rng([7, seed])
    noise = rng.standard_normal((15, len(exact) // 15))
    for point in range(1, noise.shape[1]):
        fresh = np.sqrt(1 - PERSISTENCE**2) * noise[:, point]
        noise[:, point] = PERSISTENCE * noise[:, point - 1] + fresh
    noise = STEP_NOISE * noise + OFFSET * rng.standard_normal((15, 1))
    return exact * np.exp(noise.ravel())


def covered(case: Case, grid: Grid, datasets: int, resamples: int, points: int) -> np.ndarray:
    """Whether each quantity's 95 % interval holds the truth, [datasets, quantities]."""
    columns = grid(SIZES, [2, 4, 8], np.linspace(2e9, 2e10, points))
    exact = case.form.predict(case.truth, columns)
    truth = case.quantities(case.truth)
    held = []
    for seed in range(datasets):
        found = bootstrap(
            case.form,
            columns,
            noisy(exact, seed),
            np.repeat(np.arange(15), points),
            starts=4,
            resamples=resamples,
            seed=seed,
        )
        assert sorted(found.unidentified) == sorted(case.unidentified)
        band = found.band_of(lambda parameters: case.quantities(dict(parameters)))
        held.append((band.lower <= truth) & (truth <= band.upper))
    return np.array(held)


def test_few_data_sets_are_covered_nearly_always(grid: Grid) -> None:
    held = covered(CASES["chinchilla"], grid, datasets=8, resamples=100, points=4)
    # 64 intervals at 95 %: fewer than 53, if they were independent, once in ten thousand times.
    assert held.shape == (8, 8)
    assert held.sum() >= 53


@pytest.mark.slow
def test_few_data_sets_of_the_looped_law_are_covered_nearly_always(grid: Grid) -> None:
    held = covered(CASES["looplm_total"], grid, datasets=3, resamples=126, points=8)
    # 33 intervals at 95 %: fewer than 25, if they were independent, once in ten thousand times.
    assert held.shape == (3, 11)
    assert held.sum() >= 25


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", list(CASES))
def test_intervals_cover_the_truth_as_often_as_they_say(
    name: str, grid: Grid, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    share = covered(case, grid, datasets=200, resamples=200, points=8).mean(axis=0)
    with capsys.disabled():
        print(f"\n{name}, 200 data sets of 15 curves, 95 % intervals cover")
        for quantity, found in zip(case.names, share, strict=True):
            print(f"  {quantity:28} {found:6.1%}")
    strict = np.array([quantity not in case.trade for quantity in case.names])
    assert np.all(share >= 0.90)
    assert np.all(share[strict] <= 0.98)
