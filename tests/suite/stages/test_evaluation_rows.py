"""Rows of evaluation corpora: whose they are, and files that are whole or not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_modules.kv.stored_rows import StoredRows
from suite.corpora import Cut
from suite.stages.evaluation_rows import RowsKeeper, document_rows

CUT = Cut(sequence_length=8, sinks=2)


@pytest.mark.parametrize(
    ("lengths", "tokens", "counts"),
    [
        ([5, 4, 7], 10, [3, 2, 5]),
        ([5, 4, 7], 4, [3, 1]),
        ([5, 4, 7], 3, [3]),
        # a piece of full length goes on in the next one
        ([8, 8, 5, 6], 19, [15, 4]),
        ([8, 8, 5, 6], 8, [8]),
        ([3, 8, 3], 8, [1, 7]),
    ],
)
def test_kept_tokens_are_counted_by_document(
    lengths: list[int], tokens: int, counts: list[int]
) -> None:
    pieces = [np.zeros(length, dtype=np.int64) for length in lengths]
    assert document_rows(pieces, CUT, tokens=tokens).tolist() == counts


def test_dropped_ends_are_no_rows() -> None:
    pieces = [np.zeros(length, dtype=np.int64) for length in (5, 3, 7)]
    assert document_rows(pieces, replace(CUT, drop_last=1), tokens=6).tolist() == [2, 4]


def test_files_appear_once_all_rows_have_come(tmp_path: Path) -> None:
    keys, values = torch.randn(6, 3), torch.randn(6, 2)
    documents = {"one": np.array([4, 2])}
    with RowsKeeper({"one": tmp_path / "deep" / "tokens-6.safetensors"}, documents) as keeper:
        keeper("one", keys[:4], values[:4])
        assert not [*tmp_path.rglob("*rows.safetensors")]
        keeper("one", keys[4:], values[4:])
        keeper.finish("one")
    assert not [*tmp_path.rglob("*.part")]
    for kind, rows in (("key", keys), ("value", values)):
        found = StoredRows.open(tmp_path / "deep" / f"tokens-6.{kind}-rows.safetensors")
        assert torch.equal(torch.cat([*found.chunks()]), rows)
        assert found.documents.tolist() == [4, 2]


def test_a_pass_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    places = {name: tmp_path / f"{name}.safetensors" for name in ("one", "two")}
    counts = dict.fromkeys(places, np.array([6]))

    def cut_off() -> None:
        with RowsKeeper(places, counts) as keeper:
            keeper("one", torch.zeros(6, 3), torch.zeros(6, 0))
            keeper.finish("one")
            keeper("two", torch.zeros(2, 3), torch.zeros(2, 0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_off()
    # of latents there are no values
    assert [path.name for path in tmp_path.iterdir()] == ["one.key-rows.safetensors"]
