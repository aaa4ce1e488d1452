"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def replace_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Make a fresh file in the same folder, sync it, and rename it over ``path``.

    Processes that write the same file at the same time do not disturb each other: the last
    rename wins, and a reader sees one whole file or another. A crash leaves the old one.

    Args:
        path: file to write; its folder is made.
        make: writes the file at the path that it is given; what it returns is ignored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        make(fresh)
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """``replace_atomically`` for a writer that takes an open binary file."""

    def make(fresh: Path) -> None:
        with fresh.open("xb") as file:
            write(file)

    replace_atomically(path, make)
