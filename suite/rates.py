"""How fast this machine multiplies matrices, for plans that are to hold here."""

from __future__ import annotations

import time
from dataclasses import dataclass

_SIDE = {"cpu": 2_048, "cuda": 8_192}
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Operations a second of large products on one device.

    Attributes:
        device: its name.
        precision: ``bfloat16`` on a CUDA device, ``float32`` on a CPU.
        flops: in that precision.
        double_flops: in float64.
    """

    device: str
    precision: str
    flops: float
    double_flops: float


def measured_rates() -> Rates:
    """Time products on the CUDA device if there is one, else on the CPU: a second or two."""
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    return Rates(
        device=torch.cuda.get_device_name() if kind == "cuda" else "this CPU",
        precision=str(dtype).removeprefix("torch."),
        flops=_rate(kind, dtype),
        double_flops=_rate(kind, torch.float64),
    )


def _rate(kind: str, dtype: object) -> float:
    import torch

    side = _SIDE[kind]
    matrix = torch.ones(side, side, device=kind).to(dtype)  # type: ignore[call-overload]
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - begun)
    return float(2.0 * side**3 / best)
