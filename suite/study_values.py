"""Values that several sections of a study share: bounded numbers, and the trainer's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt

Positive = Annotated[int, Ge(1)]
Share = Annotated[float, Gt(0.0), Lt(1.0)]
PositiveFloat = Annotated[float, Gt(0.0)]
NonNegativeFloat = Annotated[float, Ge(0.0)]
Niter = Annotated[int, Ge(0)] | Literal["exact"]


@dataclass(frozen=True, kw_only=True)
class TrainerSpec:
    """Handed to ``lightning.Trainer``; only ``precision`` enters a fingerprint.

    The others change at most the last digits of a result.

    Attributes:
        accelerator: ``auto``, ``cpu``, ``gpu``, ``cuda`` or ``mps``.
        devices: number of devices, or ``auto``; ``suite run`` uses one for now.
        num_nodes: number of machines.
        strategy: ``auto``, ``ddp``, ``ddp_spawn`` or ``fsdp``.
        precision: ``32-true``, ``bf16-mixed``, ``bf16-true``, ``16-mixed`` or ``64-true``.
        num_workers: loader processes a device.
        threads: CPU threads a process; default all cores. One is the fastest for models too
            small to share out, above all while other work runs, and gives the same last digit
            whatever the number of cores.
    """

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    devices: Positive | Literal["auto"] = 1
    num_nodes: Positive = 1
    strategy: Literal["auto", "ddp", "ddp_spawn", "fsdp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"] = "32-true"
    num_workers: Annotated[int, Ge(0)] = 0
    threads: Positive | None = None
