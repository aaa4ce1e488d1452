"""Tensor files: damage to any byte is seen, and none is taken for a result."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lightning_modules.kv.files import load_tensors, save_tensors
from suite.errors import SuiteError

TENSORS = {
    "count": torch.tensor(7),
    "mean": torch.arange(12, dtype=torch.float64),
    "half": torch.full((3, 4), 1.5, dtype=torch.bfloat16),
    "empty": torch.zeros(0),
    "across": torch.arange(20.0).reshape(4, 5).T,
}


def same(loaded: dict[str, torch.Tensor]) -> bool:
    return loaded.keys() == TENSORS.keys() and all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype
        for name, tensor in TENSORS.items()
    )


def test_tensors_and_header_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.safetensors"
    save_tensors(path, TENSORS, {"apply": "x @ components"})
    tensors, header = load_tensors(path)
    assert same(tensors)
    assert header == {"apply": "x @ components"}
    with safe_open(path, framework="pt") as file:  # as any other reader has it
        assert file.metadata()["apply"] == "x @ components"
        assert torch.equal(file.get_tensor("mean"), TENSORS["mean"])


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_changes_what_is_read(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "file.safetensors"
    save_tensors(path, TENSORS, {"apply": "x @ components"})
    whole = path.read_bytes()
    chance = random.Random(seed)
    for place in chance.sample(range(len(whole)), 150):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(SuiteError, match="is damaged or holds something else"):
            load_tensors(path)


@pytest.mark.parametrize("left", [0, 7, 8, 100, -1])
def test_a_lost_end_is_seen(tmp_path: Path, left: int) -> None:
    path = tmp_path / "file.safetensors"
    save_tensors(path, TENSORS)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(SuiteError, match="is damaged or holds something else"):
        load_tensors(path)


def test_a_file_of_another_writer_is_not_taken_for_ours(tmp_path: Path) -> None:
    save_file({"mean": TENSORS["mean"]}, tmp_path / "file.safetensors")
    with pytest.raises(SuiteError, match="does not have the digest"):
        load_tensors(tmp_path / "file.safetensors")
