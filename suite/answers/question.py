"""What ``suite predict`` was asked, with every default filled in."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from suite.amounts import read_amount
from suite.answers.grid import Grid
from suite.errors import InputError
from suite.laws.allocation import optimum
from suite.laws.costs import Costs
from suite.laws.kept import KeptLaw
from suite.laws.next_cell import Candidate

_FURTHER = 10.0  # the default budget, in cells of the largest cost
_LENGTHS = (1.0, 2.0, 4.0)  # of the candidates, in those of the study's cells


@dataclass(frozen=True, kw_only=True)
class Place:
    """One point of the law.

    Attributes:
        label: what to call its size.
        parameters: N.
        recurrence: T_m.
        tokens: D.
    """

    label: str
    parameters: float
    recurrence: int
    tokens: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """The question in full.

    Attributes:
        costs: FLOPs of a token, at the recurrences of the question.
        places: whose loss is asked for; none without ``--size``.
        flops: budget to allocate; none without ``--flops``, unless nothing was asked.
        target: the point whose uncertainty the next cell should reduce; none if not asked.
        why: how the target came about.
    """

    costs: Costs
    places: tuple[Place, ...]
    flops: float | None
    target: Place | None
    why: str


def read_question(options: argparse.Namespace, law: KeptLaw, grid: Grid) -> Asked:
    """Fill in what the options leave out.

    Raises:
        InputError: they do not go together, or name no size.
    """
    if options.tokens is not None and options.size is None:
        raise InputError("it needs --size, whose tokens these are", key="--tokens")
    levels = (options.recurrence,) if options.recurrence else grid.recurrences
    costs = grid.costs(levels)
    tokens = options.tokens or longest(law)
    places: tuple[Place, ...] = ()
    if options.size is not None:
        label, parameters = _size(options.size, grid)
        places = tuple(
            Place(label=label, parameters=parameters, recurrence=level, tokens=tokens)
            for level in levels
        )
    nothing = not (places or options.flops or options.next_cell)
    flops: float | None = options.flops
    if nothing:
        flops = further(law, grid)
    if not (options.next_cell or (nothing and law.has_intervals)):
        return Asked(costs=costs, places=places, flops=flops, target=None, why="")
    if places:
        return Asked(costs=costs, places=places, flops=flops, target=places[-1], why="as asked")
    budget = flops or further(law, grid)
    return Asked(
        costs=costs,
        places=places,
        flops=flops,
        target=best_use(law, costs, budget),
        why=f"the best use of {budget:.3g} FLOPs"
        + ("" if options.flops else f", {_FURTHER:g} times the largest fitted cell"),
    )


def longest(law: KeptLaw) -> float:
    """The most tokens that were fitted."""
    return max(point["tokens"] for point in law.points)


def further(law: KeptLaw, grid: Grid) -> float:
    """FLOPs of ten times the most expensive fitted cell."""
    costs = grid.costs(sorted({point["recurrence"] for point in law.points}))
    return _FURTHER * max(
        costs.at(point["parameters"], point["recurrence"]) * point["tokens"] for point in law.points
    )


def best_use(law: KeptLaw, costs: Costs, flops: float) -> Place:
    """Where the law, without its resamples, would spend a budget."""
    found = optimum(law.law, law.parameters, costs, flops)
    return Place(
        label="",
        parameters=float(found.parameters[found.best]),
        recurrence=int(costs.recurrences[found.best]),
        tokens=float(found.tokens[found.best]),
    )


def variables_at(costs: Costs, place: Place) -> Mapping[str, float]:
    """What the law reads of a place."""
    log_n = np.log([place.parameters])
    column = np.array([costs.index(place.recurrence)])
    found = costs.variables(log_n, column, costs.segment_of(log_n), np.array([place.tokens]))
    return {name: float(values[0]) for name, values in found.items()}


def candidates(law: KeptLaw, grid: Grid) -> list[Candidate]:
    """Cells that could be run: every size and T_m of the study, as long and longer."""
    costs = grid.costs()
    found = []
    for size in grid.sizes:
        for recurrence in grid.recurrences:
            for length in _LENGTHS:
                place = Place(
                    label=size.name,
                    parameters=size.parameters,
                    recurrence=recurrence,
                    tokens=length * longest(law),
                )
                found.append(
                    Candidate(
                        size=size.name,
                        parameters=size.parameters,
                        recurrence=recurrence,
                        tokens=place.tokens,
                        flops=costs.at(size.parameters, recurrence) * place.tokens,
                        variables=variables_at(costs, place),
                        known=_known(law, grid, place) if length == 1.0 else "",
                    )
                )
    return found


def _known(law: KeptLaw, grid: Grid, place: Place) -> Literal["", "fitted", "held out"]:
    cell = (place.label, place.recurrence)
    if cell in {(point["size"], point["recurrence"]) for point in law.points}:
        return "fitted"
    return "held out" if cell in grid.tracked else ""


def _size(text: str, grid: Grid) -> tuple[str, float]:
    """Label and N of a size given by name or by number."""
    named = {size.name: size.parameters for size in grid.sizes}
    if text in named:
        return text, named[text]
    try:
        return text, read_amount(text)
    except InputError:
        raise InputError(
            f"got {text!r}; give one of the study's sizes ({', '.join(named)}) or a number of "
            "parameters, such as 2.6B",
            key="--size",
        ) from None
