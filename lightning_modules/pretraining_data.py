"""Training and held-out windows of a token stream, in an order that is a function of the step.

Nothing here has a position of its own to save: the batch of step k is computed from the seed
and k, so a resumed run draws exactly the batches that it would have drawn, on any number of
devices and loader workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from suite.stopping import leave_signals_to_parent

Windows = NDArray[np.unsignedinteger[Any]]
"""[windows, sequence_length + 1]: each row holds inputs and, one further, their targets."""


class TrainingWindows(IterableDataset[Tensor]):
    """Micro-batches of training windows from an optimiser step on.

    Sample number g of a run is window ``permutation(epoch)[g mod W]``, where W windows make an
    epoch and every epoch has its own seeded permutation.

    Args:
        windows: the training windows.
        batch_size: windows an optimiser step, over all ranks.
        micro_batch_size: windows that one rank computes at once; divides its share of a batch.
        seed: seed of the order.
        start_step: first optimiser step.
        rank: this process.
        world_size: number of processes; divides ``batch_size``.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        batch_size: int,
        micro_batch_size: int,
        seed: int,
        start_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._windows = windows
        self._batch_size = batch_size
        self._micro = micro_batch_size
        self._seed = seed
        self._start = start_step
        self._share = batch_size // world_size
        self._first = rank * self._share
        self._permutation: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def __iter__(self) -> Iterator[Tensor]:
        """Endless stream of int64 tensors [micro_batch_size, sequence_length + 1]."""
        worker = get_worker_info()
        workers, mine = (worker.num_workers, worker.id) if worker else (1, 0)
        number = 0
        step = self._start
        while True:
            for first in range(self._first, self._first + self._share, self._micro):
                if number % workers == mine:
                    samples = step * self._batch_size + first + np.arange(self._micro)
                    yield _tensor(self._windows[[self._window(int(s)) for s in samples]])
                number += 1
            step += 1

    def _window(self, sample: int) -> int:
        epoch, position = divmod(sample, len(self._windows))
        if self._permutation[0] != epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._permutation = (epoch, generator.permutation(len(self._windows)))
        return int(self._permutation[1][position])


def _tensor(windows: Windows) -> Tensor:
    return torch.from_numpy(windows.astype(np.int64))


class HeldOutWindows(Dataset[Tensor]):
    """The first held-out windows, spread over ranks.

    Args:
        windows: the held-out windows.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(self, windows: Windows, *, rank: int = 0, world_size: int = 1) -> None:
        self._windows = windows[rank::world_size]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, position: int) -> Tensor:
        return _tensor(self._windows[position])


class PretrainingData(LightningDataModule):
    """Loaders of one cell; where training starts follows from the trainer's restored step.

    Args:
        training: the training windows.
        held_out: the held-out windows that every evaluation uses.
        batch_size: windows an optimiser step, over all ranks.
        micro_batch_size: windows a forward pass on one rank.
        seed: seed of the order.
        num_workers: loader processes a rank.
    """

    def __init__(
        self,
        training: Windows,
        held_out: Windows,
        *,
        batch_size: int,
        micro_batch_size: int,
        seed: int,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self._training = training
        self._held_out = held_out
        self._batch_size = batch_size
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._num_workers = num_workers

    @property
    def _ranks(self) -> tuple[int, int]:
        trainer = self.trainer
        assert trainer is not None
        return trainer.global_rank, trainer.world_size

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Micro-batches [micro_batch_size, sequence_length + 1] from the trainer's step on."""
        rank, world_size = self._ranks
        assert self.trainer is not None
        return DataLoader(
            TrainingWindows(
                self._training,
                batch_size=self._batch_size,
                micro_batch_size=self._micro_batch_size,
                seed=self._seed,
                start_step=self.trainer.global_step,
                rank=rank,
                world_size=world_size,
            ),
            batch_size=None,
            num_workers=self._num_workers,
            worker_init_fn=leave_signals_to_parent,
        )

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Held-out windows [micro_batch_size, sequence_length + 1]."""
        rank, world_size = self._ranks
        return DataLoader(
            HeldOutWindows(
                self._held_out,
                rank=rank,
                world_size=world_size,
            ),
            batch_size=self._micro_batch_size,
            num_workers=self._num_workers,
            worker_init_fn=leave_signals_to_parent,
        )
