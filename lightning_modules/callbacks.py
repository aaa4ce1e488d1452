"""Trainer callbacks, one purpose each: checkpoints, stopping on request, progress."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lightning_modules.pretraining import LoopLMPretraining
from suite.stopping import StopFlag, StopRequested


class TokenCheckpoint(Checkpoint):
    """Saves the whole training state every so many optimiser steps; the last two are kept.

    Tracked points are written before the checkpoint that lies after them, so that nothing is
    missing for an attempt that resumes from it: Lightning runs a ``Checkpoint`` after every
    other callback. A step that is also evaluated is saved after its evaluation.

    Args:
        folder: where checkpoints go.
        stop: when it is set, on any rank, the state is saved at the next logged point.

    Raises:
        StopRequested: once it is saved. Lightning's own way to stop would evaluate first, at a
            step that no other run evaluates.
    """

    def __init__(self, folder: Path, stop: StopFlag) -> None:
        self._folder = folder
        self._stop = stop

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back from Lightning, whose handlers stop between boundaries."""
        self._stop.install()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save at a step boundary that no evaluation follows."""
        assert isinstance(pl_module, LoopLMPretraining)
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if stepped and trainer.global_step % pl_module.plan.evaluate_every:
            self._save_if_due(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save after an evaluation in the middle of training."""
        assert isinstance(pl_module, LoopLMPretraining)
        if trainer.state.fn == "fit":
            self._save_if_due(trainer, pl_module)

    def _save_if_due(self, trainer: Trainer, module: LoopLMPretraining) -> None:
        if trainer.global_step % module.plan.log_every:
            return  # the point under way would lose its first steps
        due = trainer.global_step % module.plan.checkpoint_every == 0
        stopping = trainer.strategy.reduce_boolean_decision(self._stop.requested, all=False)
        if not due and not stopping:
            return
        if trainer.logger is not None:
            trainer.logger.save()
        target = self._folder / f"tokens-{module.tokens:015d}.ckpt"
        temporary = target.with_suffix(".part")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
            for old in checkpoints(self._folder)[2:]:
                old.unlink()
        if stopping:
            raise StopRequested


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints of a run, newest first."""
    return sorted(folder.glob("tokens-*.ckpt"), reverse=True)


def newest_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The newest checkpoint that can be read, and its training tokens; none if there is none.

    A broken one is reported, and the one before it is taken.
    """
    for path in checkpoints(folder):
        try:
            torch.load(path, map_location="meta", weights_only=True, mmap=True)
        except Exception as error:  # a damaged file fails in many ways, all with one cure
            warnings.warn(
                f"the checkpoint {path} cannot be read ({error}); the one before it is used",
                stacklevel=2,
            )
            continue
        return path, int(path.stem.removeprefix("tokens-"))
    return None


class ProgressReport(Callback):
    """Tells a listener how far a cell is.

    Args:
        report: called with training tokens and the last training loss after each batch.
    """

    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report = report

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report the step that has just ended."""
        assert isinstance(pl_module, LoopLMPretraining)
        self._report(pl_module.tokens, pl_module.last_loss)
