"""What a check of a report has found, and how it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suite.reports.history import Rewritten
from suite.reports.kept import EditedArtifact, EditedSeal, RedrawnArtifact
from suite.reports.manifest import Difference
from suite.reports.run_faults import RunFault
from suite.reports.words import ChangedWords


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a check has found.

    Attributes:
        study: name of the study.
        manifest_path: the saved manifest.
        num_entries: points and table entries that the manifest holds.
        run_ids: runs that the manifest names, sorted.
        differences: entries that differ from the store.
        edited: files that differ from what was built, in the report and in kept copies of it.
        seals: report runs whose record of what they keep was edited.
        run_faults: plotted runs that are gone, or whose tags were edited.
        rewritten: values of kept reports that the store no longer has.
        words: places of the page that do not say what the store gives.
        warnings: what does not make the report wrong, and is to be known of it.
    """

    study: str
    manifest_path: Path
    num_entries: int
    run_ids: tuple[str, ...]
    differences: tuple[Difference, ...] = ()
    edited: tuple[EditedArtifact | RedrawnArtifact, ...] = ()
    seals: tuple[EditedSeal, ...] = ()
    run_faults: tuple[RunFault, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    words: tuple[ChangedWords, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the report shows what the store holds, in the files that were built."""
        return not (
            self.differences
            or self.edited
            or self.seals
            or self.run_faults
            or self.rewritten
            or self.words
        )

    def passes(self, *, strict: bool = False) -> bool:
        """Whether there is nothing to object to; if ``strict``, not even a warning."""
        return self.ok and not (strict and self.warnings)

    def lines(self, limit: int = 5) -> Iterator[str]:
        """The findings but for warnings, readable; of each curve at most ``limit`` differences."""
        for finding in (*self.edited, *self.seals, *self.run_faults):
            yield str(finding)
        shown = [("", difference, str(difference)) for difference in self.differences]
        shown += [(r.report_run_id, r.difference, str(r)) for r in self.rewritten]
        seen: Counter[tuple[str, ...]] = Counter()
        for report, difference, line in shown:
            curve = (report, *_curve(difference))
            seen[curve] += 1
            if seen[curve] <= limit:
                yield line
        for curve, count in seen.items():
            if count > limit:
                report, kind, panel, axes, series, run_id, key = curve
                kept = f"report kept with run {report}: " if report else ""
                yield (
                    f"{kept}{panel}, {axes}, {series}: run {run_id}, {key}: {count - limit} more "
                    f"{kind}"
                )
        yield from map(str, self.words[:limit])
        if len(self.words) > limit:
            yield f"{self.words[0].page}: {len(self.words) - limit} more places differ"


def _curve(difference: Difference) -> tuple[str, ...]:
    return (
        difference.kind,
        difference.panel,
        difference.axes,
        difference.series,
        difference.run_id,
        difference.key,
    )
