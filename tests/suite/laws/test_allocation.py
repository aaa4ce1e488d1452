from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.allocation import allocate, optimum
from suite.laws.costs import Costs
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL, RECURRENCE_EQUIVALENCE, Form
from suite.laws.kept import KeptLaw

PLAIN = {"E": 1.8172, "A": 482.0, "alpha": 0.3478, "B": 2085.4, "beta": 0.3658}
LOOPED = {
    "E": 1.5, "A": 300.0, "t1": 2e7, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
    "C": 0.5, "t3": 0.5, "gamma": 0.8,
}  # fmt: skip
EQUIVALENT = {"E": 1.57, "A": 60.0, "alpha": 0.199, "phi": 0.459, "B": 2000.0, "beta": 0.369}
SIZES = np.array([53_228_545.0, 134_125_057.0, 373_917_697.0, 777_931_777.0, 1_364_398_081.0])
BLOCKS = np.array([20_447_232.0, 84_934_656.0, 308_281_344.0, 679_477_248.0, 1_233_125_376.0])
HEADS = np.array([512.0, 768, 1024, 1536, 2048]) * 32_000
LEVELS = np.array([2.0, 4.0, 8.0])
GRID = Costs(
    parameters=SIZES,
    recurrences=LEVELS,
    flops_per_token=6 * (BLOCKS + HEADS)[:, None] * LEVELS,
    looped=BLOCKS,
)


def kept(form: Form, parameters: dict[str, float], **changes: Any) -> KeptLaw:
    symbols = tuple(symbol.name for symbol in form.symbols)
    settings = {
        "form": form.name,
        "parameters": parameters,
        "symbols": symbols,
        "resamples": np.empty((0, len(symbols))),
        "num_runs": 15,
        "unidentified": (),
        "objective": 1e-3,
        "noise": {"cell": 0.004, "point": 0.01},
        "points": (),
    }
    return KeptLaw(**settings | changes)


def closed_form(p: dict[str, float], flops: float) -> tuple[float, float]:
    """N and D of Hoffmann et al., equation 4."""
    total = p["alpha"] + p["beta"]
    g = (p["alpha"] * p["A"] / (p["beta"] * p["B"])) ** (1 / total)
    budget = flops / 6
    return g * budget ** (p["beta"] / total), budget ** (p["alpha"] / total) / g


@pytest.mark.parametrize("flops", [1e10, 1e18, 5.76e23, 1e26, 1e27, 1e30, 1e36])
def test_six_n_d_gives_the_closed_form_however_far(flops: float) -> None:
    found = allocate(kept(CHINCHILLA, PLAIN), Costs.six_n(4e7, 1.6e10), flops).best
    n, d = closed_form(PLAIN, flops)
    assert found.parameters.estimate == pytest.approx(n, rel=1e-8)
    assert found.tokens.estimate == pytest.approx(d, rel=1e-8)
    loss = PLAIN["E"] + PLAIN["A"] / n ** PLAIN["alpha"] + PLAIN["B"] / d ** PLAIN["beta"]
    assert found.loss.estimate == pytest.approx(loss, rel=1e-14)
    assert not found.at_end


def test_the_exponents_are_those_of_the_closed_form() -> None:
    n = [optimum(CHINCHILLA, PLAIN, Costs.six_n(1e8, 1e9), c).parameters[0] for c in (1e20, 1e22)]
    a_opt = np.log(n[1] / n[0]) / np.log(100)
    assert a_opt == pytest.approx(PLAIN["beta"] / (PLAIN["alpha"] + PLAIN["beta"]), rel=1e-8)


def by_brute_force(form: Form, p: dict[str, float], flops: float, level: int) -> tuple[Any, ...]:
    """N and loss of the lowest point of a fine grid, whose costs are interpolated anew."""
    log_n = np.linspace(np.log(SIZES[0]), np.log(SIZES[-1]), 400_001)
    cost = np.interp(log_n, np.log(SIZES), np.log(GRID.flops_per_token[:, level]))
    odds = np.interp(log_n, np.log(SIZES), np.log(BLOCKS / (SIZES - BLOCKS)))
    n = np.exp(log_n)
    columns = {
        "parameters": n,
        "tokens": flops / np.exp(cost),
        "recurrence": np.full_like(n, LEVELS[level]),
        "parameters_recurrent": n / (1 + np.exp(-odds)),
        "parameters_once": n / (1 + np.exp(odds)),
    }
    loss = form.predict(p, columns)
    return n[loss.argmin()], loss.min()


@pytest.mark.parametrize(
    ("form", "parameters", "flops"),
    [
        *((LOOPLM_TOTAL, LOOPED, flops) for flops in (2e20, 6e20, 1e21)),
        *((RECURRENCE_EQUIVALENCE, EQUIVALENT, flops) for flops in (4e18, 1e19, 4e19)),
    ],
)
def test_looped_laws_agree_with_brute_force(
    form: Form, parameters: dict[str, float], flops: float
) -> None:
    found = allocate(kept(form, parameters), GRID, flops)
    lowest = []
    for level, choice in enumerate(found.choices):
        n, loss = by_brute_force(form, parameters, flops, level)
        lowest.append(loss)
        assert choice.parameters.estimate == pytest.approx(n, rel=2e-5)
        assert choice.loss.estimate <= loss
        assert choice.loss.estimate == pytest.approx(loss, rel=1e-10)
        spent = choice.tokens.estimate * GRID.at(choice.parameters.estimate, choice.recurrence)
        assert spent == pytest.approx(flops, rel=1e-12)
    assert found.best.recurrence == LEVELS[int(np.argmin(lowest))]


def test_small_models_are_not_promised_what_a_shift_extrapolates() -> None:
    # Far below t1 the law's loss no longer depends on N, and the budget buys tokens without
    # end; at 3e19 the best size for T_m 4 lies just below the declared ones.
    small = allocate(kept(LOOPLM_TOTAL, LOOPED), GRID, 2e18)
    for choice in small.choices:
        assert choice.at_end
        assert choice.parameters.estimate == pytest.approx(SIZES[0], rel=1e-12)
    below = allocate(kept(LOOPLM_TOTAL, LOOPED), GRID, 3e19).choices[1]
    assert not below.at_end
    assert 0.5 * SIZES[0] < below.parameters.estimate < SIZES[0]
    n = below.parameters.estimate * np.array([0.999, 1.0, 1.001])
    tokens = 3e19 / np.array([GRID.at(each, 4) for each in n])
    loss = LOOPLM_TOTAL.predict(
        LOOPED, {"parameters": n, "tokens": tokens, "recurrence": np.full(3, 4.0)}
    )
    assert loss.argmin() == 1


def test_beyond_the_largest_size_its_line_is_followed() -> None:
    found = allocate(kept(LOOPLM_TOTAL, LOOPED), GRID, 1e23).choices[0]
    assert found.parameters.estimate > 2 * SIZES[-1]
    n = found.parameters.estimate * np.array([0.99, 1.0, 1.01])
    slope, line = np.polyfit(np.log(SIZES[-2:]), np.log(GRID.flops_per_token[-2:, 0]), 1)
    tokens = 1e23 / np.exp(slope * np.log(n) + line)
    loss = LOOPLM_TOTAL.predict(
        LOOPED, {"parameters": n, "tokens": tokens, "recurrence": np.full(3, 2.0)}
    )
    assert loss.argmin() == 1


def test_the_optimum_is_found_anew_in_every_resample() -> None:
    rng = np.random.default_rng(0)
    rows = np.array(list(PLAIN.values())) * np.exp(0.02 * rng.standard_normal((200, 5)))
    law = kept(CHINCHILLA, PLAIN, resamples=rows)
    found = allocate(law, Costs.six_n(1e8, 1e9), 1e22).best
    expected = [closed_form(dict(zip(law.symbols, row, strict=True)), 1e22) for row in rows]
    # 15 runs: the percentiles of Student's t, 1.5985 and 98.4015.
    for interval, values in zip(
        (found.parameters, found.tokens), np.transpose(expected), strict=True
    ):
        ends = np.quantile(values, [0.015985, 1 - 0.015985])
        np.testing.assert_allclose([interval.lower, interval.upper], ends, rtol=1e-5)
    at = {"parameters": np.array([found.parameters.estimate])}
    band = law.predict(at | {"tokens": np.array([found.tokens.estimate])})
    assert (found.loss.lower, found.loss.upper) == (band.lower[0], band.upper[0])
    assert found.best_share == 1.0


def test_the_share_of_resamples_says_how_sure_the_recurrence_is() -> None:
    worse = {**LOOPED, "C": 3.0}
    symbols = [symbol.name for symbol in LOOPLM_TOTAL.symbols]
    rows = np.array([[p[name] for name in symbols] for p in [LOOPED] * 70 + [worse] * 30])
    found = allocate(kept(LOOPLM_TOTAL, LOOPED, resamples=rows), GRID, 1e21)
    first, second = (optimum(LOOPLM_TOTAL, p, GRID, 1e21).best for p in (LOOPED, worse))
    assert first != second
    shares = [choice.best_share for choice in found.choices]
    assert shares[first] == pytest.approx(0.7)
    assert shares[second] == pytest.approx(0.3)
    assert found.best is found.choices[first]


def test_a_law_without_resamples_has_no_intervals() -> None:
    found = allocate(kept(CHINCHILLA, PLAIN), Costs.six_n(1e8, 1e9), 1e22).best
    assert np.isnan([found.parameters.lower, found.loss.upper, found.best_share]).all()


def test_an_optimum_that_never_comes_is_said() -> None:
    # Without any effect of D the loss falls with N for ever.
    endless = {**PLAIN, "B": 1e-12}
    found = allocate(kept(CHINCHILLA, endless), Costs.six_n(1e8, 1e9), 1e20).best
    assert found.at_end
    assert found.parameters.estimate == pytest.approx(1e9)


def test_a_term_that_vanished_at_the_points_makes_no_optimum_far_away() -> None:
    # The smallest slope that a fit may give, of a steep term: its optimum would be at N 9e4.
    point = {"cell": "a", "size": "s", "recurrence": 1, "parameters": 1e8, "tokens": 1e10}
    gone = {**PLAIN, "A": 1e-9 * 1e8**2, "alpha": 2.0}
    for points, at_end in (((), False), ((point,), True)):
        law = kept(CHINCHILLA, gone, points=points)
        assert allocate(law, Costs.six_n(1e8, 1e9), 1e15).best.at_end == at_end


def test_less_than_one_parameter_is_no_optimum() -> None:
    law = kept(CHINCHILLA, {**PLAIN, "A": 1e-6})
    found = allocate(law, Costs.six_n(1e8, 1e9), 1e18).best
    assert closed_form({**PLAIN, "A": 1e-6}, 1e18)[0] < 1
    assert found.at_end
    assert found.parameters.estimate == pytest.approx(1e8)


def test_resamples_without_an_optimum_are_counted_and_said() -> None:
    good, endless = list(PLAIN.values()), [*list(PLAIN.values())[:3], 1e-12, PLAIN["beta"]]
    for count, sentences in ((0, 0), (10, 1)):
        rows = np.array([endless] * count + [good] * (100 - count))
        found = allocate(kept(CHINCHILLA, PLAIN, resamples=rows), Costs.six_n(1e8, 1e9), 1e20)
        assert found.best.endless_share == pytest.approx(count / 100)
        assert len(found.warnings) == sentences
    assert found.warnings[0].startswith("in 10% of the resamples the loss falls beyond the known")
    law = kept(CHINCHILLA, {**PLAIN, "B": 1e-12})
    (sentence,) = allocate(law, Costs.six_n(1e8, 1e9), 1e20).warnings
    assert "without end: N is the outermost of them, and no optimum" in sentence


@pytest.mark.parametrize("flops", [0.0, -1.0, np.inf, np.nan])
def test_impossible_budgets_are_refused(flops: float) -> None:
    with pytest.raises(InputError, match="must be positive and finite"):
        allocate(kept(CHINCHILLA, PLAIN), Costs.six_n(1e8, 1e9), flops)
