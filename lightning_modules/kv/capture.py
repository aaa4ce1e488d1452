"""Rows of keys and values out of a model's forward pass, before rotary embedding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from lightning_modules.kv._projections import Kind, Tap, find_taps, unsupported
from lightning_modules.kv.layout import KVEntry, KVLayout
from suite.errors import SuiteError

_Hook = Callable[[nn.Module, tuple[Any, ...], Tensor], None]


class NonFiniteActivationError(SuiteError):
    """A cache row holds NaN or infinity.

    Attributes:
        kind: ``keys`` or ``values``.
        entry: loop and layer where it shows first.
        sequence: index in the batch.
    """

    def __init__(self, kind: Kind, entry: KVEntry, sequence: int) -> None:
        self.kind, self.entry, self.sequence = kind, entry, sequence
        super().__init__(
            f"{kind} of layer {entry.layer}, loop {entry.loop} hold NaN or infinity in sequence "
            f"{sequence} of the batch; a wider precision or another checkpoint may help"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CapturedKV:
    """Keys and values of one batch; rows at padding positions are meaningless.

    Attributes:
        keys: before rotary embedding, ``[batch, seq, p_k]``, in the model's precision.
        values: ``[batch, seq, p_v]``.
        layout: what the columns are.
    """

    keys: Tensor
    values: Tensor
    layout: KVLayout


class KVCapture:
    """Reads keys and values off the projections while a model runs.

    Keys are taken where rotary embedding would be applied next: from ``k_norm`` where the
    attention has one, else from ``k_proj``. Nothing then has to be undone. A module that runs
    several times a pass (a looped model) gives one entry a loop. Use as a context::

        with KVCapture(model) as kv:
            captured = kv.capture(input_ids, attention_mask)

    Inside the context the model is in evaluation mode; on leaving it, hooks are gone and the
    mode is what it was. Construction runs the model once, on a few tokens, to learn the layout.

    Args:
        model: a decoder-only transformers model with ``k_proj`` and ``v_proj`` in its
            attention, such as Llama, Mistral, Qwen, Gemma, OLMo or a LoopLM.

    Attributes:
        layout: what the columns of the rows will be.

    Raises:
        InputError: the model is of another kind.
    """

    layout: KVLayout

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # The head is left out: logits cost time and memory, and nothing here reads them.
        self._backbone: nn.Module = getattr(model, "base_model", model)
        self._taps = find_taps(model)
        self._rows: dict[Kind, _Rows] = {}
        self._exit = ExitStack()
        self.layout = self._probe()

    def __enter__(self) -> Self:
        self._exit = _hooked(self._model, [(tap.source, self._record(tap)) for tap in self._taps])
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.close()

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
        keys = _Rows("keys", self.layout.keys, input_ids.shape)
        values = _Rows("values", self.layout.values, input_ids.shape)
        self._rows = {"keys": keys, "values": values}
        try:
            _forward(self._backbone, input_ids, attention_mask)
        finally:
            self._rows = {}
        captured = CapturedKV(keys=keys.complete(), values=values.complete(), layout=self.layout)
        _check_finite(captured, attention_mask)
        return captured

    def _record(self, tap: Tap) -> _Hook:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            # Within the context the model may also be run by others, who want no rows.
            if self._rows:
                self._rows[tap.kind].append(tap.layer, tap.heads_last(output))

        return hook

    def _probe(self) -> KVLayout:
        """Learns which taps run, in which order, how often and how wide."""
        calls: dict[Kind, list[tuple[Tap, int | None, int]]] = {"keys": [], "values": []}

        def learn(tap: Tap) -> _Hook:
            def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
                calls[tap.kind].append((tap, *tap.learn_shape(inputs[0], output)))

            return hook

        hooks: list[tuple[nn.Module, _Hook]] = [
            (tap.projection, tap.see_projection) for tap in self._taps
        ]
        hooks += [(tap.source, learn(tap)) for tap in self._taps]
        device = next(self._model.parameters()).device
        with _hooked(self._model, hooks):
            # Several, as a padding token embeds as zeros, which look the same when rotated.
            _forward(self._backbone, torch.arange(4, device=device)[None], None)
        if not calls["keys"] or not calls["values"]:
            raise unsupported(self._model, "runs no pair of k_proj and v_proj on text")
        heads = {tap.attention: found for tap, found, _ in calls["keys"]}
        return KVLayout(
            keys=_entries(calls["keys"], heads), values=_entries(calls["values"], heads)
        )


class _Rows:
    """Rows of one kind under construction; entries arrive in the layout's order."""

    def __init__(self, kind: Kind, entries: tuple[KVEntry, ...], shape: torch.Size) -> None:
        self.kind = kind
        self.entries = entries
        self.shape = shape
        self.arrived = 0
        self.rows: Tensor | None = None

    def append(self, layer: int, output: Tensor) -> None:
        """Copies the next entry in; a copy, since the model may go on to rotate it in place."""
        if self.arrived == len(self.entries) or self.entries[self.arrived].layer != layer:
            raise SuiteError(
                f"{self.kind} of layer {layer} came out of turn: the model takes another path "
                "through its layers than it took at first"
            )
        entry = self.entries[self.arrived]
        if self.rows is None:
            self.rows = output.new_empty(*self.shape, self.entries[-1].columns.stop)
        self.rows = self.rows.to(torch.promote_types(self.rows.dtype, output.dtype))
        self.rows[..., entry.columns].copy_(output)
        self.arrived += 1

    def complete(self) -> Tensor:
        """The finished rows, ``[batch, seq, p]``."""
        if self.rows is None or self.arrived < len(self.entries):
            raise SuiteError(
                f"{self.arrived} of {len(self.entries)} layers gave {self.kind}; capture inside "
                "`with KVCapture(model) as kv`, and with the layers that it was made with"
            )
        return self.rows


def _entries(
    calls: list[tuple[Tap, int | None, int]], key_heads: dict[nn.Module, int | None]
) -> tuple[KVEntry, ...]:
    """Lays out calls in order; values whose heads are not known have as many as the keys."""
    loops: Counter[Tap] = Counter()
    entries: list[KVEntry] = []
    for tap, own_heads, columns in calls:
        heads = own_heads or key_heads.get(tap.attention)
        if heads is None or columns % heads:
            raise unsupported(tap.attention, f"does not tell how its {columns} columns are split")
        entries.append(
            KVEntry(
                loop=loops[tap],
                layer=tap.layer,
                heads=heads,
                head_dim=columns // heads,
                offset=entries[-1].columns.stop if entries else 0,
            )
        )
        loops[tap] += 1
    return tuple(entries)


def _check_finite(captured: CapturedKV, attention_mask: Tensor | None) -> None:
    kinds: tuple[tuple[Kind, Tensor, tuple[KVEntry, ...]], ...] = (
        ("keys", captured.keys, captured.layout.keys),
        ("values", captured.values, captured.layout.values),
    )
    found: list[NonFiniteActivationError] = []
    for kind, rows, entries in kinds:
        # One read, no temporary: a sum that is finite has only finite terms.
        if bool(rows.sum(dtype=torch.float32).isfinite()):
            continue
        bad = ~rows.isfinite()
        if attention_mask is not None:
            bad &= attention_mask.bool()[..., None]
        for entry in entries:
            sequences = bad[..., entry.columns].flatten(1).any(dim=1).nonzero()
            if len(sequences):
                found.append(NonFiniteActivationError(kind, entry, int(sequences[0])))
                break
    if found:
        raise min(found, key=lambda error: (error.entry.loop, error.entry.layer))


def _forward(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> None:
    with torch.inference_mode():
        model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)


def _hooked(model: nn.Module, hooks: list[tuple[nn.Module, _Hook]]) -> ExitStack:
    """Puts the model in evaluation mode and hooks on it, until the stack is closed."""
    with ExitStack() as stack:
        stack.enter_context(_evaluation_mode(model))
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(hook).remove)
        return stack.pop_all()


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
