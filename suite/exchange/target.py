"""What an import finds in the home or on the server that it is to write to."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from suite.errors import InputError
from suite.exchange.artifacts import is_server, record_of, regular_files
from suite.exchange.folder import ExportFolder
from suite.exchange.layout import ARTIFACTS, REPORT
from suite.exchange.records import ExportedRun
from suite.tracking.home import Home
from suite.tracking.origins import RUN_ID_TAG, WHOLE_TAG
from suite.tracking.reader import Reader

_REFUSED_BY_SERVERS = "#%?\\"  # in the path of an artifact, which becomes part of an address
_SPARE = 64 << 20  # bytes that the store itself may need


@dataclass(frozen=True, kw_only=True)
class Target:
    """The runs of an export that are there already.

    Attributes:
        begun: id of each run that was created, by the id where it was made.
        whole: those of them that were written to the end.
    """

    begun: Mapping[str, str]
    whole: frozenset[str]


def look_at_target(
    reader: Reader, study: str, runs: Sequence[ExportedRun], source: ExportFolder
) -> Target:
    """See which runs of an export are there, and that nothing stands in its way.

    Args:
        reader: the store that is to be written to.
        study: name that the study is to have there.
        runs: the runs of the export.
        source: the export.

    Raises:
        InputError: if the study has other runs there, or the same ones with other content.
    """
    ids = reader.runs(study)["run_id"].to_list()
    tags = reader.tags(ids)
    first_of = _tag(tags, RUN_ID_TAG)
    digest_of = _tag(tags, WHOLE_TAG)
    begun = {first: run_id for run_id, first in first_of.items()}
    exported = {run.first_id: run for run in runs}
    whole = set()
    for first, run in exported.items():
        digest = digest_of.get(begun.get(first, ""))
        if digest is not None and digest != run.digest:
            raise InputError(
                f"run {first} ({run.name}) of {source.path} was imported into {study!r} before, "
                "from an export that held something else of it; import this one under another "
                "name with --name NEW"
            )
        if digest is not None:
            whole.add(first)
    others = [run_id for run_id in ids if first_of.get(run_id) not in exported]
    if others and len(whole) < len(runs):
        raise InputError(
            f"the study {study!r} has {len(others)} other runs there, such as {others[0]}, that "
            f"are not from {source.path}; nothing was written; import it under another name with "
            "--name NEW"
        )
    return Target(
        begun={first: run_id for first, run_id in begun.items() if first in exported},
        whole=frozenset(whole),
    )


def _tag(tags: pl.DataFrame, key: str) -> dict[str, str]:
    return dict(tags.filter(pl.col("key") == key).select("run_id", "value").iter_rows())


def check_room(home: Home, source: ExportFolder) -> None:
    """See that the artifacts fit where they are to go.

    Raises:
        InputError: if the disk has no room, or a server would not take an artifact's path.
    """
    kept = [path for path in source.contents.files if path.startswith(f"{ARTIFACTS}/")]
    if is_server(home):
        for path in kept:
            if any(letter in path for letter in _REFUSED_BY_SERVERS):
                raise InputError(
                    f"the artifact {path!r} has one of {_REFUSED_BY_SERVERS} in its path, which "
                    "an MLflow server does not take; import it into a home instead"
                )
        return
    needed = sum(record.size for record in source.contents.files.values()) + _SPARE
    free = shutil.disk_usage(home.root).free
    if free < needed:
        raise InputError(
            f"{source.path} needs {needed:,} bytes in {home.root}, where {free:,} are free; make "
            "room, or choose another home with --home"
        )


def refuse_other_report(folder: Path, source: ExportFolder) -> None:
    """See that a report folder is empty, or holds the report of the export.

    Raises:
        InputError: if it holds something else.
    """
    wanted = {
        path.removeprefix(f"{REPORT}/"): record
        for path, record in source.contents.files.items()
        if path.startswith(f"{REPORT}/")
    }
    present = files_there(folder)
    if present and {path: record_of(folder / path) for path in present} != wanted:
        raise InputError(
            f"{folder} holds a report that is not the one of {source.path}; move it away, or "
            "import under another name with --name NEW"
        )


def files_there(folder: Path) -> list[str]:
    """Files of a report folder.

    Raises:
        InputError: if there are links among them.
    """
    try:
        return list(regular_files(folder))
    except ValueError as error:
        raise InputError(f"the report folder {folder} cannot be used: {error}") from None
