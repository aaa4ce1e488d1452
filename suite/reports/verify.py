"""Checks a saved report against the store: rebuilds its points and compares them exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.errors import InputError
from suite.reports.manifest import Difference, collect_entries, compare, digest_of, read_manifest
from suite.reports.panels import make_displays
from suite.reports.points import NoDataError
from suite.reports.tables import build_tables
from suite.reports.tracked import read_tracked
from suite.tracking.reader import Reader


@dataclass(frozen=True, kw_only=True)
class EditedArtifact:
    """A file of the report that is not what was built.

    Attributes:
        path: the file.
        recorded: SHA-256 in the manifest.
        found: SHA-256 of the file, or None where it is gone.
    """

    path: Path
    recorded: str
    found: str | None

    def __str__(self) -> str:
        """One readable line."""
        if self.found is None:
            return f"{self.path} is missing"
        return (
            f"{self.path} was edited: its SHA-256 is {self.found}, the manifest has {self.recorded}"
        )


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a check has found.

    Attributes:
        study: name of the study.
        manifest_path: the saved manifest.
        num_entries: points and table entries that the manifest holds.
        run_ids: runs that the manifest names, sorted.
        differences: entries that differ from the store.
        edited: files that differ from what was built.
    """

    study: str
    manifest_path: Path
    num_entries: int
    run_ids: tuple[str, ...]
    differences: tuple[Difference, ...]
    edited: tuple[EditedArtifact, ...]

    @property
    def ok(self) -> bool:
        """Whether the report shows what the store holds, in the files that were built."""
        return not self.differences and not self.edited

    def lines(self, limit: int = 5) -> Iterable[str]:
        """The findings, readable; of each curve at most ``limit`` differences."""
        for artifact in self.edited:
            yield str(artifact)
        seen: Counter[tuple[str, ...]] = Counter()
        for difference in self.differences:
            curve = _curve(difference)
            seen[curve] += 1
            if seen[curve] <= limit:
                yield str(difference)
        for curve, count in seen.items():
            if count > limit:
                kind, panel, axes, series, run_id, key = curve
                yield (
                    f"{panel}, {axes}, {series}: run {run_id}, {key}: {count - limit} more {kind}"
                )


def _curve(difference: Difference) -> tuple[str, ...]:
    return (
        difference.kind,
        difference.panel,
        difference.axes,
        difference.series,
        difference.run_id,
        difference.key,
    )


def verify(reader: Reader, study: str, manifest_path: Path) -> Verification:
    """Rebuild the points of a saved report from the store and compare.

    Args:
        reader: a tracking store.
        study: name of the study.
        manifest_path: manifest of the report; its figures and page lie beside it.

    Raises:
        InputError: if the manifest is missing, cannot be read, or is another study's.
    """
    saved = read_manifest(manifest_path)
    if saved.study != study:
        raise InputError(
            f"the manifest {manifest_path} is of the study {saved.study!r}, not of {study!r}"
        )
    tracked = read_tracked(reader, study)
    wanted: Sequence[str | None] = [None] if saved.requested is None else saved.requested
    points = []
    for panel in wanted:
        try:
            displays, _ = make_displays(tracked, None if panel is None else [panel])
        except NoDataError:
            continue  # its points are then missing from the store, which the comparison says
        points += [display.points() for display in displays]
    entries = collect_entries(points, build_tables(tracked))
    return Verification(
        study=study,
        manifest_path=manifest_path,
        num_entries=saved.entries.height,
        run_ids=tuple(saved.entries["run_id"].unique().sort().to_list()),
        differences=compare(saved.entries, entries),
        edited=tuple(_edited(manifest_path.parent, saved.artifacts)),
    )


def _edited(folder: Path, artifacts: dict[str, str]) -> Iterable[EditedArtifact]:
    for name, recorded in artifacts.items():
        # A manifest is input too: only its own folder is looked at.
        path = folder / Path(name).name
        found = digest_of(path) if path.is_file() else None
        if found != recorded:
            yield EditedArtifact(path=path, recorded=recorded, found=found)
