from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_modules.looplm.sizes import PRESETS, resolve, training_flops_per_token
from suite.answers.grid import Grid, GridSize
from suite.answers.question import candidates, read_question, variables_at
from suite.errors import InputError
from suite.laws.kept import KeptLaw, LastPoint

SIZES = tuple(
    GridSize.of(name, resolve(spec, vocab_size=32_000), "total") for name, spec in PRESETS.items()
)
GRID = Grid(
    sizes=SIZES,
    recurrences=(2, 4, 8),
    sequence_length=2048,
    tracked=frozenset((size.name, level) for size in SIZES for level in (2, 4)),
)
LAW = KeptLaw(
    form="chinchilla",
    parameters={"E": 1.8, "A": 400.0, "alpha": 0.34, "B": 2000.0, "beta": 0.37},
    symbols=("E", "A", "alpha", "B", "beta"),
    resamples=np.tile([1.8, 400.0, 0.34, 2000.0, 0.37], (3, 1)),
    num_runs=8,
    unidentified=(),
    objective=1.0,
    noise={"cell": 0.004, "point": 0.01},
    points=tuple(
        LastPoint(
            cell=f"{size.name}-{level}",
            size=size.name,
            recurrence=level,
            parameters=size.parameters,
            tokens=2e10,
        )
        for size in SIZES[:4]
        for level in (2, 4)
    ),
)


def asked(law: KeptLaw = LAW, **options: Any) -> Any:
    defaults = {"size": None, "recurrence": None, "tokens": None, "flops": None}
    given = argparse.Namespace(**{**defaults, "next_cell": False, **options})
    return read_question(given, law, GRID)


def test_a_size_by_name_is_asked_at_every_recurrence_and_the_fitted_tokens() -> None:
    found = asked(size="1.36B")
    assert [place.recurrence for place in found.places] == [2, 4, 8]
    assert {place.parameters for place in found.places} == {SIZES[-1].parameters}
    assert {place.tokens for place in found.places} == {2e10}
    assert (found.flops, found.target) == (None, None)


def test_a_size_by_number_needs_no_declaration() -> None:
    (place,) = asked(size="2.6B", recurrence=16, tokens=1e12).places
    assert (place.label, place.parameters, place.recurrence) == ("2.6B", 2.6e9, 16)
    assert asked(size="2.6B", recurrence=16).costs.recurrences.tolist() == [16]


def test_nothing_asked_looks_ten_times_beyond_the_largest_fitted_cell() -> None:
    found = asked()
    largest = training_flops_per_token(SIZES[3].shape, 4, 2048) * 2e10
    assert found.flops == pytest.approx(10 * largest)
    spent = found.costs.at(found.target.parameters, found.target.recurrence) * found.target.tokens
    assert spent == pytest.approx(found.flops)
    assert asked(replace(LAW, resamples=np.empty((0, 5)))).target is None


def test_the_next_cell_is_about_what_else_was_asked() -> None:
    assert asked(next_cell=True, size="53M", recurrence=2).target.parameters == (
        SIZES[0].parameters
    )
    found = asked(next_cell=True, flops=1e21)
    spent = found.costs.at(found.target.parameters, found.target.recurrence) * found.target.tokens
    assert spent == pytest.approx(1e21)
    assert found.why == "the best use of 1e+21 FLOPs"
    assert asked(next_cell=True).flops is None


def test_candidates_are_the_grid_and_longer_runs_with_their_costs() -> None:
    found = candidates(LAW, GRID)
    assert len(found) == 5 * 3 * 3
    for cell in found:
        size = next(size for size in SIZES if size.name == cell.size)
        cost = training_flops_per_token(size.shape, int(cell.recurrence), 2048)
        assert cell.flops == pytest.approx(cost * cell.tokens, rel=1e-12)
        assert cell.variables["parameters"] == pytest.approx(size.parameters, rel=1e-12)
    known = {(cell.size, cell.recurrence): cell.known for cell in found if cell.tokens == 2e10}
    assert known["53M", 2] == "fitted"
    assert known["1.36B", 4] == "held out"
    assert known["53M", 8] == ""
    assert {cell.known for cell in found if cell.tokens > 2e10} == {""}


def test_the_variables_of_a_declared_size_are_its_counts() -> None:
    (place,) = asked(size="374M", recurrence=4).places
    found = variables_at(asked(size="374M", recurrence=4).costs, place)
    assert found["parameters_recurrent"] == pytest.approx(SIZES[2].looped, rel=1e-9)
    assert found["parameters_once"] == pytest.approx(SIZES[2].parameters - SIZES[2].looped)
    assert (found["recurrence"], found["tokens"]) == (4, 2e10)


def test_sizes_and_tokens_that_make_no_question_are_refused() -> None:
    with pytest.raises(InputError, match="--size: got 'XL'; give one of the study's sizes"):
        asked(size="XL")
    with pytest.raises(InputError, match="--tokens: it needs --size"):
        asked(tokens=1e9)
