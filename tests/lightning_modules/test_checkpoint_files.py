"""Checkpoint files: whatever happens to their bytes, no other state is ever loaded from them."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_modules.checkpoint_files import (
    WholeFileIO,
    checkpoint_path,
    checkpoints,
    damage,
    newest_checkpoint,
    set_aside_beyond,
)
from suite.errors import SuiteError

FLIPS = 150


def state(seed: int = 0, *, width: int = 24) -> dict[str, Any]:
    """Tensors of several types and the plain values that a checkpoint of Lightning holds."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"layers.{n}": torch.randn(width, width, generator=generator) for n in range(3)}
    return {
        "global_step": seed,
        "state_dict": weights,
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0), "exp_avg": weights}}}],
        "loops": {"fit_loop": {"batches": {"ready": 12, "done": None}}},
    }


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def save(folder: Path, *tokens: int) -> list[Path]:
    """Checkpoints at token counts; the seed of each state is its token count."""
    for count in tokens:
        WholeFileIO().save_checkpoint(state(count), checkpoint_path(folder, count))
    return [checkpoint_path(folder, count) for count in tokens]


def test_a_checkpoint_holds_what_was_saved_and_torch_reads_it_without_pickle(
    tmp_path: Path,
) -> None:
    (path,) = save(tmp_path, 96)
    assert damage(path) is None
    assert same(torch.load(path, weights_only=True), state(96))
    assert same(WholeFileIO().load_checkpoint(path, weights_only=True), state(96))


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, seed: int) -> None:
    (path,) = save(tmp_path, 96)
    whole = path.read_bytes()
    chance = random.Random(seed)
    # The table of contents lies at the end; some flips there change which bytes torch takes for
    # a tensor although every checksum inside the archive is right.
    places = [chance.randrange(len(whole)) for _ in range(FLIPS // 2)]
    places += [len(whole) - chance.randrange(1, 2_500) for _ in range(FLIPS // 2)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        assert damage(path) is not None, f"byte {place} of {len(whole)}"


@pytest.mark.parametrize("left", [0, 1, 44, 45, 46, 1_000, -46, -45, -1])
def test_no_lost_end_goes_unnoticed(tmp_path: Path, left: int) -> None:
    (path,) = save(tmp_path, 96)
    path.write_bytes(path.read_bytes()[:left])
    reason = damage(path)
    assert reason is not None
    assert "cut short or damaged" in reason


def _zeroed(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes(4_096) + content[half + 4_096 :]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda content: content + b"x", "cut short or damaged"),
        (_zeroed, "do not have the checksum"),  # a block never written
        (lambda content: b"", "cut short or damaged"),
        (lambda content: content[:-45], "cut short or damaged"),  # no seal: not by this writer
    ],
)
def test_a_file_that_is_not_as_written_is_named_and_the_one_before_it_used(
    tmp_path: Path, broken: Callable[[bytes], bytes], reason: str
) -> None:
    before, newest = save(tmp_path, 96, 192)
    newest.write_bytes(broken(newest.read_bytes()))
    with pytest.warns(UserWarning, match=f"{newest.name} cannot be read .*{reason}.*; the one"):
        assert newest_checkpoint(tmp_path) == (before, 96)


def test_a_sealed_file_that_is_no_checkpoint_is_not_loaded(tmp_path: Path) -> None:
    import hashlib

    before, newest = save(tmp_path, 96, 192)
    content = b"cos\nsystem\n(S'touch harm'\ntR."
    newest.write_bytes(content + b"suite sha256 " + hashlib.sha256(content).digest())
    said: list[str] = []
    assert newest_checkpoint(tmp_path, report=said.append) == (before, 96)
    assert len(said) == 1
    assert "\n" not in said[0]
    assert not Path("harm").exists()


def test_when_all_are_broken_the_cell_starts_afresh_and_each_is_named(tmp_path: Path) -> None:
    paths = save(tmp_path, 96, 192)
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    said: list[str] = []
    assert newest_checkpoint(tmp_path, report=said.append) is None
    assert [str(path) in sentence for path, sentence in zip(paths[::-1], said, strict=True)] == [
        True,
        True,
    ]
    assert [sentence.rpartition("; ")[2] for sentence in said] == [
        "the one before it is used",
        "none is left, so the cell starts afresh",
    ]


def test_newest_means_most_tokens_whatever_the_names_beside(tmp_path: Path) -> None:
    save(tmp_path, 96, 10**15 + 7, 192)
    for name in ("tokens-9.ckpt", "tokens-abc.ckpt", "tokens-000000000009999.ckpt.part"):
        (tmp_path / name).write_bytes(b"not ours")
    (tmp_path / "tokens-000000000099999.ckpt").mkdir()
    os.mkfifo(tmp_path / "tokens-000000000088888.ckpt")  # opening it would wait for ever
    (tmp_path / "tokens-000000000077777.ckpt").symlink_to(tmp_path / "nowhere")
    assert [path.name for path in checkpoints(tmp_path)] == [
        "tokens-1000000000000007.ckpt",
        "tokens-000000000000192.ckpt",
        "tokens-000000000000096.ckpt",
    ]
    assert newest_checkpoint(tmp_path) == (checkpoint_path(tmp_path, 10**15 + 7), 10**15 + 7)


def test_only_what_lies_beyond_the_start_is_set_aside(tmp_path: Path) -> None:
    save(tmp_path, 96, 192, 288)
    set_aside_beyond(tmp_path, 192)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "tokens-000000000000096.ckpt",
        "tokens-000000000000192.ckpt",
        "tokens-000000000000288.damaged",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for one large checkpoint."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_checkpoint_before_and_nothing_else(small_disk: Path) -> None:
    writer = WholeFileIO()
    first, second = checkpoint_path(small_disk, 96), checkpoint_path(small_disk, 192)
    writer.save_checkpoint(state(96, width=200), first)
    with pytest.raises(SuiteError, match=r"No space left on device; 0\.00 GB are free") as caught:
        writer.save_checkpoint(state(192, width=300), second)
    assert str(second) in str(caught.value)
    assert [*small_disk.iterdir()] == [first]
    assert newest_checkpoint(small_disk) == (first, 96)
    writer.save_checkpoint(state(288), checkpoint_path(small_disk, 288))
    assert newest_checkpoint(small_disk) == (checkpoint_path(small_disk, 288), 288)


def test_an_error_that_is_not_the_disks_is_not_called_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(RuntimeError, match="CUDA error"):
        save(tmp_path, 96)
    assert [*tmp_path.iterdir()] == []


def test_the_systems_temporary_folder_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    def full(*arguments: object, **settings: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile"):
        monkeypatch.setattr(tempfile, name, full)
    (path,) = save(tmp_path, 96)
    assert damage(path) is None
