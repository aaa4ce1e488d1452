"""Moments of keys and of values side by side, as one file that can also be gone on from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_modules.kv.files import DamagedFileError, load_tensors, save_tensors
from lightning_modules.kv.layout import Kind, KVLayout
from lightning_modules.kv.moments import CentredMoments, Moments, centred_state

KINDS: tuple[Kind, ...] = ("key", "value")

_STATES = ("count", "filled", "origin", "total", "outer", "buffer")


class PairOfMoments(Protocol):
    """Moments of the keys and of the values of one set of tokens."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Which of both there are; latents of multi-head latent attention go by ``key``."""

    @property
    def seconds(self) -> float:
        """Forward passes and accumulation that they took, from the first token on."""

    @property
    def layout(self) -> KVLayout | None:
        """What the columns are, where it is known."""

    def of(self, kind: Kind) -> CentredMoments:
        """Moments of one kind."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CentredPair:
    """Moments in memory.

    Attributes:
        key: of the keys.
        value: of the values; none where keys and values are one latent matrix.
        seconds: see ``PairOfMoments``.
        layout: see ``PairOfMoments``.
    """

    key: CentredMoments
    value: CentredMoments | None
    seconds: float
    layout: KVLayout | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """See ``PairOfMoments``."""
        return KINDS if self.value is not None else ("key",)

    def of(self, kind: Kind) -> CentredMoments:
        """See ``PairOfMoments``."""
        moments = self.key if kind == "key" else self.value
        assert moments is not None
        return moments


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredPair:
    """Moments in a file of ``MomentsPair.save``; each matrix is read when it is asked for.

    At p = 32,768 a matrix takes 8.6 GB, so a solver holds one at a time.

    Attributes:
        path: the file, which was found whole before.
        kinds: see ``PairOfMoments``.
        seconds: see ``PairOfMoments``.
        layout: see ``PairOfMoments``.
    """

    path: Path
    kinds: tuple[Kind, ...]
    seconds: float
    layout: KVLayout | None

    @classmethod
    def open(cls, path: Path) -> StoredPair:
        """Looks at a file that was found whole before.

        Raises:
            SuiteError: if it holds something else.
        """
        tensors, header = load_tensors(path, ("seconds",), verify=False)
        try:
            layout = _layout(header)
            kinds = tuple(kind for kind in KINDS if f"{kind} width" in header)
            return cls(path=path, kinds=kinds, seconds=float(tensors["seconds"]), layout=layout)
        except (KeyError, ValueError) as error:
            raise DamagedFileError(path, error) from error

    @property
    def key(self) -> CentredMoments:
        """Moments of the keys, read anew."""
        return self.of("key")

    @property
    def value(self) -> CentredMoments:
        """Moments of the values, read anew."""
        return self.of("value")

    def of(self, kind: Kind) -> CentredMoments:
        """See ``PairOfMoments``; read anew each time."""
        tensors, _ = load_tensors(self.path, [f"{kind}.{name}" for name in _STATES], verify=False)
        return centred_state({name: tensors[f"{kind}.{name}"] for name in _STATES})


class MomentsPair:
    """Running moments of keys and values.

    Args:
        key_width: columns of a key row.
        value_width: columns of a value row; 0 where keys and values are one latent matrix.
        device: where the sums are kept.
        layout: what the columns are; goes into the file.

    Attributes:
        moments: by kind.
        layout: as given.
        seconds: time spent on them so far.
    """

    def __init__(
        self,
        key_width: int,
        value_width: int,
        *,
        device: torch.device | str = "cpu",
        layout: KVLayout | None = None,
    ) -> None:
        widths: dict[Kind, int] = {"key": key_width, "value": value_width}
        self.moments = {kind: Moments(p).to(device) for kind, p in widths.items() if p}
        self.layout = layout
        self.seconds = 0.0

    @property
    def key(self) -> Moments:
        """Moments of keys."""
        return self.moments["key"]

    @property
    def value(self) -> Moments:
        """Moments of values."""
        return self.moments["value"]

    @property
    def num_rows(self) -> int:
        """Tokens taken in so far, on this rank."""
        return self.key.num_rows

    def to(self, device: torch.device | str) -> MomentsPair:
        """Move the sums to another device; returns the pair itself."""
        for moments in self.moments.values():
            moments.to(device)
        return self

    def release(self) -> None:
        """Let go of the sums; nothing else can be done with the pair afterwards."""
        for moments in self.moments.values():
            moments.release()

    def update(self, keys: Tensor, values: Tensor) -> None:
        """Take in rows ``[n, p_k]`` and ``[n, p_v]`` of the same n tokens."""
        if len(keys):
            for moments, rows in zip(self.moments.values(), (keys, values), strict=False):
                moments.update(rows.to(moments.outer.device))

    def gathered(self) -> MomentsPair:
        """The running sums of all ranks together, with the seconds of the slowest.

        Every rank calls it and gets the same; outside a process group it is the pair itself.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self
        whole = MomentsPair(1, 0, layout=self.layout)
        whole.moments = {kind: moments.gathered() for kind, moments in self.moments.items()}
        slowest = torch.tensor(self.seconds, dtype=torch.float64, device=self.key.outer.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        whole.seconds = float(slowest)
        return whole

    def save(self, path: Path) -> None:
        """Write the whole running state; a reader sees the whole file or none."""
        tensors = {"seconds": torch.tensor(self.seconds, dtype=torch.float64)}
        header = {} if self.layout is None else {"layout": json.dumps(self.layout.to_dict())}
        for kind, moments in self.moments.items():
            header[f"{kind} width"] = str(moments.width)
            tensors |= {f"{kind}.{name}": part for name, part in moments.states().items()}
        save_tensors(path, tensors, header)

    @classmethod
    def load(cls, path: Path) -> MomentsPair:
        """Read what ``save`` wrote, to the bit; the sums are then on the CPU.

        Raises:
            SuiteError: if the file is cut short or damaged; it is safe to delete.
        """
        try:
            tensors, header = load_tensors(path)
            widths = (int(header.get(f"{kind} width", "0")) for kind in KINDS)
            pair = cls(*widths, layout=_layout(header))
            for kind, moments in pair.moments.items():
                moments.load_state_dict(
                    {
                        name.removeprefix(f"{kind}."): tensor
                        for name, tensor in tensors.items()
                        if name.startswith(f"{kind}.")
                    }
                )
            pair.seconds = float(tensors["seconds"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise DamagedFileError(path, error) from error
        return pair

    def centred(self) -> CentredPair:
        """The moments of the rows taken in so far."""
        return CentredPair(
            key=self.key.snapshot(),
            value=self.value.snapshot() if "value" in self.moments else None,
            seconds=self.seconds,
            layout=self.layout,
        )


def _layout(header: dict[str, str]) -> KVLayout | None:
    return KVLayout.from_dict(json.loads(header["layout"])) if "layout" in header else None
