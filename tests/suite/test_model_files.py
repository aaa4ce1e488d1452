"""Models that pretraining cells have written: used only as they were written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from suite.corpora.byte_level import ByteTokenizer
from suite.errors import SuiteError
from suite.models import ModelSource, folder_digest
from suite.study import ModelSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and its tokenizer, as a pretraining cell leaves them."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    folder = tmp_path / "checkpoints" / "0123abcd" / "model"
    LlamaForCausalLM(config).save_pretrained(folder)
    ByteTokenizer().save(folder)
    return folder


def source(folder: Path, digest: str | None) -> ModelSource:
    spec = ModelSpec(size="tiny", recurrence=2)
    return ModelSource(spec=spec, folder=folder, identity="x", key="models[0]", digest=digest)


def test_a_model_loads_as_it_was_written(folder: Path) -> None:
    model, _ = source(folder, folder_digest(folder)).load(precision="32-true")
    plain, _ = source(folder, None).load(precision="32-true")
    for name, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_is_seen_before_the_model_is_loaded(
    folder: Path, name: str, seed: int
) -> None:
    written = source(folder, folder_digest(folder))
    chance = random.Random(seed)
    content = bytearray((folder / name).read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    (folder / name).write_bytes(content)
    with pytest.raises(SuiteError) as caught:
        written.load(precision="32-true")
    message = str(caught.value)
    assert f"the model in {folder} is not what its pretraining run has written" in message
    assert "delete the run 0123abcd in MLflow and run again" in message


def test_a_model_that_is_gone_or_cut_short_is_seen_too(folder: Path) -> None:
    written = source(folder, folder_digest(folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(SuiteError, match="not what its pretraining run has written"):
        written.load(precision="32-true")
    weights.unlink()
    with pytest.raises(SuiteError, match="not what its pretraining run has written"):
        written.load(precision="32-true")
