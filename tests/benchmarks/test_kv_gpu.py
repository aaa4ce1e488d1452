"""A KV calibration on an accelerator at the width of Llama 3.1 8B, beside ``torch.svd_lowrank``.

``make bench-gpu`` runs it where there is one and leaves a report in ``results/``. The same
measurement, very small, runs on the CPU with the other tests, and shows that both sides compute
the same errors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_modules.kv import Basis, Moments, reconstruction_errors, subspace_bases
from lightning_modules.kv.moments import CentredMoments
from lightning_modules.kv.orthonormal import orthonormal

RESULTS = Path(__file__).parent / "results"
SEED = 0
_FALL = 0.6  # deviations fall with this power of their number
_BATCH = 2_048


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is measured.

    Attributes:
        width: p.
        rank: r.
        directions: directions along which rows vary; the rest of a row is noise.
        tokens: calibration rows.
        stored: the first of them, which are stored for ``svd_lowrank``.
        evaluation: rows of the evaluation corpus.
        niters: numbers of power iterations.
    """

    width: int
    rank: int
    directions: int
    tokens: int
    stored: int
    evaluation: int
    niters: tuple[int, ...] = (1, 8)


LLAMA = Load(
    width=32_768,
    rank=10_000,
    directions=12_000,
    tokens=160_000,
    stored=40_000,
    evaluation=16_384,
)
TINY = Load(width=96, rank=12, directions=40, tokens=400, stored=200, evaluation=150, niters=(0, 1))


@dataclass(kw_only=True)
class Measured:
    """Seconds, rates and peaks of one device.

    Attributes:
        device: its name.
        torch: version of torch.
        made: when, UTC.
        load: what was measured.
        moments: seconds and TFLOP/s of the sums of all rows, in float64.
        bases: the same of their bases, all niters in one go.
        errors: the same of the errors of one basis.
        svd_lowrank: seconds of torch.svd_lowrank in float32 on the stored rows, by niter.
        ours_on_stored: seconds of moments and bases of these same rows.
        peak_bytes: most memory that was allocated, of our side and of svd_lowrank's.
        largest_difference: of a relative error between both sides.
    """

    device: str
    torch: str
    made: str
    load: dict[str, object]
    moments: dict[str, float] = field(default_factory=dict)
    bases: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    svd_lowrank: dict[str, float] = field(default_factory=dict)
    ours_on_stored: float = 0.0
    peak_bytes: dict[str, int] = field(default_factory=dict)
    largest_difference: float = 0.0


class Clock:
    """Seconds and peak memory of work on a device, which is waited for."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._begun = 0.0

    def start(self) -> None:
        """Begin, with the peak at what is allocated now."""
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._begun = time.perf_counter()

    def seconds(self) -> float:
        """Seconds since ``start``."""
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - self._begun

    def peak(self) -> int:
        """Most bytes allocated since ``start``; 0 on a CPU, which does not count them."""
        return int(torch.cuda.max_memory_allocated()) if self._cuda else 0


class Rows:
    """Batches of bf16 rows with a falling spectrum and a large mean, made on the device."""

    def __init__(self, load: Load, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(99)
        start = torch.randn(load.width, load.directions, generator=generator, device=device)
        deviations = torch.arange(1, load.directions + 1, device=device).float() ** -_FALL
        self._turned = (orthonormal(start)[0] * deviations).T.contiguous()
        self._mean = torch.randn(load.width, generator=generator, device=device) / 50
        self._device = device

    def batches(self, stop: int, *, seed: int, start: int = 0) -> Iterator[Tensor]:
        """Rows ``start`` to ``stop`` of a seed."""
        for number in range(start // _BATCH, -(-stop // _BATCH)):
            generator = torch.Generator(self._device).manual_seed(1_000_003 * seed + number)
            size = (_BATCH, len(self._turned))
            noise = torch.randn(size, generator=generator, device=self._device)
            rows = (noise @ self._turned + self._mean).bfloat16()
            at = number * _BATCH
            yield rows[max(start - at, 0) : stop - at]


def measure(load: Load, device: torch.device) -> Measured:
    """Run both sides."""
    on_cuda = device.type == "cuda"
    found = Measured(
        device=torch.cuda.get_device_name() if on_cuda else "cpu",
        torch=torch.__version__,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        load=asdict(load),
    )
    rows, clock = Rows(load, device), Clock(device)
    evaluation = Moments(load.width).to(device)
    for batch in rows.batches(load.evaluation, seed=2):
        evaluation.update(batch)
    evaluated = evaluation.snapshot()
    del evaluation
    ours, on_stored = _ours(load, rows, clock, found, evaluated)
    theirs = _svd_lowrank(load, rows, clock, found, evaluated)
    found.ours_on_stored = on_stored
    found.largest_difference = max(abs(ours[niter] / theirs[niter] - 1) for niter in theirs)
    return found


def _ours(
    load: Load, rows: Rows, clock: Clock, found: Measured, evaluated: CentredMoments
) -> tuple[dict[int, float], float]:
    """Errors by niter at the stored rows, and what these took."""
    moments = Moments(load.width).to(evaluated.mean.device)
    seconds, peak = 0.0, 0

    def take(start: int, stop: int) -> None:
        nonlocal seconds, peak
        for batch in rows.batches(stop, seed=1, start=start):
            clock.start()
            moments.update(batch)
            seconds += clock.seconds()
            peak = max(peak, clock.peak())

    take(0, load.stored)
    clock.start()
    snapshot = moments.snapshot()
    bases = subspace_bases(snapshot, load.rank, load.niters, SEED)
    on_stored = seconds + clock.seconds()
    peak = max(peak, clock.peak())
    del snapshot
    errors = {niter: _error(basis, evaluated) for niter, basis in bases.items()}
    del bases
    take(load.stored, load.tokens)
    # a symmetric product does half the work of the full one that is counted here
    flops = 2.0 * load.tokens * load.width**2
    found.moments = {"seconds": seconds, "tflops_as_a_full_product": flops / seconds / 1e12}
    clock.start()
    snapshot = moments.snapshot()
    bases = subspace_bases(snapshot, load.rank, load.niters, SEED)
    seconds = clock.seconds()
    peak = max(peak, clock.peak())
    flops = (max(load.niters) + 1) * 2.0 * load.width**2 * load.rank
    found.bases = {"seconds": seconds, "tflops_of_products_alone": flops / seconds / 1e12}
    del snapshot
    clock.start()
    _error(next(iter(bases.values())), evaluated)
    seconds = clock.seconds()
    flops = 2.0 * load.width**2 * load.rank
    found.errors = {"seconds": seconds, "tflops": flops / seconds / 1e12}
    found.peak_bytes["ours"] = peak
    return errors, on_stored


def _error(basis: Basis, evaluated: CentredMoments) -> float:
    return reconstruction_errors(basis, evaluated).at(basis.rank)["relative_error"]


def _svd_lowrank(
    load: Load, rows: Rows, clock: Clock, found: Measured, evaluated: CentredMoments
) -> dict[int, float]:
    """Errors by niter of ``torch.svd_lowrank`` from the same start on the stored rows."""
    data = torch.cat([*rows.batches(load.stored, seed=1)]).float()
    mean = data.mean(dim=0)
    data -= mean
    start = torch.randn(
        load.width,
        load.rank,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(SEED),
    ).to(data)
    errors, peak = {}, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *_, dtype, device: start.to(device, dtype))
        for niter in load.niters:
            clock.start()
            V = torch.svd_lowrank(data, q=load.rank, niter=niter)[2]
            found.svd_lowrank[f"niter {niter}"] = clock.seconds()
            peak = max(peak, clock.peak())
            basis = Basis(
                mean=mean.double(),
                components=V.double(),
                spectrum=torch.zeros(load.rank),
                niter=niter,
                seed=SEED,
            )
            del V
            errors[niter] = _error(basis, evaluated)
    found.peak_bytes["svd_lowrank"] = peak
    return errors


def write_report(found: Measured, folder: Path) -> Path:
    """Write a report; its name has the device and the day."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "-".join(found.device.lower().split())
    path = folder / f"kv-{device}-{found.made[:10]}.json"
    path.write_text(json.dumps(asdict(found), indent=2) + "\n")
    return path


def lines(found: Measured) -> Iterator[str]:
    """What was found, for people."""
    load = found.load
    yield f"{found.device}, torch {found.torch}: p = {load['width']:,}, r = {load['rank']:,}"
    for part in ("moments", "bases", "errors"):
        numbers = getattr(found, part)
        yield f"  {part}: " + ", ".join(f"{value:.3g} {name}" for name, value in numbers.items())
    for name, seconds in found.svd_lowrank.items():
        yield f"  svd_lowrank, float32, {load['stored']:,} rows, {name}: {seconds:.3g} s"
    theirs = sum(found.svd_lowrank.values())
    yield (
        f"  moments and bases of these rows: {found.ours_on_stored:.3g} s, "
        f"{theirs / found.ours_on_stored:.2f} times less"
    )
    for name, peak in found.peak_bytes.items():
        yield f"  peak of {name}: {peak / 1e9:.1f} GB"
    yield f"  largest difference of an error: {found.largest_difference:.1e}"


def test_both_sides_measure_the_same_errors_and_leave_a_report(tmp_path: Path) -> None:
    found = measure(TINY, torch.device("cpu"))
    assert found.largest_difference < 1e-5
    assert set(found.svd_lowrank) == {"niter 0", "niter 1"}
    assert min(found.ours_on_stored, found.moments["seconds"], found.bases["seconds"]) > 0
    path = write_report(found, tmp_path)
    assert path.name == f"kv-cpu-{found.made[:10]}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(asdict(found)))
    assert "p = 96, r = 12" in "\n".join(lines(found))


@pytest.mark.gpu
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_calibration_at_the_width_of_llama(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure(LLAMA, torch.device("cuda"))
    path = write_report(found, RESULTS)
    with capsys.disabled():
        print("\n" + "\n".join(lines(found)) + f"\n  {path}")
    assert found.largest_difference < 1e-3  # of svd_lowrank in float32, with TF32 off
