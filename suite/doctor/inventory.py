"""What lies in a home: sizes, files that were never finished, links that lead out of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from suite.tracking.home import Home

_FOLDERS = ("artifacts", "checkpoints", "cache", "reports", "spool", "backups", "trash")
_KEPT_AS_THEY_ARE = {"backups", "trash"}
_DATABASE_SUFFIXES = ("", "-journal", "-wal", "-shm")


@dataclass(kw_only=True)
class Inventory:
    """What one walk over a home has found; nothing in it was opened.

    Attributes:
        sizes: bytes by top-level folder, and of ``mlflow.db``; those that are there.
        unfinished: files and folders that a process was making.
        links: symbolic links that lead out of the home.
        unreadable: folders that could not be listed.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    unfinished: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)


def take_inventory(home: Home) -> Inventory:
    """Walk over the parts of a home; what else lies beside them is nobody's business here."""
    found = Inventory()
    files = [home.database.with_name(home.database.name + end) for end in _DATABASE_SUFFIXES]
    present = [file.lstat().st_size for file in files if file.is_file()]
    if present:
        found.sizes["database"] = sum(present)
    found.unfinished += [path for path in home.root.glob(".*") if _is_unfinished(path, home)]
    found.unfinished += home.root.glob("optuna.journal.lock?*.rename")
    for name in _FOLDERS:
        top = home.root / name
        if top.is_dir():
            found.sizes[name] = sum(_walk(top, home, found, seek=name not in _KEPT_AS_THEY_ARE))
    found.unfinished.sort()
    return found


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed."""
    return sum(
        os.lstat(os.path.join(where, name)).st_size
        for where, _, names in os.walk(folder)
        for name in names
    )


def _walk(top: Path, home: Home, found: Inventory, *, seek: bool) -> Iterator[int]:
    def cannot(error: OSError) -> None:
        found.unreadable.append(Path(error.filename))

    root = home.root.resolve()
    for where, folders, names in os.walk(top, onerror=cannot):
        for name in [*folders, *names]:
            path = Path(where, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                found.links.append(path)
            if seek and _is_unfinished(path, home):
                found.unfinished.append(path)
        for name in names:
            try:
                yield os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:  # a process that works here has finished with it
                continue


def _is_unfinished(path: Path, home: Home) -> bool:
    """Whether something has a name that is only given while it is being made, or removed."""
    name = path.name
    if name.endswith((".part", ".part-journal", ".part-wal", ".part-shm", ".offset-new")):
        return True
    if path.parent == home.spool and path.suffix in (".offset", ".lock", ".files"):
        return not path.with_suffix(".spool").exists()
    return False


def size_text(size: float) -> str:
    """Bytes for a person: ``7.6 MB``; 1 MB is 10^6 bytes."""
    if size < 1_000:
        return f"{size:.0f} bytes"
    power = min(int(math.log10(size)) // 3, 4)
    scaled = size / 1_000**power
    return f"{scaled:.{0 if scaled >= 100 else 1}f} {('', 'kB', 'MB', 'GB', 'TB')[power]}"
