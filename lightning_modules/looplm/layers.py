"""One layer of the looped stack; which loop it runs in reaches it only as a cache offset."""

# transformers is partly untyped.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaMLP, eager_attention_forward

from lightning_modules.looplm.configuration import LoopLMConfig


class LoopLMRMSNorm(nn.RMSNorm):
    """RMSNorm that returns the type of its gain.

    Under autocast a branch arrives in 16 bits while gains and residual stream have 32. Widening
    it first keeps the fused kernel, which wants one type, and the precision of the sum.

    Args:
        config: gives the width and the epsilon.
        initial_gain: every gain of a new model.
    """

    def __init__(self, config: LoopLMConfig, initial_gain: float = 1.0) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps)
        self.initial_gain = initial_gain

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last axis of ``x``."""
        return super().forward(x.to(self.weight.dtype))


class LoopLMAttention(nn.Module):
    """Causal multi-head attention with rotary embedding and grouped keys and values."""

    def __init__(self, config: LoopLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = cast(int, config.head_dim)
        key_value_heads = cast(int, config.num_key_value_heads)
        # Read by the attention implementations of transformers under these names.
        self.num_key_value_groups = config.num_attention_heads // key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, hidden, bias=bias)

    def forward(
        self,
        hidden: Tensor,
        *,
        rotation: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        cache: Cache | None,
        cache_offset: int,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends within one loop.

        Args:
            hidden: ``[batch, seq, hidden]``.
            rotation: cosines and sines, ``[batch or 1, 1, seq, head_dim / 2]`` each.
            attention_mask: mask in the form the attention implementation wants.
            cache: keys and values of every layer of every loop.
            cache_offset: cache layer of this loop's first layer.
            kwargs: further arguments of the attention implementation.

        Returns:
            ``[batch, seq, hidden]``, and the weights where the implementation gives them.
        """
        heads = (*hidden.shape[:-1], -1, self.head_dim)
        query = _rotate(self.q_proj(hidden).view(heads).transpose(1, 2), *rotation)
        key = _rotate(self.k_proj(hidden).view(heads).transpose(1, 2), *rotation)
        value = self.v_proj(hidden).view(heads).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, cache_offset + self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(mixed.reshape(*hidden.shape[:-1], -1)), weights


class LoopLMDecoderLayer(GradientCheckpointingLayer):
    """Attention and SwiGLU, each with a norm before it and another before its residual sum."""

    def __init__(self, config: LoopLMConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = LoopLMAttention(config, layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LoopLMRMSNorm(config)
        self.input_layernorm_2 = LoopLMRMSNorm(config, config.branch_gain)
        self.post_attention_layernorm = LoopLMRMSNorm(config)
        self.post_attention_layernorm_2 = LoopLMRMSNorm(config, config.branch_gain)

    def forward(self, hidden: Tensor, **attention: Any) -> Tensor:
        """Maps ``[batch, seq, hidden]`` to the same shape; see ``LoopLMAttention.forward``."""
        mixed, _ = self.self_attn(self.input_layernorm(hidden), **attention)
        hidden = hidden + self.input_layernorm_2(mixed)
        mixed = self.mlp(self.post_attention_layernorm(hidden))
        return cast(Tensor, hidden + self.post_attention_layernorm_2(mixed))


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (i, i + head_dim / 2) of ``[batch, heads, seq, head_dim]``."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    # 16-bit heads meet 32-bit angles under autocast; keys must match values in the cache.
    return turned.to(heads.dtype)
