"""A fit through Lightning against a training loop written out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

import lightning_modules.pretraining as pretraining
from lightning_modules.looplm.sizes import resolve, training_flops_per_token
from lightning_modules.pretraining import Diverged
from lightning_modules.pretraining_data import Windows
from suite.study import ObjectiveSpec, OptimizerSpec, TrainerSpec

# Lightning's own use of a name that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*")

FitBuilder = Callable[..., Any]

# Short steps of a fast-changing rate, and a norm that is clipped in some steps only.
OPTIMIZER = OptimizerSpec(
    learning_rate=3e-2,
    betas=(0.8, 0.9),
    weight_decay=0.3,
    gradient_clip=0.9,
    warmup_tokens=96,
    schedule="cosine",
    final_share=0.2,
)


def losses_by_hand(model: Any, windows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Loss of every step and exit probability of every step, [batch, seq] each."""
    steps = model.model.steps(windows[:, :-1])
    losses, exits = [], []
    survival = torch.ones_like(steps.gate_logits[0])
    for step, (hidden, gate) in enumerate(zip(steps.hidden, steps.gate_logits, strict=True), 1):
        log_probability = torch.log_softmax(hidden @ model.lm_head.weight.T, dim=-1)
        losses.append(-log_probability.gather(-1, windows[:, 1:, None])[..., 0])
        leave = torch.sigmoid(gate) if step < len(steps.hidden) else torch.ones_like(gate)
        exits.append(leave * survival)
        survival = survival * (1 - leave)
    return losses, exits


def total_loss(model: Any, windows: Tensor, *, beta: float, form: str) -> Tensor:
    losses, exits = losses_by_hand(model, windows)
    expected = sum(p * loss for p, loss in zip(exits, losses, strict=True))
    entropy = sum(-p * p.log() for p in exits)
    constant = beta * math.log(len(losses)) if form == "kl" else 0.0
    return (expected - beta * entropy).mean() + constant


def batches_by_hand(windows: Windows, steps: int, batch: int) -> list[Tensor]:
    epochs = -(-steps * batch // len(windows))
    order = np.concatenate(
        [np.random.default_rng([0, epoch]).permutation(len(windows)) for epoch in range(epochs)]
    )
    return [
        torch.from_numpy(windows[order[start : start + batch]].astype(np.int64))
        for start in range(0, steps * batch, batch)
    ]


def train_by_hand(fit: Any, spec: OptimizerSpec) -> tuple[list[dict[str, float]], Any]:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on clipped gradients, in plain tensors."""
    model = fit.build().model
    if fit.spec.trainer.precision == "64-true":
        model.double()
    parameters = [*model.parameters()]
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    points = []
    steps, batch_tokens = fit.plan.steps, fit.plan.batch_tokens
    batches = batches_by_hand(fit.training, steps, fit.spec.batch_size)
    for step, windows in enumerate(batches, start=1):
        tokens = step * batch_tokens
        if tokens <= spec.warmup_tokens:
            rate = spec.learning_rate * tokens / spec.warmup_tokens
        else:
            done = (tokens - spec.warmup_tokens) / (steps * batch_tokens - spec.warmup_tokens)
            low = spec.final_share
            rate = spec.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))
        objective = fit.spec.objective
        loss = total_loss(model, windows, beta=objective.beta, form=objective.form)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        shrink = min(1.0, spec.gradient_clip / (norm + 1e-6))
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                g = g * shrink
                m.mul_(spec.betas[0]).add_((1 - spec.betas[0]) * g)
                v.mul_(spec.betas[1]).add_((1 - spec.betas[1]) * g * g)
                decay = spec.weight_decay if p.ndim == 2 else 0.0
                p.mul_(1 - rate * decay)
                unbiased = (v / (1 - spec.betas[1] ** step)).sqrt() + 1e-8
                p.sub_(rate * (m / (1 - spec.betas[0] ** step)) / unbiased)
        points.append({"loss": loss.item(), "norm": norm, "rate": rate})
    return points, model


@pytest.mark.parametrize(
    ("recurrence", "form", "precision", "rate", "tolerance"),
    [
        (1, "entropy", "32-true", 3e-3, 1e-6),
        (3, "kl", "32-true", 3e-3, 1e-6),
        (3, "entropy", "64-true", 3e-2, 1e-13),
    ],
)
def test_a_fit_equals_a_loop_written_out_by_hand(
    pretrain: FitBuilder,
    tmp_path: Path,
    recurrence: int,
    form: Any,
    precision: Any,
    rate: float,
    tolerance: float,
) -> None:
    # Large steps make rounding errors grow; in single precision they would pass the tolerance.
    clip = OPTIMIZER.gradient_clip if rate == OPTIMIZER.learning_rate else 1.3
    optimizer = replace(OPTIMIZER, learning_rate=rate, gradient_clip=clip)
    fit = pretrain(
        recurrence=recurrence,
        optimizer=optimizer,
        objective=ObjectiveSpec(form=form, beta=0.1),
        trainer=TrainerSpec(precision=precision),
    ).run(tmp_path)
    expected, model = train_by_hand(fit, optimizer)
    axis = [32 * step for step in range(1, 17)]
    clipped = [point["norm"] > clip for point in expected]
    assert any(clipped)
    assert not all(clipped)
    for key, name, looser in (
        ("train/total_loss", "loss", 1),
        ("optim/grad_norm", "norm", 10),
        ("optim/learning_rate", "rate", 1),
    ):
        by_hand = {tokens: point[name] for tokens, point in zip(axis, expected, strict=True)}
        assert fit.logger.curve(key) == pytest.approx(by_hand, rel=looser * tolerance)
    for name, weight in fit.module.model.state_dict().items():
        # AdamW makes whole steps of rounding errors where a gradient is next to nothing.
        torch.testing.assert_close(weight, model.state_dict()[name], rtol=0, atol=100 * tolerance)


@pytest.mark.parametrize("micro", [1, 2])
def test_accumulated_micro_batches_equal_the_whole_batch(
    pretrain: FitBuilder, tmp_path: Path, micro: int
) -> None:
    whole = pretrain(optimizer=OPTIMIZER).run(tmp_path / "whole")
    parts = pretrain(optimizer=OPTIMIZER, micro_batch_size=micro).run(tmp_path / "parts")
    for name in ("train/total_loss", "train/exit_entropy", "optim/grad_norm", "val/total_loss"):
        curve = parts.logger.curve(name)  # one point a step, not one a micro-batch
        assert curve == pytest.approx(whole.logger.curve(name), rel=1e-5)
    for name, weight in parts.module.state_dict().items():
        torch.testing.assert_close(weight, whole.module.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_metrics_carry_tokens_and_the_names_of_the_contract(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    fit = pretrain(recurrence=2, micro_batch_size=2).run(tmp_path)
    found: dict[str, list[int]] = {}
    for tokens, name, _ in fit.logger.points:
        found.setdefault(name, []).append(tokens)
    parts = ("total_loss", "expected_loss", "exit_entropy", "expected_exit_step")
    loss = [*parts, "loss_at_step/1", "loss_at_step/2"]
    beside = ["optim/learning_rate", "optim/grad_norm", "speed/tokens_per_second"]
    every_step = [32 * step for step in range(1, 17)]
    every_fourth = every_step[3::4]
    assert found == {
        **{f"train/{name}": every_step for name in loss},
        **{name: every_step for name in beside},
        **{f"val/{name}": every_fourth for name in loss},
        "val/bits_per_byte": every_fourth,
    }


def test_the_parts_of_a_point_are_those_of_the_batch(pretrain: FitBuilder, tmp_path: Path) -> None:
    fit = pretrain(recurrence=3).run(tmp_path)
    model = fit.build().model
    windows = batches_by_hand(fit.training, steps=1, batch=4)[0]
    with torch.no_grad():
        losses, exits = losses_by_hand(model, windows)
        total = total_loss(model, windows, beta=0.05, form="entropy")
    expected = {
        "total_loss": float(total),
        "expected_loss": float(sum((p * x).mean() for p, x in zip(exits, losses, strict=True))),
        "exit_entropy": float(sum(-(p * p.log()).mean() for p in exits)),
        "expected_exit_step": float(sum(t * p.mean() for t, p in enumerate(exits, start=1))),
        **{f"loss_at_step/{t}": float(x.mean()) for t, x in enumerate(losses, start=1)},
    }
    first = {name: fit.logger.curve(f"train/{name}")[32] for name in expected}
    assert first == pytest.approx(expected, rel=1e-6)


def test_a_point_of_several_steps_is_their_mean(pretrain: FitBuilder, tmp_path: Path) -> None:
    single = pretrain().run(tmp_path / "single").logger
    coarse = pretrain(plan={"log_every": 5}).run(tmp_path / "coarse").logger
    for name in ("train/total_loss", "train/loss_at_step/2", "train/expected_exit_step"):
        steps = [*single.curve(name).values()]
        expected = {
            32 * end: float(np.mean(steps[start:end]))
            for start, end in ((0, 5), (5, 10), (10, 15), (15, 16))
        }
        assert coarse.curve(name) == pytest.approx(expected, rel=1e-12)
    assert coarse.curve("val/total_loss") == single.curve("val/total_loss")


def test_evaluations_equal_the_objective_on_all_held_out_windows(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    # Six windows in batches of four: the last batch is smaller and counts for less.
    fit = pretrain(recurrence=2).run(tmp_path)
    windows = torch.from_numpy(fit.held_out.astype(np.int64))
    with torch.no_grad():
        losses, exits = losses_by_hand(fit.module.model, windows)
        total = float(total_loss(fit.module.model, windows, beta=0.05, form="entropy"))
    nats = float(sum((p * loss).mean() for p, loss in zip(exits, losses, strict=True)))
    last = {name: fit.logger.curve(f"val/{name}")[512] for name in ("total_loss", "bits_per_byte")}
    # 2.5 bytes a token: bits a token over bytes a token, without the regulariser
    assert last == pytest.approx(
        {"total_loss": total, "bits_per_byte": nats / math.log(2) / 2.5}, rel=1e-6
    )


def test_weight_decay_acts_on_matrices_only(pretrain: FitBuilder, tmp_path: Path) -> None:
    fit = pretrain(tokens=32, optimizer=OPTIMIZER).run(tmp_path)
    names = {parameter: name for name, parameter in fit.module.model.named_parameters()}
    decays = {
        names[parameter]: group["weight_decay"]
        for group in fit.trainer.optimizers[0].param_groups
        for parameter in group["params"]
    }
    spared = {name for name in names.values() if "norm" in name or name.endswith("bias")}
    assert len(spared) == 6  # four norms of the layer, the final norm, the gate's bias
    assert decays == {name: 0.0 if name in spared else 0.3 for name in names.values()}


class Poison(Callback):
    """Makes the weights NaN before an optimiser step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step - 1:
            with torch.no_grad():
                next(pl_module.parameters()).fill_(math.nan)


def test_a_loss_that_is_not_finite_is_logged_and_ends_the_run(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    fit = pretrain(callbacks=[Poison(6)])
    with pytest.raises(Diverged, match="became nan at 192 tokens") as raised:
        fit.run(tmp_path)
    assert raised.value.tokens == 192
    assert raised.value.settles_cell
    curve = fit.logger.curve("train/total_loss")
    assert [*curve] == [32, 64, 96, 128, 160, 192]
    assert math.isnan(curve.pop(192))
    assert all(math.isfinite(loss) for loss in curve.values())
    # Step six is a checkpoint's, and a checkpoint of NaN would help nobody.
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["tokens-000000000000096.ckpt"]


def test_mixed_precision_trains_close_to_single_precision(
    pretrain: FitBuilder, tmp_path: Path
) -> None:
    single = pretrain().run(tmp_path / "single").logger
    mixed = pretrain(trainer=TrainerSpec(precision="bf16-mixed")).run(tmp_path / "mixed")
    assert {p.dtype for p in mixed.module.parameters()} == {torch.float32}
    for name in ("train/total_loss", "val/total_loss"):
        curve = mixed.logger.curve(name)
        assert curve == pytest.approx(single.curve(name), rel=0.03)
        assert curve != single.curve(name)
    first = mixed.logger.curve("train/total_loss")[32]
    assert first == pytest.approx(single.curve("train/total_loss")[32], rel=2e-3)


class FileLogger(Logger):
    """Appends what rank zero logs to a file, which outlives the processes."""

    name = "file"
    version = "0"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([step, dict(metrics)]) + "\n")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def curve(self, key: str) -> dict[int, float]:
        points = [json.loads(line) for line in self.path.read_text().splitlines()]
        return {tokens: values[key] for tokens, values in points if key in values}


@pytest.mark.slow
def test_two_processes_train_as_one(pretrain: FitBuilder, tmp_path: Path) -> None:
    wide = TrainerSpec(precision="64-true")
    one = pretrain(micro_batch_size=1, trainer=wide).run(tmp_path / "one")
    spec = replace(wide, devices=2, strategy="ddp_spawn")
    two = pretrain(micro_batch_size=1, trainer=spec)
    two.logger = FileLogger(tmp_path / "points")
    two.run(tmp_path / "two")
    # six held-out windows, three a rank
    for name in ("train/total_loss", "train/loss_at_step/2", "optim/grad_norm", "val/total_loss"):
        curve = two.logger.curve(name)
        assert curve == pytest.approx(one.logger.curve(name), rel=1e-12)
    for name, weight in two.module.state_dict().items():
        # They come back to a module that this process has not widened.
        torch.testing.assert_close(weight, one.module.state_dict()[name].float())


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)]
)
def test_utilisation_is_model_flops_over_the_peak_of_the_precision(
    pretrain: FitBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: Any,
    dtype: torch.dtype,
) -> None:
    asked: list[torch.dtype] = []

    def peak(device: torch.device, dtype: torch.dtype) -> float:
        asked.append(dtype)
        return 1e12

    monkeypatch.setattr(pretraining, "get_available_flops", peak)
    fit = pretrain(tokens=64, recurrence=2, trainer=TrainerSpec(precision=precision)).run(tmp_path)
    assert set(asked) == {dtype}
    flops = training_flops_per_token(resolve(fit.spec.sizes[0], vocab_size=32), 2, 8)
    rates = fit.logger.curve("speed/tokens_per_second")
    expected = {tokens: rate * flops / 1e12 for tokens, rate in rates.items()}
    assert fit.logger.curve("speed/mfu") == pytest.approx(expected, rel=1e-12)


def test_speed_counts_training_seconds_only(
    pretrain: FitBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only moves by hand: one second a batch, a thousand an evaluation."""
    clock = {"now": 0.0}
    monkeypatch.setattr(pretraining.time, "perf_counter", lambda: clock["now"])

    class Hands(Callback):
        def on_train_batch_start(self, *args: Any) -> None:
            clock["now"] += 1.0

        def on_validation_batch_start(self, *args: Any, **kwargs: Any) -> None:
            clock["now"] += 1000.0

    fit = pretrain(micro_batch_size=2, callbacks=[Hands()]).run(tmp_path)
    # 32 tokens in two micro-batches of one second
    assert set(fit.logger.curve("speed/tokens_per_second").values()) == {16.0}
