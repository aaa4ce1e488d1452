"""Which cell to run next: the one whose measurement would tell most about a prediction.

The resamples of a law are draws of what its points leave open. Taken as jointly normal, a
measurement y of one cell, with the noise of a cell, leaves of the variance of a target t

    var(t | y) = var(t) - cov(t, y)^2 / (var(y) + noise^2)

and the second term is what running the cell removes. No cell is fitted to an outcome that is
not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from suite.errors import InputError
from suite.laws._terms import Array
from suite.laws.kept import KeptLaw


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cell that could be run.

    Attributes:
        size: what to call its size.
        parameters: N as the law counts it.
        recurrence: T_m.
        tokens: D at its end.
        flops: what it costs.
        variables: what the law reads of its last point, one value each.
        known: ``fitted`` if the law was fitted to such a cell, so that this repeats it with
            another seed; ``held out`` if it was run and kept from the fit; else empty.
    """

    size: str
    parameters: float
    recurrence: float
    tokens: float
    flops: float
    variables: Mapping[str, float]
    known: Literal["", "fitted", "held out"] = ""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A candidate and what it would tell.

    Attributes:
        candidate: the cell.
        removed: share of the target's variance that it removes, from 0 to 1.
        deviation_left: standard deviation of the target's log loss after it.
        removed_per_flop: ``removed`` by its cost.
    """

    candidate: Candidate
    removed: float
    deviation_left: float
    removed_per_flop: float


def rank_candidates(
    law: KeptLaw, target: Mapping[str, float], candidates: Sequence[Candidate]
) -> tuple[Ranked, ...]:
    """Candidates by what they would tell of the loss at ``target``, the most telling first.

    Args:
        law: a law with resamples.
        target: variables of one point, by name.
        candidates: cells that could be run.

    Raises:
        InputError: the law has no resamples, or there is no candidate.
    """
    if not law.has_intervals:
        raise InputError(
            "the law was fitted without resamples, so nothing tells how uncertain it is; set "
            "law.resamples to 500, have at least 5 fitted cells, and run the study again"
        )
    if not candidates:
        raise InputError("there is no cell to choose from")
    points = [target, *(candidate.variables for candidate in candidates)]
    columns = {name: np.array([point[name] for point in points]) for name in law.law.variables}
    draws = law.resampled(lambda parameters: law.law.log_prediction(parameters, columns))
    variance, removed = variance_removed(draws[:, 0], draws[:, 1:], law.noise["cell"])
    shares = removed / variance if variance > 0 else np.zeros_like(removed)
    ranked = [
        Ranked(
            candidate=candidate,
            removed=float(share),
            deviation_left=float(np.sqrt(variance * (1.0 - share))),
            removed_per_flop=float(share) / candidate.flops,
        )
        for candidate, share in zip(candidates, shares, strict=True)
    ]
    return tuple(sorted(ranked, key=lambda found: -found.removed))


def variance_removed(target: Array, measured: Array, noise: float) -> tuple[float, Array]:
    """Variance of a target, and what measurements remove of it, each on its own.

    Args:
        target: draws of the target [draws].
        measured: the same draws of what could be measured, without noise [draws, candidates].
        noise: standard deviation of a measurement.

    Returns:
        Variance of the target; the part of it that each measurement removes [candidates], 0 of
        one that nothing is open about.
    """
    centred = target - target.mean()
    others = measured - measured.mean(axis=0)
    spare = len(target) - 1
    variance = float(centred @ centred) / spare
    covariance = centred @ others / spare
    spread = (others**2).sum(axis=0) / spare + noise**2
    removed: Array = np.where(spread > 0, covariance**2 / np.where(spread > 0, spread, 1.0), 0.0)
    return variance, np.minimum(removed, variance)
