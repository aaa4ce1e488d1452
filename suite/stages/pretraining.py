"""The pretraining stage: every size x recurrence that is not finished, resumed where cut off.

In two parts, between which the runner has the law predict the cells that it holds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_modules.looplm.sizes import resolve
from lightning_modules.schedule import PretrainingPlan
from suite.atomic import replace_folder_atomically
from suite.cells import Cell, pretraining_cells
from suite.containment import contained_folder
from suite.corpora.tokens import Tokens
from suite.errors import SuiteError
from suite.models import MODEL_DIGEST_TAG, folder_digest
from suite.stages.context import StageContext, TrackedCell
from suite.stages.trainers import make_trainer
from suite.study import PretrainingSpec, SizeSpec
from suite.tracking.recorder import RunRecorder

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


def run_pretraining(context: StageContext) -> None:
    """Train what is missing, but for the cells that the law holds out.

    Raises:
        InputError: if the corpus is too small for one sequence.
    """
    _run_part(context, held_out=False)


def run_held_out_pretraining(context: StageContext) -> None:
    """Train what is missing of the cells that the law holds out, unless they are held back.

    Raises:
        InputError: if the corpus is too small for one sequence.
    """
    _run_part(context, held_out=True)


def _run_part(context: StageContext, *, held_out: bool) -> None:
    spec, law = context.study.pretraining, context.study.law
    if spec is None:
        return
    tracked = context.tracked("pretraining")
    missing = {
        key: cell
        for key, cell in pretraining_cells(context.materials).items()
        if (law is not None and law.hold_out.covers(*key)) is held_out
        and cell.fingerprint not in context.held_back
        and context.needs_work(cell, tracked.get(cell.fingerprint))
    }
    if not missing:
        return
    windows = _windows(context, spec)
    repeats = spec.tokens / (len(windows.training) * spec.sequence_length)
    if repeats > 1 and not held_out:  # said once
        context.display.note(
            f"note    pretraining.tokens is {repeats:.1f} times the training documents of "
            f"{spec.corpus!r}; they are repeated, each time in another order"
        )
    sizes = {size.name: size for size in spec.sizes}
    in_all = f"{len(missing)}{' held out' if held_out else ''}"
    for number, ((size, recurrence), cell) in enumerate(missing.items(), start=1):
        context.stop.check()
        label = f"{cell.name} ({number} of {in_all})"
        _train(
            context, windows, sizes[size], recurrence, cell, tracked.get(cell.fingerprint), label
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Windows:
    """Windows of the study, shared by all its cells.

    Attributes:
        training: [windows, sequence_length + 1].
        held_out: the windows that every evaluation uses.
        bytes_per_token: UTF-8 bytes a token of the held-out windows.
    """

    training: Tokens
    held_out: Tokens
    bytes_per_token: float


def _windows(context: StageContext, spec: PretrainingSpec) -> _Windows:
    length, key = spec.sequence_length, "pretraining.sequence_length"
    held_out = context.materials.stream("held_out")
    windows = held_out.windows(length, key=key)[: max(spec.evaluation_tokens // length, 1)]
    tokens = len(windows) * length
    return _Windows(
        training=context.materials.stream("train").windows(length, key=key),
        held_out=windows,
        bytes_per_token=held_out.bytes_of_first(tokens) / tokens,
    )


def model_folder(context: StageContext, run_id: str) -> Path:
    """Where a finished cell's model and tokenizer lie."""
    return context.home.checkpoints / run_id / "model"


def _train(
    context: StageContext,
    windows: _Windows,
    size: SizeSpec,
    recurrence: int,
    cell: Cell,
    tracked: TrackedCell | None,
    label: str,
) -> None:
    import lightning

    from lightning_modules.callbacks import ProgressReport, TokenCheckpoint, newest_checkpoint
    from lightning_modules.pretraining import LoopLMPretraining
    from lightning_modules.pretraining_data import PretrainingData
    from suite.tracking.logger import TokenLogger

    spec = context.study.pretraining
    assert spec is not None
    plan = PretrainingPlan.of(spec)
    tokenizer = context.materials.tokenizer()
    resumed = None
    if tracked is not None:
        resumed = newest_checkpoint(
            context.home.checkpoints / tracked.run_id,
            report=lambda text: context.display.note(f"note    {text}"),
        )
    recorder = context.begin(
        cell,
        tracked,
        resumed_from=resumed[1] if resumed else -1,
        trainer=spec.trainer,
        datasets=[context.materials.dataset(spec.corpus, "training")],
    )
    checkpoints = context.home.checkpoints
    folder = contained_folder(checkpoints / recorder.run_id, checkpoints)
    folder.mkdir(parents=True, exist_ok=True)

    with context.display.task(label, plan.tokens) as advance:

        def work() -> None:
            lightning.seed_everything(context.study.seed, workers=True, verbose=False)
            module = LoopLMPretraining(
                shape=resolve(size, vocab_size=tokenizer.vocab_size),
                recurrence=recurrence,
                sequence_length=spec.sequence_length,
                bytes_per_token=windows.bytes_per_token,
                objective=spec.objective,
                optimizer=spec.optimizer,
                plan=plan,
                branch_gain=spec.branch_gain,
                gate_bias=spec.gate_bias,
            )
            trainer = _trainer(context, spec, plan, recorder)
            trainer.callbacks += [  # type: ignore[attr-defined]
                TokenCheckpoint(folder, context.stop),
                ProgressReport(lambda tokens, loss: advance(tokens, f"loss {loss:.3f}")),
            ]
            trainer.logger = TokenLogger(recorder)
            data = PretrainingData(
                windows.training,
                windows.held_out,
                batch_size=spec.batch_size,
                micro_batch_size=_micro_batch(spec, trainer.world_size),
                seed=context.study.seed,
                num_workers=spec.trainer.num_workers,
            )
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=resumed[0] if resumed else None,
                weights_only=True,
            )
            context.stop.check()
            if module.evaluated_at != plan.tokens:
                trainer.validate(module, datamodule=data, verbose=False)
            if trainer.is_global_zero:

                def save_model(fresh: Path) -> None:
                    module.model.save_pretrained(fresh)
                    tokenizer.save(fresh)

                replace_folder_atomically(folder / "model", save_model)
                recorder.set_tags({MODEL_DIGEST_TAG: folder_digest(folder / "model")})

        finished = context.attempt(cell, recorder, work)
    if finished:
        for path in folder.glob("tokens-*"):
            path.unlink()
        context.display.note(f"done    {cell.name}")


def _trainer(
    context: StageContext, spec: PretrainingSpec, plan: PretrainingPlan, recorder: RunRecorder
) -> Trainer:
    trainer = make_trainer(
        spec.trainer,
        context.home.checkpoints,
        max_steps=plan.steps,
        check_val_every_n_epoch=None,
        inference_mode=False,
    )
    micro = _micro_batch(spec, trainer.world_size)
    trainer.accumulate_grad_batches = spec.batch_size // trainer.world_size // micro
    trainer.val_check_interval = plan.evaluate_every * trainer.accumulate_grad_batches
    return trainer


def _micro_batch(spec: PretrainingSpec, world_size: int) -> int:
    share, rest = divmod(spec.batch_size, world_size)
    micro = spec.micro_batch_size or share
    if rest or share % micro:
        raise SuiteError(
            f"pretraining.batch_size = {spec.batch_size} does not divide over {world_size} devices "
            f"in micro-batches of {micro}; choose a multiple of {world_size * micro}"
        )
    return micro
