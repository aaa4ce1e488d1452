"""Moments of keys and values side by side, and the file that a pass goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_modules.kv.layout import KVEntry, KVLayout
from lightning_modules.kv.pair import CentredPair, MomentsPair, StoredPair
from suite.errors import SuiteError

KEYS, VALUES = 6, 4


def rows(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(count, KEYS, generator=generator) + 3.0,
        torch.randn(count, VALUES, generator=generator),
    )


def pair_of(keys: Tensor, values: Tensor) -> MomentsPair:
    pair = MomentsPair(KEYS, VALUES)
    pair.update(keys, values)
    return pair


def assert_same_bits(one: CentredPair, other: CentredPair) -> None:
    assert one.seconds == other.seconds
    for kind in ("key", "value"):
        left, right = getattr(one, kind), getattr(other, kind)
        assert left.count == right.count
        assert torch.equal(left.mean, right.mean)
        assert torch.equal(left.scatter, right.scatter)


def test_a_pair_holds_the_moments_of_both_sides() -> None:
    keys, values = rows(50)
    pair = pair_of(keys[:20], values[:20])
    pair.update(keys[20:20], values[20:20])
    pair.update(keys[20:], values[20:])
    pair.seconds += 1.5
    centred = pair.centred()
    assert pair.num_rows == 50
    assert centred.seconds == 1.5
    for moments, data in ((centred.key, keys.double()), (centred.value, values.double())):
        assert moments.count == 50
        torch.testing.assert_close(moments.mean, data.mean(dim=0), rtol=1e-14, atol=1e-14)
        # Tensor.cov divides by n - 1
        torch.testing.assert_close(moments.scatter, data.T.cov() * 49, rtol=1e-13, atol=1e-13)


# Before, at and after the end of a block of 1,024 rows.
@pytest.mark.parametrize("saved", [1, 1023, 1024, 1500])
def test_a_pass_goes_on_from_the_file_to_the_bit(tmp_path: Path, saved: int) -> None:
    keys, values = rows(2100)
    path = tmp_path / "deep" / "pair.safetensors"
    first = pair_of(keys[:saved], values[:saved])
    first.seconds = 0.1 + 0.2
    first.save(path)
    second = MomentsPair.load(path)
    assert second.num_rows == saved
    assert_same_bits(second.centred(), first.centred())
    second.update(keys[saved:], values[saved:])
    whole = pair_of(keys, values)
    whole.seconds = 0.1 + 0.2
    assert_same_bits(second.centred(), whole.centred())


def test_saving_leaves_the_running_sums_alone_and_nothing_beside_the_file(tmp_path: Path) -> None:
    keys, values = rows(30)
    pair = pair_of(keys[:20], values[:20])
    pair.save(tmp_path / "pair.safetensors")
    pair.update(keys[20:], values[20:])
    assert_same_bits(pair.centred(), pair_of(keys, values).centred())
    assert [path.name for path in tmp_path.iterdir()] == ["pair.safetensors"]


def test_both_sides_move_to_a_device_together() -> None:
    pair = pair_of(*rows(5)).to("meta")
    assert pair.key.outer.device.type == pair.value.buffer.device.type == "meta"
    assert MomentsPair(KEYS, VALUES, device="meta").key.total.device.type == "meta"


@pytest.mark.parametrize("kept", [0, 7, 500, -1])
def test_a_file_cut_short_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "pair.safetensors"
    pair_of(*rows(5)).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SuiteError, match=r"pair\.safetensors is damaged .* delete it"):
        MomentsPair.load(path)


@pytest.mark.parametrize("missing", ["seconds", "key.origin", "value.buffer"])
def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "pair.safetensors"
    pair_of(*rows(5)).save(path)
    tensors = load_file(path)
    del tensors[missing]
    save_file(tensors, path)
    with pytest.raises(SuiteError, match="delete it"):
        MomentsPair.load(path)


@pytest.mark.parametrize("count", [2, 1023, 1024, 1500])
def test_a_file_gives_one_matrix_at_a_time_to_the_bit(tmp_path: Path, count: int) -> None:
    keys, values = rows(count)
    pair = pair_of(keys, values)
    pair.seconds = 2.5
    path = tmp_path / "pair.safetensors"
    pair.save(path)
    stored = StoredPair.open(path)
    assert (stored.kinds, stored.layout) == (("key", "value"), None)
    # read twice, since taking the moments out of the running state must not change the file
    for _ in range(2):
        whole = CentredPair(key=stored.key, value=stored.of("value"), seconds=stored.seconds)
        assert_same_bits(whole, pair.centred())
    assert MomentsPair.load(path).num_rows == count


def test_the_file_says_what_the_columns_are(tmp_path: Path) -> None:
    layout = KVLayout(
        keys=(KVEntry(loop=0, layer=0, heads=3, head_dim=2, offset=0),),
        values=(KVEntry(loop=0, layer=0, heads=1, head_dim=4, offset=0),),
    )
    pair = MomentsPair(KEYS, VALUES, layout=layout)
    pair.update(*rows(5))
    pair.save(tmp_path / "pair.safetensors")
    assert StoredPair.open(tmp_path / "pair.safetensors").layout == layout
    assert MomentsPair.load(tmp_path / "pair.safetensors").layout == layout
    assert pair.centred().layout == layout


def test_latents_have_no_values(tmp_path: Path) -> None:
    keys, _ = rows(30)
    pair = MomentsPair(KEYS, 0)
    pair.update(keys, torch.zeros(30, 0))
    pair.save(tmp_path / "pair.safetensors")
    stored = StoredPair.open(tmp_path / "pair.safetensors")
    assert stored.kinds == pair.centred().kinds == ("key",)
    assert torch.equal(stored.key.scatter, pair.centred().of("key").scatter)
    assert MomentsPair.load(tmp_path / "pair.safetensors").num_rows == 30


def test_something_else_is_not_taken_for_a_pair(tmp_path: Path) -> None:
    save_file({"seconds": torch.zeros(2)}, tmp_path / "pair.safetensors")
    with pytest.raises(SuiteError, match="delete it"):
        StoredPair.open(tmp_path / "pair.safetensors")
