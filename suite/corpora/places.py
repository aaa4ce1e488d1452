"""Folders that a study names, whatever it writes in their place."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from suite.errors import InputError

_PACKAGE = re.compile(r"package:([A-Za-z_][A-Za-z0-9_]*)")


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that can be none is not there."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find_folder(text: str, *, base: Path) -> Path | None:
    """The folder that a text names; none where there is none, or the text can be no path.

    Args:
        text: a path, with ``~`` for a home; ``package:NAME`` for the folder of an installed
            Python package, which is not imported; or something else, such as a hub id.
        base: folder that a relative path starts from.

    Raises:
        InputError: if it names a package that is not installed.
    """
    if package := _PACKAGE.fullmatch(text):
        return _package_folder(package[1])
    try:
        folder = base / Path(text).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long; home of nobody; a NUL
        return None


def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise InputError(
            f"the package {name!r} is not installed; install it with `pip install --no-deps "
            f"{name.replace('_', '-')}`"
        )
    return Path(found.submodule_search_locations[0])
