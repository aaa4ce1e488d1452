"""The folder that a fit writes: whole, or not there."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from matplotlib.figure import Figure

from suite.errors import InputError, SuiteError
from suite.reports import style
from suite.tables.document import points_table, to_json
from suite.tables.outcome import Outcome

RESULT, POINTS = "fit.json", "points.csv"


def check_folder(out: Path) -> None:
    """Refuse a place that cannot be written or holds anything but an earlier fit.

    An earlier fit would be replaced.

    Raises:
        InputError: naming what is in the way.
    """
    if out.is_symlink():
        raise InputError(
            f"{out} is a symbolic link, which would be replaced and not followed; give the folder "
            f"itself, {out.resolve()}",
            key="--out",
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder", key="--out")
    if out.is_dir() and any(out.iterdir()):
        _check_fit(out)
    beside = out.absolute().parent
    while not beside.exists():
        beside = beside.parent
    if not beside.is_dir():
        raise InputError(f"{beside} is not a folder", key="--out")
    trial = beside / f".{out.absolute().name}.{uuid4().hex}.part"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise InputError(
            f"nothing can be written into {beside} ({error.strerror or error}); choose another",
            key="--out",
        ) from error


def write_folder(outcome: Outcome, figures: Mapping[str, Figure], out: Path) -> None:
    """Write result, points and figures into a new folder and put it in the place of ``out``.

    Raises:
        InputError: as ``check_folder``.
        SuiteError: the folder cannot be written; nothing of it is left.
    """
    check_folder(out)
    out = out.absolute()
    fresh = out.with_name(f".{out.name}.{uuid4().hex}.part")
    former = out.with_name(f".{out.name}.{uuid4().hex}.old")
    lock: int | None = None
    try:
        fresh.mkdir(parents=True)
        lock = _locked(fresh)
        for name, figure in figures.items():
            style.save(figure, fresh / f"{name}.png", fresh / f"{name}.svg")
        points_table(outcome).write_csv(fresh / POINTS)
        (fresh / RESULT).write_text(to_json(outcome), encoding="utf-8", newline="\n")
        if out.exists():
            out.rename(former)
        fresh.rename(out)
        _remove_leftovers(out)
    except OSError as error:
        raise SuiteError(
            f"{out} cannot be written ({error.strerror or error}); choose another --out"
        ) from error
    finally:
        if former.exists() and not out.exists():
            former.rename(out)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that marks the folder as being written, unless another has done so.

    The mark goes with the process that holds it, however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)  # another holds it, or the file system knows no locks
        return None
    return descriptor


def _remove_leftovers(out: Path) -> None:
    """Remove what writers of this very folder have left that were killed."""
    name = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{32}}\.(part|old)")
    for left in [path for path in out.parent.iterdir() if name.fullmatch(path.name)]:
        if left.is_symlink() or not left.is_dir():
            continue
        lock = _locked(left)
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _check_fit(out: Path) -> None:
    """Refuse a folder in which another file lies than those that a fit writes."""
    ours = {RESULT, POINTS} | {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    foreign = sorted({path.name for path in out.iterdir()} - ours)
    try:
        found = json.loads((out / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not (isinstance(found, dict) and "law" in found):
        raise InputError(
            f"the folder {out} is not empty and holds no earlier fit; choose another", key="--out"
        )
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise InputError(
            f"the folder {out} holds an earlier fit and {foreign[0]!r}{more}, which would be lost; "
            "move that elsewhere or choose another folder",
            key="--out",
        )


FIGURES = ("parity", "residuals", "curves", "contours", "law")
