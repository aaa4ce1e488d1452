"""Whether the store still holds what earlier reports have shown.

A measurement does not change once it is tracked: a later attempt adds points beside it, a
deleted run takes all of its points away. So a value that a kept report shows and that its run
no longer has was edited, even where a new report has been built since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from suite.reports.kept import KeptReport
from suite.reports.manifest import ENTRY_SCHEMA, Difference
from suite.reports.points import POINT_IDENTITY
from suite.tracking.curves import live
from suite.tracking.reader import Reader

_POINT = ("run_id", "key", "step")
_PARAM = "param:"


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A value that a kept report shows and the store no longer has.

    Attributes:
        report_run_id: the report run.
        difference: the value and where it was shown.
    """

    report_run_id: str
    difference: Difference

    def __str__(self) -> str:
        """One readable line."""
        return f"report kept with run {self.report_run_id}: {self.difference}"


def shown_before(
    kept: Iterable[KeptReport], under_present_ids: Callable[[pl.DataFrame], pl.DataFrame]
) -> pl.DataFrame:
    """Entries of kept reports, each once, with the id of the newest report that shows it.

    Args:
        kept: reports whose manifests are what they were, newest first.
        under_present_ids: gives entries the ids that runs have in this store.
    """
    frames = [
        under_present_ids(manifest.entries).with_columns(report=pl.lit(report.run_id))
        for report in kept
        if (manifest := report.manifest) is not None
    ]
    frames.append(pl.DataFrame(schema={**ENTRY_SCHEMA, "report": pl.String()}))
    return pl.concat(frames).unique([*_POINT, "value", "text"], keep="first", maintain_order=True)


def find_rewritten(
    reader: Reader, shown: pl.DataFrame, entries: pl.DataFrame, present: Sequence[str]
) -> tuple[Rewritten, ...]:
    """Values and parameters of runs that are still there, and that they no longer have.

    Args:
        reader: the store.
        shown: what kept reports show, see ``shown_before``.
        entries: what the store gives now; it saves a look at most of the points.
        present: ids of the study's runs.
    """
    known = shown.filter(pl.col("run_id").is_in(list(present))).join(
        entries, on=[*_POINT, "value", "text"], how="anti", nulls_equal=True
    )
    points = known.filter(pl.col("step").is_not_null() & pl.col("value").is_not_null())
    params = known.filter(pl.col("key").str.starts_with(_PARAM))
    return (*_changed_points(reader, points), *_changed_params(reader, params))


def _changed_points(reader: Reader, points: pl.DataFrame) -> Iterable[Rewritten]:
    if points.is_empty():
        return
    curves = reader.curves(points["run_id"].unique().to_list(), points["key"].unique().to_list())
    gone = points.join(curves, on=[*_POINT, "value"], how="anti")
    now = live(curves).select(*_POINT, now="value")
    for row in gone.join(now, on=_POINT, how="left", maintain_order="left").iter_rows(named=True):
        yield _rewritten(row, row["value"], row["now"])


def _changed_params(reader: Reader, params: pl.DataFrame) -> Iterable[Rewritten]:
    if params.is_empty():
        return
    tracked = reader.params(params["run_id"].unique().to_list()).select(
        "run_id", key=pl.lit(_PARAM) + pl.col("key"), now="value"
    )
    joined = params.join(tracked, on=["run_id", "key"], how="left", maintain_order="left")
    for row in joined.filter(pl.col("text").ne_missing(pl.col("now"))).iter_rows(named=True):
        yield _rewritten(row, row["text"], row["now"])


def _rewritten(row: dict[str, Any], old: float | str, new: float | str | None) -> Rewritten:
    place = {name: row[name] for name in POINT_IDENTITY}
    kind: Literal["changed", "missing"] = "missing" if new is None else "changed"
    return Rewritten(
        report_run_id=row["report"], difference=Difference(kind=kind, old=old, new=new, **place)
    )
