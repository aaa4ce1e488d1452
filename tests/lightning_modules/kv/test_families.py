"""For every family: rows by hooks, rows from the cache, and rows by hand are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from lightning_modules.kv.capture import CapturedKV, KVCapture

ByHand = Callable[[Any, Tensor], tuple[Tensor, Tensor]]
Tokens = Callable[..., Tensor]
GPT2_WIDTHS = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of attention, and keys and values computed from its weights alone.

    Attributes:
        by_hand: takes attention and hidden states; gives keys and values, ``[batch, seq, p]``.
        read: what the route should name.
        settings: of the configuration, beside the usual widths.
        heads: key-value heads.
        model: name of its classes.
        dtype: of the weights.
    """

    by_hand: ByHand
    read: str
    settings: dict[str, Any] = field(default_factory=dict)
    heads: int = 4
    model: str = ""
    dtype: torch.dtype = torch.float64


def separate(
    keys: str = "k_proj", values: str = "v_proj", norm: str = "", whole: bool = False
) -> ByHand:
    """Two projections, and perhaps a norm over each head of the keys or over all together."""

    def compute(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        made: Tensor = getattr(attention, keys)(hidden)
        if norm:
            apply = getattr(attention, norm)
            heads = made if whole else made.unflatten(-1, (-1, 8))
            if "PerHead" in type(apply).__name__:
                made = apply(heads.transpose(1, 2)).transpose(1, 2).flatten(2)
            else:
                made = apply(heads).flatten(2)
        return made, getattr(attention, values)(hidden)

    return compute


def clipped(by_hand: ByHand, bound: float) -> ByHand:
    """Neither side goes beyond the bound, which some of both do."""

    def compute(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = by_hand(attention, hidden)
        assert min(float(keys.abs().max()), float(values.abs().max())) > bound
        return keys.clamp(-bound, bound), values.clamp(-bound, bound)

    return compute


def fused(name: str, rows: Callable[[Tensor], tuple[Tensor, Tensor]], norm: str = "") -> ByHand:
    """One projection; ``rows`` picks those of its weight, or bias, that make keys and values."""

    def compute(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
        module = getattr(attention, name)
        weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
        weights = rows(weight)
        biases = (None, None) if module.bias is None else rows(module.bias)
        keys, values = (linear(hidden, w, b) for w, b in zip(weights, biases, strict=True))
        if norm:
            keys = getattr(attention, norm)(keys.unflatten(-1, (-1, 8))).flatten(2)
        return keys, values

    return compute


def blocks(keys: int, values: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The last rows but so many are of keys, the last of values."""
    return lambda weight: (weight[-keys - values : -values], weight[-values:])


def groups(heads: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Each head has its queries, its key and its value."""

    def pick(weight: Tensor) -> tuple[Tensor, Tensor]:
        parts = weight.unflatten(0, (heads, -1, 8))
        return parts[:, -2].flatten(0, 1), parts[:, -1].flatten(0, 1)

    return pick


def codegen(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Four shards of queries, values and keys."""
    parts = weight.unflatten(0, (4, 3, 8))
    return parts[:, 2].flatten(0, 1), parts[:, 1].flatten(0, 1)


FAMILIES: dict[str, Family] = {
    "Llama": Family(by_hand=separate(), read="LlamaAttention k_proj, v_proj", heads=2),
    "Mistral": Family(
        by_hand=separate(), read="k_proj, v_proj", heads=2, settings={"sliding_window": 6}
    ),
    "Qwen3": Family(by_hand=separate(norm="k_norm"), read="k_norm, v_proj", heads=2),
    "Olmo2": Family(by_hand=separate(norm="k_norm", whole=True), read="k_norm", heads=2),
    "Starcoder2": Family(by_hand=separate(), read="k_proj, v_proj", heads=2),
    "GptOss": Family(
        by_hand=separate(),
        read="k_proj, v_proj",
        heads=2,
        settings={"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 6},
        dtype=torch.float32,  # its experts know no wider type
    ),
    "Gemma2": Family(
        by_hand=separate(), read="k_proj, v_proj", heads=2, settings={"sliding_window": 6}
    ),
    "Gemma3": Family(
        by_hand=separate(norm="k_norm"),
        read="k_norm",
        heads=2,
        settings={
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "Cohere": Family(by_hand=separate(), read="k_proj, v_proj", heads=2),
    "Glm": Family(by_hand=separate(), read="k_proj, v_proj", heads=2),
    "StableLm": Family(by_hand=separate(), read="k_proj, v_proj", heads=2),
    "StableLm normed": Family(
        model="StableLm",
        by_hand=separate(norm="k_layernorm"),
        read="k_layernorm, v_proj",
        heads=2,
        settings={"qk_layernorm": True, "use_parallel_residual": False},
    ),
    "Phi": Family(by_hand=separate(), read="k_proj, v_proj", heads=2),
    "Phi3": Family(
        by_hand=fused("qkv_proj", blocks(16, 16)), read="Phi3Attention qkv_proj", heads=2
    ),
    "JetMoe": Family(
        by_hand=fused("kv_proj", blocks(16, 16)),
        read="kv_proj",
        heads=2,
        settings={"kv_channels": 8, "num_local_experts": 2, "num_experts_per_tok": 2},
    ),
    "GPT2": Family(by_hand=fused("c_attn", blocks(32, 32)), read="c_attn", settings=GPT2_WIDTHS),
    "GPTBigCode": Family(
        by_hand=fused("c_attn", blocks(8, 8)),
        read="c_attn",
        heads=1,
        settings=GPT2_WIDTHS | {"multi_query": True},
    ),
    "GPTBigCode with all heads": Family(
        model="GPTBigCode",
        by_hand=fused("c_attn", groups(4)),
        read="c_attn",
        settings=GPT2_WIDTHS | {"multi_query": False},
    ),
    "GPTNeoX": Family(
        by_hand=fused("query_key_value", groups(4)),
        read="query_key_value",
        settings={"rotary_pct": 0.5},
    ),
    "Bloom": Family(
        by_hand=fused("query_key_value", groups(4)),
        read="query_key_value",
        settings={"n_layer": 2, "n_head": 4},
    ),
    "Falcon": Family(
        by_hand=fused("query_key_value", groups(1)),
        read="query_key_value",
        heads=1,
        settings={"multi_query": True, "new_decoder_architecture": False},
    ),
    "Falcon with all heads": Family(
        model="Falcon",
        by_hand=fused("query_key_value", groups(4)),
        read="query_key_value",
        settings={"multi_query": False, "new_decoder_architecture": False, "bias": True},
    ),
    "Falcon with grouped heads": Family(
        model="Falcon",
        by_hand=fused("query_key_value", groups(2)),
        read="query_key_value",
        heads=2,
        settings={"num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "Falcon with ALiBi": Family(
        model="Falcon",
        by_hand=fused("query_key_value", groups(1)),
        read="query_key_value",
        heads=1,
        settings={"multi_query": True, "new_decoder_architecture": False, "alibi": True},
    ),
    "Persimmon": Family(
        by_hand=fused("query_key_value", groups(4), norm="k_layernorm"),
        read="k_layernorm, query_key_value",
    ),
    "Mpt": Family(
        by_hand=fused("Wqkv", blocks(32, 32)),
        read="Wqkv",
        settings={"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
    ),
    "CodeGen": Family(
        by_hand=fused("qkv_proj", codegen),
        read="qkv_proj",
        settings=GPT2_WIDTHS | {"rotary_dim": 4},
    ),
    "GPTJ": Family(
        by_hand=separate(), read="k_proj, v_proj", settings=GPT2_WIDTHS | {"rotary_dim": 4}
    ),
    "Olmo clipped": Family(
        model="Olmo",
        by_hand=clipped(separate(), 0.05),
        read="k_proj, v_proj",
        heads=2,
        settings={"clip_qkv": 0.05},
    ),
    "OPT": Family(
        by_hand=separate(),
        read="k_proj, v_proj",
        settings={"ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "Bert": Family(
        by_hand=separate("key", "value"), read="key, value", settings={"is_decoder": True}
    ),
}
CASES = [pytest.param(name, id=name.replace(" ", "-")) for name in FAMILIES]


def by_hand(family: Family, model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Applies weights to the hidden states that enter each attention."""
    name = family.read.split(", ")[-1].split()[-1]
    attentions = [module for module in model.modules() if hasattr(module, name)]
    entering: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: entering.append(
                kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            ),
            with_kwargs=True,
        )
        for module in attentions
    ]
    with torch.no_grad():
        model(ids)
        rows = [
            family.by_hand(module, hidden)
            for module, hidden in zip(attentions, entering, strict=True)
        ]
    for handle in handles:
        handle.remove()
    keys, values = zip(*rows, strict=True)
    return torch.cat(keys, -1), torch.cat(values, -1)


def captured(model: PreTrainedModel, ids: Tensor) -> CapturedKV:
    with KVCapture(model) as kv:
        return kv.capture(ids)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tiny: Any) -> tuple[Family, PreTrainedModel]:
    family = FAMILIES[request.param]
    return family, tiny(family.model or request.param, family.dtype, **family.settings)


def test_hooks_give_what_the_weights_give(
    case: tuple[Family, PreTrainedModel], tokens: Tokens
) -> None:
    # More tokens than a sliding window, which must not cut them.
    family, model = case
    route = KVCapture(model).route
    assert route.startswith("hooks: ")
    assert family.read in route
    rows = captured(model, tokens())
    keys, values = by_hand(family, model, tokens())
    exact = 1e-12 if keys.dtype == torch.float64 else 1e-6
    torch.testing.assert_close(rows.keys, keys, rtol=exact, atol=exact)
    torch.testing.assert_close(rows.values, values, rtol=exact, atol=exact)
    shapes = {(entry.heads, entry.head_dim) for entry in rows.layout.keys + rows.layout.values}
    assert shapes == {(family.heads, 8)}
    assert [entry.layer for entry in rows.layout.keys] == [0, 1]


@pytest.mark.usefixtures("only_the_cache")
def test_the_cache_with_rotary_undone_gives_what_the_weights_give(
    case: tuple[Family, PreTrainedModel], tokens: Tokens
) -> None:
    family, model = case
    assert KVCapture(model).route.startswith("cache: ")
    rows = captured(model, tokens())
    keys, values = by_hand(family, model, tokens())
    torch.testing.assert_close(rows.keys, keys, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rows.values, values, rtol=1e-6, atol=1e-6)
