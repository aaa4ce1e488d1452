"""The report stage: build the report from the store, and keep it as an MLflow run."""

from __future__ import annotations

from suite.cells import Cell
from suite.errors import InputError
from suite.reports.build import Report, build_report
from suite.reports.manifest import digest_of, read_manifest
from suite.reports.verify import verify
from suite.stages.context import StageContext


def run_report(context: StageContext) -> Report | None:
    """Build the report unless the one on disk shows exactly what the store holds.

    Returns:
        The new report, or none where the old one stands.
    """
    study = context.study
    out = context.home.reports / study.name
    if _is_current(context):
        return None
    report = build_report(context.reader, study.name, study.report.panels, out)
    cell = Cell(
        kind="report",
        name=f"report {study.name}",
        settings={"manifest": digest_of(report.manifest_path)},
        labels={"panels": list(report.manifest.panels)},
    )
    recorder = context.begin(cell, None)

    def keep() -> None:
        for file in report.files:
            recorder.log_artifact(file, "report")

    context.attempt(cell, recorder, keep)
    return report


def _is_current(context: StageContext) -> bool:
    manifest = context.home.reports / context.study.name / "manifest.json"
    try:
        if read_manifest(manifest).requested != context.study.report.panels:
            return False
        return verify(context.reader, context.study.name, manifest).ok
    except InputError:
        return False
