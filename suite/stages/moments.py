"""KV moments of a model over a corpus, cached by what decides them.

A forward pass that was made is never made again: another niter, rank, evaluation corpus, trial
or a larger budget starts from the files. The moments at t tokens do not depend on which other
budgets were asked for, so any file serves any study that has the same settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cells import fingerprint, moments_settings
from suite.errors import SuiteError
from suite.models import ModelSource, check_shape
from suite.stages.context import StageContext
from suite.stopping import StopRequested
from suite.study import CalibrationSpec
from suite.study_rules import model_label

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lightning_modules.kv.pair import CentredPair, MomentsPair
    from suite.corpora import Tokenizer


class MomentsCache:
    """Moments of the calibration stage and of its searches.

    Args:
        context: the running study.
        spec: the calibration stage.
    """

    def __init__(self, context: StageContext, spec: CalibrationSpec) -> None:
        self._context = context
        self._spec = spec
        self._loaded: tuple[str, PreTrainedModel, Tokenizer] | None = None

    def at(self, source: ModelSource, corpus: str, tokens: int) -> CentredPair:
        """Moments of the first ``tokens`` calibration tokens; ``ensure`` has made them."""
        from lightning_modules.kv.pair import MomentsPair

        return MomentsPair.load(_file(self._calibration_folder(source, corpus), tokens)).centred()

    def evaluation(self, source: ModelSource, corpus: str) -> CentredPair:
        """Moments of the evaluation tokens of a corpus; ``ensure`` has made them."""
        from lightning_modules.kv.pair import MomentsPair

        return MomentsPair.load(self._evaluation_file(source, corpus)).centred()

    def ensure(
        self,
        source: ModelSource,
        corpus: str,
        *,
        budgets: Sequence[int],
        evaluate_on: Sequence[str],
    ) -> None:
        """Run the model over whatever is not cached yet.

        Args:
            source: the model.
            corpus: calibration corpus.
            budgets: calibration tokens.
            evaluate_on: evaluation corpora.

        Raises:
            InputError: if a corpus has too few tokens, or the model does not fit the study.
            StopRequested: if a signal stopped the pass; budgets that were met are kept.
        """
        folder = self._calibration_folder(source, corpus)
        missing = [tokens for tokens in budgets if not _readable(_file(folder, tokens))]
        unseen = [
            name for name in evaluate_on if not _readable(self._evaluation_file(source, name))
        ]
        if missing or unseen:
            self._run(source, corpus, missing, unseen)

    def _run(self, source: ModelSource, corpus: str, missing: list[int], unseen: list[str]) -> None:
        from lightning.pytorch import Trainer

        from lightning_modules.kv.capture import KVCapture
        from lightning_modules.kv_calibration import KVCalibration, piece_loader
        from suite.stages.pretraining import quiet_lightning

        context, spec = self._context, self._spec
        model, tokenizer = self._load(source)
        check_shape(source.spec.shape, key_width=KVCapture(model).layout.key_width, key=source.key)
        folder = self._calibration_folder(source, corpus)
        resumed = _largest_below(folder, min(missing)) if missing else None
        calibration = (
            context.materials.pieces(corpus, "train", tokenizer, max(missing), spec)
            if missing
            else []
        )
        evaluation = {
            name: context.materials.pieces(
                name, "held_out", tokenizer, spec.evaluation_tokens, spec
            )
            for name in unseen
        }
        label = model_label(source.spec)
        start = resumed.num_rows if resumed else 0
        quiet_lightning()
        with context.display.task(
            f"forward {label} on {corpus}", max(missing, default=0)
        ) as advance:
            module = KVCalibration(
                model,
                budgets=missing,
                sinks=spec.sinks,
                evaluation_tokens=spec.evaluation_tokens,
                evaluate_on=unseen,
                on_budget=lambda tokens, moments: moments.save(_file(folder, tokens)),
                on_evaluated=lambda name, moments: moments.save(
                    self._evaluation_file(source, name)
                ),
                on_progress=lambda tokens: advance(tokens, "tokens"),
                stop=context.stop,
                resume=resumed,
            )
            trainer = Trainer(
                accelerator=spec.trainer.accelerator,
                devices=spec.trainer.devices,
                precision=spec.trainer.precision,
                max_epochs=1,
                limit_val_batches=0 if not unseen else None,
                num_sanity_val_steps=0,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                logger=False,
                default_root_dir=context.home.cache,
            )
            if missing:
                loader, skipped = piece_loader(
                    calibration, batch_size=spec.batch_size, sinks=spec.sinks, skip_tokens=start
                )
                module.skip(start - skipped)
                trainer.fit(module, train_dataloaders=loader)
            if context.stop.requested:
                raise StopRequested
            if unseen:
                trainer.validate(
                    module,
                    dataloaders=[
                        piece_loader(found, batch_size=spec.batch_size, sinks=spec.sinks)[0]
                        for found in evaluation.values()
                    ],
                    verbose=False,
                )

    def _load(self, source: ModelSource) -> tuple[PreTrainedModel, Tokenizer]:
        if self._loaded is None or self._loaded[0] != source.identity:
            self._loaded = None  # two models at once may not fit
            model, tokenizer = source.load()
            self._loaded = (source.identity, model, tokenizer)
        return self._loaded[1], self._loaded[2]

    def _calibration_folder(self, source: ModelSource, corpus: str) -> Path:
        return self._folder(source, corpus, {"split": "train"})

    def _evaluation_file(self, source: ModelSource, corpus: str) -> Path:
        folder = self._folder(source, corpus, {"split": "held_out"})
        return _file(folder, self._spec.evaluation_tokens)

    def _folder(self, source: ModelSource, corpus: str, extra: dict[str, str]) -> Path:
        materials = self._context.materials
        settings = {
            **moments_settings(materials, self._spec, identity=source.identity),
            "corpus": materials.corpus(corpus).digest,
            **extra,
        }
        return self._context.home.cache / "moments" / fingerprint(settings)


def _file(folder: Path, tokens: int) -> Path:
    return folder / f"tokens-{tokens}.safetensors"


def _readable(path: Path) -> bool:
    """Whether a file of moments is there and whole; a damaged one is reported and removed."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return False
    try:
        with safe_open(path, framework="np"):
            return True
    except SafetensorError as error:
        warnings.warn(f"{path} is damaged ({error}); it is made again", stacklevel=2)
        path.unlink()
        return False


def _largest_below(folder: Path, tokens: int) -> MomentsPair | None:
    """The moments of the largest budget below ``tokens`` that are there."""
    from lightning_modules.kv.pair import MomentsPair

    found = sorted(
        (int(path.stem.removeprefix("tokens-")) for path in folder.glob("tokens-*.safetensors")),
        reverse=True,
    )
    for candidate in found:
        if candidate < tokens:
            try:
                return MomentsPair.load(_file(folder, candidate))
            except SuiteError:
                continue
    return None
