"""Where in a model's attention the keys and values of the cache can be read."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from suite.errors import InputError

Kind = Literal["keys", "values"]

# What a projection is called, and what may stand between it and rotary embedding or the cache.
_PROJECTIONS: dict[Kind, str] = {"keys": "k_proj", "values": "v_proj"}
_NORMS: dict[Kind, tuple[str, ...]] = {
    "keys": ("k_norm", "k_layernorm", "key_layernorm"),
    "values": ("v_norm",),
}


class Tap:
    """The place where one attention module's keys, or its values, are read.

    Args:
        kind: keys or values.
        layer: number of the layer in the model.
        attention: module with ``k_proj`` and ``v_proj``.

    Attributes:
        projection: module that makes the keys or values.
        source: module whose output is read: the norm after the projection where there is one.
    """

    def __init__(self, kind: Kind, layer: int, attention: nn.Module) -> None:
        self.kind: Kind = kind
        self.layer = layer
        self.attention = attention
        self.projection: nn.Module = getattr(attention, _PROJECTIONS[kind])
        norms = (getattr(attention, name, None) for name in _NORMS[kind])
        norm = next((module for module in norms if isinstance(module, nn.Module)), None)
        self.source = self.projection if norm is None else norm
        self._projected: Tensor | None = None
        self._heads_first = False

    def see_projection(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Forward hook: keeps the projection's output to compare with what the norm is given."""
        self._projected = output

    def learn_shape(self, given: Tensor, output: Tensor) -> tuple[int | None, int]:
        """Learns the order of dimensions from one call.

        Args:
            given: what the source was given, for several different tokens.
            output: what it made of it.

        Returns:
            Heads, where shape or module tell, and columns of all heads together.

        Raises:
            InputError: the norm was given something else than the projection's output, as it
                is where rotary embedding comes first.
        """
        if self.source is not self.projection:
            self._heads_first = self._sees_heads_first(given)
        columns = self.heads_last(output).shape[-1]
        if output.ndim == 4:
            return output.shape[1 if self._heads_first else 2], columns
        return self._declared_heads(columns), columns

    def heads_last(self, output: Tensor) -> Tensor:
        """Brings what the source put out to ``[batch, seq, columns]``."""
        return (output.transpose(1, 2) if self._heads_first else output).flatten(2)

    def _sees_heads_first(self, given: Tensor) -> bool:
        assert self._projected is not None, "a norm ran before its projection"
        if _same_numbers(given.flatten(2), self._projected):
            return False
        if given.ndim == 4 and _same_numbers(given.transpose(1, 2).flatten(2), self._projected):
            return True
        raise unsupported(
            self.attention, f"changes {self.kind} between {_PROJECTIONS[self.kind]} and its norm"
        )

    def _declared_heads(self, columns: int) -> int | None:
        head_dim = getattr(self.attention, "head_dim", None)
        if self.kind == "keys" and isinstance(head_dim, int) and columns % head_dim == 0:
            return columns // head_dim
        config = getattr(self.attention, "config", None)
        heads = getattr(self.attention, "num_key_value_heads", None) or getattr(
            config, "num_key_value_heads", None
        )
        return heads if isinstance(heads, int) and columns % heads == 0 else None


def _same_numbers(given: Tensor, projected: Tensor) -> bool:
    """Whether the two agree to the bit, NaN included; a norm may be given a wider type."""
    if given.shape != projected.shape:
        return False
    return torch.allclose(given.float(), projected.float(), rtol=0.0, atol=0.0, equal_nan=True)


def find_taps(model: nn.Module) -> list[Tap]:
    """All places where keys and values might be read; not each need run on text.

    Args:
        model: a transformers model.

    Raises:
        InputError: there are none, or the model is not a decoder.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise unsupported(model, "is an encoder-decoder")
    attentions = [
        module
        for module in model.modules()
        if all(isinstance(getattr(module, name, None), nn.Module) for name in _PROJECTIONS.values())
    ]
    if not attentions:
        raise unsupported(model, "has no k_proj and v_proj")
    if not any(getattr(module, "is_causal", True) for module in attentions):
        raise unsupported(model, "does not attend causally")
    taps = []
    for position, attention in enumerate(attentions):
        layer = getattr(attention, "layer_idx", None)
        layer = layer if isinstance(layer, int) else position
        taps += [Tap(kind, layer, attention) for kind in _PROJECTIONS]
    return taps


def unsupported(module: nn.Module, reason: str) -> InputError:
    """The one line that refuses a model.

    Args:
        module: the model, or the module at fault.
        reason: what it does or lacks, as the rest of a sentence that starts with its class.
    """
    return InputError(
        f"{type(module).__name__} {reason}; supported are decoder-only models whose attention "
        "has k_proj and v_proj, normed (k_norm) before rotary embedding if at all"
    )
