from __future__ import annotations

from pathlib import Path

import pytest

from suite.containment import contained, contained_folder
from suite.errors import SuiteError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds links inwards, outwards and in a circle, beside a link to itself."""
    folder = tmp_path / "artifacts"
    (folder / "real").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (folder / "inwards").symlink_to(folder / "real")
    (folder / "outwards").symlink_to(tmp_path / "elsewhere")
    (folder / "up").symlink_to("..")
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "real" / "file").symlink_to(tmp_path / "elsewhere" / "file")
    (tmp_path / "link to it").symlink_to(folder)
    (tmp_path / "artifacts, as well").mkdir()
    return folder


@pytest.mark.parametrize(
    "path", ["file", "real/file", "inwards/file", "not/there/yet/file", "real/../file", "a..b/file"]
)
def test_a_file_inside_may_be_written(folder: Path, path: str) -> None:
    assert contained(folder / path, folder) == folder / path
    by_link = folder.parent / "link to it"
    assert contained(by_link / path, by_link) == by_link / path


@pytest.mark.parametrize(
    "path",
    [
        "../file",
        "real/../../file",
        "outwards/file",
        "outwards/deep/file",
        "up/file",
        "inwards/../../elsewhere/file",
        "../artifacts, as well/file",
        "/etc/passwd",
        "circle/file",
        "real/..",
        "",
    ],
)
def test_a_file_outside_may_not(folder: Path, path: str) -> None:
    with pytest.raises(SuiteError):
        contained(folder / path, folder)


def test_a_folder_may_not_be_a_link_to_elsewhere_and_the_place_is_named(folder: Path) -> None:
    assert contained_folder(folder / "inwards", folder) == folder / "inwards"
    assert contained_folder(folder / "new", folder) == folder / "new"
    with pytest.raises(SuiteError) as caught:
        contained_folder(folder / "outwards", folder)
    for part in (folder / "outwards", folder.parent / "elsewhere"):
        assert str(part) in str(caught.value)
