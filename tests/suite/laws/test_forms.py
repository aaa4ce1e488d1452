from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.forms import CHINCHILLA, FORMS, LOOPLM_TOTAL, Form, get_form

LOOPLM_TRUTH = {
    "E": 1.5, "A": 300.0, "t1": 2e6, "alpha": 0.35, "B": 900.0, "t2": 3e8, "beta": 0.32,
    "C": 0.5, "t3": 0.5, "gamma": 0.8,
}  # fmt: skip


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
    with pytest.raises(InputError, match=r"'chinchila'; there are chinchilla, looplm_total"):
        get_form("chinchila")


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
