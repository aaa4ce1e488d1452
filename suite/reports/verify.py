"""Checks a saved report against the store: rebuilds its points and words, compares exactly."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

import suite
from suite.errors import InputError, SuiteError
from suite.reports.build import PAGE_NAME, build_report
from suite.reports.history import find_rewritten, shown_before
from suite.reports.kept import (
    REPORT_KIND,
    EditedArtifact,
    EditedSeal,
    KeptReport,
    RedrawnArtifact,
    edited_files,
    read_kept,
)
from suite.reports.made_with import made_with, warnings_about
from suite.reports.manifest import (
    Manifest,
    collect_entries,
    compare,
    digest_of,
    read_manifest,
)
from suite.reports.page import FigureOnPage, render_page
from suite.reports.panels import make_displays
from suite.reports.points import Display, NoDataError
from suite.reports.run_faults import run_faults
from suite.reports.tables import build_tables
from suite.reports.tracked import read_tracked
from suite.reports.verification import Verification
from suite.reports.words import ChangedWords, changed_words
from suite.tracking.origins import Origins, read_origins, translate
from suite.tracking.provenance import installed_source
from suite.tracking.reader import Reader

__all__ = ["EditedArtifact", "Verification", "verify"]

_MOST_SAID = 3  # words or runs that a warning repeats


def verify(
    reader: Reader, study: str, manifest_path: Path, *, artifacts: Path | None = None
) -> Verification:
    """Rebuild a saved report from the store and compare.

    Points, table entries and the words of the page must be what the store gives, and every file
    what the manifest says. With ``artifacts``, the copies that report runs keep are checked too:
    each must be what its run was made for, no value that one shows may have gone from the
    store, and a report that no run keeps must be what is drawn anew, byte for byte.

    What cannot be told is whether somebody has rewritten all of it together: the values, every
    kept copy, and both seals of each report run.

    Args:
        reader: a tracking store.
        study: name of the study.
        manifest_path: manifest of the report; its figures and page lie beside it.
        artifacts: folder with the artifacts of the study's runs, ``<run id>/artifacts/...``;
            None where they cannot be read.

    Raises:
        InputError: if the manifest is missing, cannot be read, or is another study's.
        SuiteError: if the store cannot be read.
    """
    saved, folder = read_manifest(manifest_path), manifest_path.parent
    runs = _Runs.read(reader, study)
    if saved.study not in {study, *runs.origins.studies}:
        raise InputError(
            f"the manifest {manifest_path} is of the study {saved.study!r}, not of {study!r}"
        )
    shown = runs.origins.under_present_ids(saved.entries)
    run_ids = tuple(shown["run_id"].unique().sort().to_list())
    faults = tuple(run_faults(run_ids, runs.rows, runs.tags, artifacts))
    kept = read_kept(runs.rows.values(), runs.params, runs.tags, artifacts)
    broken = [fault for report in kept for fault in report.faults]
    own = next((report for report in kept if report.seals(digest_of(manifest_path))), None)
    edited: list[EditedArtifact | RedrawnArtifact] = [
        *edited_files(folder, saved.artifacts),
        *(fault for fault in broken if isinstance(fault, EditedArtifact)),
    ]
    try:
        entries, page = _rebuild(reader, study, saved)
    except SuiteError:
        if not faults:  # tags that cannot be read are named there, with their run
            raise
        entries, page = shown, None
    differences = compare(shown, entries)
    agree = page is not None and not differences and not edited
    if agree and own is None and artifacts is not None:
        edited += _redrawn(reader, study, saved, folder, by_bytes=not runs.origins.ids)
    words: tuple[ChangedWords, ...] = ()
    if agree and page is not None:
        words = _changed_words(folder / PAGE_NAME, page, runs.origins)
    of_other_code = own is not None and not _is_of_this_code(own)
    earlier = shown_before(
        [report for report in kept if report is not own and not report.faults],
        runs.origins.under_present_ids,
    )
    return Verification(
        study=study,
        manifest_path=manifest_path,
        num_entries=saved.entries.height,
        run_ids=run_ids,
        differences=differences,
        edited=tuple(edited),
        seals=tuple(fault for fault in broken if isinstance(fault, EditedSeal)),
        run_faults=faults,
        rewritten=find_rewritten(reader, earlier, entries, list(runs.rows))
        if page is not None
        else (),
        words=() if of_other_code else words,
        warnings=(
            *_about_code(run_ids, runs),
            *(_about_words(words) if of_other_code else ()),
            *_about_gone(earlier["run_id"].unique().sort().to_list(), runs, run_ids),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """Runs of a study by id, with the parameters of its reports and the tags of all."""

    rows: Mapping[str, Mapping[str, Any]]
    params: Mapping[str, Mapping[str, str]]
    tags: Mapping[str, Mapping[str, str]]
    origins: Origins

    @classmethod
    def read(cls, reader: Reader, study: str) -> _Runs:
        frame = reader.runs(study)
        tags = reader.tags(frame["run_id"].to_list())
        reports = frame.filter(pl.col("kind") == REPORT_KIND)["run_id"].to_list()
        return cls(
            rows={row["run_id"]: row for row in frame.iter_rows(named=True)},
            params=_texts(reader.params(reports)),
            tags=_texts(tags),
            origins=read_origins(tags),
        )


def _texts(frame: pl.DataFrame) -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = {}
    for run_id, key, value in frame.select("run_id", "key", "value").iter_rows():
        texts.setdefault(run_id, {})[key] = value
    return texts


def _rebuild(reader: Reader, study: str, saved: Manifest) -> tuple[pl.DataFrame, str]:
    """Entries and page as the store gives them now; the page without its pictures."""
    tracked = replace(read_tracked(reader, study), study=saved.study)  # it may be called anew
    wanted: Sequence[str | None] = [None] if saved.requested is None else saved.requested
    displays: list[Display] = []
    for panel in wanted:
        try:
            displays += make_displays(tracked, None if panel is None else [panel])[0]
        except NoDataError:
            continue  # its points are then missing from the store, which the comparison says
    tables = build_tables(tracked)
    entries = collect_entries([display.points() for display in displays], tables)
    if tracked.empty:
        return entries, ""
    figures = [
        FigureOnPage(name=d.name, title=d.title, caption=d.caption, png=b"") for d in displays
    ]
    return entries, render_page(tracked, figures, tables)


def _redrawn(
    reader: Reader, study: str, saved: Manifest, folder: Path, *, by_bytes: bool
) -> Iterator[RedrawnArtifact]:
    """Files that differ from the report built anew.

    Args:
        reader: the store.
        study: name of the study.
        saved: the manifest.
        folder: where the report lies.
        by_bytes: whether page and manifest name the same run ids as the store, so that they
            must be equal too.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            report = build_report(reader, study, saved.requested, Path(scratch) / "report")
        except NoDataError:
            return  # its points are missing from the store, which is said
        for file in report.files if by_bytes else report.figures:
            path = folder / file.name
            drawn, found = digest_of(file), digest_of(path) if path.is_file() else None
            if drawn != found:
                yield RedrawnArtifact(path=path, drawn=drawn, found=found)


def _changed_words(path: Path, page: str, origins: Origins) -> tuple[ChangedWords, ...]:
    try:
        old = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()  # gone, which is said
    return tuple(changed_words(path.name, translate(old, origins.ids), page))


def _is_of_this_code(report: KeptReport) -> bool:
    """Whether the page was written by the code that runs now, which gives the same words."""
    source = report.tags.get("suite.source")
    if source is not None:
        return source == installed_source()
    return report.tags.get("suite.version", suite.__version__) == suite.__version__


def _about_code(run_ids: Sequence[str], runs: _Runs) -> Iterator[str]:
    readable = []
    for run_id in run_ids:
        if run_id in runs.rows:
            name = runs.rows[run_id]["name"] or run_id
            try:
                readable.append(made_with(run_id, name, runs.tags.get(run_id, {})))
            except (SuiteError, ValueError):
                continue  # a fault of the run, which is said
    yield from warnings_about(readable)


def _about_words(words: Sequence[ChangedWords]) -> Iterator[str]:
    if words:
        said = "; ".join(map(str, words[:_MOST_SAID]))
        yield (
            f"the page was written by another version of the suite, and differs in {len(words)} "
            f"places from what this one writes: {said}"
        )


def _about_gone(shown: Sequence[str], runs: _Runs, run_ids: Sequence[str]) -> Iterator[str]:
    gone = [run_id for run_id in shown if run_id not in runs.rows and run_id not in run_ids]
    if gone:
        more = f" and {len(gone) - _MOST_SAID} more" if len(gone) > _MOST_SAID else ""
        runs_are = "1 run that is" if len(gone) == 1 else f"{len(gone)} runs that are"
        yield (
            f"an earlier report shows {runs_are} not in the store any more: "
            f"{', '.join(gone[:_MOST_SAID])}{more}"
        )
