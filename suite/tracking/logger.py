"""Lightning's view of a run: a logger whose steps are tokens."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from suite.tracking.recorder import RunRecorder


class TokenLogger(Logger):
    """Hands metrics to a run's recorder; the modules pass the token count as step.

    Args:
        recorder: the open attempt; only rank zero writes to it.
    """

    def __init__(self, recorder: RunRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    @property
    def name(self) -> str:
        """Name of the logger."""
        return "suite"

    @property
    def version(self) -> str:
        """The run id."""
        return self._recorder.run_id

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Take metrics at ``step`` tokens.

        Lightning's own bookkeeping (``epoch``) is left out: it has no place on a token axis.
        """
        kept = {key: value for key, value in metrics.items() if key != "epoch"}
        if kept and step is not None:
            self._recorder.log(kept, step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the recorder has logged the cell's settings when the attempt began."""

    @rank_zero_only
    def save(self) -> None:
        """See that what was logged outlasts the checkpoint that is about to be saved."""
        self._recorder.sync()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Do nothing: whoever began the attempt ends it, and everything is on record."""
