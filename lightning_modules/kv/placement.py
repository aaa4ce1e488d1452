"""Products with a matrix that may be larger than the device that does the work."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_modules.kv_footprint import BLOCKS

# Bytes of a panel on its way to the device: large enough to hide the transfer's latency.
_PANEL_BYTES = 1 << 30


class SymmetricProduct:
    """``C @ Y`` for a symmetric C, on one device.

    C is moved there whole where it fits beside the blocks at work. Else it stays where it is
    and goes over in panels of columns, one product after another; memory on the device is then
    two panels and the blocks.

    Args:
        matrix: C, ``[p, p]``, symmetric.
        columns: columns of the widest Y.
        blocks: how many ``[p, columns]`` are held beside C.
        device: where Y will be; none for where C is.
        room: bytes that are free on the device; none to ask it.
    """

    def __init__(
        self,
        matrix: Tensor,
        *,
        columns: int,
        blocks: int = BLOCKS,
        device: torch.device | str | None = None,
        room: int | None = None,
    ) -> None:
        self.device = torch.device(device) if device is not None else matrix.device
        self._matrix = matrix
        self._panels = False
        if matrix.device == self.device and room is None:
            return
        width = matrix.shape[0]
        needed = matrix.element_size() * width * (width + blocks * columns)
        free = _free_bytes(self.device) if room is None else room
        self._panels = needed > free
        if not self._panels:
            self._matrix = matrix.to(self.device)

    @property
    def resident(self) -> Tensor | None:
        """C on the device; none where it does not fit."""
        return None if self._panels else self._matrix

    def __call__(self, block: Tensor) -> Tensor:
        """``C @ block``, ``[p, r]``, on the device."""
        if not self._panels:
            return self._matrix @ block
        image = torch.empty_like(block)
        for rows, panel in self._over():
            # the panel is [rows, p]: columns of C are its rows
            torch.mm(panel, block, out=image[rows])
        return image

    def _over(self) -> Iterator[tuple[slice, Tensor]]:
        width = self._matrix.shape[0]
        step = max(_PANEL_BYTES // (self._matrix.element_size() * width), 1)
        for start in range(0, width, step):
            rows = slice(start, min(start + step, width))
            yield rows, self._matrix[rows].to(self.device)


def _free_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 1 << 62  # a CPU's memory is where the matrix already is
    torch.cuda.empty_cache()  # what torch keeps for itself is free, too
    return int(torch.cuda.mem_get_info(device)[0])
