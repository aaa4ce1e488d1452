"""One attempt on one run: its metrics, its start and its end."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from suite.errors import SuiteError
from suite.tracking._redaction import known_secrets, mask
from suite.tracking.curves import Attempt, attempts_from_tags
from suite.tracking.drain import drain, replay
from suite.tracking.processes import HEARTBEAT_TAG, this_process
from suite.tracking.provenance import Provenance, attempt_folder, capture_provenance
from suite.tracking.spool import End, Params, Points, SpoolFile, SpoolWriter, Tags
from suite.tracking.store import DatasetRecord, Store, flatten, now_ms

Status = Literal["FINISHED", "FAILED", "KILLED"]
_OF_A_FAILURE = {"suite.failure", "suite.settled"}  # no longer true of a run that goes on
_HURRIED = 5.0  # seconds that a person who has pressed Ctrl-C waits for an absent tracker


class RunRecorder:
    """Writes one run of a cell, as one attempt of it.

    What is logged is on disk, in the spool of the attempt, when a method returns; a companion
    process sends it on while the work lasts, and ``end`` sends the rest. A process that dies
    leaves its spool, which the next run of the study sends.

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
        self._artifacts_at_home = store.keeps_artifacts(run_id)
        self._spool = SpoolWriter(
            SpoolFile.of(store.home.spool, run_id, attempt.number), attempt.process
        )

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
        unfingerprinted: Mapping[str, str | int | float | bool | None] | None = None,
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
            unfingerprinted: settings of this attempt that do not decide the result; another
                attempt may have others.
            parent: run id of the parent.
            settings: nested configuration, logged as parameters of a new run.
            datasets: corpora, logged with a new run.

        Raises:
            SuiteError: if another process works on the cell.
            TrackerAwayError: if the tracker does not answer; no work was done, and a run that
                was started meanwhile is found cut off by the next attempt.
        """
        provenance = capture_provenance()
        tags = {"suite.kind": kind, "suite.cell": cell, **provenance.to_tags()}
        process = this_process()
        attempt = Attempt(
            number=1,
            started=now_ms(),
            resumed_from=resumed_from,
            host=process.host,
            pid=process.pid,
            device=device,
            process_started=process.started,
            settings=dict(unfingerprinted or {}),
        )
        if run_id is None:
            # with its first attempt, so that nobody takes it for a run without a process
            tags |= _of_attempt(attempt, provenance)
            run_id = store.create_run(study, name=name, tags=tags, parent=parent)
            _yield_to_twin(store, study, kind, cell, run_id)
            params: Mapping[str, str] = {}
        else:
            # points of earlier attempts come first: what starts now must be later than they
            replay(store.home.spool, lambda: store, _say_nothing, run_id=run_id)
            run = store.run(run_id)
            params = run.data.params
            earlier = attempts_from_tags(run.data.tags)
            latest = store.latest_timestamp(run_id)
            ended = _settle_earlier(run_id, earlier, run.data.tags, latest)
            last = earlier[-1].started if earlier else 0
            # clocks may step back between attempts; attribution by time must not
            started = max(attempt.started, latest + 1, last + 1)
            attempt = replace(attempt, number=len(earlier) + 1, started=started)
            store.set_tags(run_id, {**tags, **ended, **_of_attempt(attempt, provenance)})
            store.drop_tags(run_id, _OF_A_FAILURE)
            store.set_running(run_id)
        if not params:  # last, so that a run which was cut off before it gets all of this
            if datasets:
                store.log_datasets(run_id, datasets)
            store.log_params(run_id, flatten(settings or {}))
        recorder = cls(store, run_id, attempt)
        store.companion.wanted()
        for file, content in provenance.files().items():
            recorder.keep_text(attempt_folder(attempt.number), file, content)
        return recorder

    def log(self, values: Mapping[str, float], tokens: int) -> None:
        """Put metrics at a token count on record; they reach the store within seconds.

        Raises:
            SuiteError: if the disk does not take them.
        """
        self._last_timestamp = max(now_ms(), self._last_timestamp)
        self._spool.append(
            Points(
                step=tokens,
                at=self._last_timestamp,
                values={key: float(value) for key, value in values.items()},
            )
        )

    def sync(self) -> None:
        """See that what was logged outlasts a power cut.

        Whoever saves a checkpoint calls this first: then every point up to a checkpoint's tokens
        is on record before the checkpoint exists, and an attempt that resumes from it leaves no
        gap.
        """
        self._spool.sync()

    def flush(self) -> None:
        """Send everything that was logged to the store.

        Raises:
            TrackerAwayError: if the tracker does not answer; the spool keeps it.
            RefusedError: if the tracker will not take it, because the run was deleted.
        """
        drain(self._spool.spool, self._store)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._spool.append(Tags(dict(tags)))

    def log_params(self, settings: Mapping[str, object]) -> None:
        """Log further parameters, known only once the work has begun."""
        self._spool.append(Params(flatten(settings)))

    def log_artifact(self, file: Path, folder: str = "") -> None:
        """Keep a copy of a file with the run."""
        if self._artifacts_at_home:
            self._store.log_artifact(self.run_id, file, folder)
        else:
            self._spool.keep(file, folder)

    def keep_text(self, folder: str, name: str, content: bytes) -> None:
        """Keep content as an artifact."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / name
            file.write_bytes(content)
            self.log_artifact(file, folder)

    def end(
        self, status: Status, *, failure: str | None = None, traceback: str | None = None
    ) -> None:
        """Record how the attempt ended, send everything, and end the run.

        Args:
            status: MLflow's status.
            failure: what went wrong, in one sentence.
            traceback: where, kept as an artifact.

        Raises:
            TrackerAwayError: if the tracker does not answer; the spool keeps what is left, the
                end included.
        """
        self._store.companion.rest()
        tags: dict[str, str] = {}
        if failure is not None:
            tags["suite.failure"] = mask(failure, known_secrets(os.environ))[:5000]
        if traceback is not None:
            name = f"attempt-{self.attempt.number}.txt"
            # a full disk may be what went wrong; that the attempt ended matters more
            with contextlib.suppress(OSError, SuiteError):
                text = mask(traceback, known_secrets(os.environ))
                self.keep_text("failures", name, text.encode(errors="replace"))
        now = now_ms()
        key, value = replace(self.attempt, ended=now, outcome=status).to_tag()
        self.set_tags({**tags, key: value})
        self._spool.append(End(status, now))
        self._spool.close()
        if status == "KILLED":
            with self._store.hurried(_HURRIED):
                self.flush()
        else:
            self.flush()


def _of_attempt(attempt: Attempt, provenance: Provenance) -> dict[str, str]:
    """Tags of a run that an attempt works on."""
    return {
        **dict([attempt.to_tag(), provenance.attempt_tag(attempt.number)]),
        "suite.attempts": str(attempt.number),
        HEARTBEAT_TAG: str(attempt.started),
    }


def _say_nothing(text: str) -> None:
    """The next run of a study has told of spools already."""


def _settle_earlier(
    run_id: str, earlier: tuple[Attempt, ...], tags: Mapping[str, str], latest: int
) -> dict[str, str]:
    """Tags that end an attempt whose process is gone.

    Raises:
        SuiteError: if its process works on.
    """
    if not earlier or earlier[-1].outcome is not None:
        return {}
    last = earlier[-1]
    heartbeat = last_heartbeat(tags)
    if last.process != this_process() and last.process.is_alive(heartbeat=heartbeat, now=now_ms()):
        raise SuiteError(f"{last.process} works on run {run_id}; wait for it, or end it")
    return dict([cut_off(last, heartbeat=heartbeat, latest=latest).to_tag()])


def cut_off(attempt: Attempt, *, heartbeat: int | None, latest: int = 0) -> Attempt:
    """An attempt whose process was found gone: it ended when it was last heard of."""
    ended = max(attempt.started, heartbeat or 0, latest)
    return replace(attempt, ended=ended, outcome="CUT_OFF")


def last_heartbeat(tags: Mapping[str, str]) -> int | None:
    """When a run's process was last known to work, in ms."""
    text = tags.get(HEARTBEAT_TAG, "")
    return int(text) if text.isdecimal() else None


def _yield_to_twin(store: Store, study: str, kind: str, cell: str, run_id: str) -> None:
    """Give way to a process in another home of the same server that has begun the cell.

    Raises:
        SuiteError: if there is one; the run that was just started is deleted.
    """
    if store.home.owns_database:  # the lock of the study has kept others out
        return
    for run in store.runs_of_cell(study, kind, cell):
        attempts = attempts_from_tags(run.data.tags)
        if run.info.run_id == run_id or run.info.status != "RUNNING" or not attempts:
            continue
        last, heartbeat = attempts[-1], last_heartbeat(run.data.tags)
        if last.outcome is None and last.process.is_alive(heartbeat=heartbeat, now=now_ms()):
            # two that begin at the same moment both give way: clocks and ids of two machines do
            # not say who was first, and a cell that runs twice is worse than one that waits
            store.delete_run(run_id)
            raise SuiteError(
                f"another process has begun the same cell as run {run.info.run_id}; wait for it, "
                "and run the same command again"
            )
