"""What an export holds: its files, the columns of its tables, and the rules for its paths."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from suite.errors import InputError

FORMAT = "suite-export"
VERSION = 1
CONTENTS_NAME = "study.json"
CURVES, ARTIFACTS, REPORT = "curves", "artifacts", "report"
# Written out here, not taken from the reader: a file's format changes only when VERSION does.
_TEXTS = {"run_id": pl.String(), "key": pl.String(), "value": pl.String()}
TABLES: Mapping[str, pl.Schema] = {
    "runs": pl.Schema(
        {
            "run_id": pl.String(),
            "name": pl.String(),
            "kind": pl.String(),
            "cell": pl.String(),
            "status": pl.String(),
            "start_time": pl.Int64(),
            "end_time": pl.Int64(),
            "parent_run_id": pl.String(),
        }
    ),
    "params": pl.Schema(_TEXTS),
    "tags": pl.Schema(_TEXTS),
    "inputs": pl.Schema(
        {
            "run_id": pl.String(),
            "name": pl.String(),
            "digest": pl.String(),
            "source_type": pl.String(),
            "source": pl.String(),
            "schema": pl.String(),
            "profile": pl.String(),
            "tags": pl.String(),  # a JSON object, such as {"mlflow.data.context": "training"}
        }
    ),
}
CURVE_SCHEMA = pl.Schema(
    {
        "run_id": pl.String(),
        "key": pl.String(),
        "step": pl.Int64(),
        "value": pl.Float64(),
        "timestamp": pl.Int64(),
        "attempt": pl.Int64(),
        "superseded": pl.Boolean(),
    }
)
COUNTED = ("runs", "params", "tags", "inputs", "points", "artifacts")
RUN_ID = re.compile(r"[0-9a-f]{32}")
_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_PART = 200  # bytes; file systems take 255, and a file has a longer name while it is copied
_LONGEST_PATH = 1_000  # bytes


@dataclass(frozen=True)
class FileRecord:
    """A file as it was written: its SHA-256 as hex, and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What ``study.json`` says of an export.

    Attributes:
        study: name of the study.
        suite_version: version of the suite that wrote it.
        exported: when, as ISO 8601 in UTC.
        counts: how many runs, params, tags, inputs, points and artifacts there are.
        files: every other file, by its path in the folder.
    """

    study: str
    suite_version: str
    exported: str
    counts: Mapping[str, int]
    files: Mapping[str, FileRecord]

    def to_json(self) -> str:
        """The text of ``study.json``."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        document["files"] = dict(sorted(document["files"].items()))
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Contents:
        """Read ``study.json``.

        Raises:
            ValueError: if it is not what this version writes; the message says in which part.
        """
        try:
            document = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"it does not say that its format is {FORMAT!r}")
        if type(document.get("version")) is not int or document["version"] != VERSION:
            raise ValueError(
                f"its version is {document.get('version')!r}, and this suite reads {VERSION}; "
                "import it with the version of the suite that wrote it, "
                f"{document.get('suite_version')!r}"
            )
        files = _part(document, "files", dict)
        return cls(
            study=check_study_name(_part(document, "study", str)),
            suite_version=_part(document, "suite_version", str),
            exported=_part(document, "exported", str),
            counts=_counts(_part(document, "counts", dict)),
            files={check_path(path): _file_record(path, record) for path, record in files.items()},
        )


def _part(document: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    if not isinstance(document.get(key), kind):
        raise ValueError(f"its {key!r} is {document.get(key)!r:.200}")
    return document[key]


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    if set(counts) != set(COUNTED) or any(
        type(count) is not int or count < 0 for count in counts.values()
    ):
        raise ValueError(f"its 'counts' are {counts!r:.200}, not numbers of {', '.join(COUNTED)}")
    return dict(counts)


def _file_record(path: str, record: object) -> FileRecord:
    match record:
        case {"sha256": str(digest), "size": int(size), **rest} if not rest:
            if _SHA256.fullmatch(digest) and size >= 0 and type(size) is int:
                return FileRecord(sha256=digest, size=size)
    raise ValueError(f"it describes the file {path!r:.200} as {record!r:.200}")


def check_study_name(name: str) -> str:
    """The name, if a study may have it.

    Raises:
        ValueError: if not; a study's name is also a folder's.
    """
    if not _STUDY_NAME.fullmatch(name) or name == "Default":  # which MLflow keeps for itself
        raise ValueError(
            f"{name!r:.200} is no name of a study: that has at most 100 letters, digits, '-', '_' "
            "and '.', starts with a letter or digit, and is not 'Default'"
        )
    return name


def checked_name(name: str, key: str) -> str:
    """``check_study_name`` for what a person has typed.

    Raises:
        InputError: if a study may not have the name.
    """
    try:
        return check_study_name(name)
    except ValueError as error:
        raise InputError(str(error), key=key) from None


def check_path(path: str) -> str:
    """The path of a file in an export, if it is one that stays inside.

    Raises:
        ValueError: if it is absolute, has a part such as ``..``, or could not be written
            everywhere.
    """
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\\" in path:
        reason = "it does not stay in its folder, or is not in its plain form"
    elif any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in path):
        reason = "it holds a control character, or is not Unicode"
    elif max(len(part.encode()) for part in parts) > _LONGEST_PART:
        reason = f"a part of it is longer than {_LONGEST_PART} bytes"
    elif len(path.encode()) > _LONGEST_PATH:
        reason = f"it is longer than {_LONGEST_PATH} bytes"
    else:
        return path
    raise ValueError(f"the path {path!r:.300} is not allowed: {reason}")


def table_file(table: str) -> str:
    """Path of a table in the folder."""
    return f"{table}.parquet"


def curve_file(run_id: str) -> str:
    """Path of a run's curves in the folder."""
    return f"{CURVES}/{run_id}.parquet"
