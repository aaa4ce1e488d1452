"""The built wheel carries its studies and templates, and works from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the packages as the wheel installs them."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def run(installed: Path, folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_wheel_lists_the_shipped_studies(installed: Path, tmp_path: Path) -> None:
    said = run(
        installed,
        tmp_path,
        "import suite, suite.cli; print(suite.__file__); suite.cli.main(['studies'])",
    )
    first, *studies = said.splitlines()
    assert first.startswith(str(installed))
    shipped = {path.stem for path in (ROOT / "suite" / "studies").glob("*.yaml")}
    assert {line.split()[0] for line in studies} == shipped


def test_the_wheel_holds_the_page_template(installed: Path) -> None:
    for file in (ROOT / "suite" / "reports" / "templates").iterdir():
        packed = installed / "suite" / "reports" / "templates" / file.name
        assert packed.read_bytes() == file.read_bytes()
    assert not (installed / "tests").exists()
