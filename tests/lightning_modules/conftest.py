"""Small pretraining cells, run through Lightning as the suite runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger

from lightning_modules.callbacks import TokenCheckpoint
from lightning_modules.looplm.sizes import resolve
from lightning_modules.pretraining import LoopLMPretraining
from lightning_modules.pretraining_data import PretrainingData, Windows
from lightning_modules.schedule import PretrainingPlan
from suite.stopping import StopFlag
from suite.study import OptimizerSpec, PretrainingSpec, SizeSpec

VOCABULARY = 32
Point = tuple[int, str, float]


class PointLogger(Logger):
    """Keeps points as a tracking store does: a crash loses those since the last save.

    Attributes:
        points: tokens, name and value of every point, as logged.
        stored: the part of them that a crash leaves.
    """

    name = "points"
    version = "0"

    def __init__(self) -> None:
        super().__init__()
        self.points: list[Point] = []
        self.stored: list[Point] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        kept = {key: value for key, value in metrics.items() if key != "epoch"}
        self.points += [(step, key, value) for key, value in kept.items()]

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass

    def save(self) -> None:
        self.stored = [*self.points]

    def finalize(self, status: str) -> None:
        """Nothing: a lost process does not come to it."""

    def curve(self, key: str) -> dict[int, float]:
        """Values of one metric by tokens; each token count has one."""
        found = [(tokens, value) for tokens, name, value in self.points if name == key]
        assert len(found) == len(dict(found)), f"{key} has two points at one token count"
        return dict(found)


@dataclass(kw_only=True)
class Fit:
    """One attempt at a cell.

    Attributes:
        spec: what to train.
        plan: its lengths; tests shorten what a study would take thousands of steps for.
        recurrence: T_m.
        training: training windows.
        held_out: evaluation windows.
        callbacks: beside the suite's own.
        logger: where points went.
        module: the module after ``run``.
        trainer: the trainer after ``run``.
    """

    spec: PretrainingSpec
    plan: PretrainingPlan
    recurrence: int
    training: Windows
    held_out: Windows
    callbacks: list[Callback]
    logger: PointLogger = field(default_factory=PointLogger)
    module: LoopLMPretraining = field(init=False)
    trainer: Trainer = field(init=False)

    def run(
        self,
        folder: Path,
        *,
        resume: Path | None = None,
        stop: StopFlag | None = None,
        module: LoopLMPretraining | None = None,
    ) -> Fit:
        """Train, checkpointing into ``folder``."""
        self.module = module or self.build()
        settings = self.spec.trainer
        micro = self.spec.micro_batch_size or self.spec.batch_size
        accumulate = self.spec.batch_size // settings_world_size(settings.devices) // micro
        self.trainer = Trainer(
            accelerator="cpu",
            devices=settings.devices,
            strategy=settings.strategy,
            precision=settings.precision,
            max_steps=self.plan.steps,
            accumulate_grad_batches=accumulate,
            val_check_interval=self.plan.evaluate_every * accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            inference_mode=False,
            logger=self.logger,
            default_root_dir=folder,
        )
        self.trainer.callbacks += [  # type: ignore[attr-defined]
            TokenCheckpoint(folder, stop or StopFlag()),
            *self.callbacks,
        ]
        data = PretrainingData(
            self.training,
            self.held_out,
            batch_size=self.spec.batch_size,
            micro_batch_size=micro,
            seed=0,
            num_workers=settings.num_workers,
        )
        self.trainer.fit(self.module, datamodule=data, ckpt_path=resume, weights_only=True)
        return self

    def build(self) -> LoopLMPretraining:
        """A freshly initialised module, the same one every time."""
        lightning.seed_everything(0, verbose=False)
        return LoopLMPretraining(
            shape=resolve(self.spec.sizes[0], vocab_size=VOCABULARY),
            recurrence=self.recurrence,
            sequence_length=self.spec.sequence_length,
            bytes_per_token=2.5,
            objective=self.spec.objective,
            optimizer=self.spec.optimizer,
            plan=self.plan,
        )


def settings_world_size(devices: object) -> int:
    return devices if isinstance(devices, int) else 1


FitBuilder = Callable[..., Fit]


@pytest.fixture
def pretrain() -> FitBuilder:
    """Builds a cell of 16 steps of 4 windows of 8 tokens, evaluated after every fourth step."""

    def build(
        *,
        recurrence: int = 2,
        plan: Mapping[str, int] | None = None,
        callbacks: list[Callback] | None = None,
        **settings: Any,
    ) -> Fit:
        spec = PretrainingSpec(
            **{
                "corpus": "none",
                "sizes": (SizeSpec(name="tiny", num_hidden_layers=1, hidden_size=16),),
                "tokens": 16 * 32,
                "sequence_length": 8,
                "batch_size": 4,
                "evaluate_every": 4 * 32,
                "checkpoint_every": 3 * 32,
                "optimizer": OptimizerSpec(learning_rate=1e-2, warmup_tokens=3 * 32),
                **settings,
            }
        )
        generator = np.random.default_rng(0)
        return Fit(
            spec=spec,
            plan=dataclasses.replace(PretrainingPlan.of(spec), **(plan or {})),
            recurrence=recurrence,
            training=generator.integers(0, VOCABULARY, (21, 9), dtype=np.uint16),
            held_out=generator.integers(0, VOCABULARY, (6, 9), dtype=np.uint16),
            callbacks=callbacks or [],
        )

    return build
