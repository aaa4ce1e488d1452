"""The cache route: rotary embedding of every kind undone, latents, and layers of many kinds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lightning_modules.kv import capture
from lightning_modules.kv._recording import recording_cache
from lightning_modules.kv.capture import CapturedKV, KVCapture

Build = Callable[..., PreTrainedModel]
Tokens = Callable[..., Tensor]

ROPE: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "attention_factor": 1.3, "original_max_position_embeddings": 16},
    "longrope": {
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [3.0, 4.0, 5.0, 6.0],
        "factor": 8.0,
        "original_max_position_embeddings": 16,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def captured(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> CapturedKV:
    with KVCapture(model) as kv:
        return kv.capture(ids, mask)


def both_routes(
    model: nn.Module, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[CapturedKV, CapturedKV]:
    by_hooks = captured(model, ids)
    assert KVCapture(model).route.startswith("hooks: ")
    with monkeypatch.context() as patch:
        patch.setattr(capture, "hook_route", lambda probe, rotations: None)
        assert KVCapture(model).route.startswith("cache: ")
        return by_hooks, captured(model, ids)


@pytest.mark.parametrize("length", [9, 40], ids=["short", "past the original length"])
@pytest.mark.parametrize("rope_type", ROPE)
def test_every_kind_of_rotary_embedding_is_undone(
    rope_type: str, length: int, tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 100.0, **ROPE[rope_type]}
    # The dynamic kind changes its angles with the length of the batch past this.
    model = tiny("Llama", rope_parameters=rope, max_position_embeddings=16)
    by_hooks, by_cache = both_routes(model, tokens(length=length), monkeypatch)
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-9, atol=1e-9)
    assert torch.equal(by_cache.values, by_hooks.values)
    assert by_cache.layout == by_hooks.layout


@pytest.mark.parametrize(
    ("family", "pairs"),
    [("StableLm", "halves"), ("GPTNeoX", "halves"), ("Glm", "neighbours"), ("Phi", "halves")],
)
@pytest.mark.parametrize("factor", [0.25, 0.5, 1.0])
def test_rotary_embedding_of_some_columns_is_undone_in_those(
    family: str,
    pairs: str,
    factor: float,
    tiny: Build,
    tokens: Tokens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": factor}
    model = tiny(family, rope_parameters=rope, hidden_size=64, head_dim=16)
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-9, atol=1e-9)
    with monkeypatch.context() as patch:
        patch.setattr(capture, "hook_route", lambda probe, rotations: None)
        assert KVCapture(model).route.endswith(f"keys, rotary undone in {pairs}")


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)]
)
def test_keys_are_turned_back_in_32_bits_or_more(
    dtype: torch.dtype,
    limit: float,
    tiny: Build,
    tokens: Tokens,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny("Llama", dtype, num_hidden_layers=8)
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert (by_cache.keys.dtype, by_cache.values.dtype) == (torch.float32, dtype)
    off = (by_cache.keys - by_hooks.keys.float()).norm() / by_hooks.keys.float().norm()
    assert float(off) < limit


def test_padding_on_the_right_leaves_rows_at_tokens_as_they_were(
    tiny: Build, tokens: Tokens
) -> None:
    model, ids = tiny("NanoChat"), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    padded = captured(model, ids * mask, mask)
    alone = captured(model, ids[1:, :6])
    torch.testing.assert_close(padded.keys[1:, :6], alone.keys, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "norm", "route"),
    [
        # Both norm keys after turning them, so that no module puts them out as they were before.
        ("NanoChat", "k_norm", "rotary undone in halves"),
        ("HunYuanDenseV1", "key_layernorm", "rotary undone in halves after a gain"),
    ],
)
def test_a_norm_after_rotary_embedding_leaves_normed_keys(
    family: str, norm: str, route: str, tiny: Build, tokens: Tokens
) -> None:
    model = tiny(family)
    kv = KVCapture(model)
    assert kv.route == f"cache: {family}ForCausalLM keys, {route}"
    projected: list[Tensor] = []
    attentions = [module for module in model.modules() if hasattr(module, "k_proj")]
    for attention in attentions:
        attention.k_proj.register_forward_hook(lambda m, i, out: projected.append(out.detach()))
    rows = captured(model, tokens()).keys
    made = torch.cat([out.unflatten(-1, (-1, 8)) for out in projected[-len(attentions) :]], -2)
    assert hasattr(attentions[0], norm)
    scale = made.square().mean(-1, keepdim=True).add(model.config.rms_norm_eps).rsqrt()
    torch.testing.assert_close(rows.unflatten(-1, (-1, 8)), made * scale, rtol=1e-6, atol=1e-6)


def test_layers_without_rotary_embedding_are_told_from_those_with(
    tiny: Build, tokens: Tokens
) -> None:
    # Its norm comes after rotary embedding too, and the second layer has neither.
    model = tiny(
        "Llama4",
        num_local_experts=2,
        intermediate_size_mlp=48,
        no_rope_layers=[1, 0],
        use_qk_norm=True,
        attn_temperature_tuning=False,
        layer_types=["full_attention", "full_attention"],
    )
    route = KVCapture(model).route
    assert "Llama4ForCausalLM keys, rotary undone in neighbours" in route
    assert "Llama4ForCausalLM keys, not rotated" in route
    projected: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda m, i, out: projected.append(out))
    rows = captured(model, tokens()).keys
    normed = projected[-2].unflatten(-1, (2, 8))
    normed = normed * normed.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    torch.testing.assert_close(rows[..., :16], normed.flatten(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows[..., 16:], projected[-1], rtol=0, atol=0)


LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 10,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "head_dim": 4,
    "first_k_dense_replace": 2,
}


@pytest.mark.parametrize(
    ("family", "settings", "in_order"),
    [
        ("DeepseekV2", {"topk_method": "greedy"}, True),
        ("DeepseekV3", {"rope_interleave": True}, False),
        ("DeepseekV3", {"rope_interleave": False}, True),
    ],
    ids=["v2", "v3", "v3 in halves"],
)
def test_latent_attention_gives_its_latent_as_one_matrix(
    family: str, settings: dict[str, Any], in_order: bool, tiny: Build, tokens: Tokens
) -> None:
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 100.0,
        "factor": 4.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8,
    }
    model = tiny(family, rope_parameters=yarn, **(LATENT | settings))
    kv = KVCapture(model)
    assert kv.route.startswith(f"cache: {family}Attention latents, rotary undone in ")
    assert (kv.layout.kinds, kv.layout.key_width, kv.layout.value_width) == (("key",), 32, 0)
    assert [(e.layer, e.heads, e.head_dim) for e in kv.layout.keys] == [(0, 1, 16), (1, 1, 16)]
    entering: list[Tensor] = []
    attentions = [layer.self_attn for layer in model.model.layers]
    for attention in attentions:
        attention.register_forward_pre_hook(
            lambda m, args, kwargs: entering.append(kwargs["hidden_states"]), with_kwargs=True
        )
    rows = captured(model, tokens())
    assert rows.values.shape == (2, 11, 0)
    expected = []
    with torch.inference_mode():
        for attention, hidden in zip(attentions, entering[-2:], strict=True):
            latent, turned = attention.kv_a_proj_with_mqa(hidden).split([12, 4], dim=-1)
            # What is paired as neighbours is cached as halves: even columns, then odd ones.
            turned = turned if in_order else turned[..., [0, 2, 1, 3]]
            expected += [attention.kv_a_layernorm(latent), turned]
    torch.testing.assert_close(rows.keys, torch.cat(expected, -1), rtol=1e-6, atol=1e-6)


def test_heads_that_are_stored_several_times_give_one(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("Falcon", num_kv_heads=2, new_decoder_architecture=True)
    with torch.no_grad():
        stored = model(tokens(), use_cache=True).cache.layers[0].keys
    assert stored.shape[1] == 4
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert {entry.heads for entry in by_cache.layout.keys} == {2}
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-6, atol=1e-6)


def test_layers_that_share_keys_and_values_give_them_once(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        "Gemma3n",
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=6,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        activation_sparsity_pattern=[0.0] * 4,
    )
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert [entry.layer for entry in by_hooks.layout.keys] == [0, 1]
    assert by_hooks.layout.route == "hooks: Gemma3nTextAttention k_norm, v_norm"
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(by_cache.values, by_hooks.values, rtol=1e-6, atol=1e-6)


def test_layers_may_have_heads_of_different_sizes(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        "Gemma4",
        num_hidden_layers=3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        global_head_dim=16,
        num_kv_shared_layers=0,
        sliding_window=6,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
    )
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    shapes = [(entry.layer, entry.heads, entry.head_dim) for entry in by_hooks.layout.keys]
    assert shapes == [(0, 2, 16), (1, 2, 8), (2, 2, 16)]
    assert by_cache.layout == by_hooks.layout
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-6, atol=1e-6)


def test_a_hybrid_model_gives_the_layers_with_a_cache(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        "Qwen3_5",
        torch.float32,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert [(e.layer, e.heads, e.head_dim) for e in by_hooks.layout.keys] == [(1, 2, 8)]
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-5, atol=1e-5)


def test_a_cache_of_the_models_own_is_read_too(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        "MiniMax",
        torch.float32,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention", "linear_attention"],
    )
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert [entry.layer for entry in by_hooks.layout.keys] == [0]
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-5, atol=1e-5)


def test_layers_that_start_anew_at_position_zero_do_not_hide_the_rotation(
    tiny: Build, tokens: Tokens
) -> None:
    # Recurrent layers give a token at position 0 another state than the same token elsewhere.
    model = tiny("RecurrentGemma", torch.float32, num_hidden_layers=3, attention_window_size=6)
    kv = KVCapture(model)
    assert kv.route == "hooks: RecurrentGemmaAttention k_proj, v_proj"
    assert [(entry.layer, entry.heads) for entry in kv.layout.keys] == [(2, 2)]
    projected: list[Tensor] = []
    attention = model.model.layers[2].temporal_block
    attention.k_proj.register_forward_hook(lambda module, inputs, out: projected.append(out))
    assert torch.equal(captured(model, tokens()).keys, projected[-1])


def test_a_module_that_stands_in_several_layers_is_read_in_each(
    tiny: Build, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        "Zamba2",
        torch.float32,
        num_hidden_layers=4,
        layers_block_type=["mamba", "hybrid"] * 2,
        num_mem_blocks=1,
        adapter_rank=4,
        attention_hidden_size=64,
        attention_head_dim=16,
        mamba_d_state=8,
        mamba_headdim=8,
        mamba_ngroups=1,
        n_mamba_heads=8,
    )
    by_hooks, by_cache = both_routes(model, tokens(), monkeypatch)
    assert [(entry.loop, entry.layer) for entry in by_hooks.layout.keys] == [(0, 1), (0, 3)]
    assert by_cache.layout == by_hooks.layout
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-5, atol=1e-5)


def test_one_tensor_as_keys_and_as_values_is_one_matrix(tiny: Build, tokens: Tokens) -> None:
    model = tiny(
        "DeepseekV4",
        torch.float32,
        num_key_value_heads=1,
        head_dim=16,
        qk_rope_head_dim=8,
        q_lora_rank=10,
        o_groups=2,
        o_lora_rank=8,
        sliding_window=6,
        layer_types=["sliding_attention", "sliding_attention"],
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    kv = KVCapture(model)
    assert kv.route == "cache: DeepseekV4ForCausalLM latents, rotary undone in neighbours"
    assert (kv.layout.kinds, kv.layout.key_width) == (("key",), 32)
    normed: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.kv_norm.register_forward_hook(lambda m, inputs, out: normed.append(out))
    rows = captured(model, tokens())
    torch.testing.assert_close(rows.keys, torch.cat(normed[-2:], -1), rtol=1e-5, atol=1e-5)


def test_nothing_of_a_batch_stays_when_it_is_done(tiny: Build, tokens: Tokens) -> None:
    """A cache that referred to itself would wait for the garbage collector."""
    model = tiny("Llama")
    with recording_cache(model, lambda *stored: None) as cache, torch.no_grad():
        model(tokens(), cache=cache, use_cache=True)
        seen = weakref.ref(cache.layers[0].keys)
    assert seen() is not None
    gc.disable()
    try:
        del cache
        assert seen() is None
    finally:
        gc.enable()
