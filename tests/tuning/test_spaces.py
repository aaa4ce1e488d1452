"""Combinations of a search space."""

from __future__ import annotations

from typing import Any

import pytest

from suite.study import SearchSpace
from tuning import Combination, combinations
from tuning.spaces import axes, combination_of

SPACE = SearchSpace(niter=(8, "exact", 0), tokens=(4000, 1000), rank=(16, 8, 32))


def test_a_space_has_every_combination_once_in_the_order_of_its_lists() -> None:
    found = combinations(SPACE)
    assert len(found) == len(set(found)) == 3 * 2 * 3
    assert found[0] == Combination(niter="8", tokens=4000, rank=16)
    assert found[1] == Combination(niter="8", tokens=4000, rank=8)
    assert found[-1] == Combination(niter="0", tokens=1000, rank=32)


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("8", 8), ("exact", "exact")])
def test_iterations_are_what_the_solver_takes(text: str, expected: Any) -> None:
    assert Combination(niter=text, tokens=1, rank=1).iterations == expected


def test_axes_rise_and_exact_comes_after_any_number() -> None:
    wide = SearchSpace(niter=(8, "exact", 16, 0), tokens=(4000, 1000), rank=(16,))
    assert axes(combinations(wide)) == {
        "niter": ("0", "8", "16", "exact"),
        "tokens": (1000, 4000),
        "rank": (16,),
    }


@pytest.mark.parametrize(
    "params", [{}, {"niter": "1"}, {"niter": "1", "tokens": 10}, {"niter": "1", "rank": 2, "x": 1}]
)
def test_parameters_that_are_not_whole_are_no_combination(params: dict[str, Any]) -> None:
    assert combination_of(params) is None
    whole = {"rank": 2, "niter": "1", "tokens": 10}  # a store may give them in any order
    assert combination_of(whole) == Combination(niter="1", tokens=10, rank=2)
