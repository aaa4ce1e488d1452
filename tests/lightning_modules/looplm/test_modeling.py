from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Glm4Config, Glm4ForCausalLM

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.modeling import LoopLMForCausalLM
from lightning_modules.looplm.objective import looped_objective, step_cross_entropy
from lightning_modules.looplm.sizes import (
    PRESETS,
    Shape,
    count_parameters,
    resolve,
    training_flops_per_token,
)
from suite.study import SizeSpec

Build = Callable[..., LoopLMForCausalLM]
Array = NDArray[np.float64]


def reference_steps(model: LoopLMForCausalLM, ids: list[int]) -> tuple[Array, Array]:
    """Every loop's logits and gate logits of one sequence, in numpy, position by position."""
    config = model.config
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    heads, width = config.num_attention_heads, config.head_dim

    def norm(x: Array, name: str) -> Array:
        gain = weights[f"model.{name}.weight"]
        return gain * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.rms_norm_eps)

    def turn(x: Array) -> Array:
        turned = np.empty_like(x)
        for position in range(len(ids)):
            for pair in range(width // 2):
                angle = position * config.rope_parameters["rope_theta"] ** (-2 * pair / width)
                a, b = x[position, :, pair], x[position, :, pair + width // 2]
                turned[position, :, pair] = a * np.cos(angle) - b * np.sin(angle)
                turned[position, :, pair + width // 2] = b * np.cos(angle) + a * np.sin(angle)
        return turned

    def layer(x: Array, name: str) -> Array:
        def linear(x: Array, part: str) -> Array:
            return x @ weights[f"model.{name}.{part}.weight"].T

        inner = norm(x, f"{name}.input_layernorm")
        split = (len(ids), heads, width)
        query = turn(linear(inner, "self_attn.q_proj").reshape(split))
        key = turn(linear(inner, "self_attn.k_proj").reshape(split))
        value = linear(inner, "self_attn.v_proj").reshape(split)
        mixed = np.zeros(split)
        for position in range(len(ids)):
            for head in range(heads):
                scores = key[: position + 1, head] @ query[position, head] / np.sqrt(width)
                share = np.exp(scores - scores.max())
                mixed[position, head] = share @ value[: position + 1, head] / share.sum()
        attended = linear(mixed.reshape(len(ids), -1), "self_attn.o_proj")
        x = x + norm(attended, f"{name}.input_layernorm_2")
        inner = norm(x, f"{name}.post_attention_layernorm")
        gate = linear(inner, "mlp.gate_proj")
        inner = gate / (1.0 + np.exp(-gate)) * linear(inner, "mlp.up_proj")
        return x + norm(linear(inner, "mlp.down_proj"), f"{name}.post_attention_layernorm_2")

    x = weights["model.embed_tokens.weight"][ids]
    logits, gates = [], []
    for _ in range(config.total_ut_steps):
        for index in range(config.num_hidden_layers):
            x = layer(x, f"layers.{index}")
        x = norm(x, "norm")
        logits.append(x @ weights["lm_head.weight"].T)
        gates.append(
            x @ weights["model.early_exit_gate.weight"][0] + weights["model.early_exit_gate.bias"]
        )
    return np.stack(logits), np.stack(gates)


@pytest.mark.parametrize("recurrence", [1, 3])
def test_every_loop_equals_a_hand_written_float64_model(
    tiny: Build, tokens: Tensor, recurrence: int
) -> None:
    model = tiny(total_ut_steps=recurrence, gate_bias=-1.0, dtype=torch.float64)
    steps = model.steps(tokens)
    for row in range(2):
        logits, gates = reference_steps(model, tokens[row].tolist())
        found = model.lm_head(steps.hidden[:, row]).detach().numpy()
        # transformers takes rotary angles in 32 bits; nothing else separates the two.
        np.testing.assert_allclose(found, logits, atol=2e-5)
        np.testing.assert_allclose(steps.gate_logits[:, row].detach().numpy(), gates, atol=2e-5)
        np.testing.assert_allclose(found[:, 0], logits[:, 0], atol=1e-12)


def test_one_loop_is_a_sandwich_norm_transformer_of_transformers(
    tiny: Build, tokens: Tensor
) -> None:
    model = tiny(total_ut_steps=1, head_dim=6)
    other = Glm4ForCausalLM(
        Glm4Config(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=6,
            partial_rotary_factor=1.0,
            rope_theta=10_000.0,
            rms_norm_eps=1e-6,
            attention_bias=False,
            pad_token_id=None,
            tie_word_embeddings=False,
        )
    ).eval()
    ours = dict(model.state_dict())
    theirs = {}
    for name in other.state_dict():
        source = name.replace("post_self_attn_layernorm", "input_layernorm_2")
        source = source.replace("post_mlp_layernorm", "post_attention_layernorm_2")
        if "gate_up_proj" in name:
            gate, up = (source.replace("gate_up", part) for part in ("gate", "up"))
            theirs[name] = torch.cat((ours[gate], ours[up]))
        elif "q_proj" in name or "k_proj" in name:
            # It pairs neighbouring channels, we pair channels half a head apart.
            halves = ours[source].view(4, 2, 3, 24)
            theirs[name] = halves.transpose(1, 2).reshape(24, 24)
        else:
            theirs[name] = ours[source]
    other.load_state_dict(theirs)
    torch.testing.assert_close(model(tokens).logits, other(tokens).logits, atol=2e-5, rtol=0.0)


def test_parameters_are_named_and_shaped_as_in_released_checkpoints(tiny: Build) -> None:
    h, f, v = 24, 40, 61
    layer = {
        "input_layernorm.weight": (h,),
        "input_layernorm_2.weight": (h,),
        "post_attention_layernorm.weight": (h,),
        "post_attention_layernorm_2.weight": (h,),
        "self_attn.q_proj.weight": (h, h),
        "self_attn.k_proj.weight": (h, h),
        "self_attn.v_proj.weight": (h, h),
        "self_attn.o_proj.weight": (h, h),
        "mlp.gate_proj.weight": (f, h),
        "mlp.up_proj.weight": (f, h),
        "mlp.down_proj.weight": (h, f),
    }
    expected = {
        "model.embed_tokens.weight": (v, h),
        "model.norm.weight": (h,),
        "model.early_exit_gate.weight": (1, h),
        "model.early_exit_gate.bias": (1,),
        "lm_head.weight": (v, h),
    } | {f"model.layers.{n}.{name}": shape for n in range(2) for name, shape in layer.items()}
    state = tiny(total_ut_steps=5).state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == expected


OURO_2_6B = Shape(
    num_hidden_layers=48,
    hidden_size=2048,
    intermediate_size=5632,
    num_attention_heads=16,
    head_dim=128,
    vocab_size=49_152,
)


@pytest.mark.parametrize(
    "shape",
    [
        *(resolve(spec, vocab_size=32_000) for spec in PRESETS.values()),
        resolve(SizeSpec(name="small", num_hidden_layers=3, hidden_size=128), vocab_size=512),
        OURO_2_6B,
    ],
)
def test_closed_form_counts_equal_the_model(shape: Shape) -> None:
    with torch.device("meta"):
        model = LoopLMForCausalLM(LoopLMConfig.from_shape(shape, recurrence=4))
    counts = count_parameters(shape)
    stack = model.model

    def size(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert size(model) == counts.total
    assert size(stack.embed_tokens) == counts.embedding
    assert size(stack.layers) == counts.looped
    assert size(stack.norm) == counts.final_norm
    assert size(stack.early_exit_gate) == counts.gate
    assert size(model.lm_head) == counts.head
    assert sum(p.numel() for p in stack.layers.parameters() if p.ndim == 2) == counts.matrices
    if shape is OURO_2_6B:
        assert counts.total == 2_667_974_657


def test_flops_equal_those_torch_counts_in_a_training_step() -> None:
    shape = resolve(SizeSpec(name="s", num_hidden_layers=2, hidden_size=32), vocab_size=64)
    recurrence, length, rows = 3, 16, 2
    config = LoopLMConfig.from_shape(shape, recurrence=recurrence)
    model = LoopLMForCausalLM(config)
    model.set_attn_implementation("eager")  # counts the full square, as the formula does
    ids = torch.zeros(rows, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        steps = model.steps(ids)
        losses = step_cross_entropy(steps.hidden, model.lm_head.weight, ids)
        looped_objective(losses, steps.gate_logits, beta=0.1, form="entropy").total_loss.backward()
    gate = 6 * shape.hidden_size * recurrence
    expected = training_flops_per_token(shape, recurrence, length) + gate
    assert counter.get_total_flops() == rows * length * expected


def test_new_models_start_at_the_asked_gains_and_bias() -> None:
    config = LoopLMConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        branch_gain=0.25,
        gate_bias=-1.0,
    )
    state = LoopLMForCausalLM(config).state_dict()
    for name, value in state.items():
        if name.endswith("layernorm_2.weight"):
            assert (value == 0.25).all(), name
        elif "norm" in name:
            assert (value == 1.0).all(), name
        elif value.ndim == 2 and "gate.weight" not in name:
            assert value.std().item() == pytest.approx(0.02, rel=0.05), name
    assert state["model.early_exit_gate.bias"].item() == -1.0


def test_a_saved_model_loads_bit_for_bit_through_the_auto_class(
    tiny: Build, tokens: Tensor, tmp_path: Path
) -> None:
    model = tiny(total_ut_steps=3, branch_gain=0.25, gate_bias=-1.0)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LoopLMForCausalLM
    for name, value in model.state_dict().items():
        assert value.equal(loaded.state_dict()[name]), name
    assert model(tokens).logits.equal(loaded.eval()(tokens).logits)


def test_tied_embeddings_are_one_matrix_also_when_loaded(
    tiny: Build, tokens: Tensor, tmp_path: Path
) -> None:
    model = tiny(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert model(tokens).logits.equal(loaded(tokens).logits)


def test_more_loops_only_add_steps(tiny: Build, tokens: Tensor) -> None:
    two, four = (tiny(total_ut_steps=loops).steps(tokens) for loops in (2, 4))
    assert two.hidden.equal(four.hidden[:2])
    assert two.gate_logits.equal(four.gate_logits[:2])


def test_forward_returns_the_last_loop_and_every_state(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=3)
    steps = model.steps(tokens)
    output = model(tokens, output_hidden_states=True)
    assert torch.stack(output.hidden_states_list).equal(steps.hidden)
    assert output.gate_logits.equal(steps.gate_logits)
    assert output.logits.equal(model.lm_head(steps.hidden[-1]))
    assert len(output.hidden_states) == 3 * 2 + 1
    assert output.hidden_states[0].equal(model.model.embed_tokens(tokens))
    assert output.hidden_states[-1].equal(steps.hidden[-1])


def test_attention_weights_are_given_for_every_layer_of_every_loop(
    tiny: Build, tokens: Tensor
) -> None:
    model = tiny(total_ut_steps=3)
    fused = model(tokens).logits
    model.set_attn_implementation("eager")
    output = model(tokens, output_attentions=True)
    assert [tuple(weights.shape) for weights in output.attentions] == [(2, 4, 11, 11)] * 6
    torch.testing.assert_close(
        output.attentions[5].sum(dim=-1), torch.ones(2, 4, 11), atol=1e-6, rtol=0.0
    )
    torch.testing.assert_close(output.logits, fused, atol=2e-5, rtol=0.0)


def test_loss_is_the_next_token_cross_entropy(tiny: Build, tokens: Tensor) -> None:
    output = tiny()(tokens, labels=tokens)
    log_probability = output.logits[:, :-1].log_softmax(dim=-1)
    expected = -log_probability.gather(-1, tokens[:, 1:, None]).mean()
    assert output.loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_grouped_keys_equal_the_same_heads_written_out(tiny: Build, tokens: Tensor) -> None:
    grouped = tiny(num_key_value_heads=2)
    full = tiny()
    state = dict(grouped.state_dict())
    for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
        state[name] = state[name].view(2, 6, 24).repeat_interleave(2, dim=0).reshape(24, 24)
    full.load_state_dict(state)
    torch.testing.assert_close(
        grouped.steps(tokens).hidden, full.steps(tokens).hidden, atol=1e-5, rtol=0.0
    )


def total_loss(model: LoopLMForCausalLM, tokens: Tensor) -> Tensor:
    steps = model.steps(tokens[:, :-1])
    losses = step_cross_entropy(steps.hidden, model.lm_head.weight, tokens[:, 1:])
    return looped_objective(losses, steps.gate_logits, beta=0.1, form="entropy").total_loss


def test_gradient_through_all_loops_agrees_with_finite_differences(
    tiny: Build, tokens: Tensor
) -> None:
    model = tiny(total_ut_steps=3, dtype=torch.float64)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(total_loss(model, tokens), parameters)
    assert all(gradient.abs().max() > 0.0 for gradient in gradients)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    slope = sum((g * d).sum().item() for g, d in zip(gradients, directions, strict=True))
    values = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=sign * 1e-6)
            values.append(total_loss(model, tokens).item())
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.sub_(direction, alpha=sign * 1e-6)
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-5)


def test_checkpointed_layers_have_the_same_gradient(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=3).train()
    plain = torch.autograd.grad(total_loss(model, tokens), list(model.parameters()))
    model.activation_checkpointing_enable()
    calls = []
    model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *_: calls.append(1))
    again = torch.autograd.grad(total_loss(model, tokens), list(model.parameters()))
    assert len(calls) == 2 * 3  # once forward and once for the backward pass, in each loop
    torch.testing.assert_close(plain, again)


def test_bf16_autocast_keeps_the_residual_stream_and_the_exits_in_32_bits(
    tiny: Build, tokens: Tensor
) -> None:
    model = tiny(total_ut_steps=3)
    exact = total_loss(model, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        steps = model.steps(tokens)
        loss = total_loss(model, tokens)
        cache = model(tokens).cache
    assert steps.hidden.dtype == loss.dtype == torch.float32
    assert {layer.keys.dtype for layer in cache.layers} == {torch.bfloat16}
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)
    (rounded,) = torch.autograd.grad(loss, model.model.norm.weight)
    (precise,) = torch.autograd.grad(exact, model.model.norm.weight)
    assert ((rounded - precise).norm() / precise.norm()).item() < 0.1


def test_inputs_are_ids_or_embeddings_but_not_both(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=2)
    embeddings = model.model.embed_tokens(tokens)
    assert model(inputs_embeds=embeddings).logits.equal(model(tokens).logits)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(tokens, inputs_embeds=embeddings)
