"""Row filters: what they accept, and what they refuse to guess."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.corpora.filters import parse_filter, parse_filters
from suite.errors import InputError

OPERATORS: dict[str, Callable[[object, object], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
COLUMNS = st.from_regex(r"[A-Za-z_][\w.\-]*", fullmatch=True)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SPACES = st.sampled_from(["", " ", "  ", "\t"])


@given(COLUMNS, st.sampled_from(sorted(OPERATORS)), NUMBERS, NUMBERS, SPACES)
def test_number_filter_compares_as_python_does(
    column: str, sign: str, literal: float, value: float, space: str
) -> None:
    parsed = parse_filter(f"{space}{column}{space}{sign}{space}{literal!r}{space}", key="k")
    assert (parsed.column, parsed.literal) == (column, literal)
    accepted = parsed.accepts({column: value}, place="here")
    assert accepted == OPERATORS[sign](value, literal)


@given(
    COLUMNS,
    st.sampled_from(sorted(OPERATORS)),
    st.text(st.characters(exclude_characters="\"'")),
    st.text(),
    st.sampled_from("'\""),
)
def test_string_filter_compares_as_python_does(
    column: str, sign: str, literal: str, value: str, quote: str
) -> None:
    parsed = parse_filter(f"{column} {sign} {quote}{literal}{quote}", key="k")
    assert parsed.literal == literal
    assert parsed.accepts({column: value}, place="here") == OPERATORS[sign](value, literal)


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_filter(text, key="k")
    except InputError:
        return
    assert re.fullmatch(rf"\s*{re.escape(parsed.column)}\s*{parsed.comparison}.*", text, re.DOTALL)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("n==9007199254740993", 9007199254740993),
        ("n == 1.", 1.0),
        ("n < -.5e-2", -0.005),
        ("n != +3", 3),
        ("""name == 'say "yes"'""", 'say "yes"'),
        ('name == ""', ""),
    ],
)
def test_literals(text: str, literal: object) -> None:
    found = parse_filter(text, key="k").literal
    assert found == literal
    assert type(found) is type(literal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "score",
        "score >=",
        ">= 3",
        "score = 3",
        "score => 3",
        "score >= three",
        "score >= 3 and x < 2",
        "score >= '3",
        "0 < score < 1",
        "score >= __import__('os')",
        "two words == 1",
        "score >= nan",
        "score >= ٣",
    ],
)
def test_other_forms_are_refused_saying_what_is_allowed(text: str) -> None:
    with pytest.raises(InputError, match="is not a filter; write a column, one of") as caught:
        parse_filters(("a > 1", text), key="corpora.c")
    assert caught.value.key == "corpora.c.where[1]"


@pytest.mark.parametrize("sign", sorted(OPERATORS))
def test_null_passes_no_filter(sign: str) -> None:
    assert not parse_filter(f"score {sign} 0", key="k").accepts({"score": None}, place="here")


@pytest.mark.parametrize(
    ("text", "value"), [("score > 0", "0.5"), ("score == '1'", 1), ("score > 0", [1])]
)
def test_values_of_another_kind_are_refused(text: str, value: object) -> None:
    parsed = parse_filter(text, key="corpora.c.where[0]")
    with pytest.raises(InputError, match=r"'score' holds .* at a\.jsonl line 3") as caught:
        parsed.accepts({"score": value}, place="a.jsonl line 3")
    assert caught.value.key == "corpora.c.where[0]"
