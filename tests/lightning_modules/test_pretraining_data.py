"""The order of training windows as a pure function of seed and step."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_modules.pretraining_data import (
    HeldOutWindows,
    PretrainingData,
    TrainingWindows,
    Windows,
)

LENGTH = 3


def numbered(count: int) -> Windows:
    """Windows that tell their number: every token of window i is i."""
    return np.tile(np.arange(count, dtype=np.uint16)[:, None], (1, LENGTH + 1))


def order(count: int, samples: int, **settings: Any) -> list[int]:
    """Numbers of the first windows that a rank is given."""
    stream = TrainingWindows(numbered(count), **settings)
    micro_batches = itertools.islice(stream, samples // settings["micro_batch_size"])
    return [int(window[0]) for batch in micro_batches for window in batch]


def expected_order(count: int, samples: int, *, seed: int) -> list[int]:
    """The documented order: one seeded permutation an epoch, end to end."""
    epochs = range(-(-samples // count))
    permutations = [np.random.default_rng([seed, epoch]).permutation(count) for epoch in epochs]
    return np.concatenate(permutations)[:samples].tolist()


@given(
    count=st.integers(1, 40),
    micro=st.integers(1, 4),
    accumulated=st.integers(1, 3),
    start=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_starting_at_a_step_is_skipping_the_steps_before_it(
    count: int, micro: int, accumulated: int, start: int, seed: int
) -> None:
    batch = micro * accumulated
    settings = {"batch_size": batch, "micro_batch_size": micro, "seed": seed}
    everything = order(count, (start + 3) * batch, **settings)
    assert everything == expected_order(count, (start + 3) * batch, seed=seed)
    assert order(count, 3 * batch, start_step=start, **settings) == everything[start * batch :]


@given(
    count=st.integers(1, 40),
    micro=st.integers(1, 3),
    accumulated=st.integers(1, 3),
    ranks=st.integers(1, 4),
    step=st.integers(0, 10),
)
def test_ranks_share_a_batch_without_overlap(
    count: int, micro: int, accumulated: int, ranks: int, step: int
) -> None:
    batch = micro * accumulated * ranks
    whole = expected_order(count, (step + 1) * batch, seed=7)[step * batch :]
    parts = [
        order(
            count,
            batch // ranks,
            batch_size=batch,
            micro_batch_size=micro,
            seed=7,
            start_step=step,
            rank=rank,
            world_size=ranks,
        )
        for rank in range(ranks)
    ]
    # Not merely the same windows: one after the other the parts are the batch.
    assert [window for part in parts for window in part] == whole


def test_every_window_comes_once_an_epoch_in_another_order_each_time() -> None:
    count = 12
    windows = order(count, 3 * count, batch_size=4, micro_batch_size=4, seed=0)
    epochs = [tuple(windows[start : start + count]) for start in range(0, 3 * count, count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert len(set(epochs)) == 3


def test_seeds_give_different_orders() -> None:
    orders = {
        tuple(order(20, 20, batch_size=4, micro_batch_size=4, seed=seed)) for seed in range(10)
    }
    assert len(orders) == 10


def test_the_order_of_a_seed_is_fixed_for_good() -> None:
    """Fingerprints hold the seed, so another order under it would be another result."""
    first = order(10, 20, batch_size=2, micro_batch_size=2, seed=0)
    assert first == [4, 6, 2, 7, 3, 5, 9, 0, 8, 1, 9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_do_not_change_the_order(workers: int) -> None:
    def batches(num_workers: int) -> list[list[int]]:
        stream = TrainingWindows(
            numbered(9), batch_size=6, micro_batch_size=2, seed=3, start_step=2
        )
        loader: DataLoader[Tensor] = DataLoader(stream, batch_size=None, num_workers=num_workers)
        return [batch[:, 0].tolist() for batch in itertools.islice(loader, 14)]

    assert batches(workers) == batches(0)


def test_micro_batches_are_int64_rows_of_inputs_and_targets() -> None:
    windows = np.arange(40, dtype=np.uint16).reshape(10, 4)
    windows.flags.writeable = False  # as a memory-mapped stream is
    stream = TrainingWindows(windows, batch_size=4, micro_batch_size=2, seed=0)
    batch = next(iter(stream))
    assert batch.dtype == torch.int64
    assert batch.tolist() == windows[[4, 6]].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_held_out_windows(ranks: int) -> None:
    parts = [HeldOutWindows(numbered(7), rank=rank, world_size=ranks) for rank in range(ranks)]
    seen = [int(part[index][0]) for part in parts for index in range(len(part))]
    assert sorted(seen) == list(range(7))
    assert [len(part) for part in parts] == [len(range(rank, 7, ranks)) for rank in range(ranks)]


def test_the_loaders_start_at_the_trainers_step_and_rank() -> None:
    data = PretrainingData(
        numbered(10), numbered(5), batch_size=4, micro_batch_size=1, seed=0, num_workers=0
    )
    data.trainer = cast(Any, SimpleNamespace(global_step=3, global_rank=1, world_size=2))
    training = itertools.islice(data.train_dataloader(), 4)
    # steps 3 and 4 of four windows, of which the second rank has the last two
    whole = expected_order(10, 20, seed=0)
    assert [int(batch[0, 0]) for batch in training] == whole[14:16] + whole[18:20]
    assert [batch[:, 0].tolist() for batch in data.val_dataloader()] == [[1], [3]]
