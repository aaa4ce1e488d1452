"""KV calibration as a LightningModule without an optimizer: one pass, moments at every budget.

The calibration corpus is the training loader; each evaluation corpus is a validation loader.
No row of the cache is kept: bases and errors follow from the moments alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from lightning_modules.kv.capture import KVCapture
from lightning_modules.kv.pair import MomentsPair
from suite.corpora.tokens import CalibrationPiece
from suite.stopping import StopFlag, leave_signals_to_parent


class PieceBatch(NamedTuple):
    """Pieces of documents, padded on the right; a tuple, since Lightning refuses frozen records.

    Attributes:
        input_ids: ``[batch, seq]``.
        attention_mask: ``[batch, seq]``, 1 at tokens and 0 at padding.
    """

    input_ids: Tensor
    attention_mask: Tensor

    def kept(self, sinks: int) -> Tensor:
        """Positions that count, ``[batch, seq]`` boolean: tokens after the first ``sinks``."""
        kept = self.attention_mask.bool()
        kept[:, :sinks] = False
        return kept


def collate(pieces: Sequence[CalibrationPiece]) -> PieceBatch:
    """Pad pieces to the longest of them."""
    ids = [torch.from_numpy(piece) for piece in pieces]
    return PieceBatch(
        input_ids=torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        attention_mask=torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in ids], batch_first=True
        ),
    )


def piece_loader(
    pieces: Sequence[CalibrationPiece],
    *,
    batch_size: int,
    sinks: int,
    skip_tokens: int = 0,
    num_workers: int = 0,
) -> tuple[DataLoader[PieceBatch], int]:
    """Batches of consecutive pieces, from the batch that holds token ``skip_tokens`` on.

    Batches are cut from the first piece on, whatever is skipped, so that a resumed pass
    computes the same batches as an undisturbed one.

    Args:
        pieces: each with more than ``sinks`` tokens.
        batch_size: pieces a batch.
        sinks: first positions of each piece that are not kept.
        skip_tokens: kept tokens that an earlier pass has taken in.
        num_workers: loader processes.

    Returns:
        The loader, and the kept tokens before its first batch.
    """
    batches = [pieces[start : start + batch_size] for start in range(0, len(pieces), batch_size)]
    before = 0
    while batches:
        kept = sum(max(len(piece) - sinks, 0) for piece in batches[0])
        if before + kept > skip_tokens:
            break
        before += kept
        batches.pop(0)
    loader: DataLoader[PieceBatch] = DataLoader(
        batches,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=collate,
        num_workers=num_workers,
        worker_init_fn=leave_signals_to_parent,
    )
    return loader, before


class KVCalibration(LightningModule):
    """Runs a model over documents and keeps moments of its keys and values.

    Args:
        model: a causal language model.
        capture: what reads its keys and values; entered for as long as the module is used.
        budgets: kept tokens at which ``on_budget`` is called, increasing.
        sinks: first positions of each sequence that are left out.
        evaluation_tokens: kept tokens of each evaluation corpus.
        evaluate_on: names of the evaluation corpora, in the order of the validation loaders.
        on_budget: takes the tokens and the moments when a budget is met, to the token.
        on_evaluated: takes the name and the moments of an evaluation corpus.
        on_progress: takes the kept tokens so far.
        stop: when it is set, the pass ends with the batch or evaluation corpus under way.
        resume: moments of an earlier pass that was cut off.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capture: KVCapture,
        *,
        budgets: Sequence[int],
        sinks: int,
        evaluation_tokens: int,
        evaluate_on: Sequence[str],
        on_budget: Callable[[int, MomentsPair], None],
        on_evaluated: Callable[[str, MomentsPair], None],
        on_progress: Callable[[int], None],
        stop: StopFlag,
        resume: MomentsPair | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self._capture = capture
        self._budgets = list(budgets)
        self._sinks = sinks
        self._evaluation_tokens = evaluation_tokens
        self._evaluate_on = tuple(evaluate_on)
        self._on_budget = on_budget
        self._on_evaluated = on_evaluated
        self._on_progress = on_progress
        self._stop = stop
        # One pair at a time: at p = 32,768 each of its two matrices takes 8.6 GB.
        self._moments = resume
        self._skip = 0
        self._evaluated = 0

    def configure_optimizers(self) -> None:
        """None: nothing is trained."""

    def skip(self, tokens: int) -> None:
        """Leave out the first kept tokens of the next batch; earlier batches had the others."""
        self._skip = tokens

    def on_fit_start(self) -> None:
        """Take the signals back from Lightning, and the moments to where the model is."""
        self._stop.install()
        if self._moments is not None:
            self._moments.to(self.device)

    def on_fit_end(self) -> None:
        """Let go of the moments: whoever wants them has been given them."""
        self._moments = None

    def on_validation_start(self) -> None:
        """Take the signals back from Lightning."""
        self._stop.install()

    def _rows(self, batch: PieceBatch) -> tuple[Tensor, Tensor]:
        captured = self._capture.capture(batch.input_ids, batch.attention_mask)
        kept = batch.kept(self._sinks)
        return captured.keys[kept], captured.values[kept]

    def _fresh(self) -> MomentsPair:
        layout = self._capture.layout
        return MomentsPair(layout.key_width, layout.value_width, device=self.device)

    def training_step(self, batch: PieceBatch, batch_idx: int) -> None:
        """Take in one batch of the calibration corpus; see ``on_budget``."""
        moments = self._moments = self._moments or self._fresh()
        started = time.perf_counter()
        keys, values = self._rows(batch)
        seconds_a_row = (time.perf_counter() - started) / max(len(keys), 1)
        keys, values = keys[self._skip :], values[self._skip :]
        self._skip = 0
        while len(keys) and self._budgets:
            left = self._budgets[0] - moments.num_rows
            taken, taken_values = keys[:left], values[:left]
            keys, values = keys[left:], values[left:]
            started = time.perf_counter()
            moments.update(taken, taken_values)
            # a budget inside a batch is charged its own share of the forward pass
            moments.seconds += seconds_a_row * len(taken) + time.perf_counter() - started
            if moments.num_rows == self._budgets[0]:
                self._on_budget(self._budgets.pop(0), moments)
        self._on_progress(moments.num_rows)
        if not self._budgets or self._stop.requested:
            self.trainer.should_stop = True

    def validation_step(self, batch: PieceBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Take in one batch of an evaluation corpus; see ``on_evaluated``.

        Raises:
            StopRequested: after a corpus, if a signal has come.
        """
        if dataloader_idx < self._evaluated:
            return
        assert dataloader_idx == self._evaluated, "a corpus had too few tokens"
        moments = self._moments = self._moments or self._fresh()
        started = time.perf_counter()
        left = self._evaluation_tokens - moments.num_rows
        keys, values = self._rows(batch)
        moments.update(keys[:left], values[:left])
        moments.seconds += time.perf_counter() - started
        if moments.num_rows == self._evaluation_tokens:
            self._on_evaluated(self._evaluate_on[dataloader_idx], moments)
            self._moments = None
            self._evaluated += 1
            self._stop.check()
