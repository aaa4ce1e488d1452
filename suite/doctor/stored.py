"""What the reader does not tell of a tracking store, because no report needs it.

Whether a run of some id is there, deleted or not, where its artifacts lie, and the newest time on
record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from suite.tracking.frames import in_chunks
from suite.tracking.processes import HEARTBEAT_TAG

_RUNS_A_QUERY = 500  # sqlite takes 32,766 bound values


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as the store knows it, deleted or not.

    Attributes:
        run_id: the run.
        study: name of its experiment.
        deleted: whether it, or its experiment, was deleted; both can be restored.
        artifact_uri: where MLflow says that its artifacts are.
    """

    run_id: str
    study: str
    deleted: bool
    artifact_uri: str


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The newest time on record.

    Attributes:
        run_id: the run that it was recorded for.
        at: ms since 1970.
    """

    run_id: str
    at: int


def is_server(uri: str) -> bool:
    """Whether a tracking URI names an MLflow server."""
    return uri.startswith(("http:", "https:"))


def look_up(uri: str, run_ids: Iterable[str]) -> dict[str, StoredRun]:
    """Runs by id; one that the store has never had, or has forgotten, is left out."""
    found = _ask(uri, run_ids) if is_server(uri) else _select(uri, run_ids)
    return {run.run_id: run for run in found}


def _select(uri: str, run_ids: Iterable[str]) -> list[StoredRun]:
    query = sa.text(
        """
        SELECT r.run_uuid, e.name, r.lifecycle_stage, e.lifecycle_stage, r.artifact_uri
        FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id
        WHERE r.run_uuid IN :ids
        """
    ).bindparams(sa.bindparam("ids", expanding=True))
    engine = sa.create_engine(uri)
    try:
        with engine.connect() as connection:
            return [
                StoredRun(
                    run_id=run_id,
                    study=study,
                    deleted="deleted" in (stage, experiment_stage),
                    artifact_uri=artifacts or "",
                )
                for ids in in_chunks(run_ids, _RUNS_A_QUERY)
                for run_id, study, stage, experiment_stage, artifacts in connection.execute(
                    query, {"ids": ids}
                )
            ]
    finally:
        engine.dispose()


def _ask(uri: str, run_ids: Iterable[str]) -> list[StoredRun]:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri=uri)
    found = []
    for run_id in sorted(set(run_ids)):
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            continue
        experiment = client.get_experiment(run.info.experiment_id)
        found.append(
            StoredRun(
                run_id=run_id,
                study=experiment.name,
                deleted="deleted" in (run.info.lifecycle_stage, experiment.lifecycle_stage),
                artifact_uri=run.info.artifact_uri or "",
            )
        )
    return found


def newest_time(uri: str) -> Newest | None:
    """The newest point or heartbeat of a database; none where there is neither.

    Of each metric the point with the greatest step is looked at, for which MLflow keeps a table
    of its own: a scan of all points would take longer than the rest of an examination.
    """
    queries = (
        sa.text("SELECT run_uuid, timestamp FROM latest_metrics ORDER BY timestamp DESC LIMIT 1"),
        sa.text("SELECT run_uuid, value FROM tags WHERE key = :key").bindparams(key=HEARTBEAT_TAG),
    )
    engine = sa.create_engine(uri)
    try:
        with engine.connect() as connection:
            rows = [row for query in queries for row in connection.execute(query)]
    finally:
        engine.dispose()
    times = [(int(at), run_id) for run_id, at in rows if str(at).isdecimal()]
    return Newest(run_id=max(times)[1], at=max(times)[0]) if times else None
