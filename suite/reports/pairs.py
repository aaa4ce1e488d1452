"""Measured and predicted losses at the same tokens, in the window that the law was fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suite.reports.points import Curve, NoDataError
from suite.reports.records import LawRun, PretrainingCell, Tracked


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Real and predicted loss of one cell at the same steps.

    Attributes:
        real: tracked loss.
        predicted: the law's loss at the same steps.
        held_out: whether the law was fitted without this cell.
    """

    real: Curve
    predicted: Curve
    held_out: bool

    @property
    def series(self) -> str:
        """How legends and manifests call the points."""
        return "Held out" if self.held_out else "Fitted"

    @property
    def residual(self) -> NDArray[np.float64]:
        """Predicted over measured loss, less 1, ``[points]``; see ``suite.laws.goodness``."""
        with np.errstate(all="ignore"):  # a curve may hold what is not finite
            residual: NDArray[np.float64] = self.predicted.value / self.real.value - 1.0
        residual[~np.isfinite(self.real.value)] = np.nan  # what is infinite is not -100 % off
        return residual


def pair_cells(tracked: Tracked) -> tuple[LawRun, dict[str, Pair]]:
    """The law, and the pair of each cell that it predicts, by run id.

    Raises:
        NoDataError: if no law is tracked, or it predicts no tracked point.
    """
    law = tracked.law
    if law is None:
        raise NoDataError(f"no finished law run of {tracked.study!r} is tracked yet")
    pairs = {
        cell.run_id: pair
        for cell in tracked.pretraining
        if (pair := _pair(tracked, cell, law.fit_from)) is not None and len(pair.real)
    }
    if not pairs:
        raise NoDataError(f"the law of {tracked.study!r} predicts none of the tracked points")
    return law, pairs


def _pair(tracked: Tracked, cell: PretrainingCell, fit_from: float) -> Pair | None:
    predicted = tracked.predicted(cell)
    if predicted is None:
        return None
    real = tracked.curve(cell.run_id, tracked.loss_metric)
    steps, in_real, in_predicted = np.intersect1d(real.step, predicted.step, return_indices=True)
    window = (steps > 0) & (steps >= fit_from * (real.last_step or 0))
    return Pair(
        real=real.select(in_real[window]),
        predicted=predicted.select(in_predicted[window]),
        held_out=tracked.held_out(cell),
    )
