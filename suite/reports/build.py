"""Builds a report: figures, page and manifest, from what the reader gives and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.errors import InputError
from suite.reports import style
from suite.reports.manifest import MANIFEST_NAME, Manifest, collect_entries, digest_of, to_json
from suite.reports.page import FigureOnPage, render_page
from suite.reports.panels import PANELS, SkippedPanel, make_displays
from suite.reports.tables import build_tables
from suite.reports.tracked import read_tracked
from suite.tracking.reader import Reader

PAGE_NAME = "index.html"


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """A report on disk.

    Attributes:
        study: name of the study.
        folder: where its files lie.
        page: the HTML page.
        figures: PNG and SVG of each panel, in order.
        manifest_path: the manifest's file.
        manifest: what is shown, as data.
        skipped: panels without data.
        notes: what a reader of the figures must know, in sentences.
    """

    study: str
    folder: Path
    page: Path
    figures: tuple[Path, ...]
    manifest_path: Path
    manifest: Manifest
    skipped: tuple[SkippedPanel, ...]
    notes: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that was written."""
        return (*self.figures, self.page, self.manifest_path)


def build_report(reader: Reader, study: str, panels: Sequence[str] | None, out: Path) -> Report:
    """Build figures, page and manifest of a study into ``out``.

    The same store gives the same bytes. Files are written beside ``out`` first and then
    renamed into it, the manifest last, so that a reader never meets half a file.

    Args:
        reader: a tracking store.
        study: name of the study.
        panels: panels in order, each of which must have data; None draws all that have.
        out: folder of the report; it is made where it does not exist.

    Raises:
        InputError: if nothing is tracked, a panel is unknown or has no data, or ``out``
            cannot be written.
    """
    tracked = read_tracked(reader, study)
    if tracked.empty:
        raise InputError(
            f"the study {study!r} has no tracked run to report on; `suite run {study}` makes some"
        )
    displays, skipped = make_displays(tracked, panels)
    tables = build_tables(tracked)
    entries = collect_entries((display.points() for display in displays), tables)
    names: list[str] = []
    with _staging(out) as staging:
        on_page = []
        for display in displays:
            png, svg = staging / f"{display.name}.png", staging / f"{display.name}.svg"
            style.save(display.plot(), png, svg)
            names += [png.name, svg.name]
            on_page.append(
                FigureOnPage(
                    name=display.name,
                    title=display.title,
                    caption=display.caption,
                    png=png.read_bytes(),
                )
            )
        (staging / PAGE_NAME).write_text(
            render_page(tracked, on_page, tables), encoding="utf-8", newline="\n"
        )
        manifest = Manifest(
            study=study,
            requested=None if panels is None else tuple(panels),
            panels=tuple(display.name for display in displays),
            entries=entries,
            artifacts={name: digest_of(staging / name) for name in [*names, PAGE_NAME]},
        )
        (staging / MANIFEST_NAME).write_text(to_json(manifest), encoding="utf-8", newline="\n")
        _publish(staging, out, [*names, PAGE_NAME, MANIFEST_NAME])
    return Report(
        study=study,
        folder=out,
        page=out / PAGE_NAME,
        figures=tuple(out / name for name in names),
        manifest_path=out / MANIFEST_NAME,
        manifest=manifest,
        skipped=skipped,
        notes=tracked.notes,
    )


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A folder beside ``out``, on the same file system, that is gone when the block ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", suffix=".part", dir=out.parent))
    except OSError as error:
        raise InputError(
            f"the report folder {out} cannot be written ({error.strerror or error}); copy the "
            "home to where it can, and give the copy with --home"
        ) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, out: Path, names: Sequence[str]) -> None:
    """Move files into the report, in order, and drop figures that it no longer has."""
    for name in names:
        os.replace(staging / name, out / name)
    for panel in PANELS:
        for suffix in (".png", ".svg"):
            if panel + suffix not in names:
                (out / (panel + suffix)).unlink(missing_ok=True)
