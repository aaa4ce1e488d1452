"""The manifest: each plotted point and table entry with its run, metric, step and exact value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from suite.errors import InputError
from suite.reports.entries import Table
from suite.reports.points import POINT_IDENTITY, POINT_SCHEMA

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
ENTRY_SCHEMA = pl.Schema({**POINT_SCHEMA, "text": pl.String()})
_GROUP = POINT_IDENTITY[:-1]
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest:
    """What a report shows, as data.

    Attributes:
        study: name of the study.
        requested: panels that were asked for, or None for all that have data.
        panels: panels that were drawn, in order.
        entries: points and table entries, with the columns of ``ENTRY_SCHEMA``: a point has a
            value, a table entry has a value or a text, and its panel is "table: <name>".
        artifacts: SHA-256 of each written file, by name.
    """

    study: str
    requested: tuple[str, ...] | None
    panels: tuple[str, ...]
    entries: pl.DataFrame
    artifacts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One plotted point or table entry that two manifests do not share.

    Attributes:
        kind: ``changed`` (another value), ``missing`` (only in the old one) or ``added``.
        panel: panel of the report.
        axes: axes within the panel, or row of a table.
        series: line within the axes, or column of a table.
        run_id: the run.
        key: the metric.
        step: tokens.
        old: value in the old manifest.
        new: value in the new one.
    """

    kind: Literal["changed", "missing", "added"]
    panel: str
    axes: str
    series: str
    run_id: str
    key: str
    step: int | None
    old: float | str | None
    new: float | str | None

    def __str__(self) -> str:
        """One readable line that names all of it."""
        at = f" at {self.step} tokens" if self.step is not None else ""
        place = f"{self.panel}, {self.axes}, {self.series}: run {self.run_id}, {self.key}{at}"
        if self.kind == "missing":
            return f"{place}: the report shows {self.old!r}, the store has no such value"
        if self.kind == "added":
            return f"{place}: the store has {self.new!r}, the report does not show it"
        return f"{place}: the report shows {self.old!r}, the store has {self.new!r}"


def digest_of(file: Path) -> str:
    """SHA-256 of a file, as hex."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def collect_entries(points: Iterable[pl.DataFrame], tables: Iterable[Table]) -> pl.DataFrame:
    """All points and table entries in one frame of ``ENTRY_SCHEMA``, in canonical order."""
    rows = []
    for table in tables:
        for label, row in zip(table.labels, table.rows, strict=True):
            for column, entry in zip(table.columns, row, strict=True):
                if (origin := entry.origin) is not None:
                    text = origin.value if isinstance(origin.value, str) else None
                    value = None if isinstance(origin.value, str) else origin.value
                    rows.append(
                        (f"table: {table.name}", label, column, origin.run_id, origin.key,
                         origin.step, value, text)
                    )  # fmt: skip
    frames = [frame.with_columns(text=pl.lit(None, pl.String)) for frame in points]
    frames.append(pl.DataFrame(rows, schema=ENTRY_SCHEMA, orient="row"))
    return pl.concat(frames).sort(POINT_IDENTITY)


def compare(old: pl.DataFrame, new: pl.DataFrame) -> tuple[Difference, ...]:
    """Differences between two frames of entries, exact to the last bit but for NaN payloads.

    Args:
        old: entries of the saved manifest.
        new: entries rebuilt from the store.

    Returns:
        Changed, missing and added entries in canonical order.
    """
    joined = old.with_columns(in_old=True).join(
        new.with_columns(in_new=True),
        on=list(POINT_IDENTITY),
        how="full",
        coalesce=True,
        nulls_equal=True,
        suffix="_new",
    )
    same = pl.col("value").eq_missing(pl.col("value_new")) & pl.col("text").eq_missing(
        pl.col("text_new")
    )
    differing = joined.filter(pl.col("in_old").is_null() | pl.col("in_new").is_null() | ~same).sort(
        POINT_IDENTITY
    )
    return tuple(_difference(row) for row in differing.iter_rows(named=True))


def _difference(row: dict[str, Any]) -> Difference:
    kind: Literal["changed", "missing", "added"] = "changed"
    if row["in_new"] is None:
        kind = "missing"
    elif row["in_old"] is None:
        kind = "added"
    return Difference(
        kind=kind,
        **{name: row[name] for name in POINT_IDENTITY},
        old=row["value"] if row["text"] is None else row["text"],
        new=row["value_new"] if row["text_new"] is None else row["text_new"],
    )


def to_json(manifest: Manifest) -> str:
    """The manifest as compact JSON; floats are written so that they read back exactly.

    NaN and infinities, which JSON does not have, are the strings "NaN", "Infinity" and
    "-Infinity".
    """
    grouped = manifest.entries.group_by(_GROUP, maintain_order=True).agg("step", "value", "text")
    groups = []
    for row in grouped.iter_rows(named=True):
        group = {name: row[name] for name in _GROUP}
        group["step"] = row["step"]
        group["value"] = [_encode(value) for value in row["value"]]
        if any(text is not None for text in row["text"]):
            group["text"] = row["text"]
        groups.append(group)
    document = {
        "schema_version": SCHEMA_VERSION,
        "study": manifest.study,
        "requested": manifest.requested,
        "panels": manifest.panels,
        "artifacts": dict(sorted(manifest.artifacts.items())),
        "entries": groups,
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"


def _encode(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _NONFINITE[value]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _step(value: Any) -> int | None:
    if value is None or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    raise TypeError(f"{value!r} is no step")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def read_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        InputError: if it is missing, or is not a manifest that this version can read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no manifest {path}; `suite report` builds one") from None
    except (OSError, ValueError) as error:
        raise _corrupt(path, str(error)) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise _corrupt(path, f"its schema_version is {version!r}, not {SCHEMA_VERSION}")
    try:
        return _from_document(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _from_document(document: dict[str, Any]) -> Manifest:
    rows = []
    for group in document["entries"]:
        identity = tuple(_text(group[name]) for name in _GROUP)
        texts = group.get("text") or [None] * len(group["step"])
        for step, value, text in zip(group["step"], group["value"], texts, strict=True):
            shown = None if text is None else _text(text)
            rows.append((*identity, _step(step), _number(value), shown))
    entries = pl.DataFrame(rows, schema=ENTRY_SCHEMA, orient="row")
    if entries.select(POINT_IDENTITY).is_duplicated().any():
        raise ValueError("it names a point twice")
    requested = document["requested"]
    return Manifest(
        study=_text(document["study"]),
        requested=None if requested is None else tuple(map(_text, requested)),
        panels=tuple(map(_text, document["panels"])),
        entries=entries,
        artifacts={name: _text(digest) for name, digest in dict(document["artifacts"]).items()},
    )


def _corrupt(path: Path, reason: str) -> InputError:
    return InputError(
        f"the manifest {path} cannot be read ({reason}); build the report again with `suite report`"
    )
