"""Pretraining of one looped model as a LightningModule; every metric's step is tokens."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from lightning_modules.looplm.configuration import LoopLMConfig
from lightning_modules.looplm.modeling import LoopLMForCausalLM
from lightning_modules.looplm.objective import (
    ObjectiveValue,
    looped_objective,
    step_cross_entropy,
)
from lightning_modules.looplm.sizes import Shape, training_flops_per_token
from lightning_modules.schedule import PretrainingPlan, learning_rate_share
from suite.study import ObjectiveSpec, OptimizerSpec

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Diverged(Exception):  # noqa: N818 - named after what the run did
    """The training loss is not finite.

    Args:
        value: the loss.
        tokens: training tokens at which it was seen.
    """

    settles_cell = True  # the same settings would diverge again

    def __init__(self, value: float, tokens: int) -> None:
        self.tokens = tokens
        super().__init__(f"the training loss became {value} at {tokens:,} tokens")


class LoopLMPretraining(LightningModule):
    """Trains a looped model on windows of tokens with the stage-I objective.

    Logged with step = tokens: ``train/*`` as means over the optimiser steps since the last
    point, ``val/*`` at every evaluation, ``optim/*`` and ``speed/*`` beside them.
    ``val/bits_per_byte`` is the expected loss under the exit distribution, without the
    regulariser, over the bytes of the text: it does not depend on the vocabulary.

    Args:
        shape: widths of the model.
        recurrence: T_m.
        sequence_length: tokens a window.
        bytes_per_token: UTF-8 bytes of held-out text a token.
        objective: form and weight of the regulariser.
        optimizer: AdamW and its schedule.
        plan: lengths in optimiser steps.
        branch_gain: initial gain of the norms that close each branch.
        gate_bias: initial bias of the exit gate.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        recurrence: int,
        sequence_length: int,
        bytes_per_token: float,
        objective: ObjectiveSpec,
        optimizer: OptimizerSpec,
        plan: PretrainingPlan,
        branch_gain: float = 1.0,
        gate_bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = LoopLMForCausalLM(
            LoopLMConfig.from_shape(
                shape,
                recurrence=recurrence,
                max_position_embeddings=sequence_length,
                branch_gain=branch_gain,
                gate_bias=gate_bias,
            )
        )
        self.plan = plan
        self._objective = objective
        self._optimizer = optimizer
        self._bytes_per_token = bytes_per_token
        self._flops_per_token = training_flops_per_token(shape, recurrence, sequence_length)
        self._training = _RunningMean(recurrence)
        self._evaluation = _RunningMean(recurrence)
        self._gradient_norm = torch.zeros(())
        self._clock = _Clock()
        self.last_loss = math.nan
        self.evaluated_at = -1

    @property
    def tokens(self) -> int:
        """Training tokens so far, over all devices."""
        return int(self.trainer.global_step) * self.plan.batch_tokens

    def objective(self, windows: Tensor) -> ObjectiveValue:
        """The objective on windows [batch, sequence_length + 1] of token ids."""
        steps = self.model.model.steps(windows[:, :-1])
        losses = step_cross_entropy(steps.hidden, self.model.lm_head.weight, windows[:, 1:])
        return looped_objective(
            losses, steps.gate_logits, beta=self._objective.beta, form=self._objective.form
        )

    def training_step(self, windows: Tensor, batch_idx: int) -> Tensor:
        """Loss of one micro-batch [micro_batch, sequence_length + 1]."""
        value = self.objective(windows)
        self._training.add(value, weight=len(windows))
        return value.total_loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with weight decay on matrices only, and the schedule by steps."""
        spec = self._optimizer
        parameters = list(self.parameters())
        optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for p in parameters if p.ndim >= 2],
                    "weight_decay": spec.weight_decay,
                },
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=spec.learning_rate,
            betas=spec.betas,
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_share(step, spec, self.plan)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the global norm, and keep the norm from before."""
        self._gradient_norm = nn.utils.clip_grad_norm_(
            self.parameters(), self._optimizer.gradient_clip
        ).detach()

    def on_train_start(self) -> None:
        """Start the clock of ``speed/*``."""
        self._clock.restart(self.tokens)

    def configure_callbacks(self) -> list[Callback]:
        """The caller of ``end_step``.

        A callback, because Lightning runs those before the module's own hook, and a checkpoint
        must come after the points that it covers.
        """
        return [_StepEnd()]

    def end_step(self) -> None:
        """Log a point when the optimiser step that has just ended completes one.

        Raises:
            Diverged: if the loss is not finite; its point is logged first.
        """
        step = int(self.trainer.global_step)
        if step % self.plan.log_every and step != self.plan.steps:
            return
        values = _named("train", self._training.reduce(self))
        values["optim/learning_rate"] = self._optimizer.learning_rate * learning_rate_share(
            step - 1, self._optimizer, self.plan
        )
        values["optim/grad_norm"] = float(self._gradient_norm)
        values |= self._speed()
        self.last_loss = values["train/total_loss"]
        self._log_at_tokens(values)
        if not math.isfinite(self.last_loss):
            raise Diverged(self.last_loss, self.tokens)

    def _speed(self) -> dict[str, float]:
        rate = self._clock.tokens_per_second(self.tokens)
        speeds = {"speed/tokens_per_second": rate}
        dtype = _AUTOCAST.get(str(self.trainer.precision), self.model.dtype)
        peak = get_available_flops(self.device, dtype)
        if peak is not None:
            speeds["speed/mfu"] = rate * self._flops_per_token / peak / self.trainer.world_size
        return speeds

    def on_validation_start(self) -> None:
        """Stop the clock of ``speed/*``."""
        self._clock.pause()

    def validation_step(self, windows: Tensor, batch_idx: int) -> None:
        """Take in the held-out windows [batch, sequence_length + 1]."""
        self._evaluation.add(self.objective(windows), weight=len(windows))

    def on_validation_epoch_end(self) -> None:
        """Log ``val/*`` at the tokens trained on so far."""
        values = _named("val", self._evaluation.reduce(self))
        values["val/bits_per_byte"] = (
            values["val/expected_loss"] / math.log(2) / self._bytes_per_token
        )
        self.evaluated_at = self.tokens
        self._log_at_tokens(values)

    def on_validation_end(self) -> None:
        """Start the clock of ``speed/*`` again."""
        self._clock.resume()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save which step is evaluated already: a resumed run must not do so again."""
        checkpoint["evaluated_at"] = self.evaluated_at

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what ``on_save_checkpoint`` saved."""
        self.evaluated_at = checkpoint["evaluated_at"]

    def _log_at_tokens(self, values: dict[str, float]) -> None:
        if self.logger is not None:
            self.logger.log_metrics(values, step=self.tokens)


class _StepEnd(Callback):
    """Tells the module that an optimiser step has ended."""

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, LoopLMPretraining)
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            pl_module.end_step()


class _RunningMean:
    """Weighted mean of objective values, kept on the device until it is read.

    Args:
        recurrence: T_m, the number of losses in an objective value.
    """

    def __init__(self, recurrence: int) -> None:
        # total, expected, entropy, exit step, the losses; last, the weight
        self._sum = torch.zeros(4 + recurrence + 1, dtype=torch.float64)

    def add(self, value: ObjectiveValue, *, weight: int) -> None:
        parts = torch.stack(
            [
                value.total_loss,
                value.expected_loss,
                value.exit_entropy,
                value.expected_exit_step,
                *value.loss_at_step.unbind(),
            ]
        ).detach()
        row = torch.cat([parts.double() * weight, parts.new_tensor([weight]).double()])
        self._sum = self._sum.to(row) + row

    def reduce(self, module: LightningModule) -> list[float]:
        """The mean over all ranks since the last reading."""
        own = self._sum.to(module.device)
        self._sum = torch.zeros_like(own)
        *parts, weight = module.trainer.strategy.reduce(own, reduce_op="sum").tolist()
        return [part / weight for part in parts]


def _named(prefix: str, parts: list[float]) -> dict[str, float]:
    total, expected, entropy, exit_step, *at_step = parts
    return {
        f"{prefix}/total_loss": total,
        f"{prefix}/expected_loss": expected,
        f"{prefix}/exit_entropy": entropy,
        f"{prefix}/expected_exit_step": exit_step,
        **{f"{prefix}/loss_at_step/{t}": loss for t, loss in enumerate(at_step, start=1)},
    }


class _Clock:
    """Seconds spent training since the last reading; evaluations are left out."""

    def __init__(self) -> None:
        self._tokens = 0
        self._since = 0.0
        self._paused_at: float | None = None

    def restart(self, tokens: int) -> None:
        self._tokens = tokens
        self._since = time.perf_counter()

    def pause(self) -> None:
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._since += time.perf_counter() - self._paused_at
            self._paused_at = None

    def tokens_per_second(self, tokens: int) -> float:
        done = tokens - self._tokens
        seconds = time.perf_counter() - self._since
        self.restart(tokens)
        return done / seconds
