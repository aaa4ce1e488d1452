from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig, DynamicCache

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.sizes import PRESETS, resolve

RELEASED = {
    "architectures": ["OuroForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_ouro.OuroConfig",
        "AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM",
    },
    "bos_token_id": 0,
    "early_exit_threshold": 1.0,
    "eos_token_id": 0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "layer_types": ["full_attention"] * 48,
    "max_position_embeddings": 65536,
    "max_window_layers": 48,
    "model_type": "ouro",
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 16,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "total_ut_steps": 4,
    "transformers_version": "4.55.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 49152,
}


def released(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(RELEASED | changes))
    return folder


def test_a_released_configuration_loads_without_remote_code(tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(released(tmp_path))
    assert type(config) is LoopLMConfig
    assert config.rope_parameters == {"rope_theta": 1_000_000.0, "rope_type": "default"}
    assert (config.total_ut_steps, config.early_exit_threshold) == (4, 1.0)
    assert config.num_cache_layers == 192
    # A window that is switched off must not shorten the cache.
    assert DynamicCache(config=config).is_sliding == [False] * 48


def test_a_saved_configuration_loads_equal(tmp_path: Path) -> None:
    config = LoopLMConfig(total_ut_steps=8, branch_gain=0.25, gate_bias=-1.0, rope_theta=5e4)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert (loaded.branch_gain, loaded.gate_bias, loaded.total_ut_steps) == (0.25, -1.0, 8)
    assert loaded.rope_parameters["rope_theta"] == 5e4
    assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()


def test_left_out_settings_follow_the_shape() -> None:
    shape = resolve(PRESETS["53M"], vocab_size=512)
    config = LoopLMConfig.from_shape(shape, recurrence=2, gate_bias=-1.0)
    assert (config.num_key_value_heads, config.head_dim) == (8, 64)
    assert (config.vocab_size, config.total_ut_steps, config.num_cache_layers) == (512, 2, 12)
    assert (config.gate_bias, config.branch_gain, config.tie_word_embeddings) == (-1.0, 1.0, False)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"total_ut_steps": 0}, "total_ut_steps is 0"),
        ({"early_exit_threshold": 1.5}, "early_exit_threshold is 1.5"),
        ({"num_attention_heads": 3}, "2048 is not a multiple of num_attention_heads 3"),
        ({"num_key_value_heads": 3}, "16 is not a multiple of num_key_value_heads 3"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(StrictDataclassClassValidationError, match=says):
        LoopLMConfig(**settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True},
        {"layer_types": ["full_attention"] * 47 + ["sliding_attention"]},
    ],
)
def test_sliding_windows_are_refused_rather_than_ignored(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="sliding-window attention is not supported"):
        AutoConfig.from_pretrained(released(tmp_path, **changes))
