"""Runs out: the MLflow store of a home, through MLflow's client and never its fluent API."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from suite.atomic import replace_atomically
from suite.errors import SuiteError
from suite.tracking.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

MAX_PARAM_LENGTH = 6_000
MAX_TAG_LENGTH = 8_000
_BATCH = 100  # params or tags a request; MLflow allows no more
_LOCAL_SCHEME = "mlflow-artifacts:/"


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

    Args:
        home: the home.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        home.create()
        self.client = _client(home)
        self._experiments: dict[str, str] = {}

    def experiment(self, study: str) -> str:
        """Id of the study's experiment, created when it is missing.

        Raises:
            SuiteError: if the experiment was deleted in MLflow.
        """
        if study in self._experiments:
            return self._experiments[study]
        with FileLock(str(self.home.root / "store.lock")):
            found = self.client.get_experiment_by_name(study)
            if found is None:
                experiment_id = self.client.create_experiment(
                    study, artifact_location=self._artifact_location(study)
                )
            elif found.lifecycle_stage != "active":
                raise SuiteError(
                    f"the experiment {study!r} was deleted in MLflow; restore it there "
                    f"(`mlflow experiments restore -x {found.experiment_id}`), or rename the study"
                )
            else:
                experiment_id = str(found.experiment_id)
        self._experiments[study] = experiment_id
        return experiment_id

    def _artifact_location(self, study: str) -> str | None:
        server = self.home.tracking_uri.startswith(("http:", "https:"))
        return None if server else f"{_LOCAL_SCHEME}{study}"

    def create_run(
        self, study: str, *, name: str, tags: Mapping[str, str], parent: str | None = None
    ) -> str:
        """Start a run; returns its id."""
        lineage = {} if parent is None else {"mlflow.parentRunId": parent}
        run = self.client.create_run(
            self.experiment(study),
            start_time=now_ms(),
            run_name=name,
            tags={"suite.study": study, **_checked_tags(tags), **lineage},
        )
        return str(run.info.run_id)

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        items = [RunTag(key, value) for key, value in _checked_tags(tags).items()]
        for start in range(0, len(items), _BATCH):
            self.client.log_batch(run_id, tags=items[start : start + _BATCH])

    def drop_tags(self, run_id: str, keys: Iterable[str]) -> None:
        """Remove tags that a run has."""
        for key in sorted(keys):
            self.client.delete_tag(run_id, key)

    def latest_timestamp(self, run_id: str) -> int:
        """Time of the newest point of a run, in ms; 0 when it has none.

        The run's latest metrics do not tell: MLflow takes the greatest step for the latest, and
        a resumed run logs newer points at lower steps.
        """
        keys = self.client.get_run(run_id).data.metrics
        return max(
            (
                point.timestamp
                for key in keys
                for point in self.client.get_metric_history(run_id, key)
            ),
            default=0,
        )

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log parameters; the same values again are fine.

        Raises:
            SuiteError: for a value longer than MLflow keeps, which would be cut silently.
        """
        from mlflow.entities import Param

        for key, value in params.items():
            if len(value) > MAX_PARAM_LENGTH:
                raise SuiteError(
                    f"the parameter {key} has {len(value)} characters; MLflow keeps "
                    f"{MAX_PARAM_LENGTH}"
                )
        items = [Param(key, value) for key, value in params.items()]
        for start in range(0, len(items), _BATCH):
            self.client.log_batch(run_id, params=items[start : start + _BATCH])

    def log_datasets(self, run_id: str, records: list[DatasetRecord]) -> None:
        """Log corpora as MLflow datasets."""
        import json

        from mlflow.entities import Dataset, DatasetInput, InputTag

        self.client.log_inputs(
            run_id,
            datasets=[
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
            ],
        )

    def log_artifact(self, run_id: str, file: Path, folder: str = "") -> None:
        """Keep a copy of a file with a run."""
        uri = self.client.get_run(run_id).info.artifact_uri or ""
        if not uri.startswith(_LOCAL_SCHEME):
            self.client.log_artifact(run_id, str(file), folder or None)
            return
        target = self.home.artifacts / uri.removeprefix(_LOCAL_SCHEME) / folder / file.name
        replace_atomically(target, lambda fresh: shutil.copyfile(file, fresh))

    def set_status(self, run_id: str, status: str) -> None:
        """Set RUNNING, or end a run as FINISHED, FAILED or KILLED."""
        if status == "RUNNING":
            self.client.update_run(run_id, status=status)
        else:
            self.client.set_terminated(run_id, status=status, end_time=now_ms())


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
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import logging

    from mlflow import MlflowClient

    for chatty in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    with FileLock(str(home.root / "store.lock")):
        if home.owns_database and not home.database.exists():
            # A process that is killed while it makes the schema leaves one that MLflow can
            # neither use nor mend, so the file gets its name when it is whole.
            replace_atomically(home.database, _make_database)
        client = MlflowClient(tracking_uri=home.tracking_uri)
        client.search_experiments(max_results=1)  # checks the schema, under the lock
    return client


def _make_database(path: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments(max_results=1)
