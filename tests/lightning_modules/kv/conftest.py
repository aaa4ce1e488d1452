"""Tiny random models of many families, made from their configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from lightning_modules.kv import capture

Build = Callable[..., PreTrainedModel]

_WIDTHS: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_CONFIGS = {
    "Gemma3": "Gemma3TextConfig",
    "Gemma3n": "Gemma3nTextConfig",
    "Gemma4": "Gemma4TextConfig",
    "Llama4": "Llama4TextConfig",
    "Qwen3_5": "Qwen3_5TextConfig",
}
_HEADS = {"GPT2": "GPT2LMHeadModel", "Bert": "BertLMHeadModel"}


def _build(family: str, dtype: torch.dtype = torch.float64, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config_class = getattr(transformers, _CONFIGS.get(family, f"{family}Config"))
    model_class = getattr(transformers, _HEADS.get(family, f"{family}ForCausalLM"))
    usual = {
        name: width
        for name, width in _WIDTHS.items()
        if not isinstance(getattr(config_class, name, None), property)
    }
    model: PreTrainedModel = model_class(config_class(**(usual | settings)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Unit norms would not show whether a norm's gain was applied, zero biases nothing.
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype).eval()


@pytest.fixture
def tiny() -> Build:
    """Builds a model from the name of its family and settings beside the usual widths."""
    return _build


@pytest.fixture
def tokens() -> Callable[..., Tensor]:
    """Makes token ids ``[batch, length]``, the same for every test."""

    def make(batch: int = 2, length: int = 11) -> Tensor:
        return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(1))

    return make


@pytest.fixture
def only_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the hooks away, as if no projection had a name that is known."""
    monkeypatch.setattr(capture, "hook_route", lambda probe, rotations: None)
