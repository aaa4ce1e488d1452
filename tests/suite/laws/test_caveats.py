from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from suite.laws.caveats import caveats
from suite.laws.forms import get_form
from suite.laws.kept import KeptLaw, LastPoint

POINTS = tuple(
    LastPoint(cell=f"{n}-{t}", size=f"{n:g}", recurrence=t, parameters=n, tokens=2e10)
    for n in (5e7, 1e8, 1e9)
    for t in (2, 4, 8)
)
INSIDE: dict[str, Any] = {"parameters": 3e8, "tokens": 1.5e10, "recurrence": 4}


def law(form: str, *unidentified: str, points: tuple[LastPoint, ...] = POINTS) -> KeptLaw:
    symbols = tuple(symbol.name for symbol in get_form(form).symbols)
    return KeptLaw(
        form=form,
        parameters=dict.fromkeys(symbols, 1.0),
        symbols=symbols,
        resamples=np.empty((0, len(symbols))),
        num_runs=9,
        unidentified=unidentified,
        objective=1.0,
        noise={"cell": 0.0, "point": 0.0},
        points=points,
    )


def test_a_question_among_the_fitted_cells_needs_no_word() -> None:
    assert caveats(law("looplm_total"), **INSIDE) == ()
    assert caveats(law("looplm_total", "E", "C", "gamma", "t3"), **INSIDE) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters": 1e10}, "N 1e+10 lies above the fitted sizes (5e+07 to 1e+09)"),
        ({"parameters": 1e7}, "N 1e+07 lies below the fitted sizes"),
        ({"tokens": 1e12}, "D 1e+12 lies beyond the fitted tokens (up to 2e+10)"),
        ({"recurrence": 16}, "no cell with T_m 16 was fitted, only with 2, 4, 8"),
    ],
)
def test_extrapolations_are_said(change: dict[str, float], words: str) -> None:
    (sentence,) = caveats(law("looplm_total"), **INSIDE | change)
    assert sentence.startswith(words)


def test_a_little_beyond_is_not_worth_a_word() -> None:
    assert caveats(law("looplm_total"), **INSIDE | {"parameters": 1.04e9, "tokens": 2.05e10}) == ()


def test_terms_that_are_not_identified_are_trusted_at_fitted_levels_only() -> None:
    three_sizes = law("looplm_total", "E", "A", "alpha", "t1")
    assert caveats(three_sizes, **INSIDE | {"parameters": 1e8}) == ()
    (sentence,) = caveats(three_sizes, **INSIDE)
    assert sentence == (
        "the answer hangs on A, alpha, t1, which the points do not identify: trust neither it "
        "nor its interval at other N than were fitted"
    )


def test_a_term_of_size_and_loops_is_trusted_at_fitted_pairs() -> None:
    pairs = law("recurrence_equivalence", "A", "alpha", "phi", points=POINTS[:4])
    assert caveats(pairs, parameters=5e7, tokens=1e10, recurrence=8) == ()
    (sentence,) = caveats(pairs, parameters=1e8, tokens=1e10, recurrence=8)
    assert sentence.startswith("the answer hangs on A, alpha, phi")


def test_a_law_of_the_step_is_trusted_at_fitted_steps() -> None:
    steps = law("looplm_stepwise", "E", "C", "gamma", "t3")
    assert caveats(steps, **INSIDE) == ()
    open_term, beyond = caveats(steps, **INSIDE | {"recurrence": 16})
    assert open_term.startswith("the answer hangs on C, gamma, t3, which")
    assert open_term.endswith("at other T than were fitted")
    assert beyond == "no cell with T 16 was fitted, only with 2, 4, 8"


def test_a_law_that_reads_no_recurrence_does_not_miss_one() -> None:
    assert caveats(law("chinchilla"), **INSIDE | {"recurrence": 16}) == ()


def test_without_points_nothing_can_be_said() -> None:
    assert caveats(law("looplm_total", "gamma", points=()), **INSIDE | {"recurrence": 99}) == ()
