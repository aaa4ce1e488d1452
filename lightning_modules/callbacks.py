"""Trainer callbacks, one purpose each: checkpoints, stopping on request, progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lightning_modules.checkpoint_files import (
    WholeFileIO,
    checkpoint_path,
    checkpoints,
    newest_checkpoint,
    set_aside_beyond,
)
from lightning_modules.pretraining import LoopLMPretraining
from suite.atomic import remove_leftovers
from suite.stopping import StopFlag

__all__ = ["ProgressReport", "TokenCheckpoint", "checkpoints", "newest_checkpoint"]

_KEPT = 2  # the newest may turn out to be damaged


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
        SuiteError: if it cannot be saved; earlier checkpoints are kept.
    """

    def __init__(self, folder: Path, stop: StopFlag) -> None:
        self._folder = folder
        self._stop = stop

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have checkpoints written whole, and clear away what a killed process has left."""
        trainer.strategy.checkpoint_io = WholeFileIO()
        if trainer.is_global_zero:
            remove_leftovers(self._folder)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back from Lightning, whose handlers stop between boundaries."""
        assert isinstance(pl_module, LoopLMPretraining)
        self._stop.install()
        if trainer.is_global_zero:
            set_aside_beyond(self._folder, pl_module.tokens)

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
        trainer.save_checkpoint(checkpoint_path(self._folder, module.tokens))
        if trainer.is_global_zero:
            for old in checkpoints(self._folder)[_KEPT:]:
                old.unlink()
        if stopping:
            self._stop.leave()


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
