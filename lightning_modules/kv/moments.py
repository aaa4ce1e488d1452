"""Running moments of cache rows: all that a basis and its errors need of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from lightning_modules.kv.files import DamagedFileError, load_tensors, save_tensors

# Columns of one step of a symmetric product. Only the panels on and above the diagonal are
# computed, which saves close to half the work once p is several times this. On a CPU 384 took a
# quarter less than 1,024 at p = 1,440 and at p = 5,760, and less than 128, 256, 512 and 768.
_PANEL = 384


@dataclass(frozen=True, kw_only=True, eq=False)
class CentredMoments:
    """Count, mean and scatter of rows; adding two gives those of their union.

    Sums of squares are kept about the mean, because taking ``n mean meanᵀ`` away from a raw
    ``Σ x xᵀ`` loses digits once the mean is large beside the spread, as it is for keys.

    Attributes:
        count: number of rows n.
        mean: ``[p]``, float64.
        scatter: ``Σ (x - mean)(x - mean)ᵀ``, ``[p, p]``, float64, symmetric to the bit.
    """

    count: int
    mean: Tensor
    scatter: Tensor

    @property
    def width(self) -> int:
        """Columns p of a row."""
        return self.mean.shape[0]

    @property
    def sum_of_squares(self) -> float:
        """``Σ ||x||²``, about zero."""
        return self.centred_sum_of_squares + self.count * float(self.mean @ self.mean)

    @property
    def centred_sum_of_squares(self) -> float:
        """``Σ ||x - mean||²``, the trace of the scatter."""
        return math.fsum(self.scatter.diagonal().tolist())

    def centred_about(self, centre: Tensor) -> Tensor:
        """Scatter about any point: ``Σ (x - centre)(x - centre)ᵀ``, ``[p, p]``.

        Args:
            centre: ``[p]``.
        """
        shift = math.sqrt(self.count) * (self.mean - centre.to(self.mean))
        return _mirrored(torch.addr(self.scatter, shift, shift))

    def __add__(self, other: CentredMoments) -> CentredMoments:
        """Moments of both sets of rows together (Chan, Golub and LeVeque 1983, eq. 2.1)."""
        if self.width != other.width:
            raise ValueError(f"rows of width {self.width} and {other.width} cannot be added")
        count = self.count + other.count
        difference = other.mean.to(self.mean) - self.mean
        shift = math.sqrt(self.count * other.count / count) * difference
        scatter = self.scatter + other.scatter.to(self.scatter)
        return CentredMoments(
            count=count,
            mean=self.mean + difference * (other.count / count),
            scatter=_mirrored(scatter.addr_(shift, shift)),
        )

    def save(self, path: Path) -> None:
        """Writes a safetensors file; a reader sees the whole file or none."""
        save_tensors(
            path,
            {"count": torch.tensor(self.count), "mean": self.mean, "scatter": self.scatter},
        )

    @classmethod
    def load(cls, path: Path) -> CentredMoments:
        """Reads what ``save`` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            SuiteError: the file is cut short, damaged, or holds something else.
        """
        tensors, _ = load_tensors(path)
        try:
            count, mean, scatter = (tensors[name] for name in ("count", "mean", "scatter"))
        except KeyError as error:
            raise DamagedFileError(path, error) from error
        if mean.ndim != 1 or scatter.shape != (len(mean), len(mean)):
            raise DamagedFileError(path, f"mean {list(mean.shape)}, scatter {list(scatter.shape)}")
        return cls(count=int(count), mean=mean, scatter=scatter)


class Moments(Metric):
    """Moments of a stream of rows, the same to the bit however the stream is cut.

    Rows are gathered into blocks of a fixed size and each full block is added as one product.
    So the sums after t rows do not depend on batch sizes, on snapshots taken on the way, or on
    a stop and a restart from ``state_dict`` in the middle of a block. Inside, rows are taken
    about the mean of the first block, which keeps the sums free of cancellation.

    Only the panels of ``outer`` on and above its diagonal are kept up; ``snapshot`` mirrors
    them. States, all tensors: ``count`` (rows added, without the open block), ``filled`` (rows
    of the open block), ``origin`` ``[p]``, ``total`` ``[p]``, ``outer`` ``[p, p]`` (float64)
    and ``buffer`` ``[block, p]``. Memory: ``8 p²`` bytes and the open block.

    Args:
        width: columns p of a row.
        block: rows of a block.
        gram_dtype: precision of a block's product; blocks are summed in float64 either way.
            ``float64`` gives error figures to better than 1e-9. ``float32`` takes about 0.6 of
            the time on a CPU, and its figures are right to 1e-6 only while more than about a
            hundredth of the squared norm is left over (1e-5 at a thousandth).
        process_group: ranks that ``compute`` sums over; default all of them.

    Raises:
        ValueError: the width or the block is not positive, or the precision is another one.
    """

    full_state_update = True
    is_differentiable = False
    higher_is_better = None

    count: Tensor
    filled: Tensor
    origin: Tensor
    total: Tensor
    outer: Tensor
    buffer: Tensor

    def __init__(
        self,
        width: int,
        *,
        block: int = 1024,
        gram_dtype: torch.dtype = torch.float64,
        process_group: Any | None = None,
    ) -> None:
        super().__init__(process_group=process_group, compute_with_cache=False)
        if width < 1 or block < 1:
            raise ValueError(f"width {width} and block {block} must both be at least 1")
        if gram_dtype not in (torch.float32, torch.float64):
            raise ValueError(f"gram_dtype is {gram_dtype}; allowed are float32 and float64")
        self.width = width
        self.block = block
        self.gram_dtype = gram_dtype
        # torchmetrics keeps a copy of every default. Empty ones spare a second p x p matrix.
        for name in ("count", "filled", "origin", "total", "outer"):
            self.add_state(name, torch.zeros(0), dist_reduce_fx="sum", persistent=True)
        self.add_state("buffer", torch.zeros(0), dist_reduce_fx=None, persistent=True)
        self._clear(torch.device("cpu"))

    def reset(self) -> None:
        """Forgets all rows."""
        device = self.outer.device
        super().reset()
        self._clear(device)

    def release(self) -> None:
        """Let go of the sums at once; nothing can be done with them afterwards.

        A metric of torchmetrics refers to itself, so that its memory outlasts its last user until
        the garbage collector comes by.
        """
        for name in self._defaults:
            setattr(self, name, torch.zeros(0))

    def _clear(self, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.count = zeros(dtype=torch.int64)
        self.filled = zeros(dtype=torch.int64)
        self.origin = zeros(self.width)
        self.total = zeros(self.width)
        self.outer = zeros(self.width, self.width)
        self.buffer = zeros(self.block, self.width, dtype=self.gram_dtype)

    @property
    def num_rows(self) -> int:
        """Rows seen so far on this rank."""
        return int(self.count) + int(self.filled)

    def update(self, rows: Tensor) -> None:
        """Adds rows.

        Args:
            rows: ``[n, p]``, any floating-point type.

        Raises:
            ValueError: the shape or the type is another one.
        """
        if rows.ndim != 2 or rows.shape[1] != self.width or not rows.is_floating_point():
            raise ValueError(
                f"expected floating-point rows [n, {self.width}], got {rows.dtype} "
                f"{list(rows.shape)}"
            )
        filled = int(self.filled)
        while len(rows):
            taken = rows[: self.block - filled]
            self.buffer[filled : filled + len(taken)].copy_(taken)
            filled += len(taken)
            rows = rows[len(taken) :]
            if filled == self.block:
                self._close_block(filled)
                filled = 0
        self.filled.fill_(filled)

    def _close_block(self, filled: int) -> None:
        rows = self.buffer[:filled]
        if not int(self.count):
            self.origin.copy_(rows.mean(dim=0))
        _add_products(rows.sub_(self.origin.to(rows)), self.total, self.outer)
        self.count += filled

    def snapshot(self) -> CentredMoments:
        """Moments of the rows seen so far on this rank; the running sums stay as they are.

        Raises:
            ValueError: there are no rows yet.
        """
        if not self.num_rows:
            raise ValueError("moments of no rows are not defined")
        return centred_state({name: tensor.clone() for name, tensor in self.states().items()})

    def states(self) -> dict[str, Tensor]:
        """The states by name, which ``state_dict`` would copy."""
        return {name: getattr(self, name) for name in self._defaults}

    def gathered(self) -> Moments:
        """The running sums of all ranks together; every rank calls it and gets the same.

        Its rows are those of the ranks one after another, so it differs from one rank's sums
        over the same rows in the last digits.
        """
        whole = Moments(
            self.width,
            block=self.block,
            gram_dtype=self.gram_dtype,
            process_group=self.process_group,
        ).to(self.outer.device)
        whole.load_state_dict(self.state_dict())
        whole._sync_dist()
        return whole

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        """Count ``[]``, mean ``[p]`` and scatter ``[p, p]`` over all ranks.

        ``over_ranks`` is the same as a record: torchmetrics lets no frozen record through here.
        """
        moments = self.snapshot()
        return torch.tensor(moments.count), moments.mean, moments.scatter

    def over_ranks(self) -> CentredMoments:
        """Moments of the rows of all ranks together; every rank calls it and gets the same.

        The sums are all-reduced, so a rank needs room for two more ``[p, p]`` matrices,
        however many ranks there are.
        """
        count, mean, scatter = self.compute()
        return CentredMoments(count=int(count), mean=mean, scatter=scatter)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Copies states in; torchmetrics would adopt the caller's tensors, device and all."""
        for name in self._defaults:
            own: Tensor = getattr(self, name)
            saved = state_dict.pop(prefix + name, None)
            if saved is None:
                missing_keys.append(prefix + name)
            elif saved.shape != own.shape or saved.dtype != own.dtype:
                error_msgs.append(
                    f"{prefix}{name} is {saved.dtype} {list(saved.shape)}, but these moments, of "
                    f"width {self.width} and block {self.block}, have {own.dtype} "
                    f"{list(own.shape)}"
                )
            else:
                own.copy_(saved)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _sync_dist(self, dist_sync_fn: Any = None, process_group: Any | None = None) -> None:
        """Sums over ranks in place; torchmetrics puts the rank's own state back afterwards.

        torchmetrics would gather every rank's matrix on every rank. Ranks have different
        origins, so all are first brought to one: the mean of the origins, weighted by rows.
        """
        group = process_group or self.process_group
        if int(self.filled):
            self._close_block(int(self.filled))
            self.filled.zero_()
        rows = self.count.double()
        dist.all_reduce(self.count, group=group)
        common = self.origin * (rows / self.count.clamp(min=1))
        dist.all_reduce(common, group=group)
        shift = self.origin - common
        crossed = torch.outer(self.total + (rows / 2) * shift, shift)
        self.outer += crossed.add_(crossed.T.clone())
        self.total += rows * shift
        self.origin = common
        dist.all_reduce(self.total, group=group)
        dist.all_reduce(self.outer, group=group)


def centred_state(state: dict[str, Tensor]) -> CentredMoments:
    """Count, mean and scatter from the states of ``Moments``, whose memory they take over.

    Args:
        state: by name; at least one row.
    """
    count, filled = int(state["count"]), int(state["filled"])
    origin, total, outer = state["origin"], state["total"], state["outer"]
    if filled:
        rows = state["buffer"][:filled]
        if not count:
            origin = rows.mean(dim=0).to(origin)
        _add_products(rows.sub_(origin.to(rows)), total, outer)
    count += filled
    drift = total / math.sqrt(count)
    outer.addr_(drift, drift, alpha=-1)
    return CentredMoments(count=count, mean=origin + total / count, scatter=_mirrored(outer))


def _add_products(rows: Tensor, total: Tensor, outer: Tensor) -> None:
    """Adds ``Σ x`` to ``total`` and the upper panels of ``Σ x xᵀ`` to ``outer``."""
    total += rows.sum(dim=0, dtype=torch.float64)
    # Autocast would quietly take a float32 product in half precision.
    with torch.autocast(rows.device.type, enabled=False):
        for start in range(0, rows.shape[1], _PANEL):
            left, right = rows[:, start : start + _PANEL].T, rows[:, start:]
            panel = outer[start : start + _PANEL, start:]
            if rows.dtype == torch.float64:
                panel.addmm_(left, right)
            else:
                panel += left @ right


def _mirrored(outer: Tensor) -> Tensor:
    """The matrix with its upper triangle copied onto the lower one, in place."""
    for start in range(0, outer.shape[0], _PANEL):
        stop = start + _PANEL
        corner = outer[start:stop, start:stop]
        corner.copy_(corner.triu() + corner.triu(1).T)
        outer[stop:, start:stop] = outer[start:stop, stop:].T
    return outer
