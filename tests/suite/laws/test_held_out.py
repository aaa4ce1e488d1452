from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL
from suite.laws.held_out import FitSettings, ablations, compare, held_out_test
from suite.laws.splits import Split, by_level, leave_one_run_out, without_levels

Columns = dict[str, np.ndarray]
SETTINGS = FitSettings(starts=3, seed=1)


@pytest.fixture(scope="module")
def points(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    columns = grid([53e6, 134e6, 374e6, 778e6, 1.36e9], [1, 2, 4, 8], np.linspace(2e9, 2e10, 4))
    exact = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    exact += 0.3 / columns["recurrence"] ** 0.8
    return columns, exact * np.exp(0.003 * np.random.default_rng(0).standard_normal(80))


def test_held_out_points_are_predicted_and_not_fitted(points: tuple[Columns, np.ndarray]) -> None:
    columns, loss = points
    split = without_levels("parameters", columns["parameters"], [1.36e9])
    found = held_out_test(LOOPLM_TOTAL, columns, loss, split, SETTINGS)
    spoilt = np.where(split.held_out, 99.0, loss)
    again = held_out_test(LOOPLM_TOTAL, columns, spoilt, split, SETTINGS)
    assert again.fit == found.fit
    left = {name: values[~split.held_out] for name, values in columns.items()}
    alone = fit(LOOPLM_TOTAL, left, loss[~split.held_out], starts=3, seed=1)
    assert found.fit == alone
    error = np.abs(alone.predict(columns) - loss)[split.held_out] / loss[split.held_out]
    assert found.goodness.mean_relative_error_held_out == pytest.approx(error.mean(), rel=1e-12)
    assert found.goodness.r2_all > 0.98


def test_comparisons_collect_the_tests(points: tuple[Columns, np.ndarray]) -> None:
    columns, loss = points
    splits = by_level("recurrence", columns["recurrence"])
    done: list[int] = []
    found = compare(
        [LOOPLM_TOTAL, CHINCHILLA], columns, loss, splits, SETTINGS, on_test=done.append
    )
    assert found.laws == ("looplm_total", "chinchilla")
    assert found.splits == ("T_m = 1", "T_m = 2", "T_m = 4", "T_m = 8")
    assert done == list(range(1, 9))
    for law, form in enumerate((LOOPLM_TOTAL, CHINCHILLA)):
        tests = [held_out_test(form, columns, loss, split, SETTINGS) for split in splits]
        errors = [test.goodness.mean_relative_error_held_out for test in tests]
        assert found.error_held_out[law].tolist() == errors
        assert found.r2_all[law].tolist() == [test.goodness.r2_all for test in tests]
        # All four hold out the same number of points.
        assert found.pooled_error[law] == pytest.approx(np.mean(errors), rel=1e-12)


def test_a_term_that_matters_is_missed_in_held_out_error_though_hardly_in_r2(
    points: tuple[Columns, np.ndarray],
) -> None:
    columns, loss = points
    run = np.repeat(np.arange(20), 4)
    splits = leave_one_run_out(run, [f"run {index}" for index in range(20)])[::7]
    laws = ablations(LOOPLM_TOTAL)
    found = compare([laws[0], laws[3]], columns, loss, splits, SETTINGS)
    assert found.laws[1] == "looplm_total without C/(T_m + t3)^gamma"
    assert found.best == "looplm_total"
    assert found.error_ratio[0] == 1.0
    assert found.error_ratio[1] > 5
    assert found.first_wins.tolist() == [0.0, 1.0]


def test_ablations_leave_each_part_out_once() -> None:
    whole, no_size, no_tokens, no_constant = ablations(CHINCHILLA)
    assert whole is CHINCHILLA
    assert no_size.formula == "L = E + B/D^beta"
    assert no_tokens.formula == "L = E + A/N^alpha"
    assert no_constant.formula == "L = A/N^alpha + B/D^beta"
    assert no_constant.name == "chinchilla without E"
    with pytest.raises(InputError, match="has one term"):
        ablations(no_size)


def test_impossible_tests_are_refused(points: tuple[Columns, np.ndarray]) -> None:
    columns, loss = points
    most = without_levels("parameters", columns["parameters"], [1.34e8, 3.74e8, 7.78e8, 1.36e9])
    with pytest.raises(
        InputError, match=r"with N = 1.34e\+08, .* held out, parameters is 5.3e\+07"
    ):
        held_out_test(LOOPLM_TOTAL, columns, loss, most, SETTINGS)
    with pytest.raises(InputError, match="nothing: no point is held out"):
        held_out_test(LOOPLM_TOTAL, columns, loss, Split("nothing", loss < 0), SETTINGS)
    with pytest.raises(InputError, match="short: 3 points split, 80 losses"):
        held_out_test(LOOPLM_TOTAL, columns, loss, Split("short", np.ones(3, dtype=bool)))
    with pytest.raises(InputError, match="0 laws and 1 splits"):
        compare([], columns, loss, [most])
