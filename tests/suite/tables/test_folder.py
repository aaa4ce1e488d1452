from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.errors import InputError
from suite.tables.folder import check_folder

LEFT = [f".fit.{digit * 32}.{ending}" for digit, ending in (("a", "part"), ("b", "old"))]


@pytest.mark.usefixtures("plain_figures")
def test_what_killed_fits_have_left_is_removed_unless_it_is_being_written(
    runs_csv: Path, suite_fit: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    others = [f".other.{'a' * 32}.part", ".fit.notes.part", f".fit.{'c' * 32}.part"]
    for name in [*LEFT, *others]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "points.csv").write_text("")
    busy = os.open(tmp_path / others[-1], os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)
    out = tmp_path / "fit"
    assert suite_fit(runs_csv, "--n", "params", "--starts", 2, "--out", out)[0] == 0
    os.close(busy)
    assert {path.name for path in tmp_path.iterdir()} == {"fit", runs_csv.name, *others}


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    out = tmp_path / "fit"
    out.mkdir()
    (out / "fit.json").write_text('{"law": 1}')
    check_folder(out)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"--out: .* an earlier fit and 'notes.txt', which would"):
        check_folder(out)
    (tmp_path / "link").symlink_to(out)
    with pytest.raises(InputError, match=r"is a symbolic link, .* give the folder itself, .*/fit"):
        check_folder(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit", "link"]


def test_a_place_that_cannot_be_written_is_refused_before_the_fit(
    runs_csv: Path, suite_fit: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = suite_fit(runs_csv, "--n", "params", "--out", "/proc/fit")
    assert (code, out) == (2, "")
    assert "--out: nothing can be written into /proc" in err
