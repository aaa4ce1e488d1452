"""One attempt on one run: its metrics, its start and its end."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from os import getpid
from pathlib import Path
from typing import Literal

from suite.tracking.curves import Attempt, attempts_from_tags
from suite.tracking.provenance import capture_provenance
from suite.tracking.store import DatasetRecord, Store, flatten, now_ms

Status = Literal["FINISHED", "FAILED", "KILLED"]
_BATCH = 1_000
_FLUSH_EVERY_MS = 5_000  # so that a run can be followed while it goes
_OF_A_FAILURE = {"suite.failure", "suite.traceback"}  # no longer true of a run that goes on


class RunRecorder:
    """Writes one run of a cell, as one attempt of it.

    Points wait in memory until ``flush``. Whoever saves a checkpoint flushes first: then every
    point up to a checkpoint's tokens is in the store before the checkpoint exists, and an
    attempt that resumes from it leaves no gap.

    Args:
        store: where runs go.
        run_id: the run.
        attempt: this attempt, already written to the run's tags.
    """

    def __init__(self, store: Store, run_id: str, attempt: Attempt) -> None:
        self._store = store
        self.run_id = run_id
        self.attempt = attempt
        self._last_timestamp = attempt.started
        self._flushed_at = attempt.started
        self._pending: list[tuple[str, float, int, int]] = []

    @classmethod
    def begin(
        cls,
        store: Store,
        *,
        study: str,
        name: str,
        kind: str,
        cell: str,
        run_id: str | None,
        resumed_from: int = -1,
        device: str = "cpu",
        parent: str | None = None,
        settings: Mapping[str, object] | None = None,
        datasets: list[DatasetRecord] | None = None,
    ) -> RunRecorder:
        """Open a new run, or go on in ``run_id``, as a new attempt.

        Args:
            store: where runs go.
            study: name of the study.
            name: readable name of the run.
            kind: value of the tag ``suite.kind``.
            cell: fingerprint.
            run_id: run to go on in; none starts one.
            resumed_from: tokens of the checkpoint that the attempt starts from; -1 for afresh.
            device: what computes.
            parent: run id of the parent.
            settings: nested configuration, logged as parameters of a new run.
            datasets: corpora, logged with a new run.
        """
        provenance = capture_provenance()
        tags = {"suite.kind": kind, "suite.cell": cell, **provenance.to_tags()}
        if run_id is None:
            run_id = store.create_run(study, name=name, tags=tags, parent=parent)
        run = store.client.get_run(run_id)
        earlier = attempts_from_tags(run.data.tags)
        latest = store.latest_timestamp(run_id) if earlier else 0
        attempt = Attempt(
            number=len(earlier) + 1,
            # clocks may step back between attempts; attribution by time must not
            started=max(now_ms(), latest + 1, earlier[-1].started + 1 if earlier else 0),
            resumed_from=resumed_from,
            host=socket.gethostname(),
            pid=getpid(),
            device=device,
        )
        key, value = attempt.to_tag()
        store.set_tags(run_id, {**tags, key: value, "suite.attempts": str(attempt.number)})
        store.drop_tags(run_id, _OF_A_FAILURE & run.data.tags.keys())
        store.set_status(run_id, "RUNNING")
        if not run.data.params:  # last, so that a run which was cut off before it gets all of this
            if datasets:
                store.log_datasets(run_id, datasets)
            store.log_params(run_id, flatten(settings or {}))
        return cls(store, run_id, attempt)

    def log(self, values: Mapping[str, float], tokens: int) -> None:
        """Take metrics at a token count; they reach the store within seconds, or at a flush."""
        self._last_timestamp = max(now_ms(), self._last_timestamp)
        self._pending += [
            (key, float(value), self._last_timestamp, tokens) for key, value in values.items()
        ]
        overdue = self._last_timestamp - self._flushed_at >= _FLUSH_EVERY_MS
        if overdue or len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Write all pending points to the store."""
        from mlflow.entities import Metric

        while self._pending:
            batch = self._pending[:_BATCH]
            self._store.client.log_batch(self.run_id, metrics=[Metric(*point) for point in batch])
            del self._pending[: len(batch)]
        self._flushed_at = self._last_timestamp

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._store.set_tags(self.run_id, tags)

    def log_params(self, settings: Mapping[str, object]) -> None:
        """Log further parameters, known only once the work has begun."""
        self._store.log_params(self.run_id, flatten(settings))

    def log_artifact(self, file: Path, folder: str = "") -> None:
        """Keep a copy of a file with the run."""
        self._store.log_artifact(self.run_id, file, folder)

    def end(self, status: Status, *, failure: str | None = None) -> None:
        """Flush, record how the attempt ended, and end the run.

        Args:
            status: MLflow's status.
            failure: what went wrong, in one sentence.
        """
        self.flush()
        ended = replace(self.attempt, ended=now_ms(), outcome=status)
        key, value = ended.to_tag()
        tags = {key: value}
        if failure is not None:
            tags["suite.failure"] = failure[:5000]
        self._store.set_tags(self.run_id, tags)
        self._store.set_status(self.run_id, status)
