from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.atomic import (
    remove_leftovers,
    replace_atomically,
    replace_folder_atomically,
    sync_folder,
    write_atomically,
)


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


def test_the_file_is_on_the_disk_before_its_name_and_its_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(descriptor: int) -> None:
        done.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        fsync(descriptor)

    def watched_replace(path: Path, target: Path) -> Path:
        done.append(f"rename to {target}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    target = tmp_path / "file.bin"
    write_atomically(target, lambda file: file.write(b"one"))
    written, renamed, listed = done
    assert written.startswith(f"sync {tmp_path}/.file.bin.")
    assert written.endswith(".part")
    assert renamed == f"rename to {target}"
    assert listed == f"sync {tmp_path}"


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside.txt", tmp_path / "home" / "file.txt"
    outside.write_text("mine")
    target.parent.mkdir()
    target.symlink_to(outside)
    write_atomically(target, lambda file: file.write(b"report"))
    assert outside.read_text() == "mine"
    assert (target.read_text(), target.is_symlink()) == ("report", False)


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_syncs_no_folders_is_no_fault_but_a_failing_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raised: bool
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    if raised:
        with pytest.raises(OSError, match="Input/output error"):
            sync_folder(tmp_path)
    else:
        sync_folder(tmp_path)


def test_leftovers_of_killed_writers_go_and_nothing_else_does(tmp_path: Path) -> None:
    def killed(fresh: Path) -> None:
        fresh.write_text("half")
        left.append(fresh)

    left: list[Path] = []
    target = tmp_path / "file.txt"
    replace_atomically(target, killed)
    left[0].write_text("as if the process had ended before the rename")
    (tmp_path / ".model.0123456789abcdef.part").mkdir()
    (tmp_path / ".model.0123456789abcdef.part" / "config.json").write_text("{}")
    (tmp_path / "notes.part").write_text("a user's own")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "notes.part"]


def fill(text: str) -> Callable[[Path], None]:
    def make(fresh: Path) -> None:
        (fresh / "deep").mkdir()
        (fresh / "one.txt").write_text(text)
        (fresh / "deep" / "two.txt").write_text(text)

    return make


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_folder_appears_whole_and_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "home" / "model"
    replace_folder_atomically(target, fill("one"))
    (target / "stray.txt").write_text("of the old one")
    replace_folder_atomically(target, fill("two"))
    assert content(tmp_path) == {
        "home/model/one.txt": "two",
        "home/model/deep/two.txt": "two",
    }


def test_a_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    def fail(fresh: Path) -> None:
        fill("two")(fresh)
        raise KeyError

    target = tmp_path / "model"
    replace_folder_atomically(target, fill("one"))
    before = content(tmp_path)
    with pytest.raises(KeyError):
        replace_folder_atomically(target, fail)
    assert content(tmp_path) == before


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    replace_folder_atomically(target, fill("one"))
    before = content(tmp_path)
    rename = Path.rename
    failures = [OSError(errno.ENOSPC, "No space left on device")]

    def failing(path: Path, to: Path) -> Path:
        if to == target and failures:
            raise failures.pop()
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="No space left"):
        replace_folder_atomically(target, fill("two"))
    assert content(tmp_path) == before


def test_a_link_to_a_folder_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    (outside / "one.txt").write_text("mine")
    target.symlink_to(outside)
    replace_folder_atomically(target, fill("report"))
    assert not target.is_symlink()
    assert content(outside) == {"one.txt": "mine"}
    assert content(target)["one.txt"] == "report"


def test_all_files_of_a_folder_are_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def watched_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watched_rename(path: Path, target: Path) -> Path:
        expected = {str(path), *(str(each) for each in path.rglob("*"))}
        assert expected == {*synced}
        synced.clear()
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    replace_folder_atomically(tmp_path / "model", fill("one"))
    assert synced == [str(tmp_path)]
