"""From moments to errors: the same numbers as the parts, with the seconds they took."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_modules.kv.solve as solve
from lightning_modules.kv import DEFINITIONS, compute_basis, reconstruction_errors
from lightning_modules.kv.pair import CentredPair, MomentsPair
from lightning_modules.kv.solve import calibrate

KEYS, VALUES, RANK = 12, 8, 3


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(KEYS, KEYS, generator=generator, dtype=torch.float64).tril()
    keys = torch.randn(60, KEYS, generator=generator, dtype=torch.float64) @ mixing + 2.0
    return keys, torch.randn(60, VALUES, generator=generator, dtype=torch.float64)


def moments_of(seed: int, *, seconds: float = 0.0) -> CentredPair:
    pair = MomentsPair(KEYS, VALUES)
    pair.update(*rows(seed))
    pair.seconds = seconds
    return pair.centred()


@pytest.mark.parametrize("niter", [0, 2, "exact"])
def test_errors_are_those_of_the_bases_under_their_tracked_names(niter: Any) -> None:
    calibration = moments_of(0)
    evaluation = {"one": moments_of(1), "two": moments_of(2)}
    found = calibrate(calibration, rank=RANK, niter=niter, seed=5).errors(evaluation)
    expected = {}
    for corpus, moments in evaluation.items():
        for kind in ("key", "value"):
            basis = compute_basis(getattr(calibration, kind), rank=RANK, niter=niter, seed=5)
            errors = reconstruction_errors(basis, getattr(moments, kind))
            for name in DEFINITIONS:
                expected[f"{kind}/{name}/{corpus}"] = getattr(errors, name)[RANK - 1]
    assert found == expected
    assert "value/centred_relative_squared_error/two" in found
    assert len(found) == 2 * 2 * 4


def test_errors_equal_those_of_reconstructed_rows() -> None:
    """No moments on this route: rows are projected, and what is left of them is measured."""
    solved = calibrate(moments_of(0), rank=RANK, niter="exact", seed=0)
    found = solved.errors({"held_out": moments_of(1)})
    for kind, known, data in zip(("key", "value"), rows(0), rows(1), strict=True):
        mean = known.mean(dim=0)
        V = torch.linalg.svd(known - mean, full_matrices=False).Vh[:RANK].T
        left = data - ((data - mean) @ V @ V.T + mean)
        assert found[f"{kind}/relative_error/held_out"] == pytest.approx(
            float(left.norm() / data.norm()), rel=1e-10
        )
        spread = data - data.mean(dim=0)
        assert found[f"{kind}/centred_relative_squared_error/held_out"] == pytest.approx(
            float((left.norm() / spread.norm()) ** 2), rel=1e-10
        )


def test_seconds_are_those_of_the_passes_and_of_the_solve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = {"now": 100.0}
    computed: list[int] = []

    def slow_basis(moments: Any, **settings: Any) -> Any:
        clock["now"] += 7.0
        computed.append(moments.width)
        return compute_basis(moments, **settings)

    monkeypatch.setattr(solve, "compute_basis", slow_basis)
    monkeypatch.setattr(solve.time, "perf_counter", lambda: clock["now"])
    solved = calibrate(moments_of(0, seconds=40.0), rank=RANK, niter=1, seed=0)
    assert solved.seconds == 40.0 + 7.0 + 7.0
    assert computed == [KEYS, VALUES]


def test_keys_and_values_may_keep_different_ranks() -> None:
    """A rank between the two widths is cut on one side only, and each is read at its own."""
    with pytest.warns(UserWarning, match="8 components are kept"):
        solved = calibrate(moments_of(0), rank=10, niter="exact", seed=0)
    assert (solved.key.rank, solved.value.rank) == (10, VALUES)
    errors = solved.errors({"itself": moments_of(0)})
    assert errors["value/relative_error/itself"] == pytest.approx(0.0, abs=1e-7)
    assert errors["key/relative_error/itself"] > 1e-3
