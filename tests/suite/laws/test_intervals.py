from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest

from suite.errors import InputError
from suite.laws._drawn_levels import lost_warnings
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL
from suite.laws.intervals import Bootstrap, bootstrap, fewest_resamples, percentile_band
from tests.suite.laws.published import MOST_ERRORS, errors_of_ends

Columns = dict[str, np.ndarray]
SIZES = [53e6, 134e6, 374e6, 778e6, 1.36e9]
RUN = np.repeat(np.arange(15), 5)


@pytest.fixture(scope="module")
def curves(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    """Fifteen runs of five points each."""
    columns = grid(SIZES, [2, 4, 8], np.linspace(2e9, 2e10, 5))
    rng = np.random.default_rng(4)
    exact = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    exact += 0.5 / columns["recurrence"]
    noise = 0.004 * rng.standard_normal(15)[RUN] + 0.01 * rng.standard_normal(75)
    return columns, exact * np.exp(noise)


@pytest.fixture(scope="module")
def looped(curves: tuple[Columns, np.ndarray]) -> Bootstrap:
    return bootstrap(LOOPLM_TOTAL, *curves, RUN, starts=4, resamples=100, seed=3)


def by_size(columns: Columns) -> Columns:
    return {name: columns[name] for name in ("parameters", "tokens")}


def test_the_fit_is_that_of_all_points(
    looped: Bootstrap, curves: tuple[Columns, np.ndarray]
) -> None:
    assert looped.fit == fit(LOOPLM_TOTAL, *curves, starts=4, seed=3)
    assert looped.num_runs == 15
    assert looped.parameters.shape == (100, 10)
    assert looped.converged_share == 1.0


def test_resamples_are_fits_of_whole_runs(curves: tuple[Columns, np.ndarray]) -> None:
    columns, loss = by_size(curves[0]), curves[1]
    found = bootstrap(CHINCHILLA, columns, loss, RUN, starts=4, resamples=100)
    order, weights = found.search.order, found.resamples.weights
    assert np.all(weights.of_run.sum(axis=1) == 15)
    for number in (0, 99):
        counts = weights.of_run[number][weights.run].astype(int)
        # All points of a run are drawn together.
        assert all(len(set(counts[RUN[order] == run])) == 1 for run in range(15))
        rows = np.repeat(order, counts)
        again = fit(
            CHINCHILLA, {name: values[rows] for name, values in columns.items()}, loss[rows]
        )
        expected = [again.parameters[name] for name in found.symbols]
        np.testing.assert_allclose(found.parameters[number], expected, rtol=1e-6)


def test_parameters_that_are_not_identified_have_no_interval(looped: Bootstrap) -> None:
    assert looped.unidentified == ("E", "C", "gamma", "t3")
    assert not looped.interval("gamma").identified
    assert np.isnan(looped.interval("E").lower)
    assert looped.interval("beta").identified
    assert looped.interval("beta").lower < looped.fit.parameters["beta"]


def test_differences_between_levels_have_one(looped: Bootstrap) -> None:
    at = {"parameters": np.full(3, 3e8), "tokens": np.full(3, 1e10)}
    at["recurrence"] = np.array([2.0, 4.0, 8.0])
    band = looped.band_of(lambda parameters: -np.diff(LOOPLM_TOTAL.predict(parameters, at)))
    np.testing.assert_allclose(band.estimate, -np.diff(looped.fit.predict(at)), rtol=1e-12)
    assert np.all((band.lower < [0.125, 0.0625]) & (band.upper > [0.125, 0.0625]))
    assert np.all(band.upper - band.lower < 0.1)


def test_predictions_hold_the_fit_and_widen_away_from_the_points(looped: Bootstrap) -> None:
    at = {
        "parameters": np.array([374e6, 374e6, 1e11]),
        "tokens": np.array([1e10, 1e10, 1e12]),
        "recurrence": np.array([4.0, 4.0, 4.0]),
    }
    band, narrower = looped.predict(at), looped.predict(at, level=0.5)
    np.testing.assert_allclose(band.estimate, looped.fit.predict(at), rtol=1e-12)
    width = band.upper - band.lower
    assert width[0] == width[1]
    assert width[2] > 3 * width[0]
    assert np.all(narrower.upper - narrower.lower < width)
    assert np.all((band.lower < band.estimate) & (band.estimate < band.upper))


def test_order_and_names_change_nothing(curves: tuple[Columns, np.ndarray]) -> None:
    columns, loss = by_size(curves[0]), curves[1]
    plain = bootstrap(CHINCHILLA, columns, loss, RUN, starts=2, resamples=100)
    order = np.random.default_rng(0).permutation(75)
    names = np.array([f"run-{(7 * run) % 15}" for run in RUN])
    other = bootstrap(
        CHINCHILLA,
        {name: values[order] for name, values in columns.items()},
        loss[order],
        names[order],
        starts=2,
        resamples=100,
    )
    np.testing.assert_array_equal(other.parameters, plain.parameters)


def test_tokens_in_billions_and_more_starts_change_nothing(
    looped: Bootstrap, curves: tuple[Columns, np.ndarray]
) -> None:
    columns, loss = curves
    at = {name: values[::7] for name, values in columns.items()}
    plain = looped.predict(at)
    scaled = bootstrap(
        LOOPLM_TOTAL,
        columns | {"tokens": columns["tokens"] / 1e9},
        loss,
        RUN,
        starts=8,
        resamples=100,
        seed=3,
    )
    band = scaled.predict(at | {"tokens": at["tokens"] / 1e9})
    np.testing.assert_allclose(band.lower, plain.lower, rtol=1e-8)
    np.testing.assert_allclose(band.upper, plain.upper, rtol=1e-8)


def test_fits_in_several_threads_are_the_same(curves: tuple[Columns, np.ndarray]) -> None:
    columns, loss = by_size(curves[0]), curves[1]

    def work(_: int) -> np.ndarray:
        return bootstrap(CHINCHILLA, columns, loss, RUN, starts=2, resamples=100).parameters

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, range(2))
    np.testing.assert_array_equal(first, second)


def test_threads_of_the_linear_algebra_change_nothing() -> None:
    program = """
import numpy as np
from suite.laws.forms import CHINCHILLA
from suite.laws.intervals import bootstrap
n, d = np.meshgrid(np.geomspace(1e7, 1e9, 6), np.linspace(1e9, 1e10, 200), indexing="ij")
loss = 1.8 + 400 / n**.34 + 2000 / d**.37
loss *= np.exp(.01 * np.random.default_rng(0).standard_normal(n.shape))
run = np.repeat(np.arange(6), 200)
columns = {"parameters": n.ravel(), "tokens": d.ravel()}
found = bootstrap(CHINCHILLA, columns, loss.ravel(), run, starts=2, resamples=100)
print(*found.parameters[::9].ravel().tolist())
"""
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for threads in ("1", "4")
    ]
    one, four = (np.array(values, dtype=float) for values in printed)
    np.testing.assert_allclose(four, one, rtol=1e-8)


@pytest.fixture(scope="module")
def chinchilla(oracle: Callable[[str], pl.DataFrame]) -> tuple[Columns, np.ndarray]:
    table = oracle("chinchilla.csv").sort("loss").head(-5)
    columns = {"parameters": table["params"].to_numpy(), "tokens": table["tokens"].to_numpy()}
    return columns, table["loss"].to_numpy()


def test_single_point_runs_give_the_published_intervals(
    chinchilla: tuple[Columns, np.ndarray],
) -> None:
    found = bootstrap(CHINCHILLA, *chinchilla, np.arange(240), starts=16, resamples=4_000)
    assert found.converged_share == 1.0
    for column, symbol in enumerate(found.symbols):
        errors = errors_of_ends(found.parameters[:, column], symbol)
        assert max(errors) < MOST_ERRORS, (symbol, errors)


@pytest.mark.slow
def test_the_published_intervals_are_told_from_those_of_another_threshold(
    chinchilla: tuple[Columns, np.ndarray],
) -> None:
    """The bound is no loose one: resamples of least absolute deviations do not pass it."""
    found = bootstrap(
        CHINCHILLA, *chinchilla, np.arange(240), huber_delta=1e-7, starts=8, resamples=2_000
    )
    errors = {
        symbol: max(errors_of_ends(found.parameters[:, column], symbol))
        for column, symbol in enumerate(found.symbols)
    }
    assert {symbol for symbol, error in errors.items() if error > MOST_ERRORS} >= {"A", "alpha"}


def test_percentiles_of_few_runs_by_hand() -> None:
    values = np.linspace(0, 1, 10_001)[:, None]
    # Student's t with 14 degrees of freedom at 97.5 % is 2.14479, above which the normal
    # distribution has 1.5985 %.
    band = percentile_band(np.array([0.5]), values, 15, 0.95)
    assert band.lower[0] == pytest.approx(0.015985, abs=2e-6)
    assert band.upper[0] == pytest.approx(1 - 0.015985, abs=2e-6)
    many = percentile_band(np.array([0.5]), values, 100_000, 0.95)
    assert many.lower[0] == pytest.approx(0.025, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": np.zeros(75)}, "there are 1 runs; intervals over runs need at least 5"),
        ({"run": RUN[:70]}, "70 .* 75"),
        ({"resamples": 99}, "resamples is 99"),
    ],
)
def test_impossible_bootstraps_are_refused(
    change: dict[str, object], message: str, curves: tuple[Columns, np.ndarray]
) -> None:
    settings: dict[str, object] = {"run": RUN, "resamples": 100} | change
    with pytest.raises(InputError, match=message):
        bootstrap(LOOPLM_TOTAL, *curves, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def few_sizes(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    """Three sizes, two runs of each, of five points: alpha hangs on all three."""
    columns = by_size(grid([5e7, 3e8, 1.4e9], [2, 4], np.linspace(2e9, 2e10, 5)))
    exact = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    return columns, exact * np.exp(0.01 * np.random.default_rng(0).standard_normal(30))


def test_resamples_that_lose_a_size_are_counted(few_sizes: tuple[Columns, np.ndarray]) -> None:
    run = np.repeat(np.arange(6), 5)
    found = bootstrap(CHINCHILLA, *few_sizes, run, starts=2, resamples=400)
    # One size of three is not among six draws: 3 (2/3)^6 - 3 (1/3)^6 = 25.9 %.
    share = 3 * (2 / 3) ** 6 - 3 * (1 / 3) ** 6
    assert found.lost == {name: pytest.approx(share, abs=0.08) for name in ("E", "A", "alpha")}
    weights, size = found.resamples.weights, few_sizes[0]["parameters"][found.search.order]
    sizes = [len(np.unique(size[row[weights.run] > 0])) for row in weights.of_run]
    assert found.lost["alpha"] == np.mean(np.array(sizes) < 3)
    assert found.unidentified == ("E", "A", "alpha")
    assert not found.interval("alpha").identified
    assert found.interval("beta").identified
    (warning,) = found.warnings
    assert warning.startswith(f"in {found.lost['E']:.0%} of the resamples the drawn runs do not")
    assert "identify E, A and alpha" in warning
    assert "there are no intervals" in warning


@pytest.mark.parametrize(
    ("share", "words"), [(0.05, None), (0.06, "are rough"), (0.2, "are rough"), (0.21, "are no")]
)
def test_lost_parameters_are_said_by_share(share: float, words: str | None) -> None:
    found = lost_warnings({"C": share})
    assert len(found) == (words is not None)
    assert all(str(words) in sentence for sentence in found)


def test_two_resamples_must_lie_beyond_an_end(looped: Bootstrap) -> None:
    # 1.5985 % of the resamples lie beyond an end with 15 runs; see below.
    assert fewest_resamples(15) == math.ceil(2 / 0.015985) == 126
    assert fewest_resamples(100_000) == 100
    assert looped.warnings == (
        "100 resamples leave fewer than 2 beyond each end of a 95% interval over 15 runs, so its "
        "ends hang on single draws: take at least 126",
    )


def test_unknown_parameters_and_levels_are_refused(looped: Bootstrap) -> None:
    with pytest.raises(InputError, match="'delta' is no parameter of 'looplm_total'; there are E"):
        looped.interval("delta")
    with pytest.raises(InputError, match="level is 95"):
        looped.interval("beta", level=95)
