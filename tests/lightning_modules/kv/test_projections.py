from __future__ import annotations

from collections.abc import Callable

import pytest
import transformers
from torch import nn

from lightning_modules.kv.capture import KVCapture
from suite.errors import InputError


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)
    )


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
        transformers.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)
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


def nanochat() -> nn.Module:
    # Its norm comes after rotary embedding, so what the norm puts out is rotated already.
    return transformers.NanoChatForCausalLM(
        transformers.NanoChatConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (gpt2, "GPT2LMHeadModel has no k_proj and v_proj"),
        (mamba, "MambaForCausalLM has no k_proj and v_proj"),
        (bart, "BartForConditionalGeneration is an encoder-decoder"),
        (clip, "CLIPVisionModel does not attend causally"),
        (nanochat, "NanoChatAttention changes keys between k_proj and its norm"),
    ],
)
def test_other_models_are_refused_in_one_line(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(InputError) as caught:
        KVCapture(build())
    assert str(caught.value).startswith(message)
    assert "supported are decoder-only models" in str(caught.value)
    assert "\n" not in str(caught.value)
