from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from suite.doctor import environment_checks
from suite.doctor.environment_checks import check_devices, check_packages, unmet_requirement
from suite.doctor.examination import Examination
from suite.tracking.home import Home

NUMPY = metadata.version("numpy")


@pytest.fixture
def exam(home: Home) -> Iterator[Examination]:
    made = Examination(home, fix=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("numpy", ""),
        ("numpy>=2.0,<99", ""),
        (f"numpy!={NUMPY}", f"numpy !={NUMPY} is wanted, {NUMPY} is installed"),
        ("numpy<1", f"numpy <1 is wanted, {NUMPY} is installed"),
        ("no-such-package>=1", "no-such-package >=1 is not installed"),
        ("no-such-package", "no-such-package is not installed"),
        ("no-such-package>=1; extra == 'dev'", ""),
        ("no-such-package>=1; python_version < '3'", ""),
        ("numpy<1; python_version > '3'", f"numpy <1 is wanted, {NUMPY} is installed"),
    ],
)
def test_which_requirements_are_not_met(text: str, said: str) -> None:
    assert unmet_requirement(text) == said


@pytest.mark.parametrize("version", ["2.8.0+cpu", "2.13.0.dev1", "3.0"])
def test_builds_and_previews_of_torch_are_within_its_bound(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert unmet_requirement("torch>=2.8") == ""


def test_packages_out_of_bounds_are_named_beside_the_versions(
    exam: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["numpy<1", "polars"])
    wrong, versions = check_packages(exam)
    assert (wrong.severity, wrong.where) == (
        "error",
        (f"numpy <1 is wanted, {NUMPY} is installed",),
    )
    assert f"numpy {NUMPY}" in versions.what
    assert f"mlflow {metadata.version('mlflow')}" in versions.what


def test_a_source_tree_that_is_not_installed_is_no_fault(
    exam: Examination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_checks, "_DISTRIBUTION", "no-such-package")
    (finding,) = check_packages(exam)
    assert finding.severity == "note"


@pytest.mark.parametrize(
    ("cuda", "mps", "driver", "severity", "said"),
    [
        (0, False, False, "ok", "no GPU"),
        (2, False, True, "ok", "cuda:1 H200, 151 GB"),
        (0, True, False, "ok", "mps, the GPU of this Mac"),
        (0, False, True, "note", "has an NVIDIA driver, but torch, which is built for CUDA 12.8"),
    ],
)
def test_devices(
    exam: Examination,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cuda: int,
    mps: bool,
    driver: bool,
    severity: str,
    said: str,
) -> None:
    import torch

    class Properties:
        name, total_memory = "H200", 150_754_820_096

    def set_to(name: str, value: Callable[..., object]) -> None:
        monkeypatch.setattr(f"torch.{name}", value)

    set_to("cuda.is_available", lambda: cuda > 0)
    set_to("cuda.device_count", lambda: cuda)
    set_to("cuda.get_device_properties", lambda number: Properties)
    set_to("backends.mps.is_available", lambda: mps)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    path = tmp_path / "version"
    if driver:
        path.touch()
    monkeypatch.setattr(environment_checks, "_DRIVER", path)
    first, *devices = check_devices(exam)
    assert first.what.startswith(f"torch {torch.__version__}")
    assert len(devices) == max(cuda, 1)
    assert devices[-1].severity == severity
    assert said in devices[-1].what
