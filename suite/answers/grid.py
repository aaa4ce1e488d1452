"""The sizes and recurrences that a question may be about, and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from lightning_modules.looplm.sizes import (
    Shape,
    count_parameters,
    resolve,
    training_flops_per_token,
)
from suite.answers.law_run import LawRun
from suite.errors import SuiteError
from suite.laws.costs import Costs
from suite.study import PretrainingSpec
from suite.tracking.reader import Reader

_WIDTHS = tuple(Shape.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class GridSize:
    """A size with a shape.

    Attributes:
        name: its name in the study.
        shape: its widths.
        parameters: N, as the law counts it.
        looped: those of N within the loop.
    """

    name: str
    shape: Shape
    parameters: float
    looped: float

    @classmethod
    def of(cls, name: str, shape: Shape, counts: str) -> GridSize:
        """The size of a shape, its parameters counted as the law does."""
        found = count_parameters(shape)
        parameters = found.non_embedding if counts == "non_embedding" else found.total
        return cls(name=name, shape=shape, parameters=float(parameters), looped=float(found.looped))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Sizes and recurrences of a study, those that were run and those that are only declared.

    Attributes:
        sizes: by N, the smallest first.
        recurrences: values of T_m, increasing.
        sequence_length: tokens a sequence, on which attention's cost depends.
        tracked: size and T_m of the cells that the law fitted or held out.
    """

    sizes: tuple[GridSize, ...]
    recurrences: tuple[int, ...]
    sequence_length: int
    tracked: frozenset[tuple[str, int]]

    def costs(self, recurrences: Collection[int] | None = None) -> Costs:
        """FLOPs of a training token; of other recurrences than the grid's, if they are given."""
        levels = tuple(recurrences or self.recurrences)
        # Two sizes may share their N; the cheaper stands for it.
        cheapest: dict[float, GridSize] = {}
        for size in self.sizes:
            known = cheapest.setdefault(size.parameters, size)
            if self._flops(size, 1) < self._flops(known, 1):
                cheapest[size.parameters] = size
        sizes = list(cheapest.values())
        return Costs(
            parameters=np.array([size.parameters for size in sizes]),
            recurrences=np.array(levels, dtype=np.float64),
            flops_per_token=np.array(
                [[float(self._flops(size, level)) for level in levels] for size in sizes]
            ),
            looped=np.array([size.looped for size in sizes]),
        )

    def _flops(self, size: GridSize, recurrence: int) -> int:
        return training_flops_per_token(size.shape, recurrence, self.sequence_length)


def read_grid(reader: Reader, run: LawRun, declared: PretrainingSpec | None) -> Grid:
    """The grid of the cells that a law fitted or held out, and of what the study declares.

    Args:
        reader: a tracking store.
        run: the law run.
        declared: the study's pretraining stage, where its file is at hand.

    Raises:
        SuiteError: a cell's run was deleted, or has lost its shape.
    """
    texts: dict[str, dict[str, str]] = {}
    frame = reader.params([*run.cells.values()]).select("run_id", "key", "value")
    for run_id, key, value in frame.iter_rows():
        texts.setdefault(run_id, {})[key] = value
    sizes: dict[str, GridSize] = {}
    tracked: set[tuple[str, int]] = set()
    lengths: set[int] = set()
    for run_id in run.cells.values():
        params = texts.get(run_id, {})
        if not params:
            raise SuiteError(
                f"run {run_id}, which law run {run.run_id} has read, was deleted; run the study "
                "again, which trains its cell and fits the law anew"
            )
        name = params.get("size.name", run_id)
        sizes[name] = GridSize.of(name, _shape(run_id, params), run.counts)
        tracked.add((name, _integer(run_id, params, "recurrence")))
        lengths.add(_integer(run_id, params, "sequence_length"))
    if not sizes:
        raise SuiteError(f"law run {run.run_id} names no pretraining cell; its tags were edited")
    vocabulary = max(size.shape.vocab_size for size in sizes.values())
    for spec in declared.sizes if declared else ():
        if spec.name not in sizes:
            shape = resolve(spec, vocab_size=spec.vocab_size or vocabulary)
            sizes[spec.name] = GridSize.of(spec.name, shape, run.counts)
    recurrences = {recurrence for _, recurrence in tracked}
    return Grid(
        sizes=tuple(sorted(sizes.values(), key=lambda size: (size.parameters, size.name))),
        recurrences=tuple(sorted(recurrences | set(declared.recurrences if declared else ()))),
        sequence_length=max(lengths),
        tracked=frozenset(tracked),
    )


def _shape(run_id: str, params: Mapping[str, str]) -> Shape:
    return Shape(**{name: _integer(run_id, params, f"shape.{name}") for name in _WIDTHS})


def _integer(run_id: str, params: Mapping[str, str], key: str) -> int:
    text = params.get(key)
    if text is None or not (text.isascii() and text.isdigit() and int(text) > 0):
        seen = "no parameter" if text is None else f"{text!r} as"
        raise SuiteError(f"run {run_id} has {seen} {key}; it was edited or cut off")
    return int(text)
