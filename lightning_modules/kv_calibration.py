"""KV calibration as a LightningModule without an optimizer: one pass, moments at every budget.

The calibration corpus is the training loader; each evaluation corpus is a validation loader.
No row of the cache is kept: bases and errors follow from the moments alone. In a process group
every rank takes its own batches, and a budget is met by all of them together: the rows that
count are the same, to the token, as those of one process.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

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
        first: kept tokens of all batches before this one, on any rank.
        following: kept tokens before the next batch of this rank; all there are if it is the last.
    """

    input_ids: Tensor
    attention_mask: Tensor
    first: int = 0
    following: int = 0

    def kept(self, sinks: int, drop_last: int = 0) -> Tensor:
        """Positions that count, ``[batch, seq]`` boolean.

        Args:
            sinks: first positions of each piece that do not.
            drop_last: last positions of each piece that do not.
        """
        position = self.attention_mask.cumsum(dim=1)
        length = position[:, -1:]
        within = (position > sinks) & (position <= length - drop_last)
        return within & self.attention_mask.bool()


class UnpaddedBatch(NamedTuple):
    """One batch before it is padded: pieces, and the two counts of ``PieceBatch``."""

    pieces: Sequence[CalibrationPiece]
    first: int
    following: int


def collate(unpadded: UnpaddedBatch) -> PieceBatch:
    """Pad pieces to the longest of them."""
    ids = [torch.from_numpy(piece) for piece in unpadded.pieces]
    return PieceBatch(
        input_ids=torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        attention_mask=torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in ids], batch_first=True
        ),
        first=unpadded.first,
        following=unpadded.following,
    )


def piece_loader(
    pieces: Sequence[CalibrationPiece],
    *,
    batch_size: int,
    sinks: int,
    drop_last: int = 0,
    skip_tokens: int = 0,
    num_workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> DataLoader[PieceBatch]:
    """Batches of consecutive pieces, from the batch that holds token ``skip_tokens`` on.

    Batches are cut from the first piece on, whatever is skipped and however many ranks there
    are, so that a resumed pass and one on several ranks compute the same batches as an
    undisturbed one. Rank j takes every ``ranks``-th batch from its j-th on.

    Args:
        pieces: each with more than ``sinks + drop_last`` tokens.
        batch_size: pieces a batch.
        sinks: first positions of each piece that are not kept.
        drop_last: last positions of each piece that are not kept.
        skip_tokens: kept tokens that an earlier pass has taken in.
        num_workers: loader processes.
        rank: number of this process.
        ranks: number of processes.

    Raises:
        ValueError: there are fewer batches left than ranks.
    """
    batches = [pieces[start : start + batch_size] for start in range(0, len(pieces), batch_size)]
    kept = (sum(max(len(piece) - sinks - drop_last, 0) for piece in batch) for batch in batches)
    ends = list(itertools.accumulate(kept))
    firsts = [0, *ends[:-1]]
    mine = [number for number, end in enumerate(ends) if end > skip_tokens][rank::ranks]
    if not mine and ranks > 1:
        raise ValueError(f"{len(batches)} batches are too few for {ranks} ranks")
    following = [*(firsts[number] for number in mine[1:]), ends[-1] if ends else 0]
    unpadded = [
        UnpaddedBatch(batches[number], firsts[number], after)
        for number, after in zip(mine, following, strict=False)
    ]
    return DataLoader(
        unpadded,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=collate,  # type: ignore[arg-type]
        num_workers=num_workers,
        worker_init_fn=leave_signals_to_parent,
    )


@contextmanager
def _whole(moments: MomentsPair) -> Iterator[MomentsPair]:
    """The sums of all ranks, for as long as somebody looks at them."""
    whole = moments.gathered()
    try:
        yield whole
    finally:
        if whole is not moments:
            whole.release()


class RowsTaker(Protocol):
    """Takes rows ``[n, p_k]`` and ``[n, p_v]`` of an evaluation corpus as they come."""

    def __call__(self, corpus: str, keys: Tensor, values: Tensor) -> None:
        """Take the next rows of a corpus."""


class KVCalibration(LightningModule):
    """Runs a model over documents and keeps moments of its keys and values.

    Args:
        model: a causal language model.
        capture: what reads its keys and values; entered for as long as the module is used.
        budgets: kept tokens at which ``on_budget`` is called, increasing.
        sinks: first positions of each sequence that are left out.
        drop_last: last positions of each sequence that are left out.
        evaluation_tokens: kept tokens of each evaluation corpus.
        evaluate_on: names of the evaluation corpora, in the order of the validation loaders.
        on_budget: takes the tokens and the moments when a budget is met, to the token. The
            moments are its own only until it returns.
        on_evaluated: takes the name and the moments of an evaluation corpus, likewise.
        on_rows: takes the rows of evaluation corpora, where somebody wants them.
        on_progress: takes the kept tokens so far.
        stop: when it is set, the pass ends with the batch or evaluation corpus under way.
        resume: moments of an earlier pass that was cut off; with several ranks, given to one.
        skip_tokens: kept tokens that the earlier pass has taken in, given to all ranks.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capture: KVCapture,
        *,
        budgets: Sequence[int],
        sinks: int,
        drop_last: int = 0,
        evaluation_tokens: int,
        evaluate_on: Sequence[str],
        on_budget: Callable[[int, MomentsPair], None],
        on_evaluated: Callable[[str, MomentsPair], None],
        on_progress: Callable[[int], None],
        on_rows: RowsTaker | None = None,
        stop: StopFlag,
        resume: MomentsPair | None = None,
        skip_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self._capture = capture
        self._budgets = list(budgets)
        self._sinks, self._drop_last = sinks, drop_last
        self._evaluation_tokens = evaluation_tokens
        self._evaluate_on = tuple(evaluate_on)
        self._on_budget = on_budget
        self._on_evaluated = on_evaluated
        self._on_progress = on_progress
        self._on_rows = on_rows
        self._stop = stop
        # One pair at a time: at p = 32,768 each of its two matrices takes 8.6 GB.
        self._moments = resume
        self._skip = skip_tokens
        self._evaluated = 0

    def configure_optimizers(self) -> None:
        """None: nothing is trained."""

    def on_fit_start(self) -> None:
        """Take the signals back from Lightning, and the moments to where the model is."""
        self._stop.install()
        if self._moments is not None:
            self._moments.to(self._sums_on)

    def on_fit_end(self) -> None:
        """Let go of the moments: whoever wants them has been given them."""
        self.release()

    def release(self) -> None:
        """Let go of the sums, also after a pass that failed; nothing is computed with them then."""
        if self._moments is not None:
            self._moments.release()
        self._moments = None

    def on_validation_start(self) -> None:
        """Take the signals back from Lightning."""
        self._stop.install()

    def _rows(self, batch: PieceBatch) -> tuple[Tensor, Tensor]:
        captured = self._capture.capture(batch.input_ids, batch.attention_mask)
        kept = batch.kept(self._sinks, self._drop_last)
        return captured.keys[kept], captured.values[kept]

    def _fresh(self) -> MomentsPair:
        layout = self._capture.layout
        widths = layout.key_width, layout.value_width
        return MomentsPair(*widths, device=self._sums_on, layout=layout)

    def _wait(self) -> None:
        """Wait for the device, so that the clock reads what it has done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def _sums_on(self) -> torch.device:
        """Where sums in 64 bits can be: beside the model, but for Apple's devices."""
        return torch.device("cpu") if self.device.type == "mps" else self.device

    def training_step(self, batch: PieceBatch, batch_idx: int) -> None:
        """Take in one batch of the calibration corpus; see ``on_budget``."""
        moments = self._moments = self._moments or self._fresh()
        started = time.perf_counter()
        keys, values = self._rows(batch)
        self._wait()
        seconds_a_row = (time.perf_counter() - started) / max(len(keys), 1)
        skipped = max(self._skip - batch.first, 0)
        keys, values, at = keys[skipped:], values[skipped:], batch.first + skipped
        while self._budgets:
            taken = max(min(self._budgets[0] - at, len(keys)), 0)
            started = time.perf_counter()
            moments.update(keys[:taken], values[:taken])
            self._wait()
            # a budget inside a batch is charged its own share of the forward pass
            moments.seconds += seconds_a_row * taken + time.perf_counter() - started
            keys, values, at = keys[taken:], values[taken:], at + taken
            if max(at, batch.following) < self._budgets[0]:
                break
            with _whole(moments) as whole:
                self._on_budget(self._budgets.pop(0), whole)
        self._on_progress(at)
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
        corpus = self._evaluate_on[dataloader_idx]
        moments = self._moments = self._moments or self._fresh()
        started = time.perf_counter()
        keys, values = self._rows(batch)
        left = max(self._evaluation_tokens - batch.first, 0)
        keys, values = keys[:left], values[:left]
        moments.update(keys, values)
        self._wait()
        moments.seconds += time.perf_counter() - started
        if self._on_rows is not None:
            self._on_rows(corpus, keys, values)
        if max(batch.first + len(keys), batch.following) >= self._evaluation_tokens:
            with _whole(moments) as whole:
                self._on_evaluated(corpus, whole)
            self.release()
            self._evaluated += 1
            self._stop.check()
