"""Copies of a study's reports, as its report runs keep them, and what became of the files.

A report run has two seals, which no later report changes: its parameter ``manifest`` is the
SHA-256 of the manifest, and its tag ``suite.cell`` is the fingerprint that follows from it. The
manifest holds the SHA-256 of every other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from suite.errors import InputError
from suite.fingerprint import fingerprint
from suite.reports.manifest import MANIFEST_NAME, Manifest, digest_of, read_manifest

REPORT_KIND = "report"
REPORT_FOLDER = "report"
MANIFEST_PARAM = "manifest"


@dataclass(frozen=True, kw_only=True)
class EditedArtifact:
    """A file of the report that is not what was built.

    Attributes:
        path: the file.
        recorded: SHA-256 that it should have, or None where there should be no such file.
        found: SHA-256 of the file, or None where it is gone.
        record: what holds the digest that it should have.
    """

    path: Path
    recorded: str | None
    found: str | None
    record: str = "the manifest"

    def __str__(self) -> str:
        """One readable line."""
        if self.found is None:
            return f"{self.path} is missing"
        if self.recorded is None:
            return f"{self.path} is not part of the report; {self.record} does not name it"
        return (
            f"{self.path} was edited: its SHA-256 is {self.found}, {self.record} has "
            f"{self.recorded}"
        )


@dataclass(frozen=True, kw_only=True)
class RedrawnArtifact:
    """A file that no run keeps, and that is not what is made from the store now.

    Attributes:
        path: the file.
        drawn: SHA-256 of what is made now.
        found: SHA-256 of the file, or None where it is gone.
    """

    path: Path
    drawn: str
    found: str | None

    def __str__(self) -> str:
        """One readable line."""
        if self.found is None:
            return f"{self.path} is missing"
        return (
            f"{self.path} is not what the store gives: its SHA-256 is {self.found}, drawn here it "
            f"is {self.drawn}; it was edited, or drawn by other versions of the suite or of "
            "matplotlib (`suite report` draws it again)"
        )


@dataclass(frozen=True, kw_only=True)
class EditedSeal:
    """A report run whose seals do not belong together.

    Attributes:
        run_id: the run.
        cell: its tag ``suite.cell``.
        manifest: its parameter ``manifest``.
    """

    run_id: str
    cell: str | None
    manifest: str

    def __str__(self) -> str:
        """One readable line."""
        return (
            f"report run {self.run_id}: its tag suite.cell is {self.cell}, its parameter "
            f"{MANIFEST_PARAM} gives {report_fingerprint(self.manifest)}; one of them was edited"
        )


@dataclass(frozen=True, kw_only=True)
class KeptReport:
    """A finished report run.

    Attributes:
        run_id: the run.
        start_time: when the report was built, in ms since 1970.
        cell: its tag ``suite.cell``.
        manifest_digest: its parameter ``manifest``, or None where that was removed.
        tags: all its tags.
        folder: where its files are kept, or None where they are not looked at.
    """

    run_id: str
    start_time: int
    cell: str | None
    manifest_digest: str | None
    tags: Mapping[str, str]
    folder: Path | None

    def seals(self, manifest_digest: str) -> bool:
        """Whether it is the run of the report with this manifest."""
        return self.manifest_digest == manifest_digest or (
            self.manifest_digest is None and self.cell == report_fingerprint(manifest_digest)
        )

    @cached_property
    def faults(self) -> tuple[EditedArtifact | EditedSeal, ...]:
        """What was done to the seals and the files."""
        return tuple(self._faults())

    def _faults(self) -> Iterator[EditedArtifact | EditedSeal]:
        digest = self.manifest_digest
        if digest is not None and self.cell != report_fingerprint(digest):
            yield EditedSeal(run_id=self.run_id, cell=self.cell, manifest=digest)
        if self.folder is None:
            return
        path = self.folder / MANIFEST_NAME
        found = digest_of(path) if path.is_file() else None
        if found is None or not self.seals(found):
            record = f"the parameter {MANIFEST_PARAM} of report run {self.run_id}"
            yield EditedArtifact(path=path, recorded=digest or "", found=found, record=record)
        if (manifest := self.manifest) is not None:
            yield from edited_files(self.folder, manifest.artifacts)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The kept manifest; None where it cannot be read."""
        if self.folder is None:
            return None
        try:
            return read_manifest(self.folder / MANIFEST_NAME)
        except InputError:
            return None


def read_kept(
    rows: Iterable[Mapping[str, Any]],
    params: Mapping[str, Mapping[str, str]],
    tags: Mapping[str, Mapping[str, str]],
    artifacts: Path | None,
) -> tuple[KeptReport, ...]:
    """The finished report runs of a study, newest first.

    Args:
        rows: its runs.
        params: parameters by run.
        tags: tags by run.
        artifacts: folder that holds the artifacts of each of its runs in a folder
            ``<run id>/artifacts``; None where artifacts cannot be read.
    """
    found = [
        KeptReport(
            run_id=row["run_id"],
            start_time=row["start_time"] or 0,
            cell=row["cell"],
            manifest_digest=params.get(row["run_id"], {}).get(MANIFEST_PARAM),
            tags=tags.get(row["run_id"], {}),
            folder=artifacts and artifacts / row["run_id"] / "artifacts" / REPORT_FOLDER,
        )
        for row in rows
        if row["kind"] == REPORT_KIND and row["status"] == "FINISHED"
    ]
    return tuple(sorted(found, key=lambda kept: (-kept.start_time, kept.run_id)))


def report_fingerprint(manifest_digest: str) -> str:
    """The tag ``suite.cell`` of the report with a manifest."""
    return fingerprint({"kind": REPORT_KIND, "manifest": manifest_digest})


def edited_files(folder: Path, artifacts: Mapping[str, str]) -> Iterator[EditedArtifact]:
    """Files of a report that are not what its manifest names, and files that it does not name."""
    for name, recorded in artifacts.items():
        # A manifest is input too: only its own folder is looked at.
        path = folder / Path(name).name
        found = digest_of(path) if path.is_file() else None
        if found != recorded:
            yield EditedArtifact(path=path, recorded=recorded, found=found)
    for path in _files(folder):
        if path.name not in artifacts and path.name != MANIFEST_NAME:
            digest = digest_of(path) if path.is_file() else ""
            yield EditedArtifact(path=path, recorded=None, found=digest)


def _files(folder: Path) -> Sequence[Path]:
    try:  # names that begin with a dot are those of file managers, which no page shows
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return ()
