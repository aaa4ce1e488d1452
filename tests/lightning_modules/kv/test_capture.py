from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lightning_modules.kv.capture import CapturedKV, KVCapture, NonFiniteActivationError
from suite.errors import InputError, SuiteError

Build = Callable[..., PreTrainedModel]
Tokens = Callable[..., Tensor]


def captured_from(model: nn.Module, ids: Tensor, mask: Tensor | None = None) -> CapturedKV:
    with KVCapture(model) as kv:
        return kv.capture(ids, mask)


def test_a_sliding_window_longer_than_the_cache_still_gives_every_position(
    tiny: Build, tokens: Tokens
) -> None:
    model = tiny("Mistral", sliding_window=6)
    captured = captured_from(model, tokens(length=20))
    assert captured.keys.shape == (2, 20, 2 * 2 * 8)
    prefix = captured_from(model, tokens(length=20)[:, :4])
    torch.testing.assert_close(captured.keys[:, :4], prefix.keys, rtol=1e-12, atol=1e-12)


def test_layout_names_layers_heads_and_widths(tiny: Build) -> None:
    layout = KVCapture(tiny("Llama")).layout
    assert [(e.loop, e.layer, e.heads, e.head_dim, e.offset) for e in layout.keys] == [
        (0, 0, 2, 8, 0),
        (0, 1, 2, 8, 16),
    ]
    assert layout.values == layout.keys


@pytest.mark.parametrize("length", [1, 2, 3])
def test_heads_before_tokens_are_told_apart_when_there_are_as_many(
    length: int, tiny: Build, tokens: Tokens
) -> None:
    # Gemma norms [batch, heads, seq, dim]; with two heads and two tokens the shape says nothing.
    model = tiny("Gemma3", sliding_window=6)
    whole = captured_from(model, tokens(length=3))
    part = captured_from(model, tokens(length=3)[:, :length])
    torch.testing.assert_close(part.keys, whole.keys[:, :length], rtol=1e-12, atol=1e-12)


def test_padding_on_the_right_leaves_rows_at_tokens_as_they_were(
    tiny: Build, tokens: Tokens
) -> None:
    model, ids = tiny("Llama"), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    padded = captured_from(model, ids * mask, mask)
    alone = captured_from(model, ids[1:, :6])
    torch.testing.assert_close(padded.keys[1:, :6], alone.keys, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_keep_the_model_precision(dtype: torch.dtype, tiny: Build, tokens: Tokens) -> None:
    captured = captured_from(tiny("Llama", dtype), tokens())
    assert (captured.keys.dtype, captured.values.dtype) == (dtype, dtype)


def test_layers_of_different_precision_are_kept_in_the_wider_one(tokens: Tokens) -> None:
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

    def __init__(self, width: int, scale: float = 1.0, layer: int | None = 0) -> None:
        super().__init__()
        self.scale = scale
        self.layer_idx = layer
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width // 2)

    def forward(self, hidden: Tensor, cache: Any = None, index: int = 0) -> Tensor:
        keys, values = self.k_proj(hidden), self.v_proj(hidden)
        if cache is not None:
            heads = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (keys, values))
            cache.update(*heads, index)
        mixed = torch.tanh(keys + torch.cat((values, values), -1))
        keys.mul_(self.scale)  # as in-place rotary embedding would
        return hidden + mixed


class ToyLooped(nn.Module):
    def __init__(self, loops: int = 3, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(64, width)
        self.layers = nn.ModuleList(ToyAttention(width, -5.0, layer) for layer in range(layers))
        self.unused = ToyAttention(width)
        self.dropout = nn.Dropout(0.5)
        self.loops = loops

    def forward(
        self, input_ids: Tensor, attention_mask: Any, use_cache: bool, cache: Any = None
    ) -> Tensor:
        hidden: Tensor = self.dropout(self.embed(input_ids))
        for loop in range(self.loops):
            for index, layer in enumerate(self.layers, start=loop * len(self.layers)):
                hidden = layer(hidden, cache, index)
        return hidden


def test_a_looped_model_gives_an_entry_for_each_loop_in_order(tokens: Tokens) -> None:
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


def test_looplm_gives_by_hooks_what_its_cache_holds_loop_by_loop(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    modeling = pytest.importorskip("lightning_modules.looplm.modeling")
    torch.manual_seed(0)
    config = modeling.LoopLMConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        total_ut_steps=3,
    )
    model = modeling.LoopLMForCausalLM(config).double().eval()
    by_hooks = captured_from(model, tokens())
    assert KVCapture(model).route == "hooks: LoopLMAttention k_proj, v_proj"
    order = [(loop, layer) for loop in range(3) for layer in range(2)]
    assert [(entry.loop, entry.layer) for entry in by_hooks.layout.keys] == order
    monkeypatch.setattr("lightning_modules.kv.capture.hook_route", lambda *probed: None)
    by_cache = captured_from(model, tokens())
    assert [entry.layer for entry in by_cache.layout.keys] == list(range(6))
    torch.testing.assert_close(by_cache.keys, by_hooks.keys, rtol=1e-6, atol=1e-6)
    assert torch.equal(by_cache.values, by_hooks.values)


def test_a_module_that_stands_in_several_layers_gives_an_entry_for_each(tokens: Tokens) -> None:
    looped, shared = ToyLooped(loops=2), ToyLooped(loops=2)
    for layer in shared.layers:
        layer.layer_idx = None
    captured = captured_from(shared, tokens())
    assert [(e.loop, e.layer) for e in captured.layout.keys] == [(0, layer) for layer in range(4)]
    assert torch.equal(captured.keys, captured_from(looped, tokens()).keys)


def num_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_mode_are_restored_on_leaving(fails: bool, tokens: Tokens) -> None:
    model = ToyLooped().train()
    model.layers[1].eval()
    before = [module.training for module in model.modules()]

    def work() -> None:
        with KVCapture(model) as kv:
            assert not model.training
            assert num_hooks(model) == 4  # none on the module that is not run
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


def test_the_head_is_not_run(tiny: Build, tokens: Tokens) -> None:
    model = tiny("Llama")
    model.lm_head = nn.Linear(1, 1)  # of a wrong shape, so that running it would fail
    assert captured_from(model, tokens()).keys.shape == (2, 11, 32)


def test_capture_outside_the_context_is_refused(tokens: Tokens) -> None:
    kv = KVCapture(ToyLooped())
    with pytest.raises(SuiteError, match="inside"):
        kv.capture(tokens())


@pytest.mark.parametrize(("loops", "message"), [(2, "4 of 6"), (4, "another path")])
def test_another_number_of_loops_than_at_first_is_refused(
    loops: int, message: str, tokens: Tokens
) -> None:
    model = ToyLooped(loops=3)
    with KVCapture(model) as kv:
        model.loops = loops
        with pytest.raises(SuiteError, match=message):
            kv.capture(tokens())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_names_layer_and_sequence(
    value: float, tiny: Build, tokens: Tokens
) -> None:
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


def test_rows_that_are_not_finite_at_padding_are_let_pass(tokens: Tokens) -> None:
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


def test_a_model_that_stores_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="ToyLooped stores no keys and values on text"):
        KVCapture(ToyLooped(loops=0))


def test_a_projection_that_is_not_what_is_stored_is_not_read(tokens: Tokens) -> None:
    class Scaled(ToyAttention):
        def forward(self, hidden: Tensor, cache: Any = None, index: int = 0) -> Tensor:
            return super().forward(2 * hidden, cache, index) - hidden

    model = ToyLooped(loops=1)
    model.layers[1] = Scaled(16, layer=1)
    assert KVCapture(model).route == "hooks: ToyAttention k_proj, v_proj; Scaled k_proj, v_proj"

    class Shifted(ToyAttention):
        def forward(self, hidden: Tensor, cache: Any = None, index: int = 0) -> Tensor:
            keys, values = self.k_proj(hidden) + 1, self.v_proj(hidden)
            if cache is not None:
                heads = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in (keys, values))
                cache.update(*heads, index)
            return hidden + keys

    model.layers[1] = shifted = Shifted(16, layer=1)
    kv = KVCapture(model)
    assert kv.route == "cache: ToyLooped keys, not rotated"
    with kv, torch.no_grad():
        hidden = model.layers[0](model.embed(tokens()))
        rows = kv.capture(tokens())
        expected = shifted.k_proj(hidden) + 1
    torch.testing.assert_close(rows.keys[..., 16:], expected, rtol=1e-6, atol=1e-6)
