from __future__ import annotations

import numpy as np
import pytest

from suite.errors import InputError
from suite.laws.splits import by_level, leave_one_run_out, without_levels

N = np.array([1e6, 1e6, 2e6, 2e6, 4e6, 4e6])
RUN = np.array([0, 0, 1, 1, 2, 2])


def test_each_level_is_held_out_once() -> None:
    splits = by_level("parameters", N)
    assert [split.name for split in splits] == ["N = 1e+06", "N = 2e+06", "N = 4e+06"]
    assert [split.held_out.tolist().count(True) for split in splits] == [2, 2, 2]
    assert np.stack([split.held_out for split in splits]).sum(axis=0).tolist() == [1] * 6


def test_several_levels_are_held_out_together() -> None:
    split = without_levels("recurrence", np.array([8, 2, 4, 8]), [8, 2])
    assert split.name == "T_m = 2, 8"
    assert split.held_out.tolist() == [True, True, False, True]


def test_runs_are_left_out_whole() -> None:
    splits = leave_one_run_out(RUN, ["a", "b", "c"])
    assert [split.name for split in splits] == ["a", "b", "c"]
    assert splits[1].held_out.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: by_level("parameters", N[:4]), "parameters has 2 levels"),
        (lambda: without_levels("parameters", N, [3e6]), r"parameters = 3e\+06 cannot be held"),
        (lambda: without_levels("parameters", N, []), "parameters = nothing cannot be held out"),
        (lambda: without_levels("parameters", N, set(N)), "all levels of parameters"),
        (lambda: leave_one_run_out(RUN[:2], ["a"]), "one run only"),
    ],
)
def test_splits_that_leave_nothing_are_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(InputError, match=message):
        build()
