"""Files that are either whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes to a fresh file in the same folder, then renames it over ``path``.

    Processes that write the same file at the same time do not disturb each other: the last
    rename wins, and a reader sees one whole file or another.

    Args:
        path: file to write; its folder is made.
        write: is given the open file; what it returns is ignored.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with fresh.open("xb") as file:
            write(file)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
