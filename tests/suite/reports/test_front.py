from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suite.reports.front import non_dominated


def brute_force(points: list[tuple[float, ...]]) -> list[bool]:
    def beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
        finite = all(map(math.isfinite, a))
        return finite and all(x <= y for x, y in zip(a, b, strict=True)) and a != b

    return [
        all(map(math.isfinite, point)) and not any(beats(other, point) for other in points)
        for point in points
    ]


@settings(deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(0, 12), st.integers(1, 3)),
        elements=st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, math.inf, -math.inf]),
    )
)
def test_front_equals_pairwise_definition(values: np.ndarray) -> None:
    assert non_dominated(values).tolist() == brute_force([tuple(row) for row in values.tolist()])


def test_equal_points_stay_together_on_the_front() -> None:
    values = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
    assert non_dominated(values).tolist() == [True, True, True, False]
