"""What a machine computes with."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 10.0  # seconds for the driver's tool


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One machine.

    Attributes:
        platform: operating system and architecture.
        cpu: model of the processor.
        cores: logical cores of the machine.
        usable_cores: those that this process may use.
        memory_bytes: main memory.
        gpus: names of the machine's GPUs, where torch sees any.
        visible_gpus: GPUs that torch sees.
        driver: version of the GPU driver.
        cuda: version of CUDA or ROCm that torch was built with.
    """

    platform: str
    cpu: str
    cores: int
    usable_cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    visible_gpus: int = 0
    driver: str | None = None
    cuda: str | None = None

    def __str__(self) -> str:
        """One short line."""
        text = f"{self.cpu}, {self.cores} cores, {self.memory_bytes / 2**30:.1f} GiB"
        if not self.visible_gpus:
            return text
        names = " + ".join(f"{count} x {name}" for name, count in Counter(self.gpus).items())
        driver = f" (driver {self.driver})" if self.driver else ""
        return f"{text}; {self.visible_gpus} visible of {names or 'unnamed GPUs'}{driver}"


def read_hardware() -> Hardware:
    """Look at this machine; GPUs only where torch is loaded already."""
    import psutil

    visible, cuda = _seen_by_torch()
    names, driver = _ask_driver() if visible else ((), None)
    cores = os.cpu_count() or 1
    return Hardware(
        platform=platform.platform(),
        cpu=_cpu_model(),
        cores=cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=names,
        visible_gpus=visible,
        driver=driver,
        cuda=cuda,
    )


def _seen_by_torch() -> tuple[int, str | None]:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None:
        return 0, None
    # counting starts no GPU context, which would take memory and break later forks; names would
    return int(cuda.device_count()), torch.version.cuda or torch.version.hip


@functools.cache
def _ask_driver() -> tuple[tuple[str, ...], str | None]:
    """Names of all GPUs and the version of their driver, from NVIDIA's own tool."""
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, timeout=_PATIENCE, check=True, errors="replace"
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [line.split(", ", 1) for line in done.splitlines() if ", " in line]
    return tuple(name for _, name in rows), rows[0][0] if rows else None


@functools.cache
def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
