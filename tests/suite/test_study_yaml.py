from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.errors import InputError
from suite.study_yaml import join_key, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("3E4", 3e4),
        ("+1.5e3", 1500.0),
        ("-2.e-1", -0.2),
        (".5e1", 5.0),
        ("1_0e2", 1000.0),
        ("300_000", 300_000),
        ("e5", "e5"),
        ("3e", "3e"),
        ("1e5x", "1e5x"),
        ("2024-01-31", "2024-01-31"),
        ("2024-13-99", "2024-13-99"),
        ("yes", True),
        ("~", None),
        ("", None),
        ("[a, {b: 1}]", ["a", {"b": 1}]),
    ],
)
def test_reads_scalars_as_a_person_means_them(text: str, value: object) -> None:
    read = read_yaml(text, source="text")
    assert read == value
    assert type(read) is type(value)


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    assert read_yaml("\ufeffname: x", source="text") == {"name": "x"}


@pytest.mark.parametrize(
    ("text", "key", "fragments"),
    [
        ("a: 1\nb: 2\na: 3", "a", ["line 3", "'a'", "second time"]),
        ("a:\n  b: {c: 1, c: 2}", "a.b.c", ["line 2", "'c'"]),
        ("a:\n- x\n- {c: 1, c: 2}", "a[1].c", ["line 3"]),
        ("a: &x {c: 1, c: 2}\nb: *x", "a.c", ["line 1"]),
        ("a: {<<: {c: 1}, d: 1}", "a", ["line 1", "merge key (<<)", "write its keys out"]),
        ("{[1]: 2}", None, ["line 1", "keys are text"]),
        ("a: {? {b: 1} : 2}", None, ["line 1", "keys are text"]),
        ("a: {1: x}", "a", ["the key 1", "in quotes"]),
        ("no: x", None, ["the key False", "in quotes"]),
        ("a: .nan", "a", ["nan", "finite"]),
        ("a: [1, -.inf]", "a[1]", ["-inf", "finite"]),
        ("a: 1e999", "a", ["inf", "finite"]),
        ("a: 9223372036854775808", "a", ["64 bits", "2^63"]),
        ("a: !!binary aGk=", "a", ["bytes", "text, a number"]),
        ("a: !!set {x}", "a", ["set", "a list or a mapping"]),
        ('a: "\\ud800"', "a", ["UTF-8"]),
        ("a: &x [*x]", "a[0]", ["contains itself"]),
        ("a: &x {b: {c: *x}}", "a.b.c", ["contains itself"]),
        ("a: [", None, ["some file is not valid YAML at line 1, column 5"]),
        ("a: 1\n\tb: 2", None, ["line 2, column 1", "'\\t'"]),
        ("a: \x00", None, ["not valid YAML", "#x0000"]),
        ("a: 1\n---\nb: 2", None, ["line 2", "another document"]),
        ("a: !!python/object:os.system x", None, ["line 1, column 4", "python/object"]),
        ("a: !!int abc", None, ["some file", "tag"]),
        ('a: !!float ""', None, ["some file", "tag"]),
        ("a: !!bool maybe", None, ["some file", "tag"]),
        ("a: !!timestamp soon", None, ["some file", "tag"]),
        ("a: 0x_", None, ["some file", "tag"]),
        ("[" * 3000, None, ["some file is nested too deeply"]),
    ],
)
def test_refuses_what_no_study_can_mean(text: str, key: str | None, fragments: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(text, source="some file")
    message = str(caught.value)
    assert caught.value.key == key
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_aliases_become_copies() -> None:
    data = read_yaml("a: &x {k: [1]}\nb: *x", source="text")
    data["b"]["k"].append(2)
    assert data["a"] == {"k": [1]}


def test_keys_join_into_paths() -> None:
    assert join_key(join_key(join_key("", "calibration"), "niter"), 0) == "calibration.niter[0]"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029\ufeff")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abcxyz.-_/", min_size=1), inner),
    max_leaves=20,
)


@given(plain)
@settings(max_examples=100, deadline=None)
def test_reads_back_whatever_yaml_writes(data: object) -> None:
    read = read_yaml(yaml.safe_dump(data, allow_unicode=True), source="text")
    assert read == data
    if isinstance(data, float):
        assert math.copysign(1, read) == math.copysign(1, data)


@given(st.text("abn01:-[]{}&*!<?#'\"|>%@`~.,e_ \n\t\x00\ud800é", max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        read_yaml(text, source="text")
    except InputError as error:
        message = str(error)
    assert "\n" not in message
