from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from suite.laws._diagnosis import Diagnosis, diagnose
from suite.laws.forms import CHINCHILLA, LOOPLM_TOTAL

Columns = dict[str, np.ndarray]


@pytest.fixture
def sound(grid: Callable[..., Columns]) -> Diagnosis:
    """A fit that nothing is wrong with."""
    columns = grid([1e7, 1e8, 1e9, 1e10], [1, 2, 4, 8], np.linspace(1e9, 1e10, 5))
    return Diagnosis(
        form=LOOPLM_TOTAL,
        terms=LOOPLM_TOTAL.terms,
        columns=columns,
        loss=np.linspace(2, 3, len(columns["tokens"])),
        agreeing=20,
        tried=64,
        converged=True,
        at_bounds=(),
        condition_number=1e6,
    )


def test_a_sound_fit_has_no_warning(sound: Diagnosis) -> None:
    assert diagnose(sound) == ()


@pytest.mark.parametrize(
    ("change", "warnings"),
    [
        (
            {"agreeing": 6},
            ["only 6 of 64 starts reached the best objective: more starts may find a better one"],
        ),
        ({"agreeing": 7}, []),
        ({"agreeing": 1, "tried": 4}, ["only 1 of 4 starts reached"]),
        ({"agreeing": 2, "tried": 4}, []),
        ({"agreeing": 1, "tried": 1}, ["only 1 of 1 starts reached"]),
        ({"converged": False}, ["the best start did not converge"]),
        (
            {"condition_number": 2e10},
            ["hardly tell the parameters apart (condition number 2.0e+10)"],
        ),
        ({"at_bounds": ("E",)}, ["E was driven to 0"]),
        ({"at_bounds": ("t2",)}, ["t2 ended at a bound of its range"]),
        ({"at_bounds": ("alpha", "t2")}, ["alpha ended at a bound", "t2 ended at a bound"]),
        (
            {"at_bounds": ("C", "gamma")},
            [
                "C/(T_m + t3)^gamma vanished: the points show no such effect of recurrence, and "
                "gamma, t3 mean nothing"
            ],
        ),
        ({"terms": LOOPLM_TOTAL.directions[1]}, ["the loss grows with recurrence"]),
        (
            {"at_bounds": ("C",), "at_upper_bounds": ("C",)},
            ["C of the term C/(T_m + t3)^gamma ended at the upper end of its range"],
        ),
        (
            {"at_bounds": ("A",), "felt": ("A",)},
            ["though some points feel the term: look for values of parameters far off"],
        ),
        # A vanished term grows with nothing.
        ({"terms": LOOPLM_TOTAL.directions[1], "at_bounds": ("C",)}, ["vanished"]),
    ],
)
def test_each_weakness_is_said_once(
    change: dict[str, object], warnings: list[str], sound: Diagnosis
) -> None:
    found = diagnose(replace(sound, **change))
    assert len(found) == len(warnings)
    assert all(part in sentence for part, sentence in zip(warnings, found, strict=True))


@pytest.mark.parametrize(("levels", "named"), [(2, True), (3, True), (4, False), (5, False)])
def test_levels_are_counted_against_parameters(
    levels: int, named: bool, grid: Callable[..., Columns], sound: Diagnosis
) -> None:
    columns = grid([1e7, 1e8, 1e9, 1e10], list(range(1, levels + 1)), np.linspace(1e9, 1e10, 5))
    loss = np.linspace(2, 3, len(columns["tokens"]))
    found = diagnose(replace(sound, columns=columns, loss=loss, condition_number=np.inf))
    expected = (
        f"recurrence has {levels} levels and the law spends 4 parameters on it (E, C, gamma, t3; "
        f"E is shared): they are not identified, only the differences between the levels are"
    )
    assert (expected in found) is named
    # Conditioning is mentioned only when nothing simpler explains it.
    assert any("condition number" in sentence for sentence in found) is not named


def test_a_term_without_shift_needs_one_level_less(
    grid: Callable[..., Columns], sound: Diagnosis
) -> None:
    columns = grid([1e7, 1e8, 1e9], [1], np.linspace(1e9, 1e10, 5))
    facts = replace(
        sound,
        form=CHINCHILLA,
        terms=CHINCHILLA.terms,
        columns={name: columns[name] for name in CHINCHILLA.variables},
        loss=np.linspace(2, 3, 15),
    )
    assert diagnose(facts) == ()


def test_repeated_points_and_small_numbers_are_named(sound: Diagnosis) -> None:
    columns = {name: np.tile(values, 2) for name, values in sound.columns.items()}
    columns["tokens"] = columns["tokens"] / 1e9
    found = diagnose(replace(sound, columns=columns, loss=np.tile(sound.loss, 2)))
    assert found == (
        "tokens goes down to 1: below 1,000 it is probably not in tokens, and units may be mixed",
        "80 points repeat another point exactly, and count again in the fit",
    )
