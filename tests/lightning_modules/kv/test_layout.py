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


def test_a_row_without_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="no keys"):
        KVLayout(keys=(), values=stacked([(1, 4)]))


def test_latents_are_keys_without_values() -> None:
    layout = KVLayout(keys=stacked([(1, 16), (1, 16)]), values=())
    assert (layout.kinds, layout.key_width, layout.value_width) == (("key",), 32, 0)
    assert layout.slices("value") == ()
    assert KVLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


def test_the_route_is_kept_and_makes_no_difference() -> None:
    keys = stacked([(2, 8)])
    plain = KVLayout(keys=keys, values=keys)
    named = KVLayout(keys=keys, values=keys, route="hooks: SomeAttention k_proj, v_proj")
    assert named == plain
    assert KVLayout.from_dict(json.loads(json.dumps(named.to_dict()))).route == named.route
    record = {name: part for name, part in plain.to_dict().items() if name != "route"}
    assert KVLayout.from_dict(record).route == ""


def test_slices_name_every_head_of_every_layer() -> None:
    layout = KVLayout(keys=stacked([(2, 8), (1, 32)]), values=stacked([(2, 4), (1, 4)]))
    assert layout.kinds == ("key", "value")
    found = [(part.loop, part.layer, part.head, part.columns) for part in layout.slices("key")]
    assert found == [
        (0, 0, 0, slice(0, 8)),
        (0, 0, 1, slice(8, 16)),
        (0, 1, 0, slice(16, 48)),
    ]
    assert [part.columns.stop for part in layout.slices("value")] == [4, 8, 12]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"keys": [], "values": 3},
        {"keys": [{"loop": 0}], "values": []},
        {"keys": [], "values": []},
        {"keys": [{"colour": 1}], "values": []},
        {"keys": ["loop"], "values": []},
    ],
)
def test_a_record_that_is_no_layout_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"layout"):
        KVLayout.from_dict(record)
