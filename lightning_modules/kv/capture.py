"""Rows of keys and values out of a model's forward pass, before rotary embedding."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from lightning_modules.kv._cache_route import cache_route, latent_attention
from lightning_modules.kv._hook_route import Append, hook_route
from lightning_modules.kv._probe import Probe, Stored, run_probe
from lightning_modules.kv._rotary import Rotation, find_rotation
from lightning_modules.kv._rows import Rows
from lightning_modules.kv._running import Hook, Runner, hooked
from lightning_modules.kv.families import SIDES, Side
from lightning_modules.kv.layout import KVEntry, KVLayout
from suite.errors import SuiteError


class NonFiniteActivationError(SuiteError):
    """A cache row holds NaN or infinity.

    Attributes:
        kind: ``keys`` or ``values``.
        entry: loop and layer where it shows first.
        sequence: index in the batch.
        tokens: ids of that sequence, padding left out, by which its document can be told.
    """

    def __init__(
        self, kind: Side, entry: KVEntry, sequence: int, tokens: tuple[int, ...] = ()
    ) -> None:
        self.kind, self.entry, self.sequence, self.tokens = kind, entry, sequence, tokens
        super().__init__(
            f"{kind} of layer {entry.layer}, loop {entry.loop} hold NaN or infinity in sequence "
            f"{sequence} of the batch; a wider precision or another checkpoint may help"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CapturedKV:
    """Keys and values of one batch; rows at padding positions are meaningless.

    Attributes:
        keys: before rotary embedding, ``[batch, seq, p_k]``, in the model's precision, or in 32
            bits if that is less and rotary embedding had to be undone.
        values: ``[batch, seq, p_v]``, in the model's precision; p_v is 0 if all is latent.
        layout: what the columns are.
    """

    keys: Tensor
    values: Tensor
    layout: KVLayout


class KVCapture:
    """Reads what a model would cache, keys before rotary embedding, while it runs.

    The route is decided once, at construction, from a pass over a few tokens: modules are read
    (``k_norm``, ``k_proj``, a fused ``qkv_proj``, ...) where their output is seen to be what the
    model stores in its cache, and then nothing has to be undone; else the cache is read, and the
    model's own rotary module says how keys are turned back. Of multi-head latent attention the
    cached latent and its rotary part are read, as one matrix, its columns ordered as cached.

    A layer is read over the whole sequence, however short its window; one that stores nothing,
    because it reads the cache of another layer or has no attention, gives nothing; a head that a
    model stores several times over gives one. A module that runs several times a pass (a looped
    model) gives one entry a loop. Use as a context::

        with KVCapture(model) as kv:
            captured = kv.capture(input_ids, attention_mask)

    Inside the context the model is in evaluation mode; on leaving it, hooks are gone and the
    mode is what it was.

    Args:
        model: a decoder-only transformers model.

    Attributes:
        layout: what the columns of the rows will be.
        route: how and where rows are read, such as ``hooks: LlamaAttention k_proj, v_proj``.

    Raises:
        InputError: the model keeps no cache of keys and values, or it cannot be told how its
            keys are turned.
    """

    layout: KVLayout
    route: str

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._runner = Runner(model)
        self._route = _choose_route(model, self._runner)
        self.layout = self._route.layout
        self.route = self.layout.route
        self._rows: dict[Side, Rows] = {}
        self._exit: ExitStack | None = None

    def __enter__(self) -> Self:
        self._exit = hooked(self._model, self._route.hooks(self._append))
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._exit is not None:
            self._exit.close()
        self._exit = None

    def capture(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> CapturedKV:
        """Runs one batch.

        Args:
            input_ids: ``[batch, seq]``, padded on the right, on the model's device.
            attention_mask: ``[batch, seq]``, 1 at tokens and 0 at padding; none if all count.

        Raises:
            NonFiniteActivationError: a row at a token holds NaN or infinity.
            SuiteError: called outside the context, or the model took another path through its
                layers than at construction.
        """
        if self._exit is None:
            raise SuiteError("capture inside `with KVCapture(model) as kv`")
        self._rows = {
            "keys": Rows("keys", self.layout.keys, input_ids),
            "values": Rows("values", self.layout.values, input_ids),
        }
        try:
            self._route.run(self._runner, input_ids, attention_mask, self._append)
            keys, values = (self._rows[side].complete() for side in SIDES)
        finally:
            self._rows = {}
        captured = CapturedKV(keys=keys, values=values, layout=self.layout)
        _check_finite(captured, input_ids, attention_mask)
        return captured

    def _append(self, side: Side, layer: int | None, output: Tensor) -> None:
        # Within the context the model may also be run by others, who want no rows.
        if self._rows:
            self._rows[side].append(layer, output)


class _Route(Protocol):
    """A way of reading rows while a model runs."""

    @property
    def layout(self) -> KVLayout: ...

    def hooks(self, append: Append) -> list[tuple[nn.Module, Hook]]: ...

    def run(
        self, runner: Runner, input_ids: Tensor, attention_mask: Tensor | None, append: Append
    ) -> None: ...


def _choose_route(model: nn.Module, runner: Runner) -> _Route:
    probe = run_probe(model, runner)
    rotations = [_rotation(stored, probe) for stored in probe.stored]
    one_matrix = any(
        stored.keys is stored.values or latent_attention(model, stored) for stored in probe.stored
    )
    by_hooks = None if one_matrix else hook_route(probe, rotations)
    return by_hooks or cache_route(model, probe, rotations)


def _rotation(stored: Stored, probe: Probe) -> Rotation | None:
    """How the keys of a store were turned, perhaps before a norm with a gain."""
    gains: list[Tensor | None] = [None]
    for run in probe.runs:
        weight = getattr(run.site.norm.get("keys"), "weight", None)
        if run.site.layer in (stored.layer, None) and isinstance(weight, Tensor):
            if weight.shape == stored.keys.shape[-1:] and bool((weight != 0).all()):
                gains.append(weight.detach())
    for gain in gains:
        found = find_rotation(
            stored.keys,
            probe.rotary,
            positions=probe.positions,
            start=probe.at_start,
            gain=gain,
        )
        if found is not None:
            return found
    return None


def _check_finite(captured: CapturedKV, input_ids: Tensor, attention_mask: Tensor | None) -> None:
    sides: tuple[tuple[Side, Tensor, tuple[KVEntry, ...]], ...] = (
        ("keys", captured.keys, captured.layout.keys),
        ("values", captured.values, captured.layout.values),
    )
    found: list[NonFiniteActivationError] = []
    for side, rows, entries in sides:
        # One read, no temporary: a sum that is finite has only finite terms.
        if bool(rows.sum(dtype=torch.float32).isfinite()):
            continue
        bad = ~rows.isfinite()
        if attention_mask is not None:
            bad &= attention_mask.bool()[..., None]
        for entry in entries:
            sequences = bad[..., entry.columns].flatten(1).any(dim=1).nonzero()
            if len(sequences):
                at = int(sequences[0])
                ids = (
                    input_ids[at]
                    if attention_mask is None
                    else (input_ids[at][attention_mask[at].bool()])
                )
                found.append(NonFiniteActivationError(side, entry, at, tuple(ids.tolist())))
                break
    if found:
        raise min(found, key=lambda error: (error.entry.loop, error.entry.layer))
