"""One pass over documents: budgets met to the token, and bits that nothing else decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from lightning_modules.kv import compute_basis
from lightning_modules.kv.capture import KVCapture, NonFiniteActivationError
from lightning_modules.kv.pair import CentredPair, MomentsPair
from lightning_modules.kv_calibration import (
    KVCalibration,
    PieceBatch,
    UnpaddedBatch,
    collate,
    piece_loader,
)
from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.modeling import LoopLMForCausalLM
from suite.corpora.tokens import CalibrationPiece
from suite.stopping import StopFlag, StopRequested

# A pass without an optimiser over a model in evaluation mode is what is meant.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*{words}.*")
    for words in ("LeafSpec", "in eval mode", "returned `None`", "no `val_dataloader`", "workers")
]

SINKS = 2
WIDTHS: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    # Large and noisy, so that a mode other than evaluation would show.
    "initializer_range": 0.4,
    "attention_dropout": 0.5,
}


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, head_dim=8, **WIDTHS))


def looped() -> PreTrainedModel:
    torch.manual_seed(0)
    return LoopLMForCausalLM(LoopLMConfig(total_ut_steps=2, **WIDTHS))


def documents(seed: int, count: int = 14) -> list[CalibrationPiece]:
    """Pieces of 3 to 12 tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 32, generator.integers(3, 13)) for _ in range(count)]


CALIBRATION = documents(0)
EVALUATION = {"one": documents(1), "two": documents(2)}
KEPT = sum(len(piece) - SINKS for piece in CALIBRATION)


def rows_by_hand(model: PreTrainedModel, pieces: Sequence[CalibrationPiece]) -> dict[str, Tensor]:
    """Keys and values of all kept tokens: piece by piece, without padding or batches."""
    outputs: dict[str, list[Tensor]] = {"k_proj": [], "v_proj": []}

    def keep(kind: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda module, inputs, output: outputs[kind].append(output[0])

    handles = [
        module.register_forward_hook(keep(name.rsplit(".", 1)[-1]))
        for name, module in model.named_modules()
        if name.endswith(("k_proj", "v_proj"))
    ]
    rows: dict[str, list[Tensor]] = {"key": [], "value": []}
    for piece in pieces:
        with torch.no_grad():
            model(torch.from_numpy(piece)[None])
        for kind, name in (("key", "k_proj"), ("value", "v_proj")):
            rows[kind].append(torch.cat(outputs[name], dim=1)[SINKS:])
            outputs[name].clear()
    for handle in handles:
        handle.remove()
    return {kind: torch.cat(parts).double() for kind, parts in rows.items()}


@dataclass(kw_only=True)
class Pass:
    """One pass and what it handed over.

    Attributes:
        folder: where every budget's running state was saved, as the suite does.
        stop_at: tokens, or an evaluation corpus, after which a signal comes.
        met: moments by budget.
        evaluated: moments by evaluation corpus.
        progress: tokens after each batch.
        stop: the flag it was given.
    """

    folder: Path
    stop_at: int | str | None = None
    met: dict[int, CentredPair] = field(default_factory=dict)
    evaluated: dict[str, CentredPair] = field(default_factory=dict)
    progress: list[int] = field(default_factory=list)
    stop: StopFlag = field(default_factory=StopFlag)

    def on_budget(self, tokens: int, moments: MomentsPair) -> None:
        moments.save(self.folder / f"{tokens}.safetensors")
        self.met[tokens] = moments.centred()
        self.stop.requested |= tokens == self.stop_at

    def on_evaluated(self, name: str, moments: MomentsPair) -> None:
        self.evaluated[name] = moments.centred()
        self.stop.requested |= name == self.stop_at


Calibrate = Callable[..., Pass]


@pytest.fixture
def calibrate(tmp_path: Path) -> Calibrate:
    """Runs a pass over the calibration pieces, the evaluation pieces, or both."""

    def run(
        model: PreTrainedModel,
        *budgets: int,
        evaluate: bool = False,
        precision: Any = "64-true",
        resume: Path | None = None,
        into: Pass | None = None,
        evaluation_tokens: int = 40,
        num_workers: int = 0,
    ) -> Pass:
        done = into or Pass(folder=tmp_path)
        resumed = MomentsPair.load(resume) if resume else None
        with KVCapture(model) as capture:
            module = KVCalibration(
                model,
                capture,
                budgets=budgets,
                sinks=SINKS,
                evaluation_tokens=evaluation_tokens,
                evaluate_on=[*EVALUATION],
                on_budget=done.on_budget,
                on_evaluated=done.on_evaluated,
                on_progress=done.progress.append,
                stop=done.stop,
                resume=resumed,
                skip_tokens=resumed.num_rows if resumed else 0,
            )
            trainer = Trainer(
                accelerator="cpu",
                precision=precision,
                max_epochs=1,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                logger=False,
                default_root_dir=tmp_path,
            )
            cut = {"batch_size": 4, "sinks": SINKS, "num_workers": num_workers}
            if budgets:
                start = resumed.num_rows if resumed else 0
                loader = piece_loader(CALIBRATION, skip_tokens=start, **cut)
                trainer.fit(module, train_dataloaders=loader)
            if evaluate:
                loaders = [piece_loader(pieces, **cut) for pieces in EVALUATION.values()]
                trainer.validate(module, dataloaders=loaders, verbose=False)
        return done

    return run


def assert_same_bits(one: CentredPair, other: CentredPair) -> None:
    for kind in ("key", "value"):
        left, right = getattr(one, kind), getattr(other, kind)
        assert left.count == right.count
        assert torch.equal(left.mean, right.mean)
        assert torch.equal(left.scatter, right.scatter)


def assert_moments_of(moments: CentredPair, rows: dict[str, Tensor], count: int) -> None:
    for kind in ("key", "value"):
        found, data = getattr(moments, kind), rows[kind][:count]
        assert found.count == count
        mean = data.mean(dim=0)
        scatter = (data - mean).T @ (data - mean)
        torch.testing.assert_close(found.mean, mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.scatter, scatter, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("build", [llama, looped])
def test_moments_at_every_budget_are_those_of_the_first_kept_tokens(
    calibrate: Calibrate, build: Callable[[], PreTrainedModel]
) -> None:
    """The reference sees no padding at all, and no batch."""
    model = build()
    # within the first batch, twice; across batches; the last token there is
    budgets = (5, 6, 51, KEPT)
    done = calibrate(model, *budgets)
    rows = rows_by_hand(model.double().eval(), CALIBRATION)
    assert [*done.met] == [*budgets]
    for budget, moments in done.met.items():
        assert_moments_of(moments, rows, budget)


def test_evaluation_corpora_are_counted_to_the_token(calibrate: Calibrate) -> None:
    model = llama()
    done = calibrate(model, 20, evaluate=True, evaluation_tokens=41)
    assert [*done.evaluated] == ["one", "two"]
    model.double().eval()
    for name, moments in done.evaluated.items():
        assert_moments_of(moments, rows_by_hand(model, EVALUATION[name]), 41)


def test_evaluation_works_without_a_calibration_pass(calibrate: Calibrate) -> None:
    both, alone = calibrate(llama(), 20, evaluate=True), calibrate(llama(), evaluate=True)
    assert not alone.met
    for name in EVALUATION:
        assert_same_bits(alone.evaluated[name], both.evaluated[name])


@pytest.mark.parametrize("others", [(), (17,), (16, 18), (1, 2, 3, 40, 60, KEPT)])
def test_other_budgets_do_not_change_a_bit(calibrate: Calibrate, others: tuple[int, ...]) -> None:
    expected = calibrate(llama(), 17, precision="32-true").met[17]
    budgets = sorted({17, *others})
    assert_same_bits(calibrate(llama(), *budgets, precision="32-true").met[17], expected)


@pytest.mark.parametrize("saved", [1, 5, 33, 38, 45])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_resumed_pass_equals_an_undisturbed_one_to_the_bit(
    calibrate: Calibrate, tmp_path: Path, saved: int, precision: str
) -> None:
    undisturbed = calibrate(llama(), 46, KEPT, precision=precision)
    calibrate(llama(), saved, precision=precision)
    resumed = calibrate(
        llama(), 46, KEPT, precision=precision, resume=tmp_path / f"{saved}.safetensors"
    )
    for budget in (46, KEPT):
        assert_same_bits(resumed.met[budget], undisturbed.met[budget])
    # Batches whose tokens are all there already are not computed again.
    computed = [tokens for tokens in undisturbed.progress if tokens > saved]
    assert resumed.progress == computed


def test_seconds_go_on_where_the_earlier_pass_left_them(
    calibrate: Calibrate, tmp_path: Path
) -> None:
    first = calibrate(llama(), 5, 20)
    assert 0 < first.met[5].seconds < first.met[20].seconds
    second = calibrate(llama(), 40, resume=tmp_path / "20.safetensors")
    assert second.met[40].seconds > first.met[20].seconds


def test_the_pass_ends_with_the_batch_that_meets_the_last_budget(calibrate: Calibrate) -> None:
    kept = [len(piece) - SINKS for piece in CALIBRATION]
    in_batches = np.cumsum([sum(kept[start : start + 4]) for start in range(0, 14, 4)])
    done = calibrate(llama(), 5, int(in_batches[0]) + 1)
    assert done.progress == [in_batches[0], in_batches[0] + 1]


def test_a_stopped_pass_keeps_the_budgets_that_it_met(calibrate: Calibrate, tmp_path: Path) -> None:
    whole = calibrate(llama(), 5, 51, KEPT)
    cut = calibrate(llama(), 5, 51, KEPT, into=Pass(folder=tmp_path, stop_at=5))
    assert [*cut.met] == [5]
    assert len(cut.progress) == 1
    assert_same_bits(cut.met[5], whole.met[5])


def test_a_stopped_evaluation_keeps_the_corpora_that_it_finished(
    calibrate: Calibrate, tmp_path: Path
) -> None:
    whole = calibrate(llama(), evaluate=True)
    cut = Pass(folder=tmp_path, stop_at="one")
    with pytest.raises(StopRequested):
        calibrate(llama(), evaluate=True, into=cut)
    assert [*cut.evaluated] == ["one"]
    assert_same_bits(cut.evaluated["one"], whole.evaluated["one"])


def test_loader_workers_change_nothing(calibrate: Calibrate) -> None:
    alone, helped = calibrate(llama(), 30), calibrate(llama(), 30, num_workers=1)
    assert_same_bits(alone.met[30], helped.met[30])


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_sixteen_bit_precisions_stay_close(calibrate: Calibrate, precision: str) -> None:
    wide = calibrate(llama(), KEPT).met[KEPT]
    narrow = calibrate(llama(), KEPT, precision=precision).met[KEPT]
    for kind in ("key", "value"):
        left, right = getattr(wide, kind).scatter, getattr(narrow, kind).scatter
        assert not torch.equal(left, right)
        assert float((left - right).norm() / left.norm()) < 0.02


def test_a_row_that_is_not_finite_ends_the_pass_and_leaves_no_hooks(calibrate: Calibrate) -> None:
    model = llama().train()
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.fill_(torch.inf)
    with pytest.raises(NonFiniteActivationError, match="values of layer 1"):
        calibrate(model, 5)
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training


@pytest.mark.parametrize("evaluate", [False, True])
def test_sums_are_let_go_when_a_pass_ends(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch, evaluate: bool
) -> None:
    made: list[MomentsPair] = []
    fresh = KVCalibration._fresh

    def watched(module: KVCalibration) -> MomentsPair:
        made.append(fresh(module))
        return made[-1]

    monkeypatch.setattr(KVCalibration, "_fresh", watched)
    calibrate(llama(), *(() if evaluate else (5,)), evaluate=evaluate)
    assert made
    assert all(len(pair.key.outer) == 0 for pair in made)


def test_padding_sinks_and_dropped_ends_are_not_kept() -> None:
    pieces = [np.arange(5), np.arange(2), np.arange(3)]
    batch = collate(UnpaddedBatch(pieces, 4, 9))
    assert batch.input_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 0, 0], [0, 1, 2, 0, 0]]
    assert (batch.first, batch.following) == (4, 9)
    kept = batch.kept(SINKS)
    assert kept.int().tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    # Asking twice, or for no sinks, gives the same: the mask itself is left alone.
    assert torch.equal(batch.kept(SINKS), kept)
    assert int(batch.kept(0).sum()) == 10
    ends = batch.kept(1, drop_last=2)
    assert ends.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def numbers_of(batches: Iterable[PieceBatch]) -> list[list[int]]:
    return [batch.input_ids[:, 0].tolist() for batch in batches]


# Piece i is full of i and keeps one token fewer than it has: batches keep 6, 12, 12 and 6.
UNEVEN = [
    np.full(length, number, dtype=np.int64) for number, length in enumerate([3, 5, 7, 7, 4, 10, 7])
]
EVERYTHING = [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize(
    ("skip", "first"), [(0, 0), (5, 0), (6, 1), (17, 1), (18, 2), (29, 2), (30, 3), (36, 4)]
)
def test_batches_before_the_skipped_tokens_are_left_out(skip: int, first: int) -> None:
    batches = [*piece_loader(UNEVEN, batch_size=2, sinks=1, skip_tokens=skip)]
    assert numbers_of(batches) == EVERYTHING[first:]
    assert [batch.first for batch in batches] == [0, 6, 18, 30][first:]
    assert [batch.following for batch in batches] == [6, 18, 30, 36][first:]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_take_the_batches_in_turn(ranks: int) -> None:
    shares = [
        [*piece_loader(UNEVEN, batch_size=2, sinks=1, rank=rank, ranks=ranks)]
        for rank in range(ranks)
    ]
    for rank, share in enumerate(shares):
        assert numbers_of(share) == EVERYTHING[rank::ranks]
        firsts = [batch.first for batch in share]
        assert firsts == [0, 6, 18, 30][rank::ranks]
        # nothing of this rank lies between a batch and where its next one starts
        assert [batch.following for batch in share] == [*firsts[1:], 36]
    with pytest.raises(ValueError, match="4 batches are too few for 5 ranks"):
        piece_loader(UNEVEN, batch_size=2, sinks=1, rank=4, ranks=5)


def test_dropped_ends_are_counted_out() -> None:
    batches = [*piece_loader(UNEVEN, batch_size=2, sinks=1, drop_last=3)]
    assert [batch.following for batch in batches] == [1, 7, 13, 16]
    for batch in batches:
        assert int(batch.kept(1, drop_last=3).sum()) == batch.following - batch.first


def _rank_of_two(rank: int, folder: str, resumed: bool) -> None:
    """One process of two, each with its own model, batches and trainer."""
    import torch.distributed as dist

    place = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    earlier = MomentsPair.load(place / "earlier.safetensors") if resumed else None
    start = earlier.num_rows if earlier else 0
    model = llama().double()
    with KVCapture(model) as capture:
        module = KVCalibration(
            model,
            capture,
            budgets=BUDGETS_OF_RANKS[start > 0 :],
            sinks=SINKS,
            evaluation_tokens=40,
            evaluate_on=["one"],
            on_budget=lambda tokens, moments: moments.save(place / f"{tokens}-{rank}"),
            on_evaluated=lambda name, moments: moments.save(place / f"{name}-{rank}"),
            on_progress=lambda tokens: None,
            stop=StopFlag(),
            resume=earlier if rank == 0 else None,
            skip_tokens=start,
        )
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            precision="64-true",
            max_epochs=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            logger=False,
            default_root_dir=folder,
        )
        cut = {"batch_size": 2, "sinks": SINKS, "rank": rank, "ranks": 2}
        trainer.fit(module, train_dataloaders=piece_loader(CALIBRATION, skip_tokens=start, **cut))
        trainer.validate(
            module, dataloaders=[piece_loader(EVALUATION["one"], **cut)], verbose=False
        )
    dist.destroy_process_group()


# in the first rank's first batch, in the second's, and the last token there is
BUDGETS_OF_RANKS = (5, 21, KEPT)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_two_ranks_meet_every_budget_with_the_rows_of_one(
    calibrate: Calibrate, tmp_path: Path, resumed: bool
) -> None:
    """Also where they go on from what one process has left."""
    calibrate(llama(), 5)
    (tmp_path / "5.safetensors").rename(tmp_path / "earlier.safetensors")
    torch.multiprocessing.spawn(_rank_of_two, args=(str(tmp_path), resumed), nprocs=2)
    model = llama().double().eval()
    rows = rows_by_hand(model, CALIBRATION)
    single = calibrate(llama(), KEPT).met[KEPT]
    for budget in BUDGETS_OF_RANKS[resumed:]:
        pairs = [MomentsPair.load(tmp_path / f"{budget}-{rank}").centred() for rank in (0, 1)]
        assert_same_bits(*pairs)
        assert_moments_of(pairs[0], rows, budget)
    for kind in single.kinds:
        left, right = (
            compute_basis(pair.of(kind), rank=4, niter=2, seed=0).components
            for pair in (single, pairs[0])
        )
        torch.testing.assert_close(left, right, rtol=0, atol=1e-9)
    evaluated = MomentsPair.load(tmp_path / "one-1").centred()
    assert_moments_of(evaluated, rows_by_hand(model, EVALUATION["one"]), 40)
