"""Checks of what can be made again, and of what was never finished: cache and half files."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from suite.doctor.examination import Examination
from suite.doctor.findings import Finding, note, ok
from suite.doctor.inventory import folder_size, size_text, take_inventory

_QUIET = 600.0  # seconds without a change, after which nobody is taken to be making a file


def check_cache(exam: Examination) -> Iterator[Finding]:
    """Whether cached moments, token streams and tokenizers can be read."""
    cache = exam.home.cache
    tests: tuple[tuple[str, Callable[[Path], bool]], ...] = (
        ("moments/*/*.safetensors", _is_whole_moments_or_rows),
        ("tokens/*.npy", _is_whole_array),
        ("tokenizers/*.json", _is_json),
    )
    looked_at = 0
    damaged: list[Path] = []
    for pattern, is_whole in tests:
        for path in sorted(cache.glob(pattern)):
            looked_at += 1
            if not is_whole(path):
                damaged.append(path)
    if not damaged:
        yield ok(f"{looked_at:,} cached files can be read")
        return
    what = f"{len(damaged):,} of {looked_at:,} cached files are damaged"

    def mend() -> str:
        for path in damaged:
            path.unlink(missing_ok=True)
        return "removed"

    remedy = "removes them; what needs them makes them again"
    yield exam.mendable(what, *map(str, damaged), remedy=remedy, mend=mend)


def _is_whole_moments_or_rows(path: Path) -> bool:
    from lightning_modules.kv.files import DamagedFileError, load_tensors
    from lightning_modules.kv.stored_rows import StoredRows, is_rows_path

    try:
        if is_rows_path(path):
            StoredRows.open(path).check()
        else:
            load_tensors(path, ())
    except FileNotFoundError:  # removed meanwhile
        return True
    except (DamagedFileError, OSError):
        return False
    return True


def _is_whole_array(path: Path) -> bool:
    import numpy as np

    try:
        np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, EOFError):
        return False
    return True


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return True


def check_unfinished(exam: Examination) -> Iterator[Finding]:
    """Files that a process was making when it ended."""
    found = take_inventory(exam.home).unfinished
    now = time.time()
    recent = [path for path in found if now - _changed(path, now) < _QUIET]
    old = [path for path in found if path not in recent]
    if recent:
        yield note(
            f"{len(recent):,} half-made file(s) were written to in the last ten minutes",
            *map(_told, recent),
            remedy="a process may be making them; look again later",
        )
    if old:
        yield exam.mendable(
            f"{len(old):,} half-made file(s) were left behind",
            *map(_told, old),
            remedy="removes them; nothing refers to them",
            mend=_remover(old),
        )
    if not found:
        yield ok("no half-made file was left behind")


def _changed(path: Path, now: float) -> float:
    """When something was last written to, in a folder anything."""
    try:
        parts = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
        return max(part.lstat().st_mtime for part in parts)
    except FileNotFoundError:
        return now


def _told(path: Path) -> str:
    try:
        size = folder_size(path) if path.is_dir() else path.lstat().st_size
    except FileNotFoundError:
        return str(path)
    return f"{path}, {size_text(size)}"


def _remover(paths: list[Path]) -> Callable[[], str]:
    def mend() -> str:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        return "removed"

    return mend
