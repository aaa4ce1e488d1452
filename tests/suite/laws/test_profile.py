from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, Form
from suite.laws.intervals import Bootstrap, bootstrap
from suite.laws.profile import Profile, profile

Columns = dict[str, np.ndarray]
NOISE = 0.01


@pytest.fixture(scope="module")
def points(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    columns = grid(list(np.geomspace(1e7, 1e10, 12)), [1], np.geomspace(1e9, 1e11, 12))
    del columns["recurrence"]
    exact = 1.8 + 400 / columns["parameters"] ** 0.34 + 2000 / columns["tokens"] ** 0.37
    noise = np.random.default_rng(1).standard_normal(144)
    return columns, exact * np.exp(NOISE * noise)


@pytest.fixture(scope="module")
def squares(points: tuple[Columns, np.ndarray]) -> Bootstrap:
    """Independent normal noise, one point a run, least squares: where theory is known."""
    return bootstrap(
        CHINCHILLA, *points, np.arange(144), huber_delta=np.inf, starts=4, resamples=500
    )


@pytest.fixture(scope="module")
def exponent(squares: Bootstrap) -> Profile:
    return profile(squares, "alpha")


def held_at(form: Form, symbol: str, value: float) -> Form:
    """The law with one exponent held by its bounds."""
    terms = tuple(
        replace(term, exponent=replace(term.exponent, lower=value, upper=value))
        if term.exponent.name == symbol
        else term
        for term in form.terms
    )
    return replace(form, terms=terms)


def test_the_objective_rises_as_far_as_allowed_at_both_ends(
    exponent: Profile, squares: Bootstrap, points: tuple[Columns, np.ndarray]
) -> None:
    assert (exponent.lower_open, exponent.upper_open) == (False, False)
    for end in (exponent.lower, exponent.upper):
        other = fit(held_at(CHINCHILLA, "alpha", end), *points, huber_delta=np.inf, starts=8)
        rise = other.objective - squares.fit.objective
        assert rise == pytest.approx(exponent.rise, rel=1e-4)


def test_profiles_rise_away_from_the_estimate(exponent: Profile, squares: Bootstrap) -> None:
    assert exponent.estimate == squares.fit.parameters["alpha"]
    at = int(np.searchsorted(exponent.values, exponent.estimate))
    assert exponent.objective[at] == exponent.objective.min() == squares.fit.objective
    assert np.all(np.diff(exponent.objective[at:]) > 0)
    assert np.all(np.diff(exponent.objective[: at + 1]) < 0)


def test_with_normal_noise_the_allowed_rise_is_that_of_the_likelihood(
    exponent: Profile, squares: Bootstrap
) -> None:
    variance = 2 * squares.fit.objective / (144 - 5)
    assert variance == pytest.approx(NOISE**2, rel=0.25)
    # The objective is half the sum of squares. The 95 % quantile of what 500 resamples gain,
    # each from 144 points of unequal weight, is known to some 15 %.
    assert exponent.rise == pytest.approx(0.5 * 1.96**2 * variance, rel=0.3)


@pytest.mark.parametrize("symbol", ["E", "beta"])
def test_profile_and_percentiles_agree_where_the_points_are_many(
    symbol: str, squares: Bootstrap
) -> None:
    found, interval = profile(squares, symbol), squares.interval(symbol)
    width = interval.upper - interval.lower
    assert found.lower == pytest.approx(interval.lower, abs=0.2 * width)
    assert found.upper == pytest.approx(interval.upper, abs=0.2 * width)


def test_a_parameter_that_is_not_identified_is_open(grid: Callable[..., Columns]) -> None:
    columns = grid([1e8, 1e9], [1], np.geomspace(1e9, 1e11, 20))
    loss = 1.8 + 400 / columns["parameters"] ** 0.34 + 2000 / columns["tokens"] ** 0.37
    loss *= np.exp(NOISE * np.random.default_rng(2).standard_normal(40))
    run = np.repeat(np.arange(10), 4)
    resampled = bootstrap(CHINCHILLA, columns, loss, run, starts=4, resamples=100)
    assert resampled.unidentified == ("E", "A", "alpha")
    found = profile(resampled, "alpha")
    # Two sizes tell one difference, and with a larger alpha a larger E keeps it. With a smaller
    # one a smaller E does, until that is 0.
    assert (found.lower_open, found.upper_open) == (False, True)
    assert found.upper == pytest.approx(10.0)
    without = fit(replace(CHINCHILLA, constant=None), columns, loss, starts=4)
    assert without.objective == pytest.approx(resampled.fit.objective, rel=1e-9)
    assert found.lower == pytest.approx(without.parameters["alpha"], rel=1e-3)


@pytest.mark.parametrize("symbol", ["A", "gamma", ""])
def test_symbols_without_profile_are_refused(symbol: str, squares: Bootstrap) -> None:
    with pytest.raises(
        InputError, match="has no profile in 'chinchilla'; there are E, alpha, beta"
    ):
        profile(squares, symbol)


def test_levels_are_checked(squares: Bootstrap) -> None:
    with pytest.raises(InputError, match="level is 1"):
        profile(squares, "alpha", level=1.0)
