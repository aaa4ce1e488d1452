from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.errors import SuiteError
from suite.tracking.origins import Origins, former_ids, origin_tags, read_origins, translate

A, B, C, D = (letter * 32 for letter in "abcd")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A, B),
        (f"run {A}: 3 points; run {C}", f"run {B}: 3 points; run {C}"),
        (f'["{A}","{A}"]', f'["{B}","{B}"]'),
        (f"{A}f", f"{A}f"),
        (f"x{A}", f"x{A}"),
        (A.upper(), A.upper()),
        ("", ""),
    ],
)
def test_ids_are_translated_wherever_they_stand_alone(text: str, expected: str) -> None:
    assert translate(text, {A: B}) == expected


@given(st.text(alphabet="abc 0:", max_size=80))
def test_translating_back_gives_the_text(text: str) -> None:
    there = translate(f"{text} {A} {text}", {A: D})
    assert translate(there, {D: A}) == f"{text} {A} {text}"


def test_an_import_of_an_import_keeps_the_first_id_and_all_names() -> None:
    once = origin_tags(A, "one", {})
    twice = origin_tags(B, "two", once)
    thrice = origin_tags(C, "two", twice)
    assert once["suite.imported.run_id"] == thrice["suite.imported.run_id"] == A
    assert former_ids(thrice) == (A, B, C)
    assert thrice["suite.imported.studies"] == "one two"


def tags_of(**runs: tuple[str, str]) -> pl.DataFrame:
    rows = [
        (run_id, key, value)
        for run_id, (ids, studies) in runs.items()
        for key, value in (
            ("suite.imported.run_ids", ids),
            ("suite.imported.studies", studies),
            ("suite.kind", "law"),
        )
    ]
    return pl.DataFrame(rows, schema=["run_id", "key", "value"], orient="row")


def test_every_former_id_and_name_is_known() -> None:
    origins = read_origins(tags_of(**{C: (f"{A} {B}", "one two"), D: ("e" * 32, "one")}))
    assert origins.ids == {A: C, B: C, "e" * 32: D}
    assert origins.studies == {"one", "two"}


def test_a_run_that_is_here_stands_for_itself() -> None:
    origins = read_origins(tags_of(**{C: (f"{A} {D}", "one"), D: (B, "one")}))
    assert origins.ids == {A: C, B: D}


def test_two_runs_that_claim_one_former_id_are_named() -> None:
    with pytest.raises(SuiteError, match=f"{C} and {D} both say .* they were {A}"):
        read_origins(tags_of(**{C: (A, "one"), D: (A, "one")}))


def test_entries_read_with_present_ids_and_the_rest_untouched() -> None:
    entries = pl.DataFrame(
        {
            "panel": ["loss", "table: cells"],
            "run_id": [A, D],
            "step": [1, None],
            "value": [0.5, None],
            "text": [None, f"FAILED: see run {A}"],
        }
    )
    expected = entries.with_columns(
        run_id=pl.Series([C, D]), text=pl.Series([None, f"FAILED: see run {C}"])
    )
    origins = Origins(ids={A: C}, studies=frozenset())
    assert origins.under_present_ids(entries).equals(expected)
    assert Origins(ids={}, studies=frozenset()).under_present_ids(entries).equals(entries)
