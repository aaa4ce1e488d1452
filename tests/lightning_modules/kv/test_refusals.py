"""Models that keep no keys and values, or hide how they turn them, are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from lightning_modules.kv.capture import KVCapture
from suite.errors import InputError

Build = Callable[..., PreTrainedModel]
WIDTHS: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16}


def bart() -> nn.Module:
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=64,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
        )
    )


def mamba() -> nn.Module:
    return transformers.MambaForCausalLM(
        transformers.MambaConfig(num_hidden_layers=1, state_size=4, **WIDTHS)
    )


def rwkv() -> nn.Module:
    return transformers.RwkvForCausalLM(transformers.RwkvConfig(num_hidden_layers=2, **WIDTHS))


def bert() -> nn.Module:
    return transformers.BertLMHeadModel(
        transformers.BertConfig(
            num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, **WIDTHS
        )
    )


def xlm() -> nn.Module:
    return transformers.XLMWithLMHeadModel(
        transformers.XLMConfig(vocab_size=64, emb_dim=16, n_layers=1, n_heads=2, causal=False)
    )


def clip() -> nn.Module:
    return transformers.CLIPVisionModel(
        transformers.CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=8,
            patch_size=4,
        )
    )


def cpmant() -> nn.Module:
    return transformers.CpmAntForCausalLM(
        transformers.CpmAntConfig(
            vocab_size=64,
            hidden_size=16,
            num_attention_heads=2,
            dim_head=8,
            dim_ff=16,
            num_hidden_layers=1,
            prompt_length=4,
        )
    )


def roformer() -> nn.Module:
    return transformers.RoFormerForCausalLM(
        transformers.RoFormerConfig(
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            is_decoder=True,
            **WIDTHS,
        )
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (bart, "BartForConditionalGeneration is an encoder-decoder"),
        (mamba, "MambaForCausalLM stores no keys and values on text"),
        (rwkv, "RwkvForCausalLM takes no cache of keys and values"),
        (bert, "BertLMHeadModel does not attend causally"),
        (xlm, "XLMWithLMHeadModel does not attend causally"),
        (clip, "CLIPVisionModel does not attend causally"),
        (cpmant, "CpmAntForCausalLM stores 6 rows for 2 tokens in layer 0"),
        (roformer, "RoFormerForCausalLM takes no position_ids, so nothing tells whether"),
    ],
)
def test_a_model_of_another_kind_is_refused_in_one_line(
    build: Callable[[], nn.Module], message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError) as caught:
        KVCapture(build())
    assert str(caught.value).startswith(message)
    assert "supported are decoder-only models" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_on_text_is_refused_with_what_it_said(tiny: Build) -> None:
    model = tiny("Llama")

    def fail(module: nn.Module, inputs: Any) -> None:
        raise ValueError("wants an image\nand more")

    model.model.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(InputError, match=r"\(ValueError: wants an image\); supported") as caught:
        KVCapture(model)
    assert "\n" not in str(caught.value)


def test_keys_that_are_turned_in_an_unknown_way_are_refused_if_no_module_shows_them(
    tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("NanoChat")
    # As where the angles are made in the attention itself.
    monkeypatch.setattr("lightning_modules.kv._probe.rotary_modules", lambda model: [])
    message = "NanoChatForCausalLM turns the keys of layer 0 in a way that no rotary module tells"
    with pytest.raises(InputError, match=message):
        KVCapture(model)


def test_keys_that_are_turned_in_an_unknown_way_are_read_before_it_where_they_show(
    tiny: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_modules.kv._probe.rotary_modules", lambda model: [])
    assert KVCapture(tiny("Phi3")).route == "hooks: Phi3Attention qkv_proj"
    assert KVCapture(tiny("Qwen3")).route == "hooks: Qwen3Attention k_norm, v_proj"
