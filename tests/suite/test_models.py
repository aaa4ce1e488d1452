"""Checkpoints found, digested and loaded, and every way in which that can be refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel, T5Config

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.modeling import LoopLMForCausalLM
from suite.corpora.byte_level import ByteTokenizer
from suite.errors import InputError
from suite.models import ModelSource, check_shape, find_checkpoint
from suite.study import KVShape, ModelSpec

KEY = "calibration.models[2]"
WIDTHS: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**WIDTHS))


def looped() -> PreTrainedModel:
    torch.manual_seed(0)
    return LoopLMForCausalLM(LoopLMConfig(total_ut_steps=2, **WIDTHS))


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    ByteTokenizer().save(folder)
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def find(path: str, base: Path, **settings: Any) -> ModelSource:
    return find_checkpoint(ModelSpec(path=path, **settings), base=base, key=KEY)


@pytest.mark.parametrize("build", [llama, looped])
def test_a_folder_gives_the_model_that_was_saved_and_its_tokenizer(
    tmp_path: Path, build: Any
) -> None:
    saved = build()
    save(saved.train(), tmp_path / "some" / "model")
    source = find("some/model", tmp_path)
    assert source.folder == tmp_path / "some" / "model"
    model, tokenizer = source.load(precision="32-true")
    assert type(model) is type(saved)
    assert not model.training
    for name, weight in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    text = "naïve\n"
    assert tokenizer.encode(text) == [*text.encode()]
    assert source.tokenizer().digest == tokenizer.digest


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("bf16-mixed", torch.float32),
        ("16-mixed", torch.float32),
        ("bf16-true", torch.bfloat16),
        ("64-true", torch.float64),
    ],
)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_have_the_precision_of_the_study_not_of_the_file(
    tmp_path: Path, precision: str, dtype: torch.dtype, stored: torch.dtype
) -> None:
    saved = llama().to(stored)
    save(saved, tmp_path / "model")
    model, _ = find("model", tmp_path).load(precision=precision)
    for name, weight in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.to(dtype))


def test_paths_start_from_the_study_and_may_be_absolute_or_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = save(llama(), tmp_path / "model")
    (tmp_path / "studies").mkdir()
    for path, base in (
        ("model", tmp_path),
        ("./model", tmp_path),
        ("../model", tmp_path / "studies"),
        (str(folder), Path("elsewhere")),
        ("~/model", Path("elsewhere")),
    ):
        assert find(path, base).identity == find("model", tmp_path).identity


def change_a_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] += 1e-6
    save_file(tensors, file, metadata={"format": "pt"})


def change_the_configuration(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rms_norm_eps": 1e-5}))


def change_the_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    vocabulary = json.loads(file.read_text())
    letters = vocabulary["model"]["vocab"]
    letters["A"], letters["B"] = letters["B"], letters["A"]
    file.write_text(json.dumps(vocabulary))


def name_the_shard_otherwise(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")


@pytest.mark.parametrize(
    "change",
    [change_a_weight, change_the_configuration, change_the_tokenizer, name_the_shard_otherwise],
)
def test_the_identity_changes_with_whatever_decides_the_activations(
    tmp_path: Path, change: Any
) -> None:
    save(llama(), tmp_path / "model")
    before = find("model", tmp_path).identity
    change(tmp_path / "model")
    assert find("model", tmp_path).identity != before
    assert len(before) == 16


def test_the_identity_does_not_change_with_anything_else(tmp_path: Path) -> None:
    save(llama(), tmp_path / "model")
    before = find("model", tmp_path).identity
    (tmp_path / "model" / "README.md").write_text("about it")
    shutil.copytree(tmp_path / "model", tmp_path / "elsewhere" / "copy")
    assert find("model", tmp_path).identity == before
    assert find("elsewhere/copy", tmp_path, label="another name").identity == before


@pytest.mark.parametrize("path", ["./missing", "/no/such/folder", "~/missing"])
def test_a_folder_that_is_not_there_is_refused_with_its_key(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match=f"there is no folder '{path}'") as raised:
        find(path, tmp_path)
    assert raised.value.key == f"{KEY}.path"


def test_a_hub_model_that_cannot_be_reached_is_refused_with_the_cures(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'no-one/no-model' on the hub .* local folder") as raised:
        find("no-one/no-model", tmp_path)
    assert raised.value.key == f"{KEY}.path"


def test_a_hub_model_at_a_commit_is_that_commit_without_asking_the_hub(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    source = find("no-one/no-model", tmp_path, revision=commit)
    assert (source.folder, source.identity) == (None, commit)
    with pytest.raises(InputError, match="no-one/no-model") as raised:
        source.load(precision="32-true")
    assert raised.value.key == KEY


@pytest.mark.parametrize("commit", ["abc", None])
def test_a_hub_model_without_a_revision_is_its_commit_at_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None
) -> None:
    found = SimpleNamespace(_commit_hash=commit)
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *args, **settings: found)
    if commit:
        assert find("some-one/model", tmp_path).identity == commit
        return
    with pytest.raises(InputError, match="is not known; set revision") as raised:
        find("some-one/model", tmp_path)
    assert raised.value.key == f"{KEY}.revision"


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=257, d_model=16, num_layers=1).save_pretrained(tmp_path / "model")
    ByteTokenizer().save(tmp_path / "model")
    with pytest.raises(InputError, match=r"cannot load the model 'model'.*T5Config") as raised:
        find("model", tmp_path).load(precision="32-true")
    assert raised.value.key == KEY
    assert "causal language model" in str(raised.value)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_that_lacks_a_part_is_refused(tmp_path: Path, missing: str) -> None:
    save(llama(), tmp_path / "model")
    (tmp_path / "model" / missing).unlink()
    with pytest.raises(InputError, match="cannot load") as raised:
        find("model", tmp_path).load(precision="32-true")
    assert raised.value.key == KEY


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match="cannot load the tokenizer") as raised:
        find("model", tmp_path).load(precision="32-true")
    assert raised.value.key == KEY


@pytest.mark.parametrize("absent", ["gguf", "accelerate"])
def test_gguf_without_its_packages_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else there)
    with pytest.raises(InputError, match=rf"package {absent}; .*loopkv-suite\[gguf\]") as raised:
        find(".", tmp_path, gguf_file="model.gguf")
    assert raised.value.key == f"{KEY}.gguf_file"


def test_a_gguf_file_is_looked_for_in_its_folder_and_alone_decides_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)
    with pytest.raises(InputError, match=r"no file 'a\.gguf' in") as raised:
        find(".", tmp_path, gguf_file="a.gguf")
    assert raised.value.key == f"{KEY}.gguf_file"
    (tmp_path / "a.gguf").write_bytes(b"one")
    before = find(".", tmp_path, gguf_file="a.gguf").identity
    (tmp_path / "b.gguf").write_bytes(b"two")
    assert find(".", tmp_path, gguf_file="a.gguf").identity == before
    assert find(".", tmp_path, gguf_file="b.gguf").identity != before


def test_a_declared_shape_is_compared_with_the_loaded_model() -> None:
    shape = KVShape(layers=30, heads=3, head_dim=64, parameters=1)
    check_shape(None, key_width=1, key=KEY)
    check_shape(shape, key_width=5760, key=KEY)
    with pytest.raises(InputError, match=r"declares 5760 features .* has 5761") as raised:
        check_shape(shape, key_width=5761, key=KEY)
    assert raised.value.key == f"{KEY}.shape"
