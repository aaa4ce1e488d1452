"""Lightning trainers as every stage uses them."""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suite.study import TrainerSpec

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

_DECIDED_HERE = (
    ".*does not have many workers.*",
    ".*You're resuming from a checkpoint.*",
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
    ".*`LightningModule.configure_optimizers` returned `None`.*",
    ".*in eval mode at the start of training.*",
    ".*`isinstance\\(treespec, LeafSpec\\)`.*",
)
"""Warnings about what is meant: order by step, calibration without an optimizer."""


@functools.cache
def _default_threads() -> int:
    """Torch's own choice, from before any stage has set another."""
    import torch

    return torch.get_num_threads()


def make_trainer(spec: TrainerSpec, folder: Path, **settings: Any) -> Trainer:
    """A trainer with the study's devices and precision, which leaves the rest to the suite.

    Checkpoints, logging, progress and the order of the data are the suite's own.

    Args:
        spec: the stage's trainer section.
        folder: where Lightning may write.
        settings: further arguments of ``lightning.Trainer``.
    """
    _default_threads()
    import torch
    from lightning.pytorch import Trainer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in _DECIDED_HERE:
        warnings.filterwarnings("ignore", message=message)
    torch.set_num_threads(spec.threads or _default_threads())
    return Trainer(
        accelerator=spec.accelerator,
        devices=1 if spec.devices == "auto" else spec.devices,
        num_nodes=spec.num_nodes,
        strategy=spec.strategy,
        precision=spec.precision,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
        **settings,
    )
