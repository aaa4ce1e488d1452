from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from lightning_modules.kv.capture import CapturedKV, KVCapture, NonFiniteActivationError
from suite.errors import InputError, SuiteError

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {},
    "Mistral": {"sliding_window": 6},
    "Gemma3": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "Olmo2": {},
    "StableLm": {
        "qk_layernorm": True,
        "partial_rotary_factor": 0.5,
        "use_parallel_residual": False,
    },
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def tiny(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config_class = getattr(transformers, CONFIGS.get(family, f"{family}Config"))
    config = config_class(**(TINY | FAMILIES.get(family, {}) | settings))
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Unit norms would not show whether a norm's gain was applied.
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def tokens(batch: int = 2, length: int = 11) -> Tensor:
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def captured_from(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> CapturedKV:
    with KVCapture(model) as kv:
        return kv.capture(ids, mask)


def attentions(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if hasattr(module, "k_proj")]


def by_hand(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Applies projections and norms to the hidden states that enter each attention."""
    entering: list[Tensor] = []
    handles = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: entering.append(
                kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            ),
            with_kwargs=True,
        )
        for module in attentions(model)
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    keys, values = [], []
    for module, hidden in zip(attentions(model), entering, strict=True):
        key: Tensor = module.k_proj(hidden)
        if hasattr(module, "k_norm"):
            per_head = module.k_norm.weight.shape[-1] == module.head_dim
            key = module.k_norm(key.unflatten(-1, (-1, module.head_dim)) if per_head else key)
            key = key.flatten(2)
        elif hasattr(module, "k_layernorm"):
            heads_first = key.unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
            key = module.k_layernorm(heads_first).transpose(1, 2).flatten(2)
        keys.append(key)
        values.append(module.v_proj(hidden))
    return torch.cat(keys, -1), torch.cat(values, -1)


def cached(
    model: PreTrainedModel, ids: Tensor, rotary: Callable[..., tuple[Tensor, Tensor]], width: int
) -> tuple[Tensor, Tensor]:
    """Rows of the model's own cache, with rotary embedding of the first columns undone."""
    with torch.no_grad():
        cache = model(ids, use_cache=True).cache
    keys, values = [], []
    for index, layer in enumerate(cache.layers):
        cos, sin = (part[:, None] for part in rotary(index))
        rotated, rest = layer.keys[..., :width], layer.keys[..., width:]
        left, right = rotated.chunk(2, dim=-1)
        undone = rotated * cos - torch.cat((-right, left), dim=-1) * sin
        keys.append(torch.cat((undone, rest), dim=-1).transpose(1, 2).flatten(2))
        values.append(layer.values.transpose(1, 2).flatten(2))
    return torch.cat(keys, -1), torch.cat(values, -1)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_projections_by_hand(family: str) -> None:
    model = tiny(family)
    captured = captured_from(model, tokens())
    keys, values = by_hand(model, tokens())
    torch.testing.assert_close(captured.keys, keys, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(captured.values, values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
def test_rows_equal_the_cache_with_rotary_undone(
    family: str, dtype: torch.dtype, tolerance: float
) -> None:
    # No more tokens than the window, so that nothing has left the cache.
    model, ids = tiny(family, dtype), tokens(length=5)
    captured = captured_from(model, ids)

    def rotary(layer: int) -> tuple[Tensor, Tensor]:
        types = (model.config.layer_types[layer],) if family == "Gemma3" else ()
        probe = torch.zeros(1, dtype=torch.float64)
        cos, sin = model.model.rotary_emb(probe, torch.arange(5)[None], *types)
        return cos, sin

    keys, values = cached(model, ids, rotary, rotary(0)[0].shape[-1])
    torch.testing.assert_close(captured.keys.to(keys), keys, rtol=0, atol=tolerance)
    torch.testing.assert_close(captured.values, values, rtol=0, atol=0)


def test_a_sliding_window_longer_than_the_cache_still_gives_every_position() -> None:
    model = tiny("Mistral")
    captured = captured_from(model, tokens(length=20))
    assert captured.keys.shape == (2, 20, 3 * 2 * 8)
    prefix = captured_from(model, tokens(length=20)[:, :4])
    torch.testing.assert_close(captured.keys[:, :4], prefix.keys, rtol=1e-12, atol=1e-12)


def test_layout_names_layers_heads_and_widths() -> None:
    layout = KVCapture(tiny("Llama")).layout
    assert [(e.loop, e.layer, e.heads, e.head_dim, e.offset) for e in layout.keys] == [
        (0, 0, 2, 8, 0),
        (0, 1, 2, 8, 16),
        (0, 2, 2, 8, 32),
    ]
    assert layout.values == layout.keys


@pytest.mark.parametrize("length", [1, 2, 3])
def test_heads_before_tokens_are_told_apart_when_there_are_as_many(length: int) -> None:
    # Gemma norms [batch, heads, seq, dim]; with two heads and two tokens the shape says nothing.
    model = tiny("Gemma3")
    whole = captured_from(model, tokens(length=3))
    part = captured_from(model, tokens(length=3)[:, :length])
    torch.testing.assert_close(part.keys, whole.keys[:, :length], rtol=1e-12, atol=1e-12)


def test_padding_on_the_right_leaves_rows_at_tokens_as_they_were() -> None:
    model, ids = tiny("Llama"), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    padded = captured_from(model, ids * mask, mask)
    alone = captured_from(model, ids[1:, :6])
    torch.testing.assert_close(padded.keys[1:, :6], alone.keys, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_keep_the_model_precision(dtype: torch.dtype) -> None:
    captured = captured_from(tiny("Llama", dtype), tokens())
    assert (captured.keys.dtype, captured.values.dtype) == (dtype, dtype)


def test_layers_of_different_precision_are_kept_in_the_wider_one() -> None:
    model = ToyLooped(loops=1)
    narrow = captured_from(model, tokens())
    model.layers[1].k_proj.register_forward_hook(lambda module, args, out: out.double() / 3)
    wide = captured_from(model, tokens())
    assert (wide.keys.dtype, wide.values.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(wide.keys[..., :16], narrow.keys[..., :16].double())
    torch.testing.assert_close(
        wide.keys[..., 16:], narrow.keys[..., 16:].double() / 3, rtol=0, atol=0
    )


class ToyAttention(nn.Module):
    """Projections alone; what it returns depends on both of them."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.head_dim = 4
        self.scale = scale
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width // 2)

    def forward(self, hidden: Tensor) -> Tensor:
        keys, values = self.k_proj(hidden), self.v_proj(hidden)
        mixed = torch.tanh(keys + torch.cat((values, values), -1))
        keys.mul_(self.scale)  # as in-place rotary embedding would
        return hidden + mixed


class ToyLooped(nn.Module):
    def __init__(self, loops: int = 3, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(64, width)
        self.layers = nn.ModuleList(ToyAttention(width, scale=-5.0) for _ in range(layers))
        self.unused = ToyAttention(width)
        self.dropout = nn.Dropout(0.5)
        self.loops = loops

    def forward(self, input_ids: Tensor, attention_mask: Any, use_cache: bool) -> Tensor:
        hidden: Tensor = self.dropout(self.embed(input_ids))
        for _ in range(self.loops):
            for layer in self.layers:
                hidden = layer(hidden)
        return hidden


def test_a_looped_model_gives_an_entry_for_each_loop_in_order() -> None:
    model = ToyLooped()
    captured = captured_from(model, tokens())
    hidden, keys, values = model.embed(tokens()), [], []
    for _ in range(3):
        for layer in model.layers:
            keys.append(layer.k_proj(hidden))
            values.append(layer.v_proj(hidden))
            hidden = layer(hidden)
    torch.testing.assert_close(captured.keys, torch.cat(keys, -1), rtol=0, atol=0)
    torch.testing.assert_close(captured.values, torch.cat(values, -1), rtol=0, atol=0)
    order = [(loop, layer) for loop in range(3) for layer in range(2)]
    assert [(e.loop, e.layer) for e in captured.layout.keys] == order
    assert [(e.loop, e.layer) for e in captured.layout.values] == order
    assert {(e.heads, e.head_dim) for e in captured.layout.keys} == {(4, 4)}
    assert {(e.heads, e.head_dim) for e in captured.layout.values} == {(4, 2)}


def test_looplm_rows_equal_its_cache_loop_by_loop() -> None:
    modeling = pytest.importorskip("lightning_modules.looplm.modeling")
    torch.manual_seed(0)
    settings = TINY | {"total_ut_steps": 3, "num_hidden_layers": 2}
    model = modeling.LoopLMForCausalLM(modeling.LoopLMConfig(**settings)).double().eval()
    ids = tokens(length=5)
    captured = captured_from(model, ids)

    def rotary(layer: int) -> tuple[Tensor, Tensor]:
        probe = torch.zeros(1, dtype=torch.float64)
        cos, sin = model.model.rotary_emb(probe, torch.arange(5)[None])
        return cos, sin

    keys, values = cached(model, ids, rotary, 8)
    assert captured.layout.key_width == 3 * 2 * 2 * 8
    torch.testing.assert_close(captured.keys, keys, rtol=0, atol=1e-6)
    torch.testing.assert_close(captured.values, values, rtol=0, atol=0)


def num_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_mode_are_restored_on_leaving(fails: bool) -> None:
    model = ToyLooped().train()
    model.layers[1].eval()
    before = [module.training for module in model.modules()]

    def work() -> None:
        with KVCapture(model) as kv:
            assert not model.training
            assert num_hooks(model) == 6
            kv.capture(tokens())
            if fails:
                raise KeyError("some failure of the caller")

    if fails:
        with pytest.raises(KeyError):
            work()
    else:
        work()
    assert num_hooks(model) == 0
    assert [module.training for module in model.modules()] == before


def test_the_head_is_not_run() -> None:
    model = tiny("Llama")
    model.lm_head = nn.Linear(1, 1)  # of a wrong shape, so that running it would fail
    assert captured_from(model, tokens()).keys.shape == (2, 11, 48)


def test_capture_outside_the_context_is_refused() -> None:
    kv = KVCapture(ToyLooped())
    with pytest.raises(SuiteError, match="inside"):
        kv.capture(tokens())


@pytest.mark.parametrize(("loops", "message"), [(2, "4 of 6"), (4, "another path")])
def test_another_number_of_loops_than_at_first_is_refused(loops: int, message: str) -> None:
    model = ToyLooped(loops=3)
    with KVCapture(model) as kv:
        model.loops = loops
        with pytest.raises(SuiteError, match=message):
            kv.capture(tokens())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_names_layer_and_sequence(value: float) -> None:
    model, ids = tiny("Llama"), tokens(batch=3)
    ids[2, 5] = 1
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.bias = nn.Parameter(torch.zeros(16).double())
        model.model.embed_tokens.weight[1, :] = 1.0
    with KVCapture(model) as kv:
        kv.capture(ids)

        def spoil(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            output = output.clone()
            output[ids == 1] = value
            return output

        # Hooks run in order: this one must spoil before the rows are read.
        attention = model.model.layers[1].self_attn
        handle = attention.v_proj.register_forward_hook(spoil, prepend=True)
        with pytest.raises(NonFiniteActivationError, match="values of layer 1") as caught:
            kv.capture(ids)
        handle.remove()
        assert (caught.value.kind, caught.value.entry.layer, caught.value.sequence) == (
            "values",
            1,
            2,
        )
        kv.capture(ids)


def test_rows_that_are_not_finite_at_padding_are_let_pass() -> None:
    model, ids = ToyLooped(), tokens()
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    ids[0, 8:] = 0
    with torch.no_grad():
        model.embed.weight[0] = math.nan
    # Token 0 is also part of the probe, which must not mind.
    captured = captured_from(model, ids, mask)
    assert bool(captured.keys[mask.bool()].isfinite().all())
    with pytest.raises(NonFiniteActivationError, match="keys of layer 0, loop 0"):
        captured_from(model, ids)


def test_a_model_that_runs_none_of_its_projections_is_refused() -> None:
    with pytest.raises(InputError, match="ToyLooped runs no pair of k_proj and v_proj on text"):
        KVCapture(ToyLooped(loops=0))
