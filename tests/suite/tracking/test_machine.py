from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from suite.tracking import _machine
from suite.tracking._machine import Hardware, read_hardware


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _machine._ask_driver.cache_clear()


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A torch that sees GPUs, and whose other functions must not be called."""
    cuda = SimpleNamespace(device_count=lambda: count)
    version = SimpleNamespace(cuda="13.0", hip=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=version))


def pretend_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def test_names_the_processor_and_the_memory_as_the_system_does() -> None:
    found = read_hardware()
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    assert found.memory_bytes == total * 1024
    assert found.cores == os.cpu_count()
    assert 1 <= found.usable_cores <= found.cores
    assert found.cpu
    assert found.cpu in subprocess.check_output(["cat", "/proc/cpuinfo"], text=True) + os.uname()[4]


def test_names_gpus_and_driver_where_torch_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, 2)
    row = "580.95.05, NVIDIA H200"
    pretend_driver(tmp_path, monkeypatch, f"echo '{row}'\necho '{row}'\necho '{row}'")
    found = read_hardware()
    assert found.gpus == ("NVIDIA H200",) * 3
    assert (found.visible_gpus, found.driver, found.cuda) == (2, "580.95.05", "13.0")
    assert str(found).endswith("GiB; 2 visible of 3 x NVIDIA H200 (driver 580.95.05)")


@pytest.mark.parametrize("tool", ["exit 9", "echo 'No devices were found'", "printf '\\377'"])
def test_a_driver_that_does_not_answer_leaves_the_names_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    pretend_gpus(monkeypatch, 1)
    pretend_driver(tmp_path, monkeypatch, tool)
    found = read_hardware()
    assert (found.gpus, found.driver, found.visible_gpus) == ((), None, 1)
    assert str(found).endswith("; 1 visible of unnamed GPUs")


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys; from suite.tracking.provenance import capture_provenance; "
        "found = capture_provenance(); "
        "print(found.hardware.gpus, 'torch' in sys.modules, 'mlflow' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said == "() False False\n"


def test_one_line_of_a_machine_without_gpus() -> None:
    machine = Hardware(
        platform="Linux", cpu="EPYC", cores=2, usable_cores=1, memory_bytes=3 * 2**30
    )
    assert str(machine) == "EPYC, 2 cores, 3.0 GiB"
