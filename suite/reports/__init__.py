"""Reports: figures, page and manifest of a study, and the check of one against the store.

In flows what a ``Reader`` of the tracking store gives, and nothing else: no training code, no
study file. Out flow PNG, SVG, one HTML page, and a manifest that names the run, metric, step
and exact value of each plotted point. The same store gives the same bytes.
"""

from __future__ import annotations

from suite.reports.build import Report, build_report
from suite.reports.manifest import Difference, Manifest, compare, read_manifest
from suite.reports.panels import PANELS, SkippedPanel
from suite.reports.verify import EditedArtifact, Verification, verify

__all__ = [
    "PANELS",
    "Difference",
    "EditedArtifact",
    "Manifest",
    "Report",
    "SkippedPanel",
    "Verification",
    "build_report",
    "compare",
    "read_manifest",
    "verify",
]
