from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
import pytest

from lightning_modules.looplm.sizes import (
    PRESETS,
    Shape,
    count_parameters,
    resolve,
    training_flops_per_token,
)
from suite.answers.grid import Grid, GridSize, read_grid
from suite.answers.law_run import LawRun
from suite.errors import SuiteError
from suite.laws.kept import KeptLaw
from suite.study import PretrainingSpec, SizeSpec
from suite.tracking.store import flatten

SMALL = resolve(PRESETS["53M"], vocab_size=32_000)
LARGE = resolve(PRESETS["374M"], vocab_size=32_000)


class Params:
    """A reader that knows params alone."""

    def __init__(self, texts: dict[str, dict[str, str]]) -> None:
        self.texts = texts

    def params(self, run_ids: list[str]) -> pl.DataFrame:
        rows = [
            (run_id, key, value)
            for run_id in run_ids
            for key, value in self.texts.get(run_id, {}).items()
        ]
        schema = {"run_id": pl.String, "key": pl.String, "value": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")


def params_of(name: str, shape: Shape, recurrence: int) -> dict[str, str]:
    return flatten(
        {
            "size": {"name": name},
            "shape": asdict(shape),
            "recurrence": recurrence,
            "sequence_length": 128,
        }
    )


@pytest.fixture
def texts() -> dict[str, dict[str, str]]:
    return {
        "one": params_of("large", LARGE, 2),
        "two": params_of("small", SMALL, 2),
        "three": params_of("small", SMALL, 4),
    }


def law_run(counts: str = "total", cells: tuple[str, ...] = ("one", "two", "three")) -> LawRun:
    law = KeptLaw(
        form="chinchilla",
        parameters={},
        symbols=(),
        resamples=np.empty((0, 0)),
        num_runs=3,
        unidentified=(),
        objective=1.0,
        noise={"cell": 0.0, "point": 0.0},
        points=(),
    )
    return LawRun(run_id="law", law=law, counts=counts, cells={name: name for name in cells})


def read(texts: dict[str, dict[str, str]], run: LawRun, declared: Any = None) -> Grid:
    return read_grid(Params(texts), run, declared)  # type: ignore[arg-type]


@pytest.mark.parametrize("counts", ["total", "non_embedding"])
def test_the_tracked_cells_make_the_grid(texts: dict[str, dict[str, str]], counts: str) -> None:
    grid = read(texts, law_run(counts))
    assert [size.name for size in grid.sizes] == ["small", "large"]
    assert [size.parameters for size in grid.sizes] == [
        getattr(count_parameters(shape), counts) for shape in (SMALL, LARGE)
    ]
    assert (grid.recurrences, grid.sequence_length) == ((2, 4), 128)
    assert grid.tracked == {("large", 2), ("small", 2), ("small", 4)}
    costs = grid.costs()
    for size in grid.sizes:
        for level in grid.recurrences:
            expected = training_flops_per_token(size.shape, level, 128)
            assert costs.at(size.parameters, level) == pytest.approx(expected, rel=1e-12)


def test_costs_of_other_recurrences_follow_from_the_shapes(
    texts: dict[str, dict[str, str]],
) -> None:
    grid = read(texts, law_run())
    expected = training_flops_per_token(LARGE, 16, 128)
    assert grid.costs([16]).at(grid.sizes[1].parameters, 16) == pytest.approx(expected, rel=1e-12)


def test_sizes_that_are_only_declared_join_it(texts: dict[str, dict[str, str]]) -> None:
    declared = PretrainingSpec(
        corpus="x",
        sizes=(
            SizeSpec(name="small", num_hidden_layers=1, hidden_size=16),  # as tracked, not as here
            SizeSpec(name="middle", num_hidden_layers=12, hidden_size=768),
        ),
        recurrences=(8,),
        tokens=1000,
    )
    grid = read(texts, law_run(), declared)
    assert [size.name for size in grid.sizes] == ["small", "middle", "large"]
    assert grid.sizes[0].shape == SMALL
    assert grid.sizes[1].shape == resolve(PRESETS["134M"], vocab_size=32_000)
    assert grid.recurrences == (2, 4, 8)


def test_of_two_sizes_with_one_n_the_cheaper_counts() -> None:
    wide = GridSize(name="wide", shape=LARGE, parameters=5e7, looped=2e7)
    lean = GridSize(name="lean", shape=SMALL, parameters=5e7, looped=2e7)
    for sizes in ((wide, lean), (lean, wide)):
        costs = Grid(
            sizes=sizes, recurrences=(2,), sequence_length=128, tracked=frozenset()
        ).costs()
        assert costs.at(5e7, 2) == pytest.approx(training_flops_per_token(SMALL, 2, 128))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shape.hidden_size", None, "run two has no parameter shape.hidden_size"),
        ("shape.hidden_size", "5e2", "run two has '5e2' as shape.hidden_size"),
        ("recurrence", "0", "run two has '0' as recurrence; it was edited or cut off"),
    ],
)
def test_cells_that_lost_their_shape_are_named(
    key: str, value: str | None, message: str, texts: dict[str, dict[str, str]]
) -> None:
    del texts["two"][key]
    if value is not None:
        texts["two"][key] = value
    with pytest.raises(SuiteError, match=message):
        read(texts, law_run())


def test_a_cell_whose_run_was_deleted_is_named(texts: dict[str, dict[str, str]]) -> None:
    del texts["two"]
    with pytest.raises(SuiteError, match="run two, which law run law has read, was deleted; run "):
        read(texts, law_run())


def test_a_law_of_no_cells_is_refused() -> None:
    with pytest.raises(SuiteError, match="law run law names no pretraining cell"):
        read({}, law_run(cells=()))
