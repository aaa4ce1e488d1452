"""Runs out: the MLflow store of a home, through MLflow's client and never its fluent API."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from filelock import FileLock, Timeout

from suite.atomic import replace_atomically
from suite.containment import contained
from suite.errors import SuiteError
from suite.tracking.companion import Companion
from suite.tracking.home import Home
from suite.tracking.mlflow_client import make_client
from suite.tracking.patience import TrackerAwayError, patiently
from suite.tracking.patience import patience as default_patience
from suite.tracking.reader import Reader, open_reader

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")

MAX_PARAM_LENGTH = 6_000
MAX_TAG_LENGTH = 8_000
_BATCH = 100  # params or tags a request; MLflow allows no more
_LOCAL_SCHEME = "mlflow-artifacts:/"
_CREATION_TAG = "suite.creation"


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """A corpus as MLflow shows it among a run's inputs.

    Attributes:
        name: name of the corpus in the study.
        digest: digest of its content.
        source: what it was read from, as text.
        context: ``training``, ``calibration``, ``evaluation`` or the last two.
        profile: counts as JSON-able mapping (documents, characters).
    """

    name: str
    digest: str
    source: str
    context: str
    profile: Mapping[str, int]


class Store:
    """The write side of a home's tracking store.

    The schema is created under a lock, because two processes that create it at once break it.
    Artifact locations are written as ``mlflow-artifacts:/...``, which a server resolves against
    the home it serves: nothing in the database depends on where the home lies.

    While the tracker is away, every method tries again with growing pauses.

    Args:
        home: the home.
        patience: seconds that a method waits for the tracker; by default as
            ``SUITE_TRACKER_PATIENCE`` says, else two minutes.

    Raises:
        TrackerAwayError: from every method, if the tracker did not answer in that time.
    """

    def __init__(self, home: Home, *, patience: float | None = None) -> None:
        self.home = home
        self.patience = default_patience() if patience is None else patience
        home.create()
        self.client = self._call(lambda: _client(home))
        self._experiments: dict[str, str] = {}
        self._artifact_uris: dict[str, str] = {}
        self.note: Callable[[str], object] = lambda text: None
        """Is told, from another thread, when the tracker goes away and comes back."""

    @functools.cached_property
    def companion(self) -> Companion:
        """The process that sends spools beside long work."""
        return Companion(self.home, lambda text: self.note(text))

    @contextlib.contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Wait no longer than this for the tracker."""
        usual, self.patience = self.patience, min(self.patience, seconds)
        try:
            yield
        finally:
            self.patience = usual

    def close(self) -> None:
        """End the companion."""
        self.companion.close()

    def _call(self, action: Callable[[], T]) -> T:
        return patiently(action, seconds=self.patience)

    def run(self, run_id: str) -> Run:
        """A run as MLflow has it, without its curves."""
        return self._call(lambda: _answered(self.client.get_run(run_id)))

    def experiment(self, study: str) -> str:
        """Id of the study's experiment, created when it is missing.

        Raises:
            SuiteError: if the experiment was deleted in MLflow.
        """
        if study in self._experiments:
            return self._experiments[study]
        with self._alone():
            found = self._call(lambda: self.client.get_experiment_by_name(study))
            if found is None:
                experiment_id = self._call(lambda: self._create_experiment(study))
            elif found.lifecycle_stage != "active":
                raise SuiteError(
                    f"the experiment {study!r} was deleted in MLflow; restore it there "
                    f"(`mlflow experiments restore -x {found.experiment_id}`), or rename the study"
                )
            else:
                experiment_id = str(found.experiment_id)
        self._experiments[study] = experiment_id
        return experiment_id

    def _create_experiment(self, study: str) -> str:
        """Create it, unless an earlier request did whose answer was lost, or another home."""
        from mlflow.exceptions import MlflowException

        try:
            return str(
                self.client.create_experiment(
                    study, artifact_location=self._artifact_location(study)
                )
            )
        except MlflowException as error:
            found = self.client.get_experiment_by_name(study)
            if found is None or error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return str(found.experiment_id)

    def _artifact_location(self, study: str) -> str | None:
        return None if self.home.is_server else f"{_LOCAL_SCHEME}{study}"

    def create_run(
        self, study: str, *, name: str, tags: Mapping[str, str], parent: str | None = None
    ) -> str:
        """Start a run; returns its id.

        A request whose answer was lost may have started one: the next looks for it first.
        """
        experiment = self.experiment(study)
        creation = uuid4().hex
        lineage = {} if parent is None else {"mlflow.parentRunId": parent}
        asked = False

        def create() -> str:
            nonlocal asked
            if asked:
                started = self.client.search_runs(
                    [experiment], f"tags.`{_CREATION_TAG}` = '{creation}'", max_results=1
                )
                if started:
                    return str(started[0].info.run_id)
            asked = True
            run = self.client.create_run(
                experiment,
                start_time=now_ms(),
                run_name=name,
                tags={
                    "suite.study": study,
                    _CREATION_TAG: creation,
                    **_checked_tags(tags),
                    **lineage,
                },
            )
            return str(_answered(run).info.run_id)

        return self._call(create)

    def runs_of_cell(self, study: str, kind: str, cell: str) -> list[Run]:
        """Runs of one cell, oldest first."""
        found = self._call(
            lambda: self.client.search_runs(
                [self.experiment(study)],
                f"tags.`suite.kind` = '{kind}' AND tags.`suite.cell` = '{cell}'",
            )
        )
        return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))

    def delete_run(self, run_id: str) -> None:
        """Delete a run, as MLflow's pages do: it can be restored there."""
        self._call(lambda: self.client.delete_run(run_id))

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        items = [RunTag(key, value) for key, value in _checked_tags(tags).items()]
        for start in range(0, len(items), _BATCH):
            part = items[start : start + _BATCH]
            self._call(functools.partial(self.client.log_batch, run_id, tags=part))

    def drop_tags(self, run_id: str, keys: Iterable[str]) -> None:
        """Remove tags that a run has."""
        present = self.run(run_id).data.tags
        for key in sorted(set(keys) & present.keys()):
            self._call(functools.partial(self._drop_tag, run_id, key))

    def _drop_tag(self, run_id: str, key: str) -> None:
        if key in self.client.get_run(run_id).data.tags:  # gone, if an answer was lost
            self.client.delete_tag(run_id, key)

    def log_points(self, run_id: str, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Log up to 1,000 points of (key, value, ms since the epoch, step); again is fine."""
        from mlflow.entities import Metric

        metrics = [Metric(*point) for point in points]
        self._call(lambda: self.client.log_batch(run_id, metrics=metrics))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from making what is missing in the store."""
        lock = FileLock(str(self.home.root / "store.lock"), timeout=self.patience)
        try:
            lock.acquire()
        except Timeout as error:
            raise TrackerAwayError("another process is making the store", self.patience) from error
        try:
            yield
        finally:
            lock.release()

    @functools.cached_property
    def _reader(self) -> Reader:
        return open_reader(self.home)

    def latest_timestamp(self, run_id: str) -> int:
        """Time of the newest point of a run, in ms; 0 when it has none."""
        return self._call(lambda: self._reader.latest_timestamp(run_id))

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log parameters; the same values again are fine.

        A value longer than MLflow keeps, which it would cut silently, becomes an artifact of
        the run in the folder ``params``; the parameter holds its length and digest.
        """
        from mlflow.entities import Param

        items = []
        for key, value in params.items():
            if len(value) > MAX_PARAM_LENGTH:
                value = self._log_long_param(run_id, key, value)
            items.append(Param(key, value))
        for start in range(0, len(items), _BATCH):
            part = items[start : start + _BATCH]
            self._call(functools.partial(self.client.log_batch, run_id, params=part))

    def _log_long_param(self, run_id: str, key: str, value: str) -> str:
        digest = hashlib.sha256(value.encode()).hexdigest()
        name = f"{re.sub(r'[^A-Za-z0-9._-]', '_', key)[:100]}-{digest[:16]}.txt"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            file.write_text(value, encoding="utf-8")
            self.log_artifact(run_id, file, "params")
        return f"sha256:{digest} of {len(value)} characters in the artifact params/{name}"

    def log_datasets(self, run_id: str, records: list[DatasetRecord]) -> None:
        """Log corpora as MLflow datasets."""
        import json

        from mlflow.entities import Dataset, DatasetInput, InputTag

        inputs = [
            DatasetInput(
                dataset=Dataset(
                    name=record.name,
                    digest=record.digest,
                    source_type="code",
                    source=json.dumps({"source": record.source}),
                    profile=json.dumps(dict(record.profile)),
                ),
                tags=[InputTag("mlflow.data.context", record.context)],
            )
            for record in records
        ]
        self._call(lambda: self.client.log_inputs(run_id, datasets=inputs))

    def log_artifact(self, run_id: str, file: Path, folder: str = "") -> None:
        """Keep a copy of a file with a run."""
        if not self.keeps_artifacts(run_id):
            self._call(lambda: self.client.log_artifact(run_id, str(file), folder or None))
            return
        location = self._artifact_uris[run_id].removeprefix(_LOCAL_SCHEME).lstrip("/")
        artifacts = self.home.artifacts
        target = contained(artifacts / location / folder / file.name, artifacts)
        replace_atomically(target, lambda fresh: shutil.copyfile(file, fresh))

    def keeps_artifacts(self, run_id: str) -> bool:
        """Whether a run's artifacts lie in the home, so that no tracker is needed for them."""
        if self.home.is_server:
            return False  # its locations look alike, and mean the server's own folder
        if run_id not in self._artifact_uris:
            self._artifact_uris[run_id] = self.run(run_id).info.artifact_uri or ""
        return self._artifact_uris[run_id].startswith(_LOCAL_SCHEME)

    def set_running(self, run_id: str) -> None:
        """Say that work on a run goes on."""
        self._call(lambda: self.client.update_run(run_id, status="RUNNING"))

    def end_run(self, run_id: str, status: str, at: int) -> None:
        """End a run as FINISHED, FAILED or KILLED, at a time in ms since the epoch."""
        self._call(lambda: self.client.set_terminated(run_id, status=status, end_time=at))


def _answered(run: Run) -> Run:
    """The run, unless MLflow has made it up from an answer without a body, as gateways give.

    Raises:
        ConnectionError: if it has.
    """
    if not run.info.run_id:
        raise ConnectionError("the answer was empty")
    return run


def now_ms() -> int:
    """Wall clock, in ms since the epoch, as MLflow counts."""
    return time.time_ns() // 1_000_000


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as MLflow parameters: dotted keys, stable text, lists as JSON."""
    import json

    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, str):
            flat[name] = value
        elif value is None or isinstance(value, (bool, int, float, list, tuple)):
            flat[name] = json.dumps(value, ensure_ascii=False)
        else:
            raise TypeError(f"{name} holds a {type(value).__name__}, which has no stable text")
    return flat


def _checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if len(value) > MAX_TAG_LENGTH:
            raise SuiteError(
                f"the tag {key} has {len(value)} characters; MLflow keeps {MAX_TAG_LENGTH}"
            )
    return dict(tags)


def _client(home: Home) -> MlflowClient:
    import logging

    logging.getLogger("alembic").setLevel(logging.WARNING)
    # it prints a traceback for each lock that it meets; what lasts is raised, and told once
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

    with FileLock(str(home.root / "store.lock")):
        if home.owns_database and not home.database.exists():
            # A process that is killed while it makes the schema leaves one that MLflow can
            # neither use nor mend, so the file gets its name when it is whole.
            replace_atomically(home.database, _make_database)
        client = make_client(home.tracking_uri)
        client.search_experiments(max_results=1)  # checks the schema, under the lock
    return client


def _make_database(path: Path) -> None:
    make_client(f"sqlite:///{path}").search_experiments(max_results=1)
