"""Rows of keys or of values, filled layer by layer while a model runs."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_modules.kv.families import Side
from lightning_modules.kv.layout import KVEntry
from suite.errors import SuiteError


class Rows:
    """Rows of one side under construction; entries arrive in the layout's order.

    Args:
        side: keys or values.
        entries: what they consist of.
        input_ids: ``[batch, seq]``, the tokens of the rows.
    """

    def __init__(self, side: Side, entries: tuple[KVEntry, ...], input_ids: Tensor) -> None:
        self._side = side
        self._entries = entries
        self._shape = input_ids.shape
        self._arrived = 0
        self._rows: Tensor | None = None
        if not entries:  # as of values where all is latent
            self._rows = torch.empty(*self._shape, 0, device=input_ids.device)

    def append(self, layer: int | None, output: Tensor) -> None:
        """Copies the next entry in; a copy, since the model may go on to rotate it in place.

        Args:
            layer: that it comes from; none if only the order tells.
            output: ``[batch, seq, columns]``.

        Raises:
            SuiteError: another layer, or none, was next.
        """
        entry = self._entries[self._arrived] if self._arrived < len(self._entries) else None
        if entry is None or layer not in (entry.layer, None):
            where = "" if layer is None else f" of layer {layer}"
            raise SuiteError(
                f"{self._side}{where} came out of turn: the model takes another path through its "
                "layers than it took at first"
            )
        if self._rows is None:
            self._rows = output.new_empty(*self._shape, self._entries[-1].columns.stop)
        self._rows = self._rows.to(torch.promote_types(self._rows.dtype, output.dtype))
        self._rows[..., entry.columns].copy_(output)
        self._arrived += 1

    def complete(self) -> Tensor:
        """The finished rows, ``[batch, seq, p]``.

        Raises:
            SuiteError: a layer is missing.
        """
        if self._rows is None or self._arrived < len(self._entries):
            raise SuiteError(
                f"{self._arrived} of {len(self._entries)} layers gave {self._side}: the model "
                "takes another path through its layers than it took at first"
            )
        return self._rows
