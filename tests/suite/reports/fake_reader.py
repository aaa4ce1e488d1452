"""A tracking store in memory, with frames of the shape that every reader gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from suite.tracking.curves import Attempt

RUN_COLUMNS = {
    "run_id": pl.String,
    "study": pl.String,
    "name": pl.String,
    "kind": pl.String,
    "cell": pl.String,
    "status": pl.String,
    "start_time": pl.Int64,
    "end_time": pl.Int64,
    "parent_run_id": pl.String,
}
CURVE_COLUMNS = {
    "run_id": pl.String,
    "key": pl.String,
    "step": pl.Int64,
    "value": pl.Float64,
    "timestamp": pl.Int64,
    "attempt": pl.Int64,
    "superseded": pl.Boolean,
}
_EPOCH = 1_790_000_000_000


@dataclass
class FakeReader:
    """Runs of one study and of others, kept in lists; what a test changes, the reader shows."""

    study: str = "demo"
    rows: list[dict[str, object]] = field(default_factory=list)
    texts: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    points: list[dict[str, object]] = field(default_factory=list)
    bin: set[str] = field(default_factory=set)
    """Ids of the runs that were deleted."""
    of_deleted: bool = False

    def add(
        self,
        kind: str,
        name: str,
        *,
        cell: str | None = None,
        status: str = "FINISHED",
        parent: str | None = None,
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, str] | None = None,
        run_id: str | None = None,
        start: int | None = None,
        study: str | None = None,
    ) -> str:
        number = len(self.rows) + 1
        run_id = run_id or f"{number:032x}"
        start = start or _EPOCH + 60_000 * number
        attempt = Attempt(
            number=1, started=start - 1, resumed_from=-1, host="h", pid=1, device="cpu"
        )
        self.rows.append(
            {
                "run_id": run_id,
                "study": study,
                "name": name,
                "kind": kind,
                "cell": cell or f"{number:08x}" * 2,
                "status": status,
                "start_time": start,
                "end_time": start + 30_000,
                "parent_run_id": parent,
            }
        )
        self.texts[run_id] = {
            "params": {
                key: value if isinstance(value, str) else json.dumps(value)
                for key, value in (params or {}).items()
            },
            "tags": {
                "suite.kind": kind,
                "suite.attempts": "1",
                **dict([attempt.to_tag()]),
                **(tags or {}),
            },
        }
        return run_id

    def log(
        self,
        run_id: str,
        key: str,
        steps: Sequence[int],
        values: Sequence[float],
        *,
        attempt: int = 1,
        superseded: bool = False,
    ) -> None:
        (start,) = [int(str(row["start_time"])) for row in self.rows if row["run_id"] == run_id]
        for step, value in zip(steps, values, strict=True):
            self.points.append(
                {
                    "run_id": run_id,
                    "key": key,
                    "step": int(step),
                    "value": float(value),
                    "timestamp": start + len(self.points),
                    "attempt": attempt,
                    "superseded": superseded,
                }
            )

    def delete(self, run_id: str) -> None:
        self.bin.add(run_id)

    def deleted(self) -> FakeReader:
        return replace(self, of_deleted=True)  # of the same lists

    def _shows(self, run_id: object) -> bool:
        return (run_id in self.bin) is self.of_deleted

    def latest_timestamp(self, run_id: str) -> int:
        times = self.curves([run_id])["timestamp"].to_list()
        return max(times, default=0)

    def forget(self, run_id: str) -> None:
        self.rows = [row for row in self.rows if row["run_id"] != run_id]
        self.points = [point for point in self.points if point["run_id"] != run_id]
        del self.texts[run_id]

    def point(self, run_id: str, key: str, step: int) -> dict[str, object]:
        (found,) = [
            point
            for point in self.points
            if (point["run_id"], point["key"], point["step"]) == (run_id, key, step)
        ]
        return found

    def run_named(self, name: str) -> str:
        (found,) = [row["run_id"] for row in self.rows if row["name"] == name]
        return str(found)

    def runs(self, study: str | None) -> pl.DataFrame:
        everywhere = [{**row, "study": row["study"] or self.study} for row in self.rows]
        rows = [
            row
            for row in everywhere
            if study in (None, row["study"]) and self._shows(row["run_id"])
        ]
        return pl.DataFrame(rows, schema=RUN_COLUMNS).sort("start_time", "run_id")

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        return self._texts("params", run_ids)

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        return self._texts("tags", run_ids)

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        frame = pl.DataFrame(self.points, schema=CURVE_COLUMNS)
        shown = [run_id for run_id in run_ids if self._shows(run_id)]
        frame = frame.filter(pl.col("run_id").is_in(shown))
        if keys is not None:
            frame = frame.filter(pl.col("key").is_in(list(keys)))
        return frame.sort("run_id", "key", "step", "timestamp")

    def _texts(self, which: str, run_ids: Sequence[str]) -> pl.DataFrame:
        rows = [
            (run_id, key, value)
            for run_id in run_ids
            if self._shows(run_id)
            for key, value in self.texts[run_id][which].items()
        ]
        schema = {"run_id": pl.String, "key": pl.String, "value": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")
