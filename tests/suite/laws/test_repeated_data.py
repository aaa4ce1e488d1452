from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, DATA_CONSTRAINED, DataConstrainedForm
from suite.laws.repeated_data import fit_repeated, untold_symbols

# The published constants: Muennighoff et al., arXiv 2305.16264.
PUBLISHED = {
    "E": math.exp(0.6254804), "A": math.exp(6.255414), "alpha": 0.3526596,
    "B": math.exp(7.3049974), "beta": 0.3526596, "R_D": 15.387756, "R_N": 5.309743,
}  # fmt: skip
PLAIN = {name: PUBLISHED[name] for name in ("E", "A", "alpha", "B", "beta")}
Columns = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def columns() -> Columns:
    rng = np.random.default_rng(0)
    unique = 10 ** rng.uniform(8, 10.5, 90)
    epochs = rng.choice([0.5, 1, 2, 4, 8, 16, 44], 90)
    return {
        "parameters": 10 ** rng.uniform(7.5, 10, 90),
        "tokens": unique * epochs,
        "unique_tokens": unique,
    }


@pytest.fixture(scope="module")
def noisy(columns: Columns) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal(90)
    return DATA_CONSTRAINED.predict(PUBLISHED, columns) * np.exp(0.005 * noise)


def test_the_published_constants_give_the_published_loss_to_twelve_digits() -> None:
    run = {"parameters": [6.34e9], "tokens": [242e9], "unique_tokens": [25e9]}
    point = {name: np.array(values) for name, values in run.items()}
    (predicted,) = DATA_CONSTRAINED.predict(PUBLISHED, point)
    assert predicted == pytest.approx(2.2256440889984477, rel=1e-12)


def test_without_repetition_and_excess_it_is_the_plain_law() -> None:
    point = {"parameters": np.array([1e9]), "tokens": np.array([5e10])}
    unique = point | {"unique_tokens": np.array([9e10])}
    assert DATA_CONSTRAINED.predict(PUBLISHED, unique) == pytest.approx(
        CHINCHILLA.predict(PUBLISHED, point), rel=1e-14
    )


def test_endless_decays_make_repeated_tokens_as_good_as_new(columns: Columns) -> None:
    endless = PUBLISHED | {"R_D": 1e12, "R_N": 1e12}
    np.testing.assert_allclose(
        DATA_CONSTRAINED.predict(endless, columns),
        CHINCHILLA.predict(PUBLISHED, columns),
        rtol=1e-9,
    )


def test_noiseless_points_give_all_seven_parameters_back(columns: Columns) -> None:
    loss = DATA_CONSTRAINED.predict(PUBLISHED, columns)
    result = fit_repeated(columns, loss, starts=6)
    assert result.parameters == pytest.approx(PUBLISHED, rel=1e-6)
    assert list(result.parameters) == [symbol.name for symbol in DATA_CONSTRAINED.symbols]
    assert (result.at_bounds, result.warnings) == ((), ())


def test_a_fixed_plain_law_stays_and_its_decays_are_fitted(
    columns: Columns, noisy: np.ndarray
) -> None:
    result = fit_repeated(columns, noisy, plain=PLAIN, starts=6)
    assert {name: result.parameters[name] for name in PLAIN} == PLAIN
    assert result.parameters["R_D"] == pytest.approx(PUBLISHED["R_D"], rel=0.1)
    assert result.parameters["R_N"] == pytest.approx(PUBLISHED["R_N"], rel=0.1)
    free = fit_repeated(columns, noisy, starts=6)
    assert free.objective < result.objective


@pytest.mark.parametrize("delta", [1e-3, 1e-7, np.inf])
def test_no_simplex_search_beats_the_fit(delta: float, columns: Columns, noisy: np.ndarray) -> None:
    result = fit_repeated(columns, noisy, plain=PLAIN, starts=4, huber_delta=delta)

    def objective(logs: np.ndarray) -> float:
        decays = dict(zip(("R_D", "R_N"), np.exp(logs), strict=True))
        size = np.abs(np.log(DATA_CONSTRAINED.predict(PLAIN | decays, columns)) - np.log(noisy))
        if delta == np.inf:
            return float(0.5 * (size**2).sum())
        return float(np.where(size <= delta, 0.5 * size**2, delta * (size - delta / 2)).sum())

    start = np.log([result.parameters["R_D"] * 1.3, result.parameters["R_N"] * 0.7])
    options = {"xatol": 1e-12, "fatol": 1e-16, "maxiter": 500}
    other = minimize(objective, start, method="Nelder-Mead", options=options)
    assert result.objective == pytest.approx(other.fun, rel=1e-8)
    assert result.objective <= other.fun * (1 + 1e-12)


def test_order_and_units_of_points_change_nothing(columns: Columns, noisy: np.ndarray) -> None:
    plain = fit_repeated(columns, noisy, starts=3)
    shuffled = np.random.default_rng(3).permutation(90)
    other = fit_repeated(
        {name: values[shuffled] / 1e9 for name, values in columns.items()},
        noisy[shuffled],
        starts=3,
    )
    assert other.objective == pytest.approx(plain.objective, rel=1e-8)
    for name in ("E", "alpha", "beta", "R_D", "R_N"):
        assert other.parameters[name] == pytest.approx(plain.parameters[name], rel=1e-8)


def test_mixed_units_and_repeated_points_are_named(columns: Columns, noisy: np.ndarray) -> None:
    odd = {name: np.append(values, values[0]) for name, values in columns.items()}
    odd["parameters"][5] = 130.0
    found = fit_repeated(odd, np.append(noisy, noisy[0]), plain=PLAIN, starts=2)
    assert "parameters goes down to 130: below 1,000" in " ".join(found.warnings)
    assert found.warnings[-1].startswith("1 points repeat another point exactly")


def test_models_that_suit_their_data_do_not_tell_r_n() -> None:
    tokens = np.array([1e9, 2e9, 8e9, 3e10])
    few = {"parameters": np.full(4, 1e6), "tokens": tokens, "unique_tokens": tokens / 4}
    loss = DATA_CONSTRAINED.predict(PUBLISHED, few)
    result = fit_repeated(few, loss, plain=PLAIN, starts=4)
    assert result.parameters["R_D"] == pytest.approx(PUBLISHED["R_D"], rel=1e-4)
    assert any("R_N is not identified" in warning for warning in result.warnings)


def test_tokens_beyond_the_unique_ones_by_rounding_are_no_repetition() -> None:
    """Where N is larger than they call for, so that nothing but the repetition is left to tell."""
    tokens = np.geomspace(1e9, 3e10, 8)
    once = {"parameters": np.full(8, 1e12), "tokens": tokens, "unique_tokens": tokens}
    nearly = once | {"tokens": tokens * (1 + 1e-12)}
    assert isinstance(DATA_CONSTRAINED, DataConstrainedForm)
    for columns in (once, nearly):
        worth = DATA_CONSTRAINED.repetition(PUBLISHED, columns)
        assert not worth.depends_on("R_D").any()
        assert worth.worth_tokens.tolist() == columns["tokens"].tolist()
        assert DATA_CONSTRAINED.untold_decays(PUBLISHED, columns) == ("R_D",)
        assert untold_symbols(DATA_CONSTRAINED, PUBLISHED, columns, plain=True) == ("R_D",)
        with pytest.raises(InputError, match="no point repeats its data"):
            fit_repeated(columns, np.full(8, 3.0), plain=PLAIN, starts=1)
    twice = once | {"unique_tokens": tokens * (1 - 1e-8)}
    assert DATA_CONSTRAINED.untold_decays(PUBLISHED, twice) == ()


@pytest.mark.parametrize(
    ("change", "plain", "message"),
    [
        ({"unique_tokens": 1e15}, None, "no point repeats its data .* fit the law 'chinchilla'"),
        ({"parameters": 1e9}, None, r"parameters is 1e\+09 in all 90 points"),
        ({"tokens": np.nan}, None, r"tokens is nan in row 0"),
        ({}, {"E": 1.0}, "got no A, alpha, B, beta; the plain law is fixed as a whole"),
        ({}, PLAIN | {"R_D": 5.0}, "got 'R_D', which it has not; .* each of E, A, alpha, B, beta"),
        ({}, PLAIN | {"alpha": -0.3}, "alpha is -0.3; it must be positive and finite"),
        ({}, PLAIN | {"B": math.inf}, "B is inf; it must be positive"),
    ],
)
def test_impossible_fits_are_refused(
    change: dict[str, float],
    plain: dict[str, float] | None,
    message: str,
    columns: Columns,
    noisy: np.ndarray,
) -> None:
    given = columns | {name: np.full(90, value) for name, value in change.items()}
    with pytest.raises(InputError, match=message):
        fit_repeated(given, noisy, plain=plain, starts=1)


def test_too_few_points_are_refused(columns: Columns, noisy: np.ndarray) -> None:
    six = {name: values[:6] for name, values in columns.items()}
    with pytest.raises(InputError, match="has 7 free parameters; 6 points cannot determine them"):
        fit_repeated(six, noisy[:6])


def test_it_is_no_sum_of_independent_terms(columns: Columns, noisy: np.ndarray) -> None:
    with pytest.raises(InputError, match="not as a sum of terms"):
        fit(DATA_CONSTRAINED, columns, noisy)
