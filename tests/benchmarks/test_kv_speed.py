"""KV calibration against a randomised SVD of stored rows, and its memory.

Every ratio is of times in one run. Rows are random, with a spectrum like that of SmolLM2-135M's
keys and values (p = 5,760; rank 1,728 is the paper's share r / p). ``quarter`` and ``half`` have
every length a quarter or a half as long; ``full`` takes hours on two cores.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from lightning_modules.kv import (
    Moments,
    reconstruction_errors,
    subspace_bases,
)
from lightning_modules.kv.pair import MomentsPair, StoredPair
from lightning_modules.kv.solve import calibrate

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

NITER = (1, 8)
SEED = 0
# Powers by which deviations fall with their number, and means beside the first deviation.
KINDS = {"key": (0.75, 3.0), "value": (0.45, 0.3)}
EVALUATED = ("same", "other")


@dataclass(frozen=True, kw_only=True)
class Size:
    """Lengths of one benchmark.

    Attributes:
        width: p.
        rank: r.
        budgets: calibration rows.
        evaluation: rows of each evaluation corpus.
    """

    width: int
    rank: int
    budgets: tuple[int, ...]
    evaluation: int


SIZES = {
    "quarter": Size(
        width=1_440, rank=432, budgets=(5_000, 10_000, 15_000, 20_000), evaluation=4_096
    ),
    "half": Size(width=2_880, rank=864, budgets=(10_000, 20_000, 30_000, 40_000), evaluation=8_192),
    "full": Size(
        width=5_760, rank=1_728, budgets=(20_000, 40_000, 60_000, 80_000), evaluation=16_384
    ),
}


def directions(width: int) -> Tensor:
    """A random rotation, ``[p, p]``."""
    generator = torch.Generator().manual_seed(99)
    return torch.linalg.qr(torch.randn(width, width, generator=generator)).Q


def rows(kind: str, count: int, turned: Tensor, *, seed: int, stretch: float = 0.0) -> Tensor:
    """``[count, p]`` in float32; ``stretch`` makes another corpus's spread of them."""
    width = len(turned)
    fall, mean = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    deviations = torch.arange(1, width + 1).float() ** -fall
    deviations *= 1 + stretch * torch.rand(width, generator=generator)
    noise = torch.randn(count, width, generator=generator).mul_(deviations)
    return noise @ turned.T + mean * turned[0] * width**0.5 / 10


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("size", [*SIZES])
def test_the_error_grid_is_eight_times_faster_than_svd_lowrank(
    size: str, precision: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours is float64 throughout; rows are stored in the precision that is named.

    In float32 svd_lowrank takes half the time, its own errors are off by 1e-5 and more, and the
    factor is not reached yet.
    """
    shape, dtype = SIZES[size], getattr(torch, precision)
    turned = directions(shape.width)
    start = torch.randn(
        shape.width,
        shape.rank,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(SEED),
    )
    seconds = {"rows": 0.0, "sums": 0.0, "bases": 0.0, "errors": 0.0}
    worst = 0.0
    for kind in KINDS:
        calibration = rows(kind, shape.budgets[-1], turned, seed=1).to(dtype)
        evaluation = {
            name: rows(kind, shape.evaluation, turned, seed=2 + number, stretch=0.5 * number).to(
                dtype
            )
            for number, name in enumerate(EVALUATED)
        }
        ours = _from_moments(calibration, evaluation, shape, seconds)
        with monkeypatch.context() as patch:
            # the same start, so that the errors are the same numbers
            patch.setattr(torch, "randn", lambda *_, dtype, device: start.to(device, dtype))
            theirs = _from_rows(calibration, evaluation, shape, seconds)
        assert ours.keys() == theirs.keys()
        worst = max(worst, *(abs(ours[key] / theirs[key] - 1) for key in theirs))
    moments_seconds = sum(seconds.values()) - seconds["rows"]
    ratio = seconds["rows"] / moments_seconds
    with capsys.disabled():
        print(
            f"\n{size}: p = {shape.width}, r = {shape.rank}, budgets {shape.budgets}, niter "
            f"{NITER}, 2 corpora, keys and values, {torch.get_num_threads()} threads, load "
            f"{psutil.getloadavg()[0]:.1f}: svd_lowrank on {precision} rows "
            f"{seconds['rows']:.1f} s; float64 moments {moments_seconds:.1f} s (sums "
            f"{seconds['sums']:.1f}, bases {seconds['bases']:.1f}, errors "
            f"{seconds['errors']:.1f}); ratio {ratio:.1f}; largest "
            f"difference of an error {worst:.1e}"
        )
    # float32 leaves svd_lowrank itself no more digits
    assert worst < (1e-6 if precision == "float64" else 1e-4)
    assert ratio >= 8


def _from_rows(
    calibration: Tensor, evaluation: dict[str, Tensor], shape: Size, seconds: dict[str, float]
) -> dict[tuple[int, int, str], float]:
    found = {}
    begun = time.perf_counter()
    for budget in shape.budgets:
        mean = calibration[:budget].mean(dim=0)
        centred = calibration[:budget] - mean
        for niter in NITER:
            _, _, V = torch.svd_lowrank(centred, q=shape.rank, niter=niter)
            for name, data in evaluation.items():
                left = (data - mean) - (data - mean) @ V @ V.T
                found[budget, niter, name] = float(left.norm() / data.norm())
    seconds["rows"] += time.perf_counter() - begun
    return found


def _from_moments(
    calibration: Tensor, evaluation: dict[str, Tensor], shape: Size, seconds: dict[str, float]
) -> dict[tuple[int, int, str], float]:
    found = {}

    def timed(part: str, begun: float) -> float:
        now = time.perf_counter()
        seconds[part] += now - begun
        return now

    at = time.perf_counter()
    evaluated = {}
    for name, data in evaluation.items():
        moments = Moments(shape.width)
        moments.update(data)
        evaluated[name] = moments.snapshot()
    running = Moments(shape.width)
    for before, budget in zip((0, *shape.budgets), shape.budgets, strict=False):
        running.update(calibration[before:budget])
        snapshot = running.snapshot()
        at = timed("sums", at)
        bases = subspace_bases(snapshot, shape.rank, NITER, SEED)
        at = timed("bases", at)
        for niter, basis in bases.items():
            for name, moments in evaluated.items():
                errors = reconstruction_errors(basis, moments)
                found[budget, niter, name] = errors.at(shape.rank)["relative_error"]
        at = timed("errors", at)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's high-water mark")
@pytest.mark.parametrize("size", [*SIZES])
def test_peak_memory_does_not_depend_on_tokens(
    size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = SIZES[size]
    peaks = {}
    for tokens in (shape.budgets[0], shape.budgets[-1]):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[tokens] = pool.apply(_peak_of_a_calibration, (shape, tokens, str(tmp_path)))
    few, many = peaks.values()
    unit = 8 * shape.width**2
    with capsys.disabled():
        print(
            f"\n{size}: p = {shape.width}, bytes above the process before any row, in units of "
            "8 p^2: " + ", ".join(f"{n:,} tokens {peak / unit:.2f}" for n, peak in peaks.items())
        )
    assert many <= 1.03 * few
    assert many <= 8 * unit


def _peak_of_a_calibration(shape: Size, tokens: int, folder: str) -> int:
    """Bytes at the peak of a pass, its solves and its errors, above those at its start."""
    turned = directions(shape.width)[:1]
    batch = 512

    def batches(seed: int, count: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        for start in range(0, count, batch):
            size = min(batch, count - start)
            yield torch.randn(size, shape.width, generator=generator) + turned

    # threads, allocators and solvers have their own beginnings
    small = torch.randn(64, 64, dtype=torch.float64)
    torch.linalg.eigh(small @ small.T)
    before = _restarted_peak()
    for name, count in (("calibration", tokens), ("evaluation", shape.evaluation)):
        pair = MomentsPair(shape.width, shape.width)
        for data in batches(len(name), count):
            pair.update(data, data)
        pair.save(Path(folder) / name)
        pair.release()
    calibration = StoredPair.open(Path(folder) / "calibration")
    evaluation = StoredPair.open(Path(folder) / "evaluation")
    for niter in (8, "exact"):
        solved = calibrate(calibration, rank=shape.rank, niter=niter, seed=SEED)
        solved.errors({"one": evaluation})
    return _peak() - before


def _restarted_peak() -> int:
    """Resident bytes now; the kernel's high-water mark starts again from them."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """High-water mark of resident bytes, pages of mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024
