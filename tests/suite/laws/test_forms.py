from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import (
    CHINCHILLA,
    FORMS,
    LOOPLM_STEPWISE,
    LOOPLM_TOTAL,
    POWER,
    RECURRENCE_EQUIVALENCE,
    Form,
    get_form,
)

LOOPLM_TRUTH = {
    "E": 1.5, "A": 300.0, "t1": 2e6, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
    "C": 0.5, "t3": 0.5, "gamma": 0.8,
}  # fmt: skip
# Points of every variable that a law reads, and parameters of every symbol; the tokens of two
# points repeat, and two models are larger than their unique tokens call for.
COLUMNS = {
    "parameters": np.array([5e7, 1.4e9, 6e9, 3e8]),
    "tokens": np.array([1e9, 2e10, 2.4e11, 4e9]),
    "recurrence": np.array([1.0, 2.0, 4.0, 8.0]),
    "step": np.array([4.0, 3.0, 2.0, 1.0]),
    "parameters_once": np.array([3e7, 2e8, 5e8, 1e8]),
    "parameters_recurrent": np.array([2e7, 1.2e9, 5.5e9, 2e8]),
    "unique_tokens": np.array([2e9, 1e10, 2.5e10, 4e9]),
    "x": np.array([0.5, 3.0, 40.0, 7.0]),
}
PARAMETERS = LOOPLM_TRUTH | {"phi": 0.46, "R_D": 15.4, "R_N": 5.3}


def test_chinchilla_predicts_the_sum_of_its_terms() -> None:
    parameters = {"E": 1.7, "A": 400.0, "alpha": 0.34, "B": 410.0, "beta": 0.28}
    n, d = np.array([1e8, 7e10]), np.array([2e9, 1.4e12])
    predicted = CHINCHILLA.predict(parameters, {"parameters": n, "tokens": d})
    np.testing.assert_allclose(predicted, 1.7 + 400 / n**0.34 + 410 / d**0.28, rtol=1e-14)


@pytest.mark.parametrize("gamma", [0.8, -0.3])
def test_looplm_total_predicts_the_sum_of_its_terms(gamma: float) -> None:
    n, d, t = np.array([5e7, 1.4e9]), np.array([1e9, 2e10]), np.array([1.0, 8.0])
    predicted = LOOPLM_TOTAL.predict(
        LOOPLM_TRUTH | {"gamma": gamma}, {"parameters": n, "tokens": d, "recurrence": t}
    )
    expected = 1.5 + 300 / (n + 2e6) ** 0.35 + 900 / (d + 3e8) ** 0.32 + 0.5 / (t + 0.5) ** gamma
    np.testing.assert_allclose(predicted, expected, rtol=1e-14)


def test_prediction_does_not_overflow_where_the_plain_sum_would() -> None:
    parameters = {"E": 0.0, "A": 1e300, "alpha": 40.0, "B": 0.0, "beta": 1.0}
    point = {"parameters": np.array([1e9]), "tokens": np.array([1e9])}
    # 1e300 / (1e9)^40 is 1e-60; (1e9)^40 alone is no double.
    log_prediction = CHINCHILLA.log_prediction(parameters, point)
    np.testing.assert_allclose(log_prediction, -60 * np.log(10), rtol=1e-13)


def test_a_law_without_any_loss_predicts_zero() -> None:
    parameters = {"E": 0.0, "A": 0.0, "alpha": 1.0, "B": 0.0, "beta": 1.0}
    point = {"parameters": np.array([1e9]), "tokens": np.array([1e9])}
    assert CHINCHILLA.predict(parameters, point)[0] == 0.0


def test_recurrence_equivalence_weighs_looped_parameters_by_a_power_of_the_loops() -> None:
    parameters = {"E": 1.57, "A": 40.0, "alpha": 0.199, "phi": 0.459, "B": 900.0, "beta": 0.369}
    once, recurrent, loops, d = (
        COLUMNS[name]
        for name in ("parameters_once", "parameters_recurrent", "recurrence", "tokens")
    )
    expected = 1.57 + 40 / (once + loops**0.459 * recurrent) ** 0.199 + 900 / d**0.369
    predicted = RECURRENCE_EQUIVALENCE.predict(parameters, COLUMNS)
    np.testing.assert_allclose(predicted, expected, rtol=1e-14)
    # At phi = 0 loops are worth nothing: the plain law of all parameters.
    all_parameters = {"parameters": once + recurrent, "tokens": d}
    flat = RECURRENCE_EQUIVALENCE.predict(parameters | {"phi": 0.0}, COLUMNS)
    np.testing.assert_allclose(flat, CHINCHILLA.predict(parameters, all_parameters), rtol=1e-14)


def test_noiseless_points_give_the_worth_of_loops_back() -> None:
    axes = np.meshgrid([2e7, 5e7, 2e8], [2e7, 1e8, 8e8], [1, 2, 4, 8], [1e9, 4e9, 2e10])
    names = ("parameters_once", "parameters_recurrent", "recurrence", "tokens")
    columns = {name: axis.ravel() for name, axis in zip(names, axes, strict=True)}
    truth = {"E": 1.57, "A": 40.0, "alpha": 0.199, "phi": 0.459, "B": 900.0, "beta": 0.369}
    loss = RECURRENCE_EQUIVALENCE.predict(truth, columns)
    result = fit(RECURRENCE_EQUIVALENCE, columns, loss, starts=16)
    assert result.parameters == pytest.approx(truth, rel=1e-9)
    assert result.agreeing_share == 1.0


def test_stepwise_is_the_total_law_with_the_step_in_place_of_the_recurrence() -> None:
    swapped = COLUMNS | {"recurrence": COLUMNS["step"]}
    np.testing.assert_array_equal(
        LOOPLM_STEPWISE.predict(LOOPLM_TRUTH, COLUMNS), LOOPLM_TOTAL.predict(LOOPLM_TRUTH, swapped)
    )


def test_power_reads_one_variable_of_any_kind() -> None:
    x = np.array([1.0, 2.0, 5.0, 11.0, 30.0])
    result = fit(POWER, {"x": x}, 0.7 + 2.5 / x**1.2, starts=8)
    assert result.parameters == pytest.approx({"E": 0.7, "A": 2.5, "alpha": 1.2}, rel=1e-9)


@pytest.mark.parametrize("gamma", [0.8, -0.3])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradient_matches_differences_in_natural_parameters(form: Form, gamma: float) -> None:
    parameters = PARAMETERS | {"gamma": gamma}
    found = form.gradient(parameters, COLUMNS)
    assert found.shape == (len(form.symbols), 4)
    for symbol, row in zip(form.symbols, found, strict=True):
        step = 1e-4 * abs(parameters[symbol.name])
        at = [
            form.predict(parameters | {symbol.name: parameters[symbol.name] + k * step}, COLUMNS)
            for k in (-2, -1, 1, 2)
        ]
        expected = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * step)
        noise = 1e-14 / step  # rounding of losses of order one
        np.testing.assert_allclose(row, expected, rtol=1e-7, atol=10 * noise, err_msg=symbol.name)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradient_at_a_vanished_term_is_finite(form: Form) -> None:
    found = form.gradient(PARAMETERS | {"A": 0.0}, COLUMNS)
    names = [symbol.name for symbol in form.symbols]
    assert np.isfinite(found).all()
    assert (found[names.index("A")] > 0).all()
    assert (found[names.index("alpha")] == 0).all()


@pytest.mark.parametrize(
    ("form", "symbols", "variables", "formula", "latex"),
    [
        (
            CHINCHILLA,
            ["E", "A", "alpha", "B", "beta"],
            ("parameters", "tokens"),
            "L = E + A/N^alpha + B/D^beta",
            r"L = E + \frac{A}{N^{\alpha}} + \frac{B}{D^{\beta}}",
        ),
        (
            LOOPLM_TOTAL,
            ["E", "A", "alpha", "t1", "B", "beta", "t2", "C", "gamma", "t3"],
            ("parameters", "tokens", "recurrence"),
            "L = E + A/(N + t1)^alpha + B/(D + t2)^beta + C/(T_m + t3)^gamma",
            r"L = E + \frac{A}{(N + t_{1})^{\alpha}} + \frac{B}{(D + t_{2})^{\beta}}"
            r" + \frac{C}{(T_m + t_{3})^{\gamma}}",
        ),
        (
            RECURRENCE_EQUIVALENCE,
            ["E", "A", "alpha", "phi", "B", "beta"],
            ("parameters_once", "parameters_recurrent", "recurrence", "tokens"),
            "L = E + A/(N_once + T_m^phi N_rec)^alpha + B/D^beta",
            r"L = E + \frac{A}{(N_{\mathrm{once}} + {T_m}^{\phi} N_{\mathrm{rec}})^{\alpha}}"
            r" + \frac{B}{D^{\beta}}",
        ),
    ],
)
def test_a_form_declares_itself(
    form: Form, symbols: list[str], variables: tuple[str, ...], formula: str, latex: str
) -> None:
    assert [symbol.name for symbol in form.symbols] == symbols
    assert form.variables == variables
    assert form.formula == formula
    assert form.latex == latex


def test_only_the_recurrence_term_may_rise() -> None:
    assert len(CHINCHILLA.directions) == 1
    falling, rising = LOOPLM_TOTAL.directions
    assert falling == LOOPLM_TOTAL.terms
    assert [a == b for a, b in zip(falling, rising, strict=True)] == [True, True, False]


def test_forms_are_found_by_name_and_unknown_names_are_told_the_others() -> None:
    assert all(get_form(name) is form for name, form in FORMS.items())
    known = "chinchilla, data_constrained, looplm_stepwise, looplm_total, power, "
    with pytest.raises(InputError, match=rf"'chinchila'; there are {known}") as caught:
        get_form("chinchila")
    assert "sums of terms such as 'parameters + tokens'" in str(caught.value)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_latex_has_its_braces_in_pairs_and_every_symbol(form: Form) -> None:
    assert form.latex.count("{") == form.latex.count("}")
    assert all(symbol.latex in form.latex for symbol in form.symbols)
    assert all(symbol.name in form.formula for symbol in form.symbols)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, r"reads parameters, tokens; there is no tokens among parameters"),
        ({"tokens": [1e9, 2e9, 3e9]}, r"differ in length: parameters 2, tokens 3"),
        ({"tokens": [1e9, 0.0]}, r"tokens is 0.0 in row 1"),
        ({"parameters": [np.nan, 1e6]}, r"parameters is nan in row 0"),
        ({"parameters": [[1e6, 1e7]]}, r"parameters has the shape \(1, 2\)"),
    ],
)
def test_columns_that_no_law_can_read_are_refused(
    change: dict[str, list[float] | None], message: str
) -> None:
    columns = {"parameters": [1e6, 1e7], "tokens": [1e9, 2e9]} | change
    given = {name: np.array(values) for name, values in columns.items() if values is not None}
    with pytest.raises(InputError, match=message):
        CHINCHILLA.columns(given)


def test_prediction_needs_every_parameter() -> None:
    point = {"parameters": np.array([1e9]), "tokens": np.array([1e9])}
    with pytest.raises(InputError, match=r"also needs the parameters \['alpha', 'beta'\]"):
        CHINCHILLA.predict({"E": 1.0, "A": 1.0, "B": 1.0}, point)
