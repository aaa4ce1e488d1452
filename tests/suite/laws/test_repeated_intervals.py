"""Intervals of the data-constrained law over runs."""

from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.forms import DATA_CONSTRAINED
from suite.laws.intervals import ResampledFit
from suite.laws.repeated_data import fit_repeated, untold_symbols
from suite.laws.repeated_intervals import bootstrap_repeated
from tests.suite.laws.test_repeated_data import PLAIN, PUBLISHED, Columns

RUN = np.repeat(np.arange(30), 3)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer resamples than an interval needs, for tests of the resamples themselves."""
    monkeypatch.setattr("suite.laws._resampled.FEWEST_RESAMPLES", 8)


@pytest.fixture(scope="module")
def columns() -> Columns:
    """Thirty runs of three points, at 10, 50 and 100 % of their tokens."""
    rng = np.random.default_rng(0)
    unique = 10 ** rng.uniform(8, 10.5, 30)
    epochs = rng.choice([0.5, 1, 2, 4, 8, 16, 44], 30)
    parts = np.tile([0.1, 0.5, 1.0], 30)
    return {
        "parameters": np.repeat(10 ** rng.uniform(7.5, 10, 30), 3),
        "tokens": np.repeat(unique * epochs, 3) * parts,
        "unique_tokens": np.repeat(unique, 3),
    }


def noisy(columns: Columns, size: float = 0.004) -> np.ndarray:
    """Losses whose runs share an offset."""
    rng = np.random.default_rng(1)
    offset = rng.standard_normal(30)[RUN]
    noise = size * (offset + 0.3 * rng.standard_normal(90))
    return DATA_CONSTRAINED.predict(PUBLISHED, columns) * np.exp(noise)


@pytest.fixture(scope="module")
def found(columns: Columns) -> ResampledFit:
    return bootstrap_repeated(columns, noisy(columns), RUN, starts=4, resamples=115)


def test_the_fit_is_that_of_all_points(columns: Columns, found: ResampledFit) -> None:
    assert found.fit == fit_repeated(columns, noisy(columns), starts=4)
    assert found.symbols == ("E", "A", "alpha", "B", "beta", "R_D", "R_N")
    assert (found.num_runs, found.parameters.shape) == (30, (115, 7))
    assert (found.converged_share, found.warnings) == (1.0, ())
    assert (found.unidentified, dict(found.lost)) == ((), {})


def test_intervals_hold_the_law_that_made_the_points(found: ResampledFit) -> None:
    for name, value in PUBLISHED.items():
        interval = found.interval(name)
        assert interval.identified
        assert interval.lower < interval.estimate < interval.upper
        assert interval.lower < value < interval.upper
    at = {"parameters": [6.34e9], "tokens": [242e9], "unique_tokens": [25e9]}
    band = found.predict({name: np.array(values) for name, values in at.items()})
    assert band.lower[0] < 2.2256440889984477 < band.upper[0]
    assert band.upper[0] - band.lower[0] < 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
def test_resamples_are_fits_of_whole_runs(columns: Columns) -> None:
    """Fits of repeated rows, from starts of their own, end where the resamples do."""
    loss = noisy(columns)
    found = bootstrap_repeated(columns, loss, RUN, starts=4, resamples=8, seed=5)
    draws = np.random.default_rng(5).multinomial(30, np.full(30, 1 / 30), size=8)
    # runs are numbered by their points in order
    first = [min(zip(*(c[RUN == run] for c in columns.values()), loss[RUN == run], strict=True))
             for run in range(30)]  # fmt: skip
    number = np.empty(30, dtype=int)
    number[sorted(range(30), key=first.__getitem__)] = np.arange(30)
    for row in range(8):
        rows = np.repeat(np.arange(90), draws[row][number[RUN]])
        again = fit_repeated(
            {name: values[rows] for name, values in columns.items()}, loss[rows], starts=12, seed=9
        )
        expected = [again.parameters[name] for name in found.symbols]
        np.testing.assert_allclose(found.parameters[row], expected, rtol=1e-6)


@pytest.mark.usefixtures("few_resamples")
def test_resamples_end_in_the_best_basin_of_their_own() -> None:
    """Half of the runs forget at once and half hardly do: either half wins where more are drawn."""
    unique = np.concatenate([1e8 * np.geomspace(1, 1.2, 6), 1e12 * np.geomspace(1, 1.2, 6)])
    epochs, truth = np.repeat([1.5, 10000.0], 6), np.repeat([0.3, 3000.0], 6)
    two = {"parameters": np.full(12, 4e6), "tokens": unique * epochs, "unique_tokens": unique}

    def losses(decays: np.ndarray) -> np.ndarray:
        """Of each decay at each point [decays, points], models being small for their data."""
        worth = unique * (1 + decays * -np.expm1(-(epochs - 1) / decays))
        plain = PLAIN["E"] + PLAIN["A"] / 4e6 ** PLAIN["alpha"]
        return plain + PLAIN["B"] / worth ** PLAIN["beta"]

    found = bootstrap_repeated(
        two, losses(truth), np.arange(12), plain=PLAIN, starts=8, resamples=20, seed=3
    )

    def objectives(decays: np.ndarray) -> np.ndarray:
        """Huber losses of each decay at each point [decays, points]."""
        size = np.abs(np.log(losses(decays[:, None])) - np.log(losses(truth)))
        return np.where(size <= 1e-3, 0.5 * size**2, 1e-3 * (size - 5e-4))

    counts = np.random.default_rng(3).multinomial(12, np.full(12, 1 / 12), size=20)
    decays = found.parameters[:, found.symbols.index("R_D")]
    ended = (counts * objectives(decays)).sum(axis=1)
    grid = counts @ objectives(np.geomspace(0.01, 1e4, 2_000)).T
    assert (ended <= grid.min(axis=1) * (1 + 1e-9)).all()
    assert 4 < (decays < 1).sum() < 16


@pytest.mark.usefixtures("few_resamples")
def test_twice_the_noise_gives_intervals_twice_as_wide(columns: Columns) -> None:
    """Of least squares, while the noise is small."""
    widths = []
    for size in (1e-4, 2e-4):
        loss = noisy(columns, size)
        settings = {"starts": 2, "resamples": 12, "huber_delta": np.inf}
        found = bootstrap_repeated(columns, loss, RUN, plain=PLAIN, **settings)
        widths.append(found.parameters[:, -2:].std(axis=0))
    assert widths[0].min() > 0
    np.testing.assert_allclose(widths[1], 2 * widths[0], rtol=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("few_resamples")
def test_order_names_and_units_change_nothing(columns: Columns) -> None:
    settings = {"starts": 3, "resamples": 8}
    loss = noisy(columns)
    plain = bootstrap_repeated(columns, loss, RUN, **settings)
    order = np.random.default_rng(0).permutation(90)
    names = np.array([f"run-{(7 * run) % 30}" for run in RUN])
    shuffled = {name: values[order] for name, values in columns.items()}
    other = bootstrap_repeated(shuffled, loss[order], names[order], **settings)
    np.testing.assert_array_equal(other.parameters, plain.parameters)
    billions = {name: values / 1e9 for name, values in shuffled.items()}
    scaled = bootstrap_repeated(billions, loss[order], names[order], **settings)
    free = [plain.symbols.index(name) for name in ("E", "alpha", "beta", "R_D", "R_N")]
    np.testing.assert_allclose(scaled.parameters[:, free], plain.parameters[:, free], rtol=1e-8)


@pytest.mark.usefixtures("few_resamples")
def test_a_fixed_plain_law_stays_in_every_resample(columns: Columns) -> None:
    found = bootstrap_repeated(columns, noisy(columns), RUN, plain=PLAIN, starts=2, resamples=8)
    for name, value in PLAIN.items():
        assert set(found.parameters[:, found.symbols.index(name)]) == {value}
    assert found.parameters[:, -2:].std(axis=0).min() > 0


@pytest.mark.usefixtures("few_resamples")
def test_models_that_suit_their_data_do_not_tell_r_n() -> None:
    tokens = np.geomspace(1e9, 3e10, 12)
    few = {"parameters": np.full(12, 1e6), "tokens": tokens, "unique_tokens": tokens / 4}
    loss = DATA_CONSTRAINED.predict(PUBLISHED, few)
    found = bootstrap_repeated(few, loss, np.arange(12), plain=PLAIN, starts=2, resamples=8)
    assert found.unidentified == ("R_N",)
    assert not found.interval("R_N").identified
    assert found.interval("R_D").identified


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("plain", [None, PLAIN])
def test_what_two_sizes_leave_open_does_not_hang_on_the_resamples(
    plain: dict[str, float] | None,
) -> None:
    tokens = np.geomspace(1e9, 3e10, 12)
    sizes = np.where(np.arange(12) % 2, 1e6, 2e6)
    two = {"parameters": sizes, "tokens": tokens, "unique_tokens": tokens / np.tile([1, 4, 9], 4)}
    loss = DATA_CONSTRAINED.predict(PUBLISHED, two)
    settings = {"plain": plain, "starts": 2, "huber_delta": np.inf}
    found = bootstrap_repeated(two, loss, np.arange(12), resamples=8, **settings)
    alone = fit_repeated(two, loss, **settings)
    told = untold_symbols(DATA_CONSTRAINED, alone.parameters, two, plain=plain is not None)
    assert set(told) == ({"R_N"} if plain else {"E", "A", "alpha", "R_N"})
    assert set(told) <= set(found.unidentified)
    assert set(told).isdisjoint(found.lost)
    assert found.fit.warnings == alone.warnings
    assert alone.warnings[0].endswith("so R_N is not identified")
    if plain is None:
        assert alone.warnings[1].startswith("E, A, alpha are not identified: the law spends more")
        assert alone.warnings[2].startswith("the points hardly tell the parameters apart")
    assert len(alone.warnings) == (1 if plain else 3)


@pytest.mark.usefixtures("few_resamples")
def test_resamples_that_draw_no_repeated_run_are_counted() -> None:
    """One run of ten repeats its data: (9/10)^10 of the resamples, about a third, lack it."""
    tokens = np.geomspace(1e9, 3e10, 10)
    unique = np.where(np.arange(10) == 3, tokens / 8, tokens)
    rare = {"parameters": np.geomspace(1e7, 1e8, 10), "tokens": tokens, "unique_tokens": unique}
    loss = DATA_CONSTRAINED.predict(PUBLISHED, rare)
    found = bootstrap_repeated(rare, loss, np.arange(10), plain=PLAIN, starts=2, resamples=100)
    # that run is also the only one whose model is larger than its unique tokens call for
    assert found.lost == {"R_N": found.lost["R_D"], "R_D": pytest.approx(0.9**10, abs=0.1)}
    assert found.unidentified == ("R_N", "R_D")
    assert any("do not identify R_N and R_D, though all" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("run", "resamples", "message"),
    [
        (RUN[:30], 100, "30 runs' points and 90 losses"),
        (RUN // 8, 100, "there are 4 runs; intervals over runs need at least 5"),
        (RUN, 99, "resamples is 99; the tails of an interval need at least 100"),
    ],
)
def test_impossible_intervals_are_refused(
    run: np.ndarray, resamples: int, message: str, columns: Columns
) -> None:
    with pytest.raises(InputError, match=message):
        bootstrap_repeated(columns, noisy(columns), run, resamples=resamples)
