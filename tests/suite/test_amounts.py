from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.amounts import read_amount, shown_amount
from suite.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("13e9", 13e9),
        ("1.36B", 1.36e9),
        ("350k", 350e3),
        (" 20 B", 20e9),
        ("5T", 5e12),
        ("53M", 53e6),
        ("13,202,396,160", 13_202_396_160.0),
        ("1_000", 1000.0),
        ("1e21", 1e21),
    ],
)
def test_amounts_as_people_write_them(text: str, value: float) -> None:
    assert read_amount(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["", "B", "0", "-1", "nan", "inf", "1e400", "9Q", "1.2.3", "0M"])
def test_what_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a positive number; write 13e9, or 13B"):
        read_amount(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1_364_398_081, "1.36B"),
        (20e9, "20B"),
        (53_228_545, "53.2M"),
        (999_700, "1M"),
        (999_400, "999K"),
        (5e12, "5T"),
        (512, "512"),
        (1e21, "1e+21"),
    ],
)
def test_three_digits_with_the_letter_of_the_scale(value: float, text: str) -> None:
    assert shown_amount(value) == text


@given(st.floats(1e-3, 1e30))
def test_what_is_shown_reads_back_to_three_digits(value: float) -> None:
    assert math.isclose(read_amount(shown_amount(value)), value, rel_tol=5.1e-3)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(InputError):
        assert 0 < read_amount(text) < math.inf
