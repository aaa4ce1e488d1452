"""Runs back in from a tracking server, through MLflow's client."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from suite.errors import InputError, SuiteError
from suite.tracking.curves import ATTEMPT_TAG, CURVE_SCHEMA, POINT_SCHEMA
from suite.tracking.frames import (
    concatenated,
    curve_frame,
    in_chunks,
    origins_in,
    run_frame,
    typed_frame,
    with_infinities,
)
from suite.tracking.mlflow_client import make_client
from suite.tracking.patience import PATIENCE_VARIABLE, TrackerAwayError, patience, patiently
from suite.tracking.reader import TEXT_SCHEMA, without_password

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.store.entities import PagedList

T = TypeVar("T")

_THREADS = 4
_PAGE = 200  # runs with all that they hold
_RUNS_A_REQUEST = 50
_CHECK_SECONDS = 10.0
_RUN_ID = re.compile(r"[\w-]{1,256}")  # as MLflow has it; others would end the quotes of a filter
_SEARCH_ROUTE = "/api/2.0/mlflow/experiments/search"


class ClientReader:
    """Reader of an MLflow tracking server; see ``Reader``.

    Histories come one metric of one run a request: the route that MLflow's own pages use for
    many runs at once cuts an answer off after 25,000 points without a word.

    Args:
        uri: ``http://...`` or ``https://...``; who may read it, MLflow takes from its own
            environment variables.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._shown = without_password(uri)
        self._client = make_client(uri)
        self._of_deleted = False

    def check(self) -> None:
        """See at once whether an MLflow server answers.

        Raises:
            InputError: if nothing answers, or something else than MLflow, or it refuses.
            SuiteError: if the server fails.
        """
        from mlflow.exceptions import MlflowException
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.rest_utils import http_request

        try:
            response = http_request(  # type: ignore[no-untyped-call]
                get_default_host_creds(self._uri),  # type: ignore[no-untyped-call]
                _SEARCH_ROUTE,
                "POST",
                max_retries=0,
                timeout=_CHECK_SECONDS,
                raise_on_status=False,
                json={"max_results": 1},
            )
        except MlflowException as error:
            raise InputError(
                f"the MLflow server {self._shown} cannot be reached ({_innermost(error)}); start "
                "it, or set MLFLOW_TRACKING_URI to one that runs, or unset it for the home's own "
                "store"
            ) from error
        status = response.status_code
        if status in (401, 403):
            raise InputError(
                f"the MLflow server {self._shown} refuses to be read (HTTP {status}); set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN; "
                "a server reached by another name than its own wants that in --allowed-hosts"
            )
        if status == 429 or (status >= 500 and status != 501):
            raise SuiteError(
                f"the MLflow server {self._shown} answers with HTTP {status}; try again when it "
                "works"
            )
        if status != 200 or not _lists_experiments(response):
            raise InputError(
                f"{self._shown} answers, but is no MLflow server (HTTP {status} for "
                f"{_SEARCH_ROUTE}); set MLFLOW_TRACKING_URI to one, or unset it for the home's own "
                "store"
            )

    def runs(self, study: str | None) -> pl.DataFrame:
        """See ``Reader.runs``."""
        experiments = self._experiments(study)
        names = {e.experiment_id: e.name for e in experiments}
        return run_frame(
            [
                (
                    run.info.run_id,
                    names[run.info.experiment_id],
                    run.info.run_name,
                    run.data.tags.get("suite.kind"),
                    run.data.tags.get("suite.cell"),
                    run.info.status,
                    run.info.start_time,
                    run.info.end_time,
                    run.data.tags.get("mlflow.parentRunId"),
                )
                for run in self._search(experiments)
            ]
        )

    def params(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.params``."""
        return _texts("params", ((r.info.run_id, r.data.params) for r in self._present(run_ids)))

    def tags(self, run_ids: Sequence[str]) -> pl.DataFrame:
        """See ``Reader.tags``."""
        return _texts("tags", ((r.info.run_id, r.data.tags) for r in self._present(run_ids)))

    def curves(self, run_ids: Sequence[str], keys: Sequence[str] | None = None) -> pl.DataFrame:
        """See ``Reader.curves``."""
        frames = []
        for ids in in_chunks(run_ids, _RUNS_A_REQUEST):
            points = self._points(ids, None if keys is None else set(keys))
            attempts = self.tags(ids).filter(pl.col("key").str.starts_with(ATTEMPT_TAG))
            frames.append(curve_frame(points, attempts))
        return concatenated(frames, CURVE_SCHEMA)

    def latest_timestamp(self, run_id: str) -> int:
        """See ``Reader.latest_timestamp``.

        Of every point, since the server tells only the point with the greatest step of each
        metric, and a resumed run logs newer points at lower steps.
        """
        newest = self._points([run_id], None)["timestamp"].max()
        return newest if isinstance(newest, int) else 0

    def deleted(self) -> ClientReader:
        """See ``Reader.deleted``."""
        other = copy.copy(self)
        other._of_deleted = True
        return other

    def _points(self, ids: Sequence[str], keys: Collection[str] | None) -> pl.DataFrame:
        series = [
            (run.info.run_id, key)
            for run in self._present(ids)
            for key in run.data.metrics
            if keys is None or key in keys
        ]
        with ThreadPoolExecutor(_THREADS) as pool:
            frames = list(pool.map(lambda of: self._history(*of), series))
        # a page may begin with the end of the last, when a point was logged between the two
        return with_infinities(concatenated(frames, POINT_SCHEMA).unique())

    def _history(self, run_id: str, key: str) -> pl.DataFrame:
        points = self._ask(lambda: self._client.get_metric_history(run_id, key))
        rows = [(run_id, key, point.step, point.value, point.timestamp) for point in points]
        return typed_frame(rows, POINT_SCHEMA, origins_in("metrics", POINT_SCHEMA))

    def _present(self, run_ids: Iterable[str]) -> list[Run]:
        experiments = self._experiments(None)
        known = (run_id for run_id in run_ids if _RUN_ID.fullmatch(run_id))
        return [
            run
            for ids in in_chunks(known, _RUNS_A_REQUEST)
            for run in self._search(experiments, f"attributes.run_id IN {_quoted(ids)}")
        ]

    def _experiments(self, study: str | None) -> list[Experiment]:
        """Experiments that may have runs of the wanted kind: deleted ones have deleted runs."""
        from mlflow.entities import ViewType

        if study is None:
            view = ViewType.ALL if self._of_deleted else ViewType.ACTIVE_ONLY
            return list(
                self._pages(
                    lambda token: self._client.search_experiments(view_type=view, page_token=token)
                )
            )
        found = self._ask(lambda: self._client.get_experiment_by_name(study))
        if found is None or (_is_deleted(found) and not self._of_deleted):
            return []
        return [found]

    def _search(self, experiments: list[Experiment], condition: str = "") -> Iterable[Run]:
        from mlflow.entities import ViewType

        if not self._of_deleted:
            return self._found(experiments, ViewType.ACTIVE_ONLY, condition)
        gone = [experiment for experiment in experiments if _is_deleted(experiment)]
        there = [experiment for experiment in experiments if not _is_deleted(experiment)]
        return [
            *self._found(there, ViewType.DELETED_ONLY, condition),
            *self._found(gone, ViewType.ALL, condition),
        ]

    def _found(self, experiments: list[Experiment], view: int, condition: str) -> Iterable[Run]:
        if not experiments:
            return []
        # oldest first: runs that start meanwhile come after those that the pages have given
        found = self._pages(
            lambda token: self._client.search_runs(
                [experiment.experiment_id for experiment in experiments],
                condition,
                run_view_type=view,
                max_results=_PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
        )
        return {run.info.run_id: run for run in found}.values()

    def _pages(self, call: Callable[[str | None], PagedList[T]]) -> Iterator[T]:
        token: str | None = None
        while True:
            page = self._ask(lambda token=token: call(token))  # type: ignore[misc]
            yield from page
            if not page.token:
                return
            token = page.token

    def _ask(self, request: Callable[[], T]) -> T:
        from mlflow.exceptions import MlflowException

        try:
            return patiently(request, seconds=patience())
        except TrackerAwayError as error:
            raise SuiteError(
                f"the MLflow server {self._shown} has stopped answering "
                f"({_innermost(error)}); try again when it works ({PATIENCE_VARIABLE} sets how "
                "long to wait for it)"
            ) from error
        except MlflowException as error:
            raise SuiteError(
                f"the MLflow server {self._shown} refuses a request ({error.error_code}: "
                f"{_innermost(error)})"
            ) from error


def _is_deleted(experiment: Experiment) -> bool:
    return bool(experiment.lifecycle_stage != "active")


def _texts(table: str, runs: Iterable[tuple[str, dict[str, str]]]) -> pl.DataFrame:
    rows = [(run_id, key, value) for run_id, of_run in runs for key, value in of_run.items()]
    return typed_frame(rows, TEXT_SCHEMA, origins_in(table, TEXT_SCHEMA)).sort("run_id", "key")


def _quoted(ids: Sequence[str]) -> str:
    return "(" + ", ".join(f"'{run_id}'" for run_id in ids) + ")"


def _lists_experiments(response: Any) -> bool:
    try:
        answer = response.json()
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.keys() <= {"experiments", "next_page_token"}


def _innermost(error: BaseException) -> str:
    """What an error goes back to: the layers above repeat it, with the address."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
