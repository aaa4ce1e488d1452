"""KV moments of a model over a corpus, cached by what decides them.

A forward pass that was made is never made again: another niter, rank, evaluation corpus, trial
or a larger budget starts from the files. The moments at t tokens do not depend on which other
budgets were asked for, so any file serves any study that has the same settings.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cells import moments_settings
from suite.errors import InputError
from suite.fingerprint import fingerprint
from suite.models import ModelSource, check_rank, check_shape
from suite.stages.context import StageContext
from suite.stages.trainers import make_trainer
from suite.study import CalibrationSpec
from suite.study_rules import model_label

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
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

        path = _file(self._calibration_folder(source, corpus), tokens)
        return MomentsPair.load(path).to(self._device()).centred()

    def evaluation(self, source: ModelSource, corpus: str) -> CentredPair:
        """Moments of the evaluation tokens of a corpus; ``ensure`` has made them."""
        from lightning_modules.kv.pair import MomentsPair

        path = self._evaluation_file(source, corpus)
        return MomentsPair.load(path).to(self._device()).centred()

    def _device(self) -> str:
        """Where solves run: on the stage's accelerator if that has float64, else on the CPU."""
        import torch

        wanted = self._spec.trainer.accelerator in ("auto", "gpu", "cuda")
        return "cuda" if wanted and torch.cuda.is_available() else "cpu"

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
        missing = [tokens for tokens in sorted(budgets) if not _readable(_file(folder, tokens))]
        unseen = [
            name for name in evaluate_on if not _readable(self._evaluation_file(source, name))
        ]
        if missing or unseen:
            self._run(source, corpus, missing, unseen)

    def _run(self, source: ModelSource, corpus: str, missing: list[int], unseen: list[str]) -> None:
        from lightning_modules.kv.capture import KVCapture
        from lightning_modules.kv_calibration import KVCalibration, piece_loader

        context, spec = self._context, self._spec
        trainer = self._trainer()
        model, tokenizer = self._load(source)
        pieces = functools.partial(context.materials.pieces, tokenizer=tokenizer, spec=spec)
        calibration = pieces(corpus, "train", tokens=missing[-1]) if missing else []
        evaluation = [pieces(name, "held_out", tokens=spec.evaluation_tokens) for name in unseen]
        loader = functools.partial(
            piece_loader,
            batch_size=spec.batch_size,
            sinks=spec.sinks,
            num_workers=spec.trainer.num_workers,
        )
        folder = self._calibration_folder(source, corpus)
        resumed = _largest_below(folder, missing[0]) if missing else None
        label = f"forward {model_label(source.spec)} on {corpus}"
        with (
            KVCapture(model) as capture,
            context.display.task(label, max(missing, default=0)) as advance,
        ):
            check_shape(source.spec.shape, key_width=capture.layout.key_width, key=source.key)
            check_rank(context.study, capture.layout, key=source.key)
            module = KVCalibration(
                model,
                capture,
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
            if missing:
                start = resumed.num_rows if resumed else 0
                batches, before = loader(calibration, skip_tokens=start)
                module.skip(start - before)
                trainer.fit(module, train_dataloaders=batches)
                context.stop.check()
            if unseen:
                loaders = [loader(found)[0] for found in evaluation]
                trainer.validate(module, dataloaders=loaders, verbose=False)

    def _trainer(self) -> Trainer:
        """A trainer on one device.

        Raises:
            InputError: if the study asks for several: a pass that is split over devices meets
                no budget to the token.
        """
        trainer = make_trainer(self._spec.trainer, self._context.home.cache, max_epochs=1)
        if trainer.world_size > 1:
            raise InputError(
                f"asks for {trainer.world_size} devices; a calibration pass runs on 1",
                key="calibration.trainer.devices",
            )
        return trainer

    def _load(self, source: ModelSource) -> tuple[PreTrainedModel, Tokenizer]:
        if self._loaded is None or self._loaded[0] != source.identity:
            self._loaded = None  # two models at once may not fit
            model, tokenizer = source.load(precision=self._spec.trainer.precision)
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
    from lightning_modules.kv.files import DamagedFileError, load_tensors

    if not path.is_file():
        return False
    try:
        load_tensors(path)
    except DamagedFileError as error:
        warnings.warn(f"{path} is damaged ({error.reason}); it is made again", stacklevel=2)
        path.unlink()
        return False
    return True


def _largest_below(folder: Path, tokens: int) -> MomentsPair | None:
    """The moments of the largest budget below ``tokens`` that are there."""
    from lightning_modules.kv.pair import MomentsPair

    found = (int(path.stem.removeprefix("tokens-")) for path in folder.glob("tokens-*.safetensors"))
    for candidate in sorted(found, reverse=True):
        if candidate < tokens and _readable(_file(folder, candidate)):
            return MomentsPair.load(_file(folder, candidate))
    return None
