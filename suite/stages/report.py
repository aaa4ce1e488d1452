"""The report stage: build the report from the store, and keep it as an MLflow run."""

from __future__ import annotations

from pathlib import Path

from suite.cells import Cell
from suite.containment import contained_folder
from suite.errors import InputError
from suite.reports.build import Report, build_report
from suite.reports.manifest import MANIFEST_NAME, digest_of, read_manifest
from suite.reports.points import NoDataError
from suite.reports.verify import verify
from suite.stages.context import StageContext


def run_report(context: StageContext) -> Report | None:
    """Build the report unless the one on disk shows exactly what the store holds.

    Returns:
        The new report, or none where the old one stands.
    """
    study = context.study
    out = contained_folder(context.home.reports / study.name, context.home.reports)
    manifest = out / MANIFEST_NAME
    if _is_current(context, manifest):
        return None
    try:
        report = build_report(context.reader, study.name, study.report.panels, out)
    except NoDataError:
        if not context.failures:
            raise
        # a panel was asked for whose stage has failed; the failures are said, the rest is drawn
        report = build_report(context.reader, study.name, None, out)
    cell = report_cell(study.name, manifest)
    recorder = context.begin(cell, context.tracked("report").get(cell.fingerprint))

    def keep() -> None:
        for file in report.files:
            recorder.log_artifact(file, "report")

    context.attempt(cell, recorder, keep)
    return report


def report_cell(study: str, manifest: Path) -> Cell:
    """The cell of the report that a manifest describes."""
    return Cell(
        kind="report",
        name=f"report {study}",
        settings={"manifest": digest_of(manifest)},
        labels={},
    )


def _is_current(context: StageContext, manifest: Path) -> bool:
    """Whether the report on disk shows what the store holds, and is kept as a finished run."""
    study = context.study
    try:
        if read_manifest(manifest).requested != study.report.panels:
            return False
        kept = context.tracked("report").get(report_cell(study.name, manifest).fingerprint)
        same = verify(context.reader, study.name, manifest).ok
    except InputError:
        return False
    return same and kept is not None and kept.status == "FINISHED"
