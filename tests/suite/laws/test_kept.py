from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.fit import fit
from suite.laws.forms import CHINCHILLA
from suite.laws.intervals import Bootstrap, bootstrap
from suite.laws.kept import KeptLaw, LastPoint, noise_of

Columns = dict[str, np.ndarray]
RUN = np.repeat(np.arange(6), 4)
POINTS = (
    LastPoint(cell="0f" * 8, size="S", recurrence=2, parameters=5e7, tokens=2e10, looped=2e7),
    LastPoint(cell="1e" * 8, size="größer", recurrence=2, parameters=1.36e9, tokens=2e10),
)
AT = {"parameters": np.array([7e8, 7e9]), "tokens": np.array([1e10, 4e11])}


@pytest.fixture(scope="module")
def curves(grid: Callable[..., Columns]) -> tuple[Columns, np.ndarray]:
    columns = grid([5e7, 3e8, 1.36e9], [2, 4], np.linspace(2e9, 2e10, 4))
    columns = {name: columns[name] for name in ("parameters", "tokens")}
    exact = 1.5 + 300 / columns["parameters"] ** 0.35 + 900 / columns["tokens"] ** 0.32
    return columns, exact * np.exp(0.01 * np.random.default_rng(0).standard_normal(24))


@pytest.fixture(scope="module")
def found(curves: tuple[Columns, np.ndarray]) -> Bootstrap:
    return bootstrap(CHINCHILLA, *curves, RUN, starts=2, resamples=100)


@pytest.fixture(scope="module")
def kept(found: Bootstrap, curves: tuple[Columns, np.ndarray]) -> KeptLaw:
    return KeptLaw.of(found, run=RUN, variables=curves[0], loss=curves[1], points=POINTS)


def test_a_law_comes_back_as_it_was(kept: KeptLaw) -> None:
    again = KeptLaw.from_json(kept.to_json())
    for name in (
        "form", "parameters", "symbols", "num_runs", "unidentified", "objective", "noise", "points",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(kept, name)
    np.testing.assert_array_equal(again.resamples, kept.resamples)
    assert again.to_json() == kept.to_json()


def test_predictions_and_intervals_are_those_of_the_bootstrap(
    kept: KeptLaw, found: Bootstrap
) -> None:
    again = KeptLaw.from_json(kept.to_json())
    ours, theirs = again.predict(AT, 0.9), found.predict(AT, 0.9)
    for end in ("estimate", "lower", "upper"):
        np.testing.assert_array_equal(getattr(ours, end), getattr(theirs, end))
    assert again.interval("beta") == found.interval("beta")

    def gain(parameters: Any) -> np.ndarray:
        return -np.diff(CHINCHILLA.predict(parameters, AT))

    np.testing.assert_array_equal(again.band_of(gain).upper, found.band_of(gain).upper)


def test_a_fit_without_resamples_predicts_without_intervals(
    curves: tuple[Columns, np.ndarray],
) -> None:
    plain = fit(CHINCHILLA, *curves, starts=2)
    kept = KeptLaw.of(
        plain, run=RUN, variables=curves[0], loss=curves[1], points=(), unidentified=("alpha",)
    )
    again = KeptLaw.from_json(kept.to_json())
    assert (again.has_intervals, again.num_runs, again.resamples.shape) == (False, 6, (0, 5))
    band = again.predict(AT)
    np.testing.assert_array_equal(band.estimate, plain.predict(AT))
    assert np.isnan([band.lower, band.upper]).all()
    assert math.isnan(again.interval("beta").lower)


def test_what_is_not_identified_has_no_interval(found: Bootstrap, kept: KeptLaw) -> None:
    # Three sizes and three parameters spent on them, E among these: just identified, but not in
    # resamples that drew no run of some size.
    assert kept.unidentified == found.unidentified == ("E", "A", "alpha")
    other = replace(kept, unidentified=("alpha",))
    assert not other.interval("alpha").identified
    assert other.interval("E").identified
    assert other.interval("beta") == kept.interval("beta")
    with pytest.raises(InputError, match="'gamma' is no parameter of 'chinchilla'"):
        kept.interval("gamma")


def test_noise_is_split_into_runs_and_points() -> None:
    residual = np.array([1.0, 3, -1, -1, 0, 0.5])
    noise = noise_of(np.array(["b", "b", "a", "a", "c", "c"]), residual)
    # Means 2, -1, .25; within: 1 + 1 + 0 + 0 + .0625 + .0625 over 6 - 3.
    assert noise["cell"] == pytest.approx(np.std([2, -1, 0.25], ddof=1))
    assert noise["point"] == pytest.approx(math.sqrt(2.125 / 3))
    assert noise_of(np.arange(3), np.array([1.0, 2, 3])) == {"cell": 1.0, "point": 0.0}
    assert noise_of(np.zeros(3), np.array([1.0, 2, 3])) == {"cell": 0.0, "point": 1.0}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"format": 2}, "its format is not 1"),
        ({"form": "chinchila"}, "no law is called 'chinchila'"),
        ({"symbols": ["E"]}, "has the symbols E, A, alpha, B, beta"),
        ({"parameters": {"E": 1.0}}, "no value for each of E, A"),
        ({"parameters": [1, 2]}, "stands where a dict should"),
        ({"parameters": dict.fromkeys(("E", "A", "alpha", "B", "beta"), "1")}, "a finite number"),
        ({"resamples": [[1.0, 2.0]]}, "a resample has not 5 numbers"),
        ({"resamples": [[1.0, 2.0, 3.0, 4.0, 1e999]]}, "inf stands where a finite number should"),
        ({"resamples": None}, "'None' stands where a list should"),
        ({"num_runs": 0}, "0 stands where a count should"),
        ({"num_runs": True}, "True stands where a count should"),
        ({"unidentified": "E"}, "'E' stands where a list should"),
        ({"noise": {"cell": 0.1}}, "there is no 'point'"),
        ({"noise": []}, "this is no kept law"),
        ({"points": [{"cell": "a"}]}, "there is no 'size'"),
        ({"points": ["a"]}, "'a' stands where a dict should"),
        ({"objective": 10**400}, "this is no kept law"),
    ],
)
def test_anything_else_is_refused(edit: dict[str, Any], message: str, kept: KeptLaw) -> None:
    text = json.dumps(json.loads(kept.to_json()) | edit)
    with pytest.raises(InputError, match="this is no kept law") as caught:
        KeptLaw.from_json(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "\x00", "[" * 100_000, "{}"])
def test_text_that_is_no_law_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="this is no kept law"):
        KeptLaw.from_json(text)


def test_numbers_that_are_not_finite_are_not_written(kept: KeptLaw) -> None:
    with pytest.raises(ValueError, match="JSON"):
        replace(kept, objective=math.nan).to_json()
