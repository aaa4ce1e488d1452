"""Error figures of one budget as they are tracked: metrics, and tables too long for metrics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightning_modules.kv.errors import DEFINITIONS, HeadErrors, ReconstructionErrors
from lightning_modules.kv.layout import Kind
from lightning_modules.kv.solve import Evaluated

Intervals = Mapping[Kind, Mapping[str, tuple[float, float]]]

_MOST_RANKS = 16


def log_spaced_ranks(rank: int) -> list[int]:
    """At most 16 ranks from 1 to ``rank``, both included, evenly spaced in their logarithm."""
    spaced = np.unique(np.geomspace(1, rank, _MOST_RANKS).round().astype(int))
    return [int(each) for each in spaced]


@dataclass(kw_only=True)
class ErrorFigures:
    """What is tracked of the errors of one budget.

    Attributes:
        tokens: of the calibration.
        metrics: by name.
        curve: every definition at every rank, by kind and corpus.
        by_layer: every definition at some ranks, for each layer and each head.
    """

    tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    curve: dict[str, Any] = field(default_factory=dict)
    by_layer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.curve["tokens"] = self.by_layer["tokens"] = self.tokens

    def add(
        self, corpus: str, evaluated: Mapping[Kind, Evaluated], intervals: Intervals | None = None
    ) -> None:
        """Put the errors on one corpus beside the others.

        Args:
            corpus: its name.
            evaluated: errors by kind.
            intervals: of the figures at full rank, by kind and definition.
        """
        for kind, found in evaluated.items():
            errors = found.errors
            rank = len(errors.relative_error)
            ranks = log_spaced_ranks(rank)
            name = f"{kind}/relative_error/{corpus}"
            for definition, value in errors.at(rank).items():
                self.metrics[f"{kind}/{definition}/{corpus}"] = value
            for each in ranks:
                self.metrics[f"{name}/rank_{each}"] = errors.at(each)["relative_error"]
            table: dict[str, Any] = {
                definition: _plain(getattr(errors, definition)) for definition in DEFINITIONS
            }
            if intervals is not None:
                low, high = intervals[kind]["relative_error"]
                self.metrics |= {f"{name}/lower": low, f"{name}/upper": high}
                table["interval_at_full_rank"] = {
                    definition: _plain(ends) for definition, ends in intervals[kind].items()
                }
            self.curve.setdefault(kind, {})[corpus] = table
            if found.heads is not None:
                self.by_layer.setdefault(kind, {})[corpus] = _by_layer(found.heads, ranks)


def _by_layer(errors: HeadErrors, ranks: Sequence[int]) -> dict[str, Any]:
    """Errors of each layer of each loop, and of its heads, at some ranks."""
    layers = []
    heads = enumerate(errors.heads)
    for (loop, layer), group in itertools.groupby(
        heads, lambda each: (each[1].loop, each[1].layer)
    ):
        members = list(group)
        layers.append(
            {
                "loop": loop,
                "layer": layer,
                **_at(errors.over([position for position, _ in members]), ranks),
                "heads": [
                    {"head": head.head, **_at(errors.over([position]), ranks)}
                    for position, head in members
                ],
            }
        )
    return {"ranks": list(ranks), "layers": layers}


def _at(errors: ReconstructionErrors, ranks: Sequence[int]) -> dict[str, list[float | None]]:
    at = np.array(ranks) - 1
    return {name: _plain(getattr(errors, name)[at]) for name in DEFINITIONS}


def _plain(values: Any) -> list[float | None]:
    """Numbers as JSON has them, which knows neither NaN nor infinity."""
    return [float(value) if math.isfinite(value) else None for value in values]
