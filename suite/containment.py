"""Keeps what is written to a folder inside it, whatever names and links are there."""

from __future__ import annotations

from pathlib import Path

from suite.errors import SuiteError


def contained(path: Path, folder: Path) -> Path:
    """The path of a file to write, if it lies in a folder once ``..`` and links are followed.

    The folder itself may be a link: a user keeps it on another disk that way. What lies in it
    may come from somebody else. A link in place of the file is harmless, because files are
    renamed into place, which replaces it.

    Args:
        path: file to write.
        folder: what it must lie in.

    Raises:
        SuiteError: if it lies elsewhere, naming the place.
    """
    if path.name in ("", ".", ".."):
        raise SuiteError(f"{path} is not the path of a file")
    _require_inside(path.parent, folder)
    return path


def contained_folder(path: Path, folder: Path) -> Path:
    """Likewise for a folder to write into, which must not be a link to elsewhere itself."""
    _require_inside(path, folder)
    return path


def _require_inside(path: Path, folder: Path) -> None:
    try:
        place = path.resolve()
        inside = place.is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:  # links in a circle
        raise SuiteError(f"{path} cannot be followed: {error}") from error
    if not inside:
        raise SuiteError(
            f"{path} leads out of {folder}, to {place}, where nothing may be written; remove the "
            "link, or import the run again if its record was edited"
        )
