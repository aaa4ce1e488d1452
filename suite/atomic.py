"""Files that are either whole or not there, also after the power has failed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

_PART = ".part"
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP)  # some network file systems sync no folders


def replace_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Make a fresh file in the same folder, sync it, rename it over ``path``, sync the folder.

    Processes that write the same file at the same time do not disturb each other: the last
    rename wins, and a reader sees one whole file or another. A crash leaves the old one. A
    symbolic link at ``path`` is replaced and not followed.

    Args:
        path: file to write; its folder is made.
        make: writes the file at the path that it is given; what it returns is ignored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid4().hex}{_PART}")
    try:
        make(fresh)
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """``replace_atomically`` for a writer that takes an open binary file."""

    def make(fresh: Path) -> None:
        with fresh.open("xb") as file:
            write(file)

    replace_atomically(path, make)


def replace_folder_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Make a fresh folder beside ``path``, sync its files, and put it in its place.

    A crash leaves the old folder, the new one, or none; never a part of one. A symbolic link at
    ``path`` is replaced and not followed.

    Args:
        path: folder to write; its parent is made.
        make: fills the empty folder that it is given; what it returns is ignored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid4().hex}{_PART}")
    old = path.with_name(f".{path.name}.{uuid4().hex}{_PART}")
    try:
        fresh.mkdir()
        make(fresh)
        for place, _, names in os.walk(fresh):
            for name in names:
                with Path(place, name).open("rb") as written:
                    os.fsync(written.fileno())
            sync_folder(Path(place))
        if path.is_symlink() or path.exists():
            path.rename(old)  # a folder that is not empty cannot be renamed over
        fresh.rename(path)
    except BaseException:
        _remove(fresh)
        if old.is_symlink() or old.exists():
            old.rename(path)
        raise
    _remove(old)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last: a rename is lost with the power until this is done."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed have left; none may be at work in the folder."""
    for left in folder.glob(f".*{_PART}"):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
