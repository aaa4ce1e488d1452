"""Moments of keys and of values side by side, as one file that can also be gone on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_modules.kv.files import DamagedFileError, load_tensors, save_tensors
from lightning_modules.kv.moments import CentredMoments, Moments

KINDS = ("key", "value")


@dataclass(frozen=True, kw_only=True, eq=False)
class CentredPair:
    """Moments of one set of tokens.

    Attributes:
        key: of their keys.
        value: of their values.
        seconds: forward passes and accumulation that they took, from the first token on.
    """

    key: CentredMoments
    value: CentredMoments
    seconds: float


class MomentsPair:
    """Running moments of keys and values.

    Args:
        key_width: columns of a key row.
        value_width: columns of a value row.
        device: where the sums are kept.

    Attributes:
        key: moments of keys.
        value: moments of values.
        seconds: time spent on them so far.
    """

    def __init__(
        self, key_width: int, value_width: int, *, device: torch.device | str = "cpu"
    ) -> None:
        self.key = Moments(key_width).to(device)
        self.value = Moments(value_width).to(device)
        self.seconds = 0.0

    @property
    def num_rows(self) -> int:
        """Tokens taken in so far."""
        return self.key.num_rows

    def to(self, device: torch.device | str) -> MomentsPair:
        """Move the sums to another device; returns the pair itself."""
        self.key.to(device)
        self.value.to(device)
        return self

    def update(self, keys: Tensor, values: Tensor) -> None:
        """Take in rows ``[n, p_k]`` and ``[n, p_v]`` of the same n tokens."""
        if len(keys):
            self.key.update(keys)
            self.value.update(values)

    def save(self, path: Path) -> None:
        """Write the whole running state; a reader sees the whole file or none."""
        tensors = {"seconds": torch.tensor(self.seconds, dtype=torch.float64)}
        for kind in KINDS:
            state = getattr(self, kind).state_dict()
            tensors |= {f"{kind}.{name}": tensor.cpu() for name, tensor in state.items()}
        save_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path) -> MomentsPair:
        """Read what ``save`` wrote, to the bit; the sums are then on the CPU.

        Raises:
            SuiteError: if the file is cut short or damaged; it is safe to delete.
        """
        try:
            tensors, _ = load_tensors(path)
            pair = cls(len(tensors["key.origin"]), len(tensors["value.origin"]))
            for kind in KINDS:
                getattr(pair, kind).load_state_dict(
                    {
                        name.removeprefix(f"{kind}."): tensor
                        for name, tensor in tensors.items()
                        if name.startswith(f"{kind}.")
                    }
                )
            pair.seconds = float(tensors["seconds"])
        except (KeyError, RuntimeError) as error:
            raise DamagedFileError(path, error) from error
        return pair

    def centred(self) -> CentredPair:
        """The moments of the rows taken in so far."""
        return CentredPair(
            key=self.key.snapshot(), value=self.value.snapshot(), seconds=self.seconds
        )
