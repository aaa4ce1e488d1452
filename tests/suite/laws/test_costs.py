from __future__ import annotations

import numpy as np
import pytest

from lightning_modules.looplm.sizes import PRESETS, count_parameters, resolve
from lightning_modules.looplm.sizes import training_flops_per_token as flops_of
from suite.errors import InputError
from suite.laws.costs import Costs

SHAPES = [resolve(size, vocab_size=32_000) for size in PRESETS.values()]
COUNTS = [count_parameters(shape) for shape in SHAPES]
LEVELS = (2, 4, 8)


@pytest.fixture
def costs() -> Costs:
    return Costs(
        parameters=np.array([float(count.total) for count in COUNTS]),
        recurrences=np.array(LEVELS, dtype=float),
        flops_per_token=np.array(
            [[float(flops_of(shape, level, 2048)) for level in LEVELS] for shape in SHAPES]
        ),
        looped=np.array([float(count.looped) for count in COUNTS]),
    )


def test_declared_sizes_cost_what_the_study_says(costs: Costs) -> None:
    for shape, count in zip(SHAPES, COUNTS, strict=True):
        for level in LEVELS:
            expected = flops_of(shape, level, 2048)
            assert costs.at(count.total, level) == pytest.approx(expected, rel=1e-13)


def test_sizes_between_lie_on_the_line_in_logarithms(costs: Costs) -> None:
    n = np.geomspace(6e7, 1.3e9, 17)
    for column, level in enumerate(LEVELS):
        logs = np.log(costs.flops_per_token[:, column])
        expected = np.exp(np.interp(np.log(n), np.log(costs.parameters), logs))
        np.testing.assert_allclose([costs.at(x, level) for x in n], expected, rtol=1e-12)


def test_beyond_the_outermost_sizes_their_line_goes_on(costs: Costs) -> None:
    (n1, n2), (c1, c2) = costs.parameters[-2:], costs.flops_per_token[-2:, 0]
    slope = np.log(c2 / c1) / np.log(n2 / n1)
    assert costs.at(1e11, 2) == pytest.approx(c2 * (1e11 / n2) ** slope, rel=1e-12)


def test_the_looped_share_meets_the_declared_ones_and_stays_a_share(costs: Costs) -> None:
    log_n = np.log(costs.parameters)
    column = np.zeros(5, dtype=int)
    found = costs.variables(log_n, column, costs.segment_of(log_n), np.ones(5))
    np.testing.assert_allclose(found["parameters_recurrent"], [c.looped for c in COUNTS])
    np.testing.assert_allclose(
        found["parameters_once"] + found["parameters_recurrent"], found["parameters"]
    )
    far = np.log([1e5, 1e12])
    found = costs.variables(far, column[:2], costs.segment_of(far), np.ones(2))
    assert (found["parameters_once"] > 0).all()
    assert (found["parameters_recurrent"] > 0).all()


def test_a_single_size_costs_in_proportion_elsewhere() -> None:
    one = Costs(
        parameters=np.array([1e8]), recurrences=np.ones(1), flops_per_token=np.array([[7e8]])
    )
    assert one.at(1e8, 1) == pytest.approx(7e8)
    assert one.at(3e8, 1) == pytest.approx(2.1e9)


def test_six_n_is_six_n_everywhere() -> None:
    costs = Costs.six_n(1e8, 1e9)
    for n in (1e6, 3e8, 1e12):
        assert costs.at(n, 1) == pytest.approx(6 * n, rel=1e-12)


def test_an_unknown_recurrence_is_refused(costs: Costs) -> None:
    with pytest.raises(InputError, match="costs are known at T_m 2, 4, 8, not at 3"):
        costs.at(1e8, 3)
