from __future__ import annotations

from pathlib import Path

import pytest

from suite.atomic import replace_atomically


def test_a_file_appears_whole_with_its_folder(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"

    def make(fresh: Path) -> None:
        fresh.write_text("one")
        assert not target.exists()

    replace_atomically(target, make)
    assert target.read_text() == "one"


def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("one")

    def fail(fresh: Path) -> None:
        fresh.write_text("half of tw")
        raise KeyError

    with pytest.raises(KeyError):
        replace_atomically(target, fail)
    assert target.read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]
