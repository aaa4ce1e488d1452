"""A folder that studies start from: small checkpoints and corpora."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM

from suite.corpora.byte_level import END_OF_TEXT, ByteTokenizer


def checkpoint(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    ByteTokenizer().save(folder)


def open_sequences_with_the_separator(folder: Path) -> None:
    """Let the tokenizer of a checkpoint put token 256 before a text, as others put BOS."""
    file = str(folder / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(file)
    backend.post_processor = TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 256)]
    )
    backend.save(file)


def write_corpus(path: Path, *, seed: int, documents: int = 60) -> None:
    """Documents of 1 to 50 letters; some are all sinks, some are cut in two."""
    letters = random.Random(seed)
    rows = (
        {"text": "".join(letters.choices("abcdefgh ", k=letters.randint(1, 50)))}
        for _ in range(documents)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints ``model``, ``other model``, ``half`` (in 16 bits), ``opening``; four corpora."""
    folder = tmp_path_factory.mktemp("base")
    checkpoint(folder / "model")
    checkpoint(folder / "other model", seed=1)
    checkpoint(folder / "opening")
    open_sequences_with_the_separator(folder / "opening")
    checkpoint(folder / "half", dtype=torch.bfloat16)
    for seed, name in enumerate(("one", "two", "three")):
        write_corpus(folder / f"{name}.jsonl", seed=seed)
    uneven = [{"text": chr(97 + number) * (5 if number % 3 else 300)} for number in range(24)]
    (folder / "uneven.jsonl").write_text("".join(json.dumps(row) + "\n" for row in uneven))
    return folder
