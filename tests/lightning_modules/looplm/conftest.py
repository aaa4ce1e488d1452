from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.modeling import LoopLMForCausalLM

TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    # Far above the default, so that logits differ by more than rounding.
    "initializer_range": 0.2,
}


@pytest.fixture
def tiny() -> Callable[..., LoopLMForCausalLM]:
    """A seeded small model in evaluation mode, whose gains and biases are not at their start."""

    def build(*, dtype: torch.dtype = torch.float32, **settings: Any) -> LoopLMForCausalLM:
        torch.manual_seed(0)
        model = LoopLMForCausalLM(LoopLMConfig(**(TINY | settings)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
        return model.to(dtype).eval()

    return build


@pytest.fixture
def tokens() -> torch.Tensor:
    """Token ids, ``[2, 11]``."""
    return torch.randint(0, TINY["vocab_size"], (2, 11), generator=torch.Generator().manual_seed(1))
