"""KV moments of a model over a corpus, cached by what decides them.

A forward pass that was made is never made again: another niter, rank, evaluation corpus, trial
or a larger budget starts from the files. The moments at t tokens do not depend on which other
budgets were asked for, so any file serves any study that has the same settings.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cells import moments_settings
from suite.errors import InputError, SuiteError
from suite.fingerprint import fingerprint
from suite.models import ModelSource, check_rank, check_shape
from suite.stages.context import StageContext
from suite.stages.evaluation_rows import RowsKeeper, document_rows
from suite.stages.trainers import make_trainer
from suite.study import CalibrationSpec
from suite.study_rules import model_label

if TYPE_CHECKING:
    import numpy as np
    from lightning.pytorch import Trainer
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from lightning_modules.kv.capture import NonFiniteActivationError
    from lightning_modules.kv.layout import Kind, KVLayout
    from lightning_modules.kv.pair import MomentsPair, StoredPair
    from lightning_modules.kv.stored_rows import StoredRows
    from suite.corpora import Tokenizer
    from suite.corpora.tokens import CalibrationPiece


_QUOTED = 80  # characters of a text by which a person finds its document


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
        self._whole: set[tuple[Path, int, int, int]] = set()

    def at(self, source: ModelSource, corpus: str, tokens: int) -> StoredPair:
        """Moments of the first ``tokens`` calibration tokens; ``ensure`` has made them."""
        from lightning_modules.kv.pair import StoredPair

        return StoredPair.open(_file(self._calibration_folder(source, corpus), tokens))

    def evaluation(self, source: ModelSource, corpus: str) -> StoredPair:
        """Moments of the evaluation tokens of a corpus; ``ensure`` has made them."""
        from lightning_modules.kv.pair import StoredPair

        return StoredPair.open(self._evaluation_file(source, corpus))

    def rows(self, source: ModelSource, corpus: str, kind: Kind) -> StoredRows:
        """Rows of the evaluation tokens of a corpus; ``ensure`` has made them for intervals."""
        from lightning_modules.kv.stored_rows import StoredRows, rows_path

        return StoredRows.open(rows_path(self._evaluation_file(source, corpus), kind))

    @property
    def device(self) -> str:
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
        keep_rows: bool = False,
    ) -> None:
        """Run the model over whatever is not cached yet.

        Args:
            source: the model.
            corpus: calibration corpus.
            budgets: calibration tokens.
            evaluate_on: evaluation corpora.
            keep_rows: whether their rows are needed too, for intervals.

        Raises:
            InputError: if a corpus has too few tokens, or the model does not fit the study.
            StopRequested: if a signal stopped the pass; budgets that were met are kept.
        """
        from lightning_modules.kv.pair import StoredPair

        folder = self._calibration_folder(source, corpus)
        segments = self._missing(folder, budgets)
        unseen = [
            name
            for name in evaluate_on
            if not self._evaluated(self._evaluation_file(source, name), keep_rows=keep_rows)
        ]
        for missing in segments or ([[]] if unseen else []):
            self._run(source, corpus, missing, unseen, keep_rows=keep_rows)
            unseen = []
        if not segments:  # the study may ask for what these moments cannot give
            self._check(source, StoredPair.open(_file(folder, max(budgets))).layout)

    def _missing(self, folder: Path, budgets: Sequence[int]) -> list[list[int]]:
        """Budgets that are not there, those together that go on from the same one that is."""
        missing = [
            tokens for tokens in sorted(budgets) if not self._readable(_file(folder, tokens))
        ]
        start = functools.partial(self._cached_below, folder)
        return [list(together) for _, together in itertools.groupby(missing, start)]

    def _cached_below(self, folder: Path, tokens: int) -> int:
        """The largest budget below ``tokens`` that is there and whole; 0 for none."""
        names = (path.stem for path in folder.glob("tokens-*.safetensors"))
        found = (int(name.removeprefix("tokens-")) for name in names)
        for candidate in sorted(found, reverse=True):
            if candidate < tokens and self._readable(_file(folder, candidate)):
                return candidate
        return 0

    def _check(self, source: ModelSource, layout: KVLayout | None) -> None:
        if layout is not None:
            check_shape(source.spec.shape, key_width=layout.key_width, key=source.key)
            check_rank(self._context.study, layout, key=source.key)

    def _evaluated(self, path: Path, *, keep_rows: bool) -> bool:
        """Whether the moments of an evaluation corpus are there, and its rows if need be."""
        from lightning_modules.kv.pair import StoredPair
        from lightning_modules.kv.stored_rows import rows_path

        if not self._readable(path):
            return False
        kinds = StoredPair.open(path).kinds if keep_rows else ()
        return all(self._readable(rows_path(path, kind), _check_rows) for kind in kinds)

    def _readable(self, path: Path, check: Callable[[Path], None] | None = None) -> bool:
        """Whether a file is there and whole; each is read through once a process."""
        if not path.is_file():
            return False
        state = path.stat()
        seen = (path, state.st_mtime_ns, state.st_size, state.st_ino)
        if seen not in self._whole:
            if not _readable(path, check or _check_moments):
                return False
            self._whole.add(seen)
        return True

    def _run(
        self,
        source: ModelSource,
        corpus: str,
        missing: list[int],
        unseen: list[str],
        *,
        keep_rows: bool,
    ) -> None:
        from lightning_modules.kv.capture import KVCapture, NonFiniteActivationError
        from lightning_modules.kv_calibration import KVCalibration, piece_loader
        from suite.corpora import cut_for

        context, spec = self._context, self._spec
        trainer = self._trainer()
        model, tokenizer = self._load(source)
        how = cut_for(spec, tokenizer)
        pieces = functools.partial(context.materials.pieces, tokenizer=tokenizer, spec=spec)
        calibration = pieces(corpus, "train", tokens=missing[-1]) if missing else []
        evaluation = {
            name: pieces(name, "held_out", tokens=spec.evaluation_tokens) for name in unseen
        }
        loader = functools.partial(
            piece_loader,
            batch_size=spec.batch_size,
            sinks=how.left_out,
            drop_last=how.drop_last,
            num_workers=spec.trainer.num_workers,
        )
        folder = self._calibration_folder(source, corpus)
        resumed = self._resumed(folder, missing[0]) if missing else None
        start = resumed.num_rows if resumed else 0
        places = {name: self._evaluation_file(source, name) for name in unseen}
        documents = {
            name: document_rows(found, how, tokens=spec.evaluation_tokens)
            for name, found in evaluation.items()
        }
        if keep_rows:
            _check_groups(documents, spec.intervals, context)
        label = f"forward {model_label(source.spec)} on {corpus}"
        _check_positions(model, [*calibration, *itertools.chain(*evaluation.values())], context)
        with (
            KVCapture(model) as capture,
            RowsKeeper(places, documents) as keeper,
            context.display.task(label, max(missing, default=0)) as advance,
        ):
            self._check(source, capture.layout)
            if resumed is not None and resumed.layout not in (None, capture.layout):
                raise SuiteError(
                    f"the moments in {folder} were taken from other layers or heads than this "
                    "version of transformers gives; remove the folder and run again"
                )

            def evaluated(name: str, moments: MomentsPair) -> None:
                keeper.finish(name)
                moments.save(places[name])

            module = KVCalibration(
                model,
                capture,
                budgets=missing,
                sinks=how.left_out,
                drop_last=how.drop_last,
                evaluation_tokens=spec.evaluation_tokens,
                evaluate_on=unseen,
                on_budget=lambda tokens, moments: moments.save(_file(folder, tokens)),
                on_evaluated=evaluated,
                on_progress=lambda tokens: advance(tokens, "tokens"),
                on_rows=keeper if keep_rows else None,
                stop=context.stop,
                resume=resumed,
                skip_tokens=start,
            )
            del resumed  # the module lets go of it when the pass ends
            try:
                if missing:
                    batches = loader(calibration, skip_tokens=start)
                    trainer.fit(module, train_dataloaders=batches)
                    context.stop.check()
                if unseen:
                    loaders = [loader(found) for found in evaluation.values()]
                    trainer.validate(module, dataloaders=loaders, verbose=False)
            except NonFiniteActivationError as error:
                raise _with_document(error, tokenizer) from error
            finally:
                module.release()

    def _resumed(self, folder: Path, tokens: int) -> MomentsPair | None:
        """The moments that a pass to ``tokens`` goes on from."""
        from lightning_modules.kv.pair import MomentsPair

        start = self._cached_below(folder, tokens)
        return MomentsPair.load(_file(folder, start)) if start else None

    def _trainer(self) -> Trainer:
        """A trainer on one device.

        Raises:
            InputError: if the study asks for several: a pass that is split over devices meets
                no budget to the token.
        """
        spec = self._spec.trainer
        if spec.precision.endswith("-true"):
            # The model is loaded in its type. Lightning would convert what transformers keeps in
            # 32 bits, too: rotary frequencies in bfloat16 are wrong by a radian at 8,000 tokens.
            spec = replace(spec, precision="32-true")
        trainer = make_trainer(spec, self._context.home.cache, max_epochs=1)
        if trainer.world_size > 1:
            raise InputError(
                f"asks for {trainer.world_size} devices; a calibration pass runs on 1",
                key="calibration.trainer.devices",
            )
        return trainer

    def _load(self, source: ModelSource) -> tuple[PreTrainedModel, Tokenizer]:
        weights = source.digest or source.identity
        if self._loaded is None or self._loaded[0] != weights:
            self._loaded = None  # two models at once may not fit
            model, tokenizer = source.load(precision=self._spec.trainer.precision)
            self._loaded = (weights, model, tokenizer)
        return self._loaded[1], self._loaded[2]

    def _calibration_folder(self, source: ModelSource, corpus: str) -> Path:
        return self._folder(source, corpus, {"split": "train"})

    def _evaluation_file(self, source: ModelSource, corpus: str) -> Path:
        folder = self._folder(source, corpus, {"split": "held_out"})
        return _file(folder, self._spec.evaluation_tokens)

    def _folder(self, source: ModelSource, corpus: str, extra: dict[str, str]) -> Path:
        materials = self._context.materials
        settings = {
            **moments_settings(materials, self._spec, identity=source.digest or source.identity),
            "corpus": materials.corpus(corpus).digest,
            # 2: files say what their columns are; 3: rotary frequencies stay in 32 bits
            "format": 3,
            **extra,
        }
        return self._context.home.cache / "moments" / fingerprint(settings)


def _with_document(error: NonFiniteActivationError, tokenizer: Tokenizer) -> SuiteError:
    """The same, and the text of the sequence by which a person finds its document."""
    text = " ".join(tokenizer.decode(error.tokens[len(tokenizer.opening) :]).split())
    quoted = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."
    return SuiteError(f"{error}; its text is {quoted!r}")


def _file(folder: Path, tokens: int) -> Path:
    return folder / f"tokens-{tokens}.safetensors"


def _check_moments(path: Path) -> None:
    from lightning_modules.kv.files import load_tensors

    load_tensors(path, ())


def _check_rows(path: Path) -> None:
    from lightning_modules.kv.stored_rows import StoredRows

    StoredRows.open(path).check()


def _readable(path: Path, check: Callable[[Path], None] = _check_moments) -> bool:
    """Whether a file is there and passes a check; one that is damaged is reported and removed."""
    from lightning_modules.kv.files import DamagedFileError

    try:
        looked_at = path.stat().st_ino
        check(path)
    except FileNotFoundError:
        return False
    except DamagedFileError as error:
        warnings.warn(f"{path} is damaged ({error.reason}); it is made again", stacklevel=2)
        # another study may have made it again meanwhile
        if path.is_file() and path.stat().st_ino == looked_at:
            path.unlink(missing_ok=True)
        return False
    return True


def _check_groups(
    documents: Mapping[str, NDArray[np.int64]], groups: int, context: StageContext
) -> None:
    """Refuse intervals over a single document; warn of fewer groups than were asked for."""
    from lightning_modules.kv.intervals import group_ends

    for corpus, counts in documents.items():
        found = len(group_ends(counts, groups))
        if 1 < found < groups:
            context.display.note(
                f"warning: calibration.intervals is {groups}, and the {len(counts)} evaluation "
                f"documents of {corpus!r} make {found} groups; more calibration.evaluation_tokens "
                "make more"
            )
        if found < 2:
            raise InputError(
                f"got {groups}; the evaluation tokens of {corpus!r} come from {len(counts)} "
                "documents, which make no two groups; raise calibration.evaluation_tokens, or "
                "set this to 0",
                key="calibration.intervals",
            )


def _check_positions(
    model: PreTrainedModel, pieces: Sequence[CalibrationPiece], context: StageContext
) -> None:
    """Refuse sequences longer than a table of positions; warn where positions are turned."""
    from lightning_modules.kv._rotary import rotary_modules

    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(map(len, pieces), default=0)
    if limit is None or longest <= limit:
        return
    what = f"the longest sequence has {longest:,} tokens and the model {limit:,} positions"
    if rotary_modules(model):
        context.display.note(f"warning: {what}; it was not trained beyond them")
    else:
        raise InputError(f"{what}; give at most {limit}", key="calibration.sequence_length")
