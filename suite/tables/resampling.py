"""Intervals of a table's fit: the bootstrap over its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from suite.errors import InputError
from suite.laws.forms import Form
from suite.laws.intervals import (
    FEWEST_RESAMPLES,
    FEWEST_RUNS,
    ResampledFit,
    bootstrap,
    fewest_resamples,
)
from suite.laws.repeated_intervals import bootstrap_repeated
from suite.tables.columns import Array
from suite.tables.points import TablePoints
from suite.tables.request import FitRequest

_LEVEL = 0.95
_CHUNK = 10_000  # points whose bands are computed at once
_MOST_CONVERGED = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class Intervals:
    """Intervals of parameters and of predictions, each on its own.

    Attributes:
        ends: lower and upper end by symbol; NaN where the points do not identify it, or where it
            is fixed.
        lower: lower ends of the law's loss [points].
        upper: upper ends [points].
        level: nominal coverage.
        resamples: how many fits they come from.
        warnings: in plain sentences.
    """

    ends: Mapping[str, tuple[float, float]]
    lower: Array
    upper: Array
    level: float
    resamples: int
    warnings: tuple[str, ...]


def fit_with_intervals(
    form: Form,
    points: TablePoints,
    request: FitRequest,
    on_resample: Callable[[int], None] | None = None,
) -> tuple[ResampledFit, Intervals]:
    """Fit the points that are not held out, and resamples of their groups.

    Raises:
        InputError: as ``bootstrap``; too few groups or resamples name their option.
    """
    kept = ~points.held_out
    num_runs = len(np.unique(points.group[kept]))
    if FEWEST_RUNS <= num_runs and FEWEST_RESAMPLES <= request.bootstrap:
        needed = fewest_resamples(num_runs, _LEVEL)
        if request.bootstrap < needed:
            raise InputError(
                f"got {request.bootstrap}; with {num_runs} groups fewer than two of them lie "
                f"beyond each end of a {_LEVEL:.0%} interval, so give at least {needed}",
                key="--bootstrap",
            )
    try:
        found = _bootstrap(form, points, request, on_resample)
    except InputError as error:
        raise InputError(str(error), key="--bootstrap") from None
    lower, upper = _bands(found, points)
    intervals = {name: found.interval(name, _LEVEL) for name in found.symbols}
    return found, Intervals(
        ends={
            name: (np.nan, np.nan) if name in request.fixed else (interval.lower, interval.upper)
            for name, interval in intervals.items()
        },
        lower=lower,
        upper=upper,
        level=_LEVEL,
        resamples=request.bootstrap,
        warnings=tuple(_warnings(found, points, request)),
    )


def _bootstrap(
    form: Form,
    points: TablePoints,
    request: FitRequest,
    on_resample: Callable[[int], None] | None,
) -> ResampledFit:
    kept = ~points.held_out
    if form.name == "data_constrained":
        return bootstrap_repeated(
            points.fitted(),
            points.loss[kept],
            points.group[kept],
            plain=request.fixed or None,
            huber_delta=request.huber_delta,
            starts=request.starts,
            resamples=request.bootstrap,
            seed=request.seed,
            on_resample=on_resample,
        )
    return bootstrap(
        form,
        points.fitted(),
        points.loss[kept],
        points.group[kept],
        huber_delta=request.huber_delta,
        starts=request.starts,
        resamples=request.bootstrap,
        seed=request.seed,
        on_resample=on_resample,
    )


def _bands(found: ResampledFit, points: TablePoints) -> tuple[Array, Array]:
    bands = []
    for first in range(0, len(points), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        columns = {name: values[chunk] for name, values in points.variables.items()}
        bands.append(found.predict(columns, _LEVEL))
    return (
        np.concatenate([band.lower for band in bands]),
        np.concatenate([band.upper for band in bands]),
    )


def _warnings(found: ResampledFit, points: TablePoints, request: FitRequest) -> list[str]:
    sentences = list(found.warnings)
    if request.fixed:
        sentences.append(
            f"{', '.join(request.fixed)} are fixed in every resample: the intervals take them for "
            "known, and are too narrow by what is not known of them"
        )
    if found.converged_share < _MOST_CONVERGED:
        sentences.append(
            f"only {found.converged_share:.0%} of the resamples converged: the intervals are rough"
        )
    if not points.grouped:
        sentences.append(
            "every row was resampled as a run of its own; where rows are points of one curve, "
            "name --group, or the intervals are too narrow"
        )
    return sentences
