"""What is wrong with plotted runs beyond their values: runs that are gone, tags that were edited.

A value that was changed shows when points are compared. These faults do not, or hide others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.errors import SuiteError
from suite.reports.made_with import UnreadableCodeError, made_with
from suite.tracking.curves import ATTEMPT_TAG, attempts_from_tags
from suite.tracking.provenance import (
    DIFF_NAME,
    ENVIRONMENT_NAME,
    PROVENANCE_TAG,
    attempt_folder,
    code_on_file,
)

NAME_TAG = "mlflow.runName"
ATTEMPTS_TAG = "suite.attempts"


@dataclass(frozen=True, kw_only=True)
class RunFault:
    """What is wrong with one run.

    Attributes:
        run_id: the run.
        name: its name, or None where it is gone.
        what: what is wrong, as the rest of a sentence about it.
    """

    run_id: str
    name: str | None
    what: str

    def __str__(self) -> str:
        """One readable line."""
        return f"run {self.run_id}{f' ({self.name})' if self.name else ''}: {self.what}"


def run_faults(
    plotted: Iterable[str],
    rows: Mapping[str, Mapping[str, Any]],
    tags: Mapping[str, Mapping[str, str]],
    artifacts: Path | None,
) -> Iterator[RunFault]:
    """Faults of the runs that a report shows.

    Args:
        plotted: ids of the runs that it shows.
        rows: the study's runs by id.
        tags: their tags by id.
        artifacts: folder with the artifacts of each run; None where they cannot be read.
    """
    for run_id in plotted:
        if run_id not in rows:
            what = "it is not in the store; it was deleted, or its rows were removed"
            yield RunFault(run_id=run_id, name=None, what=what)
            continue
        name = rows[run_id]["name"]
        own = tags.get(run_id, {})
        found = list(_faults(name, own))
        if artifacts is not None and not found:
            found += _code_faults(own, artifacts / run_id / "artifacts")
        for what in found:
            yield RunFault(run_id=run_id, name=name, what=what)


def _faults(name: str | None, tags: Mapping[str, str]) -> Iterator[str]:
    if tags.get(NAME_TAG, name) != name:  # MLflow writes the name twice, and changes both
        yield (
            f"its tag {NAME_TAG} is {tags[NAME_TAG]!r}; its tags are those of another run, or "
            "were edited"
        )
    try:
        numbers = [attempt.number for attempt in attempts_from_tags(tags)]
        made_with("", "", tags)
    except (SuiteError, UnreadableCodeError) as error:
        yield str(error)
        return
    counted = tags.get(ATTEMPTS_TAG, "")
    expected = list(range(1, int(counted) + 1)) if counted.isdecimal() else []
    if numbers and numbers != expected:
        had = ", ".join(map(str, numbers))
        yield (
            f"it has tags {ATTEMPT_TAG}N for the attempts {had}, and {ATTEMPTS_TAG} is "
            f"{counted!r}; attempts were removed or added"
        )


def _code_faults(tags: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Records of an attempt's code that say different things; a file may be missing."""
    for attempt in attempts_from_tags(tags):
        key, kept = f"{PROVENANCE_TAG}{attempt.number}", attempt_folder(attempt.number)
        path = folder / kept / ENVIRONMENT_NAME
        if key not in tags or not path.is_file():
            continue  # made before these were kept, or cut off between the two
        content = path.read_bytes()
        try:
            on_file = code_on_file(content)
        except ValueError:
            yield f"its artifact {kept}/{ENVIRONMENT_NAME} cannot be read; it was edited"
            continue
        tagged = json.loads(tags[key])
        for name in sorted(tagged.keys() | on_file.keys()):
            if tagged.get(name) != on_file.get(name):
                yield (
                    f"its tag {key} has {name} {tagged.get(name)!r}, its artifact "
                    f"{kept}/{ENVIRONMENT_NAME} has {on_file.get(name)!r}; one of them was edited"
                )
        diff = json.loads(content)["git"].get("diff")
        if diff and not diff["cut"] and _digest_of_patch(folder / kept) != diff["sha256"]:
            yield f"its artifact {kept}/{DIFF_NAME} was edited or removed"


def _digest_of_patch(folder: Path) -> str | None:
    """SHA-256 of the patch without the words before it."""
    try:
        _, _, patch = (folder / DIFF_NAME).read_bytes().partition(b"\n\n")
    except OSError:
        return None
    return hashlib.sha256(patch).hexdigest()
