"""Moments of keys and values side by side, and the file that a pass goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lightning_modules.kv.pair import CentredPair, MomentsPair
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
