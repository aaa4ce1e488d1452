"""How fast a plan takes a device to be: as given, as measured here, or as an H100's maker says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.study import Study, TrainerSpec

if TYPE_CHECKING:
    import torch

_H100 = (989.0, 67.0)  # TFLOP/s in bf16 and, by its tensor cores, in float64
_OF_PEAK = 0.4  # share of a maker's peak that training reaches
_OF_MEASURED = 1.0  # products are most of the work, and were timed as products
_SIDE = {"cpu": 2_048, "cuda": 8_192}
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Operations a second of one device.

    Attributes:
        flops: in the precision of the study.
        double_flops: in float64.
        utilisation: share of either that is assumed to be reached.
        origin: where they come from, in words, if they were measured.
    """

    flops: float
    double_flops: float
    utilisation: float
    origin: str | None = None


def assumed_rates(
    study: Study,
    *,
    measure: bool,
    peak_tflops: float | None,
    peak_float64_tflops: float | None,
    utilisation: float | None,
) -> Rates:
    """The rates of a plan; those that are given stand, whatever is measured.

    Args:
        study: whose precision and accelerator are measured.
        measure: whether to time products on this machine.
        peak_tflops: given peak.
        peak_float64_tflops: given peak in float64.
        utilisation: given share.
    """
    peaks, origin = (_H100[0] * 1e12, _H100[1] * 1e12), None
    if measure:
        peaks, origin = measured(_trainer(study))
    return Rates(
        flops=peaks[0] if peak_tflops is None else peak_tflops * 1e12,
        double_flops=peaks[1] if peak_float64_tflops is None else peak_float64_tflops * 1e12,
        utilisation=utilisation or (_OF_MEASURED if measure else _OF_PEAK),
        origin=origin,
    )


def _trainer(study: Study) -> TrainerSpec:
    stage = study.pretraining or study.calibration
    assert stage is not None
    return stage.trainer


def measured(trainer: TrainerSpec) -> tuple[tuple[float, float], str]:
    """Time large products in the precision of a trainer and in float64; seconds at most.

    Returns:
        Operations a second in both, and where they were measured, in words.
    """
    import torch

    on_gpu = trainer.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    widths = {"16": torch.float16, "bf16": torch.bfloat16, "64": torch.float64}
    dtype = widths.get(trainer.precision.split("-")[0], torch.float32)
    name = torch.cuda.get_device_name() if on_gpu else "this CPU"
    rates = (_rate(kind, dtype), _rate(kind, torch.float64))
    return rates, f"measured on {name} in {str(dtype).removeprefix('torch.')}"


def _rate(kind: str, dtype: torch.dtype) -> float:
    import torch

    side = _SIDE[kind]
    if kind == "cuda" and dtype == torch.float64:
        side //= 4  # some have few units for it
    matrix = torch.randn(side, side, device=kind).to(dtype)
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
    return float(2.0 * side**3 / best)
