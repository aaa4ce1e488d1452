"""What a training token costs, at sizes that a study declares, between them and beyond.

Shapes exist at the declared sizes only. Between two of them the FLOPs of a token are taken as a
power of N, a straight line in logarithms, which meets both; beyond the outermost sizes their
line goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from suite.errors import InputError
from suite.laws._terms import Array

_FARTHEST = np.log(1e30)  # how far beyond the outermost sizes, as a factor of N, costs reach
BEYOND = 60
"""Stretches of log N on either side of the declared sizes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """FLOPs of a training token by size and recurrence.

    Attributes:
        parameters: N of the sizes as the law counts it, increasing [sizes].
        recurrences: values of T_m [recurrences].
        flops_per_token: forward and backward [sizes, recurrences].
        looped: those of N within the loop [sizes]; none where no law reads them.
    """

    parameters: Array
    recurrences: Array
    flops_per_token: Array
    looped: Array | None = None

    @classmethod
    def six_n(cls, smallest: float, largest: float) -> Costs:
        """The customary C = 6 N D: 6 N operations a token, whatever N is."""
        sizes = np.array([smallest, largest])
        return cls(parameters=sizes, recurrences=np.ones(1), flops_per_token=6.0 * sizes[:, None])

    @cached_property
    def edges(self) -> Array:
        """Log N at the ends of the stretches, on each of which costs are a power of N.

        Every size is one; ``BEYOND`` stretches lie below them all, and as many above.
        """
        logs = np.log(self.parameters)
        away = np.linspace(0.0, _FARTHEST, BEYOND + 1)[1:]
        return np.concatenate([logs[0] - away[::-1], logs, logs[-1] + away])

    def segment_of(self, log_n: Array) -> NDArray[np.intp]:
        """Number of the stretch of each log N."""
        return np.searchsorted(self.edges[1:-1], log_n, side="right")

    def index(self, recurrence: float) -> int:
        """Column of a recurrence.

        Raises:
            InputError: no costs are known at it.
        """
        found = np.flatnonzero(self.recurrences == recurrence)
        if not len(found):
            levels = ", ".join(f"{level:g}" for level in self.recurrences)
            raise InputError(f"costs are known at T_m {levels}, not at {recurrence:g}")
        return int(found[0])

    def at(self, parameters: float, recurrence: float) -> float:
        """FLOPs of a training token at any size and a known recurrence."""
        log_n = np.log([parameters])
        column = np.array([self.index(recurrence)])
        return float(np.exp(self.log_flops(log_n, column, self.segment_of(log_n)))[0])

    def log_flops(self, log_n: Array, column: NDArray[np.intp], segment: NDArray[np.intp]) -> Array:
        """Log FLOPs of a token by the line of a stretch, wherever log N lies; broadcasts."""
        return self._line(np.log(self.flops_per_token), log_n, column, segment, 1.0)

    def variables(
        self,
        log_n: Array,
        column: NDArray[np.intp],
        segment: NDArray[np.intp],
        tokens: Array,
    ) -> dict[str, Array]:
        """What a law reads of such models after so many tokens; flattens what it is given.

        The looped share of N follows a line in its log odds, so that it stays a share.
        """
        log_n, column, segment, tokens = (
            part.ravel() for part in np.broadcast_arrays(log_n, column, segment, tokens)
        )
        found = {
            "parameters": np.exp(log_n),
            "tokens": tokens,
            "recurrence": self.recurrences[column],
            "step": self.recurrences[column],  # the loss that counts is that of the last loop
        }
        if self.looped is not None:
            odds = np.log(self.looped) - np.log(self.parameters - self.looped)
            share = self._line(odds[:, None], log_n, np.zeros_like(column), segment, 0.0)
            # in logarithms, so that far from the sizes neither part is rounded to nothing
            found["parameters_recurrent"] = np.exp(log_n - np.logaddexp(0.0, -share))
            found["parameters_once"] = np.exp(log_n - np.logaddexp(0.0, share))
        return found

    def _line(
        self,
        values: Array,
        log_n: Array,
        column: NDArray[np.intp],
        segment: NDArray[np.intp],
        slope_of_one: float,
    ) -> Array:
        """Values [sizes, columns] along the lines between sizes, at log N.

        A single size has no line of its own; ``slope_of_one`` is that of its costs, or shares.
        """
        logs = np.log(self.parameters)
        if len(logs) == 1:
            single: Array = values[0, column] + slope_of_one * (log_n - logs[0])
            return single
        left = np.clip(segment - BEYOND, 0, len(logs) - 2)
        slope = (values[left + 1, column] - values[left, column]) / (logs[left + 1] - logs[left])
        line: Array = values[left, column] + slope * (log_n - logs[left])
        return line
