from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL, RECURRENCE_EQUIVALENCE, get_form


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("parameters", "L = E + A/N^alpha"),
        ("parameters + tokens + recurrence", "L = E + A/N^alpha + B/D^beta + C/T_m^gamma"),
        ("shifted tokens", "L = E + B/(D + t2)^beta"),
        ("  parameters+rising   shifted step ", "L = E + A/N^alpha + C/(T + t3)^gamma"),
        ("equivalence", "L = E + A/(N_once + T_m^phi N_rec)^alpha"),
        ("shifted x", "L = E + A/(x + t1)^alpha"),
    ],
)
def test_a_sum_of_names_is_a_law(text: str, formula: str) -> None:
    assert get_form(text).formula == formula


@pytest.mark.parametrize(
    ("text", "declared"),
    [
        ("parameters + tokens", CHINCHILLA),
        ("equivalence + tokens", RECURRENCE_EQUIVALENCE),
        ("shifted parameters + shifted tokens + rising shifted recurrence", LOOPLM_TOTAL),
    ],
)
def test_the_declared_laws_can_be_composed(text: str, declared: object) -> None:
    assert get_form(text).terms == declared.terms


def test_names_are_spelt_with_single_blanks() -> None:
    assert get_form("parameters+  tokens").name == "parameters + tokens"


def test_terms_add_up() -> None:
    form = get_form("tokens + recurrence")
    parameters = {"E": 1.0, "B": 3.0, "beta": 0.5, "C": 0.2, "gamma": 1.0}
    columns = {"tokens": np.array([4.0, 100.0]), "recurrence": np.array([1.0, 4.0])}
    np.testing.assert_allclose(form.predict(parameters, columns), [2.7, 1.35], rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parameters + width", r"'width' in 'parameters \+ width' is no term of a law; write"),
        ("parameters +", r"'' in 'parameters \+' is no term"),
        ("+", r"'' in '\+' is no term"),
        ("shifted shifted tokens", r"'shifted shifted tokens'.* is no term"),
        ("falling tokens", r"'falling tokens' .*is no term.*such as 'parameters \+ shifted tokens"),
        ("shifted equivalence", r"'shifted equivalence' .*is no term"),
        ("tokens + shifted tokens", r"'tokens' and 'shifted tokens' .*both spend the parameter B"),
        ("recurrence + step", r"both spend the parameter C; a law has one term of each kind"),
        ("parameters + equivalence", r"both spend the parameter A"),
        ("parameters tokens", r"'parameters tokens' .*is no term"),
    ],
)
def test_what_is_no_sum_of_terms_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        get_form(text)
