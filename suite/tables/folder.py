"""The folder that a fit writes: whole, or not there."""

from __future__ import annotations

import json
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
    """Refuse a place that holds anything but an earlier fit, which would be replaced.

    Raises:
        InputError: naming it.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"{out} is not a folder", key="--out")
    if out.is_dir() and any(out.iterdir()) and not _is_fit(out):
        raise InputError(
            f"the folder {out} is not empty and holds no earlier fit; choose another", key="--out"
        )
    beside = out.absolute().parent
    while not beside.exists():
        beside = beside.parent
    if not beside.is_dir():
        raise InputError(f"{beside} is not a folder", key="--out")


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
    try:
        fresh.mkdir(parents=True)
        for name, figure in figures.items():
            style.save(figure, fresh / f"{name}.png", fresh / f"{name}.svg")
        points_table(outcome).write_csv(fresh / POINTS)
        (fresh / RESULT).write_text(to_json(outcome), encoding="utf-8", newline="\n")
        if out.exists():
            out.rename(former)
        fresh.rename(out)
    except OSError as error:
        raise SuiteError(
            f"{out} cannot be written ({error.strerror or error}); choose another --out"
        ) from error
    finally:
        if former.exists() and not out.exists():
            former.rename(out)
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(former, ignore_errors=True)


def _is_fit(out: Path) -> bool:
    """Whether every file in the folder is one that a fit writes."""
    try:
        found = json.loads((out / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    ours = {RESULT, POINTS} | {f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg")}
    return isinstance(found, dict) and "law" in found and {p.name for p in out.iterdir()} <= ours


FIGURES = ("parity", "residuals", "curves", "contours", "law")
