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
from tokenizers import pre_tokenizers
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
    with pytest.raises(
        InputError, match=r"'no-one/no-model' from the hub .* local folder"
    ) as raised:
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
        found_model = find("some-one/model", tmp_path)
        assert (found_model.identity, found_model.commit) == (commit, commit)
        own_code = find("some-one/model", tmp_path, trust_remote_code=True)
        assert own_code.identity != commit, "other code may give other activations"
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


def write_gguf(model: PreTrainedModel, file: Path) -> None:
    """Writes a Llama with a tokenizer of about one token a byte, as llama.cpp lays them out."""
    writer = pytest.importorskip("gguf").GGUFWriter(file, "llama")
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # transformers wants at least one merge.
    writer.add_token_list([*alphabet, "zz", "<|endoftext|>"])
    writer.add_token_types([1] * (len(alphabet) + 1) + [3])
    writer.add_token_merges(["z z"])
    writer.add_eos_token_id(len(alphabet) + 1)
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in parts.items():
            names[f"model.layers.{layer}.{ours}.weight"] = f"blk.{layer}.{theirs}.weight"
    for name, weight in model.state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            # llama.cpp pairs neighbouring columns in rotary embedding, transformers halves
            heads = weight.unflatten(0, (config.num_attention_heads, 2, -1))
            weight = heads.transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names[name], weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("by_path", [True, False])
def test_a_gguf_file_gives_the_model_that_was_written_and_its_tokenizer(
    tmp_path: Path, by_path: bool
) -> None:
    torch.manual_seed(0)
    saved = LlamaForCausalLM(LlamaConfig(**(WIDTHS | {"vocab_size": 258})))
    write_gguf(saved, tmp_path / "tiny.gguf")
    named = find(".", tmp_path, gguf_file="tiny.gguf")
    source = find("tiny.gguf", tmp_path) if by_path else named
    assert (source.identity, source.spec.gguf_file) == (named.identity, "tiny.gguf")
    model, tokenizer = source.load(precision="32-true")
    assert type(model) is LlamaForCausalLM
    for name, weight in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    text = "naïve\n"
    assert len(tokenizer.encode(text)) == len(text.encode())


@pytest.mark.parametrize("reachable", [True, False])
def test_a_gguf_file_of_the_hub_is_known_without_being_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    asked: list[str] = []

    def metadata(url: str) -> SimpleNamespace:
        asked.append(url)
        if not reachable:
            raise ConnectionError
        return SimpleNamespace(commit_hash=commit)

    def cached(path: str, file: str, *, revision: str, local_files_only: bool) -> str:
        assert (path, file, revision, local_files_only) == ("some-one/model", "a.gguf", "v1", True)
        return f"/cache/models--some-one--model/snapshots/{commit}/a.gguf"

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", metadata)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", cached)
    source = find("some-one/model/a.gguf", tmp_path, revision="v1")
    assert (source.name, source.commit) == ("some-one/model", commit)
    other = find("some-one/model/b.gguf", tmp_path, revision=commit)
    assert other.commit == commit
    assert len({source.identity, other.identity, commit}) == 3, "two files are two models"
    assert asked == ["https://huggingface.co/some-one/model/resolve/v1/a.gguf"]


def test_code_of_a_checkpoint_is_not_run_unless_asked_for(tmp_path: Path) -> None:
    folder = save(llama(), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "of_its_own",
        "auto_map": {
            "AutoConfig": "code.Config",
            "AutoModelForCausalLM": "code.Model",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="trust_remote_code") as raised:
        find("model", tmp_path).load(precision="32-true")
    assert raised.value.key == KEY
    assert not (tmp_path / "ran").exists()
