"""Cached moments: right to the token, made once, and the same whoever asked for what."""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaModel

from lightning_modules.kv.capture import KVCapture
from lightning_modules.kv.pair import StoredPair
from lightning_modules.kv_calibration import KVCalibration
from suite.corpora.byte_level import ByteTokenizer
from suite.corpora.tokens import cut, ordered, tokenised
from suite.errors import InputError, SuiteError
from suite.materials import Materials
from suite.models import ModelSource, find_checkpoint
from suite.progress import Display
from suite.stages.context import StageContext
from suite.stages.moments import MomentsCache
from suite.stopping import StopFlag, StopRequested
from suite.study import CalibrationSpec, CorpusSpec, KVShape, ModelSpec, Study, TrainerSpec
from suite.tracking.home import Home

KEY, SINKS, LENGTH = "calibration.models[0]", 3, 32
WIDTH = 2 * 8  # the one head of both layers, side by side


@dataclasses.dataclass(kw_only=True)
class Stage:
    """One process's view of the cache."""

    context: StageContext
    cache: MomentsCache
    source: ModelSource

    def ensure(self, *budgets: int, corpus: str = "one", evaluate_on: tuple[str, ...] = ()) -> None:
        self.cache.ensure(self.source, corpus, budgets=budgets, evaluate_on=evaluate_on)

    def at(self, tokens: int, corpus: str = "one") -> StoredPair:
        return self.cache.at(self.source, corpus, tokens)

    def evaluation(self, corpus: str) -> StoredPair:
        return self.cache.evaluation(self.source, corpus)

    def files(self) -> list[Path]:
        return sorted(self.context.home.cache.rglob("tokens-*.safetensors"))


Open = Callable[..., Stage]


@pytest.fixture
def start(base: Path, tmp_path: Path) -> Open:
    """Starts a process on a home, with a study of the settings that are given."""

    def build(
        *,
        home: str = "home",
        model: str = "model",
        shape: KVShape | None = None,
        seed: int = 0,
        precision: Any = "32-true",
        **settings: Any,
    ) -> Stage:
        spec = CalibrationSpec(
            **{
                "models": (ModelSpec(path=model, shape=shape),),
                "calibrate_on": ("one",),
                "evaluate_on": ("two",),
                "budgets": (100,),
                "rank": 4,
                "sequence_length": LENGTH,
                "batch_size": 4,
                "sinks": SINKS,
                "evaluation_tokens": 70,
                "trainer": TrainerSpec(accelerator="cpu", precision=precision),
                **settings,
            }
        )
        study = Study(
            name="s",
            seed=seed,
            corpora={
                name: CorpusSpec(source="files", path=f"{name}.jsonl", held_out=0.4)
                for name in ("one", "two", "three", "uneven")
            },
            calibration=spec,
        )
        place = Home.at(tmp_path / home)
        context = StageContext(
            study=study,
            home=place,
            materials=Materials(study, base, place),
            display=Display(Console(file=io.StringIO())),
            stop=StopFlag(),
        )
        source = find_checkpoint(spec.models[0], base=base, key=KEY)
        return Stage(context=context, cache=MomentsCache(context, spec), source=source)

    return build


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sequences in each forward pass of any model from now on, probes of its layout left out."""
    seen: list[int] = []
    probing: list[bool] = []
    construct = KVCapture.__init__

    def probe(capture: KVCapture, model: Any) -> None:
        probing.append(True)
        construct(capture, model)
        probing.pop()

    def count(module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> None:
        if isinstance(module, LlamaModel) and not probing:
            seen.append(len(keywords["input_ids"]))

    monkeypatch.setattr(KVCapture, "__init__", probe)
    handle = torch.nn.modules.module.register_module_forward_hook(count, with_kwargs=True)
    yield seen
    handle.remove()


def assert_same_bits(one: StoredPair, other: StoredPair) -> None:
    for kind in ("key", "value"):
        left, right = getattr(one, kind), getattr(other, kind)
        assert left.count == right.count
        assert torch.equal(left.mean, right.mean)
        assert torch.equal(left.scatter, right.scatter)


def rows_by_hand(
    stage: Stage, corpus: str, side: Any, *, opening: tuple[int, ...] = (), sinks: int = SINKS
) -> dict[str, Tensor]:
    """Keys and values of every kept token in 64 bits, document piece by document piece."""
    model = LlamaForCausalLM.from_pretrained(stage.source.folder, dtype=torch.float64).eval()
    outputs: dict[str, list[Tensor]] = {"k_proj": [], "v_proj": []}

    def keep(kind: str) -> Callable[[Any, Any, Tensor], None]:
        return lambda module, inputs, output: outputs[kind].append(output[0])

    for name, module in model.named_modules():
        if name.endswith(("k_proj", "v_proj")):
            module.register_forward_hook(keep(name.rsplit(".", 1)[-1]))
    (part,) = stage.context.materials.corpus(corpus).parts(side)
    rows: dict[str, list[Tensor]] = {"key": [], "value": []}
    documents = tokenised(ordered(part.documents, seed=0), ByteTokenizer())
    length = LENGTH - len(opening)
    for piece in (piece for document in documents for piece in cut(document, length)):
        with torch.no_grad():
            model(torch.tensor([[*opening, *piece.tolist()]]))
        for kind, name in (("key", "k_proj"), ("value", "v_proj")):
            rows[kind].append(torch.cat(outputs[name], dim=1)[sinks:])
            outputs[name].clear()
    return {kind: torch.cat(parts) for kind, parts in rows.items()}


def assert_moments_of(moments: StoredPair, rows: dict[str, Tensor], count: int) -> None:
    for kind in ("key", "value"):
        found, data = getattr(moments, kind), rows[kind][:count]
        assert found.count == len(data) == count
        assert found.width == WIDTH
        mean = data.mean(dim=0)
        scatter = (data - mean).T @ (data - mean)
        torch.testing.assert_close(found.mean, mean, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(found.scatter, scatter, rtol=1e-11, atol=1e-10)


# The second is stored in 16 bits and must be computed with in 64 all the same.
@pytest.mark.parametrize("model", ["model", "half"])
def test_moments_are_those_of_the_captured_rows(start: Open, model: str) -> None:
    stage = start(model=model, precision="64-true")
    stage.ensure(41, 100, 333, evaluate_on=("two", "three"))
    calibration = rows_by_hand(stage, "one", "train")
    for budget in (41, 100, 333):
        assert_moments_of(stage.at(budget), calibration, budget)
    for corpus in ("two", "three"):
        assert_moments_of(stage.evaluation(corpus), rows_by_hand(stage, corpus, "held_out"), 70)


@pytest.mark.parametrize("sinks", [SINKS, 0])
def test_sequences_begin_as_the_tokenizer_begins_them_and_that_token_is_no_row(
    start: Open, sinks: int
) -> None:
    stage = start(model="opening", precision="64-true", sinks=sinks)
    stage.ensure(100, 333, evaluate_on=("two",))
    left_out = max(sinks, 1)
    rows = rows_by_hand(stage, "one", "train", opening=(256,), sinks=left_out)
    for budget in (100, 333):
        assert_moments_of(stage.at(budget), rows, budget)
    held_out = rows_by_hand(stage, "two", "held_out", opening=(256,), sinks=left_out)
    assert_moments_of(stage.evaluation("two"), held_out, 70)


def test_a_row_that_is_not_finite_names_the_layer_and_the_text(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(model="opening")
    (part,) = stage.context.materials.corpus("one").parts("train")
    documents = [text for text in ordered(part.documents, seed=0) if len(text) >= SINKS]
    spoiled = documents[5]
    letters = ByteTokenizer().encode(spoiled)[: LENGTH - 1]
    load = LlamaForCausalLM.from_pretrained

    def spoiling(*args: Any, **kwargs: Any) -> Any:
        loaded = load(*args, **kwargs)
        model = loaded[0]
        seen: list[Tensor] = []
        model.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
        )

        def spoil(module: Any, inputs: Any, output: Tensor) -> Tensor:
            at = [row[1 : 1 + len(letters)].tolist() == letters for row in seen[-1]]
            return output.masked_fill(torch.tensor(at)[:, None, None], torch.nan)

        attention = model.model.layers[1].self_attn
        attention.k_proj.register_forward_hook(spoil)
        return loaded

    monkeypatch.setattr(LlamaForCausalLM, "from_pretrained", spoiling)
    with pytest.raises(SuiteError, match="keys of layer 1, loop 0 hold NaN") as caught:
        stage.ensure(333)
    assert repr(spoiled[: LENGTH - 1].strip()) in str(caught.value)
    assert not stage.files()


def test_single_precision_means_32_bits_whatever_the_checkpoint_is_stored_in(start: Open) -> None:
    exact = start(home="exact", model="half", precision="64-true")
    single = start(home="single", model="half", precision="32-true")
    for stage in (exact, single):
        stage.ensure(100)
    left, right = exact.at(100).key.scatter, single.at(100).key.scatter
    # 16-bit arithmetic would be off by a thousandth.
    assert float((left - right).norm() / left.norm()) < 1e-6


@pytest.mark.parametrize("others", [(41,), (99, 101), (333,), (650, 5, 333)])
def test_moments_do_not_depend_on_the_other_budgets(start: Open, others: tuple[int, ...]) -> None:
    alone = start(home="alone")
    alone.ensure(100)
    together = start(home="together")
    together.ensure(*others, 100)
    assert_same_bits(together.at(100), alone.at(100))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_budget_that_ends_inside_a_batch_computes_the_whole_batch(
    start: Open, forwards: list[int], seed: int
) -> None:
    """A short sequence that is padded to a long one gets other last bits than alone."""
    settings: dict[str, Any] = {"sequence_length": 300, "seed": seed}
    for budget in (2, 4, 310):
        start(home=f"alone {budget}", **settings).ensure(budget, corpus="uneven")
    assert set(forwards) == {4}
    together = start(home="together", **settings)
    together.ensure(2, 4, 310, 900, corpus="uneven")
    for budget in (2, 4, 310):
        alone = start(home=f"alone {budget}", **settings).at(budget, "uneven")
        assert_same_bits(together.at(budget, "uneven"), alone)


def test_a_larger_budget_goes_on_from_the_largest_that_is_there(
    start: Open, forwards: list[int]
) -> None:
    whole = start(home="whole")
    whole.ensure(333)
    at_once = len(forwards)
    for budget in (41, 170, 333):
        forwards.clear()
        start(home="grown").ensure(budget)
    assert 0 < len(forwards) < at_once
    assert_same_bits(start(home="grown").at(333), whole.at(333))
    assert len(start(home="grown").files()) == 3


def test_a_budget_between_two_that_are_there_starts_from_the_lower_one(start: Open) -> None:
    stage = start()
    stage.ensure(41, 333)
    whole = start(home="whole")
    whole.ensure(170)
    stage.ensure(170)
    assert_same_bits(stage.at(170), whole.at(170))


def test_what_is_cached_is_not_computed_again(
    start: Open, forwards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start()
    first.ensure(41, 100, evaluate_on=("two",))
    assert forwards
    forwards.clear()
    # A new process, and a study that differs in nothing that decides the moments.
    again = start(rank=7, niter=("exact",), evaluate_on=("three",), budgets=(41,))
    with monkeypatch.context() as patch:
        patch.setattr(ModelSource, "load", lambda *_, **__: pytest.fail("the model was loaded"))
        again.ensure(100, 41, evaluate_on=("two",))
    assert forwards == []
    assert_same_bits(again.at(100), first.at(100))
    # Another evaluation corpus costs its own pass and no more.
    again.ensure(100, evaluate_on=("two", "three"))
    documents = again.context.materials.corpus("three").side("held_out")
    assert sum(forwards) <= sum(-(-len(text) // LENGTH) for text in documents)
    assert len(again.files()) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other model"},
        {"seed": 1},
        {"sinks": 2},
        {"sequence_length": 20},
        {"batch_size": 3},
        {"precision": "bf16-mixed"},
    ],
)
def test_whatever_decides_the_moments_has_files_of_its_own(
    start: Open, forwards: list[int], changed: dict[str, Any]
) -> None:
    start().ensure(100)
    forwards.clear()
    other = start(**changed)
    other.ensure(100)
    assert forwards
    fresh = start(home="fresh", **changed)
    fresh.ensure(100)
    assert_same_bits(other.at(100), fresh.at(100))


def test_the_model_is_loaded_once_for_several_passes(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = ModelSource.load

    def counted(source: ModelSource, **settings: Any) -> Any:
        loads.append(source.identity)
        return load(source, **settings)

    monkeypatch.setattr(ModelSource, "load", counted)
    stage = start()
    stage.ensure(41)
    stage.ensure(100, evaluate_on=("two",))
    stage.ensure(41, corpus="three")
    assert loads == [stage.source.identity]


@pytest.mark.parametrize("kept", [0, 100, -8])
def test_a_damaged_file_is_reported_and_made_again(start: Open, kept: int) -> None:
    stage = start()
    stage.ensure(41, 100, evaluate_on=("two",))
    before = [stage.at(41), stage.at(100), stage.evaluation("two")]
    for path in stage.files():
        path.write_bytes(path.read_bytes()[:kept])
    with pytest.warns(
        UserWarning, match=r"tokens-\d+\.safetensors is damaged .* made again"
    ) as told:
        stage.ensure(41, 100, evaluate_on=("two",))
    assert len({str(each.message) for each in told if "damaged" in str(each.message)}) == 3
    for one, other in zip(
        before, [stage.at(41), stage.at(100), stage.evaluation("two")], strict=True
    ):
        assert_same_bits(one, other)


def test_a_pass_does_not_start_from_a_damaged_file(start: Open) -> None:
    whole = start(home="whole")
    whole.ensure(333)
    stage = start()
    stage.ensure(41, 100)
    damaged = stage.files()[0]
    assert damaged.name == "tokens-100.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    with pytest.warns(UserWarning, match=r"tokens-100\.safetensors is damaged"):
        stage.ensure(333)
    assert_same_bits(stage.at(333), whole.at(333))


def test_a_corpus_that_is_too_small_is_refused_with_the_tokens_it_has(start: Open) -> None:
    stage = start(evaluation_tokens=10**6)
    train, held_out = (
        len(rows_by_hand(stage, corpus, side)["key"])
        for corpus, side in (("one", "train"), ("two", "held_out"))
    )
    with pytest.raises(InputError, match=rf"training documents of 'one' give {train:,} ") as raised:
        stage.ensure(100, train + 1)
    assert raised.value.key == "calibration.budgets"
    with pytest.raises(
        InputError, match=f"held-out documents of 'two' give {held_out:,} "
    ) as raised:
        stage.ensure(100, evaluate_on=("two",))
    assert raised.value.key == "calibration.evaluation_tokens"
    # Nothing was computed before it was known, and the very last token can be had.
    assert stage.files() == []
    stage.ensure(train)
    assert stage.at(train).key.count == train


@pytest.mark.parametrize("heads", [1, 2])
def test_a_declared_shape_must_be_that_of_the_model(start: Open, heads: int) -> None:
    shape = KVShape(layers=2, heads=heads, head_dim=8, parameters=1)
    stage = start(shape=shape)
    if heads == 1:
        stage.ensure(41)
        return
    with pytest.raises(
        InputError, match=r"declares 32 features .* the loaded model has 16"
    ) as raised:
        stage.ensure(41)
    assert raised.value.key == f"{KEY}.shape"
    assert stage.files() == []


def test_several_devices_are_refused(start: Open) -> None:
    stage = start(trainer=TrainerSpec(accelerator="cpu", devices=2))
    with pytest.raises(InputError, match="2 devices; a calibration pass runs on 1") as raised:
        stage.ensure(41)
    assert raised.value.key == "calibration.trainer.devices"


def test_a_stopped_pass_goes_on_from_the_budgets_that_it_met(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = start(home="whole")
    whole.ensure(41, 170, 333, evaluate_on=("two",))
    stage = start()
    progress = stage.context.display.task

    def stopping(description: str, total: int) -> Any:
        stage.context.stop.requested = True
        return progress(description, total)

    monkeypatch.setattr(stage.context.display, "task", stopping)
    with pytest.raises(StopRequested):
        stage.ensure(41, 170, 333, evaluate_on=("two",))
    assert [path.name for path in stage.files()] == ["tokens-41.safetensors"]
    again = start()
    again.ensure(41, 170, 333, evaluate_on=("two",))
    for budget in (41, 170, 333):
        assert_same_bits(again.at(budget), whole.at(budget))
    assert_same_bits(again.evaluation("two"), whole.evaluation("two"))


def test_moments_follow_the_weights_that_a_cell_has_written(start: Open) -> None:
    """A cell that was trained anew has the fingerprint of the first and other weights."""
    stage = start()
    source = dataclasses.replace(stage.source, digest="f" * 16)
    folder = stage.cache._calibration_folder
    assert folder(source, "one") != folder(stage.source, "one")


def test_rotary_frequencies_stay_in_32_bits_when_the_model_has_16(
    start: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    step = KVCalibration.training_step

    def watched(module: KVCalibration, batch: Any, batch_idx: int) -> None:
        inner = module.model.model
        seen.append((inner.rotary_emb.inv_freq.dtype, inner.layers[0].mlp.up_proj.weight.dtype))
        step(module, batch, batch_idx)

    monkeypatch.setattr(KVCalibration, "training_step", watched)
    stage = start(precision="bf16-true")
    stage.ensure(41)
    assert set(seen) == {(torch.float32, torch.bfloat16)}


def test_a_budget_between_two_that_are_there_costs_no_token_twice(
    start: Open, forwards: list[int]
) -> None:
    settings: dict[str, Any] = {"batch_size": 1}
    whole = start(home="whole", **settings)
    whole.ensure(200, 690)
    at_once = len(forwards)
    stage = start(home="between", **settings)
    stage.ensure(100, 500)
    forwards.clear()
    start(home="between", **settings).ensure(200, 690)
    # from 100 to 200 and from 500 to 690, and the sequence that each of the ends lies in
    third = len(forwards)
    forwards.clear()
    start(home="longer", **settings).ensure(690)
    assert third < len(forwards) * 0.55
    assert at_once == len(forwards)
    for budget in (200, 690):
        assert_same_bits(start(home="between", **settings).at(budget), whole.at(budget))


@pytest.mark.parametrize("rotary", [True, False])
def test_sequences_beyond_the_positions_of_a_model(
    start: Open, base: Path, tmp_path: Path, rotary: bool
) -> None:
    torch.manual_seed(0)
    shape = {"vocab_size": 257, "max_position_embeddings": 20}
    if rotary:
        config = LlamaConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            **shape,
        )  # fmt: skip
        model: Any = LlamaForCausalLM(config)
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, **shape))
    model.save_pretrained(tmp_path / "short")
    ByteTokenizer().save(tmp_path / "short")
    stage = start(model=str(tmp_path / "short"))
    words = f"the longest sequence has {LENGTH} tokens and the model 20 positions"
    if rotary:
        stage.ensure(100)
        said = " ".join(stage.context.display.console.file.getvalue().split())
        assert f"warning: {words}; it was not trained beyond them" in said
    else:
        with pytest.raises(InputError, match=f"{words}; give at most 20") as caught:
            stage.ensure(100)
        assert caught.value.key == "calibration.sequence_length"
        start(model=str(tmp_path / "short"), sequence_length=20, home="fits").ensure(100)


def test_a_checkpoint_that_lacks_a_parameter_is_refused_but_for_its_head(
    start: Open, base: Path, tmp_path: Path
) -> None:
    whole = load_file(base / "model" / "model.safetensors")
    for name, lacking in (
        ("headless", "lm_head.weight"),
        ("broken", "model.layers.1.self_attn.v_proj.weight"),
    ):
        shutil.copytree(base / "model", tmp_path / name)
        parts = {key: tensor for key, tensor in whole.items() if key != lacking}
        assert len(parts) == len(whole) - 1
        save_file(parts, tmp_path / name / "model.safetensors", {"format": "pt"})
    headless = start(model=str(tmp_path / "headless"))
    headless.ensure(100)
    other = start(home="other")
    other.ensure(100)
    assert_same_bits(headless.at(100), other.at(100))
    with pytest.raises(
        InputError, match=r"lacks model\.layers\.1\.self_attn\.v_proj\.weight"
    ) as caught:
        start(model=str(tmp_path / "broken"), home="broken").ensure(100)
    assert caught.value.key == KEY
