"""Folders that a study names, whatever it writes in their place."""

from __future__ import annotations

from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that can be none is not there."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find_folder(text: str, *, base: Path) -> Path | None:
    """The folder that a text names; none where there is none, or the text can be no path.

    Args:
        text: a path, with ``~`` for a home, or something else, such as a hub id.
        base: folder that a relative path starts from.
    """
    try:
        folder = base / Path(text).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long; home of nobody; a NUL
        return None
