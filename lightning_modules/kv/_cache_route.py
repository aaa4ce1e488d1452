"""Keys and values, or latents of both, out of the cache, with rotary embedding undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_modules.kv._hook_route import Append
from lightning_modules.kv._probe import (
    Probe,
    Stored,
    first_keys_stay,
    has_positions_embedded,
    keep_output,
)
from lightning_modules.kv._recording import recording_cache
from lightning_modules.kv._rotary import Rotation, find_rotation, rotary_modules
from lightning_modules.kv._running import Hook, Runner, unsupported
from lightning_modules.kv.families import SIDES, Side
from lightning_modules.kv.layout import KVEntry, KVLayout, next_entry


@dataclass(frozen=True, kw_only=True)
class StoreReading:
    """How the rows of one layer are read off what it stores.

    Attributes:
        form: ``separate`` keys and values; ``latent``, a latent in place of keys and the part
            that is turned in place of values; or ``single``, one tensor as keys and as values.
        rotation: how what is turned was turned.
        copies: how often each head is stored in a row.
    """

    form: Literal["separate", "latent", "single"]
    rotation: Rotation
    copies: int = 1

    def rows(self, stored: Stored, rotary: Sequence[Any]) -> dict[Side, Tensor]:
        """Keys and values, ``[batch, heads, seq, head_dim]``; only keys of what is one matrix."""
        keys, values = (part[:, :: self.copies] for part in (stored.keys, stored.values))
        if self.form == "latent":
            turned_back = self.rotation.undo(values, rotary)
            return {"keys": torch.cat((keys.to(turned_back.dtype), turned_back), dim=-1)}
        keys = self.rotation.undo(keys, rotary)
        return {"keys": keys} if self.form == "single" else {"keys": keys, "values": values}


class CacheRoute:
    """Reads what each layer stores in the cache.

    Args:
        model: whose cache it is.
        readings: of each store, in order.
        layout: of the rows.

    Attributes:
        layout: as given.
    """

    def __init__(
        self, model: nn.Module, readings: Sequence[StoreReading], layout: KVLayout
    ) -> None:
        self.layout = layout
        self._model = model
        self._readings = readings
        self._rotary: list[Any] = []

    def hooks(self, append: Append) -> list[tuple[nn.Module, Hook]]:
        """What has to hang on the model while it is captured."""
        return [(module, keep_output(self._rotary)) for module in rotary_modules(self._model)]

    def run(
        self, runner: Runner, input_ids: Tensor, attention_mask: Tensor | None, append: Append
    ) -> None:
        """One forward pass; what is stored is appended."""
        readings = iter(self._readings)

        def store(layer: int, keys: Tensor, values: Tensor) -> None:
            stored = Stored(layer=layer, keys=keys, values=values)
            # One store too many is for the rows to refuse, however it is read.
            reading = next(readings, self._readings[-1])
            for side, rows in reading.rows(stored, self._rotary).items():
                append(side, layer, rows.transpose(1, 2).flatten(2))

        self._rotary.clear()
        try:
            with recording_cache(self._model, store) as cache:
                runner.run(input_ids, attention_mask, cache=cache)
        finally:
            self._rotary.clear()


def cache_route(model: nn.Module, probe: Probe, rotations: Sequence[Rotation | None]) -> CacheRoute:
    """The route for a model with latents, or whose projections are not known.

    Args:
        model: a transformers model.
        probe: of the model.
        rotations: how the keys of each store were turned, none where that is not known.

    Raises:
        InputError: it cannot be told how keys were turned.
    """
    entries: dict[Side, list[KVEntry]] = {side: [] for side in SIDES}
    readings: list[StoreReading] = []
    words: dict[str, None] = {}
    for stored, rotation in zip(probe.stored, rotations, strict=True):
        latent = latent_attention(model, stored)
        reading = _reading(model, probe, stored, rotation, latent is not None)
        readings.append(reading)
        for side, rows in reading.rows(stored, probe.rotary).items():
            entries[side].append(
                next_entry(
                    entries[side],
                    loop=0,
                    layer=stored.layer,
                    heads=rows.shape[1],
                    head_dim=rows.shape[3],
                )
            )
        what = "keys" if reading.form == "separate" else "latents"
        words[f"{type(latent or model).__name__} {what}, {_spoken(reading.rotation)}"] = None
    layout = KVLayout(
        keys=tuple(entries["keys"]),
        values=tuple(entries["values"]),
        route=f"cache: {'; '.join(words)}",
    )
    return CacheRoute(model, readings, layout)


def latent_attention(model: nn.Module, stored: Stored) -> nn.Module | None:
    """The multi-head latent attention that made a store, if one did (DeepSeek-V2, section 2.1)."""
    if stored.keys.shape[1] != 1:
        return None
    for module in model.modules():
        if (
            getattr(module, "kv_lora_rank", None) == stored.keys.shape[3]
            and getattr(module, "layer_idx", stored.layer) == stored.layer
        ):
            return module
    return None


def _reading(
    model: nn.Module, probe: Probe, stored: Stored, rotation: Rotation | None, latent: bool
) -> StoreReading:
    if not probe.takes_positions and (probe.rotary or not first_keys_stay(probe)):
        raise unsupported(model, "takes no position_ids, so nothing tells whether keys are turned")
    start, positions = probe.at_start, probe.positions
    if latent:
        turned = find_rotation(stored.values, probe.rotary, positions=positions, start=start)
        if turned is not None and rotation == Rotation():
            return StoreReading(form="latent", rotation=turned)
    elif stored.keys is stored.values:
        if rotation is not None:
            return StoreReading(form="single", rotation=rotation)
    else:
        copies = stored.keys.shape[1] // stored.distinct_heads()
        if rotation is not None:
            return StoreReading(form="separate", rotation=rotation, copies=copies)
        if has_positions_embedded(stored, probe):
            return StoreReading(form="separate", rotation=Rotation(), copies=copies)
    raise unsupported(
        model, f"turns the keys of layer {stored.layer} in a way that no rotary module tells"
    )


def _spoken(rotation: Rotation) -> str:
    if rotation.pairs == "none":
        return "not rotated"
    gain = "" if rotation.gain is None else " after a gain"
    return f"rotary undone in {rotation.pairs}{gain}"
