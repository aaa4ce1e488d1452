"""What every stage is given, and how it finds what is already done."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import polars as pl

from suite.cells import Cell
from suite.errors import SuiteError
from suite.materials import Materials
from suite.progress import Display
from suite.stopping import StopFlag, StopRequested
from suite.study import Study, TrainerSpec
from suite.tracking.home import Home
from suite.tracking.reader import Reader, open_reader
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import DatasetRecord, Store

_FINGERPRINTED = {"precision"}  # of a trainer

SETTLED_TAG = "suite.settled"
"""Set on FAILED runs that would fail again: the cell is not run a second time."""


@dataclass(frozen=True, kw_only=True)
class TrackedCell:
    """What the store knows of a cell.

    Attributes:
        run_id: its run.
        status: MLflow's status.
        settled: whether there is nothing left to do for it.
        failure: why it failed, where it did.
    """

    run_id: str
    status: str
    settled: bool
    failure: str | None = None


@dataclass(kw_only=True)
class StageContext:
    """The working state of one ``suite run``.

    Attributes:
        study: the study.
        home: the home.
        materials: corpora and tokenizers.
        display: progress.
        stop: set by SIGINT and SIGTERM.
        failures: names of cells that failed, with the reason.
        selected: run ids of the study's cells as it stands now.
        held_back: fingerprints of cells that must not begin, because a blind prediction of them is
            still to be made.
    """

    study: Study
    home: Home
    materials: Materials
    display: Display
    stop: StopFlag
    failures: dict[str, str] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    held_back: set[str] = field(default_factory=set)
    _store: Store | None = None
    _reader: Reader | None = None

    @property
    def store(self) -> Store:
        """The write side, opened at first use: a run with nothing to do never loads mlflow."""
        if self._store is None:
            self._store = Store(self.home)
            self._store.note = self.display.note
        return self._store

    def close(self) -> None:
        """End what works beside the study."""
        if self._store is not None:
            self._store.close()

    @property
    def reader(self) -> Reader:
        """The read side; opening it creates the store when there is none."""
        if self.home.owns_database and not self.home.database.exists():
            _ = self.store
        if self._reader is None:
            self._reader = open_reader(self.home)
        return self._reader

    def tracked(self, kind: str) -> dict[str, TrackedCell]:
        """Cells of one kind in the store, by fingerprint; the newest run of each."""
        runs = self.reader.runs(self.study.name).filter(
            pl.col("kind") == kind, pl.col("cell").is_not_null()
        )
        tags = self.reader.tags(runs["run_id"].to_list())
        settled = set(tags.filter(pl.col("key") == SETTLED_TAG)["run_id"].to_list())
        said = tags.filter(pl.col("key") == "suite.failure").select("run_id", "value")
        failure = dict(said.iter_rows())
        return {
            row["cell"]: TrackedCell(
                run_id=row["run_id"],
                status=row["status"],
                settled=row["status"] == "FINISHED"
                or (row["status"] == "FAILED" and row["run_id"] in settled),
                failure=failure.get(row["run_id"]),
            )
            for row in runs.iter_rows(named=True)
        }

    def needs_work(self, cell: Cell, tracked: TrackedCell | None) -> bool:
        """Whether a cell is not settled; one that failed for good fails the study again."""
        if tracked is None or not tracked.settled:
            return True
        self.selected.append(tracked.run_id)
        if tracked.status == "FAILED":
            self.failures[cell.name] = tracked.failure or "it failed before"
        return False

    def begin(
        self,
        cell: Cell,
        tracked: TrackedCell | None,
        *,
        resumed_from: int = -1,
        trainer: TrainerSpec | None = None,
        parent: str | None = None,
        datasets: list[DatasetRecord] | None = None,
    ) -> RunRecorder:
        """Open the run of a cell, or go on in it, as a new attempt.

        Args:
            cell: the cell.
            tracked: what the store knows of it.
            resumed_from: tokens of the checkpoint that the attempt starts from; -1 for afresh.
            trainer: what it computes with; what of it does not decide the result is recorded
                on the attempt.
            parent: run id of the parent.
            datasets: corpora, logged with a new run.
        """
        recorder = RunRecorder.begin(
            self.store,
            study=self.study.name,
            name=cell.name,
            kind=cell.kind,
            cell=cell.fingerprint,
            run_id=tracked.run_id if tracked else None,
            resumed_from=resumed_from,
            device=_device_name(trainer),
            unfingerprinted=_unfingerprinted(trainer),
            parent=parent,
            settings=cell.parameters,
            datasets=datasets,
        )
        self.selected.append(recorder.run_id)
        return recorder

    def attempt(self, cell: Cell, recorder: RunRecorder, work: Callable[[], None]) -> bool:
        """Do a cell's work and end its run truthfully.

        Returns:
            Whether it finished; a failure is recorded and the study goes on.

        Raises:
            StopRequested: if a signal stopped it, after the run has ended as KILLED.
            KeyboardInterrupt: likewise, if a second signal did.
        """
        try:
            work()
        except (StopRequested, KeyboardInterrupt):
            self._end_stopped(recorder)
            raise
        except SystemExit as error:  # what Lightning makes of a KeyboardInterrupt
            self._end_stopped(recorder)
            raise KeyboardInterrupt from error
        except Exception as error:
            settled = getattr(error, "settles_cell", False)
            expected = settled or isinstance(error, SuiteError)
            reason = str(error) if expected else f"{type(error).__name__}: {error}"
            if self.stop.requested:
                # what a signal to the whole job has broken; the next attempt tells if it was not
                self.display.note(f"note    {cell.name}: {reason}")
                self._end_stopped(recorder)
                raise StopRequested from error
            self.failures[cell.name] = reason
            self.display.note(f"FAILED  {cell.name}: {reason}")
            if settled:
                recorder.set_tags({SETTLED_TAG: "true"})
            recorder.end("FAILED", failure=reason, traceback=traceback.format_exc())
            return False
        recorder.end("FINISHED")
        return True

    def _end_stopped(self, recorder: RunRecorder) -> None:
        """End an attempt that a person stopped, who does not wait for an absent tracker."""
        try:
            recorder.end("KILLED")
        except (SuiteError, OSError) as error:
            self.display.note(f"note    {error}")


def _device_name(trainer: TrainerSpec | None) -> str:
    if trainer is None:
        return "cpu"
    return f"{trainer.accelerator} x {trainer.devices} x {trainer.num_nodes}"


def _unfingerprinted(trainer: TrainerSpec | None) -> dict[str, str | int | float | bool | None]:
    """What of a trainer may differ from one attempt on a cell to the next."""
    if trainer is None:
        return {}
    return {key: value for key, value in asdict(trainer).items() if key not in _FINGERPRINTED}
