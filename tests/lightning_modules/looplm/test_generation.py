from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from lightning_modules.looplm.modeling import LoopLMForCausalLM

Build = Callable[..., LoopLMForCausalLM]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
@pytest.mark.parametrize("threshold", [1.0, 0.6])
@pytest.mark.parametrize("recurrence", [1, 3])
def test_cached_generation_equals_uncached(
    tiny: Build,
    tokens: Tensor,
    recurrence: int,
    threshold: float,
    dtype: torch.dtype,
    atol: float,
) -> None:
    model = tiny(total_ut_steps=recurrence, early_exit_threshold=threshold, dtype=dtype)
    cached, plain = (
        model.generate(
            tokens,
            max_new_tokens=12,
            do_sample=False,
            use_cache=use_cache,
            return_dict_in_generate=True,
            output_logits=True,
        )
        for use_cache in (True, False)
    )
    assert cached.sequences.shape == (2, 23)
    assert cached.sequences.equal(plain.sequences)
    torch.testing.assert_close(
        torch.stack(cached.logits), torch.stack(plain.logits), atol=atol, rtol=0.0
    )


@torch.no_grad()
def test_tokens_fed_in_uneven_pieces_give_the_logits_of_the_whole(
    tiny: Build, tokens: Tensor
) -> None:
    model = tiny(total_ut_steps=3, dtype=torch.float64)
    cache = DynamicCache(config=model.config)
    pieces = [model(piece, cache=cache).logits for piece in tokens.split([4, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).logits, atol=1e-12, rtol=0.0)


@torch.no_grad()
@pytest.mark.parametrize("grows", [True, False])
def test_cache_layer_of_loop_t_and_layer_l_is_t_times_layers_plus_l(
    tiny: Build, tokens: Tensor, grows: bool
) -> None:
    model = tiny(total_ut_steps=3)
    values: list[Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, output: values.append(output))
    cache = DynamicCache() if grows else DynamicCache(config=model.config)
    model(tokens, cache=cache)
    assert len(cache.layers) == len(values) == 6  # called loop by loop, layer by layer
    for stored, value in zip(cache.layers, values, strict=True):
        assert stored.values.transpose(1, 2).flatten(2).equal(value)


@torch.no_grad()
def test_padding_on_the_left_changes_nothing(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=3)
    short = tokens[:1, 4:]
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), short), dim=1)
    batch = torch.cat((padded, tokens[1:]))
    mask = torch.ones_like(batch)
    mask[0, :4] = 0
    logits = model(batch, attention_mask=mask).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1, 4:], model(short).logits, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(logits[1:], model(tokens[1:]).logits, atol=1e-5, rtol=0.0)
    settings = {"max_new_tokens": 8, "do_sample": False}
    together = model.generate(batch, attention_mask=mask, **settings)
    assert together[:1, 11:].equal(model.generate(short, **settings)[:, 7:])
    assert together[1:].equal(model.generate(tokens[1:], **settings))


@pytest.mark.parametrize(
    "settings", [{"cache_implementation": "static"}, {"num_beams": 3}, {"num_return_sequences": 1}]
)
def test_other_ways_to_generate_agree_with_no_cache(
    tiny: Build, tokens: Tensor, settings: dict[str, object]
) -> None:
    model = tiny(total_ut_steps=3)
    common = {"max_new_tokens": 8, "do_sample": False}
    plain = {name: value for name, value in settings.items() if name != "cache_implementation"}
    expected = model.generate(tokens, use_cache=False, **common, **plain)
    assert model.generate(tokens, **common, **settings).equal(expected)


@torch.no_grad()
def test_a_cache_filled_with_fewer_loops_is_refused(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=2)
    cache = model(tokens).cache
    model.config.total_ut_steps = 3
    with pytest.raises(ValueError, match="11 tokens for the first loop and 0 for the last"):
        model(tokens, cache=cache)


@torch.no_grad()
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.9])
def test_each_position_takes_the_logits_of_the_step_it_exits_at(
    tiny: Build, tokens: Tensor, threshold: float
) -> None:
    model = tiny(total_ut_steps=4, early_exit_threshold=threshold)
    output = model(tokens)
    leave = torch.sigmoid(output.gate_logits.double())
    seen = set()
    for row in range(2):
        for position in range(11):
            survival, step = 1.0, 0
            while step < 3:
                survival *= 1.0 - leave[step, row, position].item()
                if 1.0 - survival >= threshold:
                    break
                step += 1
            seen.add(step)
            expected = model.lm_head(output.hidden_states_list[step][row, position])
            torch.testing.assert_close(output.logits[row, position], expected, atol=1e-5, rtol=0.0)
    assert len(seen) > 1 or threshold == 0.0


@torch.no_grad()
def test_logits_are_made_for_the_asked_positions_only(tiny: Build, tokens: Tensor) -> None:
    model = tiny(total_ut_steps=2, early_exit_threshold=0.6)
    whole = model(tokens).logits
    torch.testing.assert_close(
        model(tokens, logits_to_keep=2).logits, whole[:, -2:], atol=1e-6, rtol=0.0
    )
