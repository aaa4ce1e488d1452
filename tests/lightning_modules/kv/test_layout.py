from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.kv.layout import KVEntry, KVLayout


def stacked(shapes: list[tuple[int, int]]) -> tuple[KVEntry, ...]:
    entries = []
    offset = 0
    for layer, (heads, head_dim) in enumerate(shapes):
        entries.append(KVEntry(loop=0, layer=layer, heads=heads, head_dim=head_dim, offset=offset))
        offset += heads * head_dim
    return tuple(entries)


shapes = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 64)), min_size=1, max_size=6)


@given(keys=shapes, values=shapes)
def test_json_round_trip(keys: list[tuple[int, int]], values: list[tuple[int, int]]) -> None:
    layout = KVLayout(keys=stacked(keys), values=stacked(values))
    assert KVLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    assert layout.key_width == sum(heads * dim for heads, dim in keys)
    assert layout.value_width == sum(heads * dim for heads, dim in values)


def test_entries_of_different_widths_cover_the_row_in_order() -> None:
    first, second = stacked([(2, 8), (1, 32)])
    assert (first.columns, second.columns) == (slice(0, 16), slice(16, 48))


@pytest.mark.parametrize(
    ("offset", "heads"), [(1, 2), (0, 0)], ids=["gap before the first", "no heads"]
)
def test_entries_that_do_not_fit_are_refused(offset: int, heads: int) -> None:
    entry = KVEntry(loop=0, layer=3, heads=heads, head_dim=4, offset=offset)
    with pytest.raises(ValueError, match="layer 3"):
        KVLayout(keys=(entry,), values=stacked([(1, 4)]))


def test_a_row_without_entries_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        KVLayout(keys=stacked([(1, 4)]), values=())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"keys": [], "values": 3},
        {"keys": [{"loop": 0}], "values": []},
        {"keys": [{"colour": 1}], "values": []},
        {"keys": ["loop"], "values": []},
    ],
)
def test_a_record_that_is_no_layout_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"layout"):
        KVLayout.from_dict(record)
