from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.errors import InputError
from suite.reports.manifest import (
    ENTRY_SCHEMA,
    Manifest,
    compare,
    read_manifest,
    to_json,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
identities = st.tuples(
    st.sampled_from(["loss_grid", "parity"]),
    texts,
    texts,
    texts,
    texts,
    st.none() | st.integers(-(2**63), 2**63 - 1),
)
values = st.tuples(st.floats(), st.none()) | st.tuples(st.none(), texts)
entries = st.dictionaries(identities, values, max_size=15)


def frame(rows: dict[Any, Any]) -> pl.DataFrame:
    flat = [(*identity, *value) for identity, value in rows.items()]
    return pl.DataFrame(flat, schema=ENTRY_SCHEMA, orient="row")


def manifest(rows: pl.DataFrame) -> Manifest:
    return Manifest(
        study="demo", requested=None, panels=("loss_grid",), entries=rows, artifacts={"a": "b"}
    )


def bits(value: float | None) -> str | None:
    return None if value is None else "nan" if math.isnan(value) else value.hex()


@settings(max_examples=50, deadline=None)
@given(entries)
def test_every_value_reads_back_exactly(tmp_path_factory: Any, rows: dict[Any, Any]) -> None:
    path = tmp_path_factory.mktemp("manifest") / "manifest.json"
    path.write_text(to_json(manifest(frame(rows))), encoding="utf-8", newline="\n")
    read = read_manifest(path)
    back = {row[:6]: row[6:] for row in read.entries.rows()}
    assert {k: (bits(v), t) for k, (v, t) in back.items()} == {
        k: (bits(v), t) for k, (v, t) in rows.items()
    }
    assert compare(frame(rows), read.entries) == ()


@settings(max_examples=50, deadline=None)
@given(entries, entries)
def test_differences_are_those_of_two_dictionaries(
    old: dict[Any, Any], new: dict[Any, Any]
) -> None:
    def same(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
        return a == b or (a[1] is b[1] is None and math.isnan(a[0]) and math.isnan(b[0]))

    found = {
        (d.panel, d.axes, d.series, d.run_id, d.key, d.step): d.kind
        for d in compare(frame(old), frame(new))
    }
    expected = {key: "missing" for key in old.keys() - new.keys()}
    expected |= {key: "added" for key in new.keys() - old.keys()}
    expected |= {key: "changed" for key in old.keys() & new.keys() if not same(old[key], new[key])}
    assert found == expected


def test_json_is_strict_and_compact() -> None:
    rows = {("loss_grid", "a", "Real", "r", "k", step): (math.nan, None) for step in (1, 2)}
    text = to_json(manifest(frame(rows)))
    (group,) = json.loads(text, parse_constant=pytest.fail)["entries"]
    assert group["step"] == [1, 2]
    assert group["value"] == ["NaN", "NaN"]
    assert ", " not in text


def test_difference_names_everything() -> None:
    identity = ("loss_grid", "Tm = 2, N = 53M", "Real", "abc", "train/total_loss", 512)
    (difference,) = compare(frame({identity: (3.5, None)}), frame({identity: (3.25, None)}))
    assert str(difference) == (
        "loss_grid, Tm = 2, N = 53M, Real: run abc, train/total_loss at 512 tokens: "
        "the report shows 3.5, the store has 3.25"
    )


def test_last_bit_is_a_difference() -> None:
    identity = ("loss_grid", "a", "Real", "r", "k", 1)
    near = math.nextafter(3.0, 4.0)
    assert len(compare(frame({identity: (3.0, None)}), frame({identity: (near, None)}))) == 1


def test_missing_manifest_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no manifest .*suite report"):
        read_manifest(tmp_path / "manifest.json")


GOOD = json.loads(to_json(manifest(frame({("p", "a", "s", "r", "k", 1): (1.0, None)}))))
GROUP = GOOD["entries"][0]


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({**GOOD, "schema_version": 99}),
        json.dumps({key: value for key, value in GOOD.items() if key != "entries"}),
        json.dumps({**GOOD, "entries": [{**GROUP, "value": ["one"]}]}),
        json.dumps({**GOOD, "entries": [{**GROUP, "value": [True]}]}),
        json.dumps({**GOOD, "entries": [{**GROUP, "value": [1, 2]}]}),
        json.dumps({**GOOD, "entries": [{**GROUP, "step": ["x"]}]}),
        json.dumps({**GOOD, "entries": [{**GROUP, "step": [2**70]}]}),
        json.dumps({**GOOD, "entries": [{**GROUP, "run_id": 7}]}),
        json.dumps({**GOOD, "entries": [GROUP, GROUP]}),
        json.dumps({**GOOD, "entries": 5}),
        json.dumps({**GOOD, "artifacts": ["index.html"]}),
        json.dumps({**GOOD, "artifacts": {"index.html": 1}}),
    ],
)
def test_corrupt_manifest_is_refused_with_the_cure(tmp_path: Path, document: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(document)
    with pytest.raises(InputError, match=r"cannot be read .*suite report"):
        read_manifest(path)
