"""Checks of what the suite runs with: versions of packages, and devices."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.inventory import size_text

_DISTRIBUTION = "loopkv-suite"
_MAIN = ("lightning", "mlflow", "numpy", "optuna", "polars", "torch", "transformers")
_DRIVER = Path("/proc/driver/nvidia/version")


def check_packages(exam: Examination) -> Iterator[Finding]:
    """Whether installed packages are within the bounds that the suite declares."""
    try:
        declared = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield note(
            f"{_DISTRIBUTION} is not installed as a package, so its bounds are not known",
            remedy="`pip install` it",
        )
        return
    unmet = [text for text in map(unmet_requirement, declared) if text]
    if unmet:
        yield Finding(
            severity="error",
            what=f"{len(unmet)} package(s) are not within the bounds of {_DISTRIBUTION}",
            where=tuple(unmet),
            remedy=f"`pip install {_DISTRIBUTION}` again, in this environment",
        )
    named = ", ".join(f"{name} {metadata.version(name)}" for name in _MAIN)
    yield ok(f"Python {platform.python_version()}, {named}")


def unmet_requirement(text: str) -> str:
    """What is wrong with an installed package; empty if nothing is, or it is not asked for.

    Args:
        text: a requirement as in ``Requires-Dist``; those of extras are not asked for.
    """
    from packaging.requirements import Requirement

    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return ""
    wanted = f"{requirement.name} {requirement.specifier}".strip()
    try:
        installed = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{wanted} is not installed"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{wanted} is wanted, {installed} is installed"


def check_devices(exam: Examination) -> Iterator[Finding]:
    """What torch computes on; last, because loading torch takes seconds."""
    import torch

    yield ok(f"torch {torch.__version__}, {torch.get_num_threads()} of {os.cpu_count()} CPU cores")
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            yield ok(f"cuda:{number} {device.name}, {size_text(device.total_memory)}")
    elif torch.backends.mps.is_available():
        yield ok("mps, the GPU of this Mac; it has no float64, so solves run on the CPU")
    elif _DRIVER.exists():
        built = "no CUDA" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
        yield note(
            f"this machine has an NVIDIA driver, but torch, which is built for {built}, sees no "
            "GPU",
            remedy="install a torch that fits the driver (pytorch.org/get-started)",
        )
    else:
        yield ok("no GPU")
