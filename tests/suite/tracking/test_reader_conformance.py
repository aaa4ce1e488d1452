"""What every reader must give, on every store that MLflow has and this machine can run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import _validate_metric_name
from polars.testing import assert_frame_equal

from suite.errors import SuiteError
from suite.tracking import client_reader
from suite.tracking.curves import CURVE_SCHEMA, Attempt
from suite.tracking.reader import RUN_SCHEMA, TEXT_SCHEMA, Reader, live

Backend = Any  # of conftest.py
Point = tuple[str, float, int, int]  # key, value, timestamp, step
Row = tuple[str, int, str, int, int, bool]  # key, step, value, timestamp, attempt, superseded

NUMBERS = count()


@dataclass(frozen=True, kw_only=True)
class Content:
    """All of a run that a reader gives back; attempts as (started, resumed_from)."""

    name: str = "run"
    start: int = 1_000
    end: int = 2_000
    status: str = "FINISHED"
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[Point] = ()
    attempts: Sequence[tuple[int, int]] = ()
    deleted: bool = False

    @property
    def all_tags(self) -> dict[str, str]:
        attempts = [
            Attempt(number=n, started=at, resumed_from=back, host="h", pid=1, device="cpu")
            for n, (at, back) in enumerate(self.attempts, start=1)
        ]
        return {**self.tags, **dict(attempt.to_tag() for attempt in attempts)}


def write(backend: Backend, *contents: Content) -> tuple[str, list[str]]:
    """A new study that holds the runs; its name, and their ids."""
    client, study = backend.client, f"study {next(NUMBERS)}"
    experiment, ids = client.create_experiment(study), []
    for content in contents:
        run_id = client.create_run(
            experiment, start_time=content.start, run_name=content.name
        ).info.run_id
        client.log_batch(
            run_id,
            metrics=[Metric(*point) for point in content.points],
            params=[Param(*item) for item in content.params.items()],
            tags=[RunTag(*item) for item in content.all_tags.items()],
        )
        if content.status != "RUNNING":
            client.set_terminated(run_id, content.status, content.end)
        if content.deleted:
            client.delete_run(run_id)
        ids.append(run_id)
    return study, ids


def expected_run(study: str, run_id: str, content: Content) -> dict[str, object]:
    return {
        "run_id": run_id,
        "study": study,
        "name": content.name,
        "kind": content.tags.get("suite.kind"),
        "cell": content.tags.get("suite.cell"),
        "status": content.status,
        "start_time": content.start,
        "end_time": None if content.status == "RUNNING" else content.end,
        "parent_run_id": content.tags.get("mlflow.parentRunId"),
    }


def expected_curve(content: Content) -> list[Row]:
    """What became of each point, told one by one."""
    rows = set()
    for key, value, timestamp, step in content.points:
        owner = 1
        for number, (started, _) in enumerate(content.attempts, start=1):
            if started <= timestamp:
                owner = number
        later = [resumed_from for _, resumed_from in content.attempts[owner:]]
        overtaken = any(resumed_from < step for resumed_from in later)
        rows.add((key, step, repr(value), timestamp, owner, overtaken))
    return sorted(rows)


def curve_of(run_id: str, curves: pl.DataFrame) -> list[Row]:
    columns = ("key", "step", "value", "timestamp", "attempt", "superseded")
    rows = curves.filter(pl.col("run_id") == run_id).select(columns).rows()
    return sorted((key, step, repr(value), *rest) for key, step, value, *rest in rows)


def types(schema: Mapping[str, type[pl.DataType]]) -> dict[str, pl.DataType]:
    return {name: kind() for name, kind in schema.items()}


def is_metric_name(name: str) -> bool:
    try:
        _validate_metric_name(name)
    except MlflowException:
        return False
    return True


LETTERS = st.characters(categories=["L", "N"], include_characters="/_-. :")
KEYS = st.text(LETTERS, min_size=1, max_size=20).filter(is_metric_name)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
# the largest doubles are how MLflow writes the infinities; sqlite drops the sign of zero
VALUES = st.floats().filter(lambda x: abs(x) != sys.float_info.max).map(lambda x: x + 0.0)
POINTS = st.tuples(
    st.sampled_from(["train/total_loss", "a"]) | KEYS,
    VALUES,
    st.integers(0, 60) | st.integers(0, 2**53),
    st.integers(0, 60) | st.integers(0, 2**62),
)
CONTENTS = st.builds(
    Content,
    name=st.text(LETTERS, min_size=1, max_size=20),
    start=st.integers(1, 2**41),
    end=st.integers(1, 2**41),
    status=st.sampled_from(["RUNNING", "FINISHED", "FAILED", "KILLED"]),
    params=st.dictionaries(KEYS, TEXTS, max_size=3),
    tags=st.dictionaries(KEYS | st.sampled_from(["suite.kind", "suite.cell"]), TEXTS, max_size=3),
    points=st.lists(POINTS, max_size=12),
    attempts=st.lists(
        st.tuples(st.integers(0, 60), st.integers(-1, 60)), max_size=4, unique_by=lambda a: a[0]
    ).map(sorted),
    deleted=st.booleans(),
)
NASTY = (
    Content(
        name="größe – 家",  # noqa: RUF001
        start=5,
        tags={"suite.kind": "pretraining", "suite.cell": "c", "note": "naïve\n家"},
        params={"size.name": "größe", "quote": "it's; DROP TABLE runs --", "long": "y" * 6_000},
        points=[
            ("x", value, 100 + step, step)
            for step, value in enumerate(
                [0.0, 1.0, -2.5, 5e-324, 1.5e308, math.pi, math.nan, math.inf, -math.inf]
            )
        ],
    ),
    Content(
        name="resumed",
        start=4,
        points=[("x", 3.0, 30, 5), ("x", 1.0, 10, 5), ("x", 2.0, 20, 5), ("x", 9.0, 12, 8)],
        attempts=[(9, -1), (25, 4)],
        status="RUNNING",
    ),
    Content(name="empty", start=3, status="KILLED"),
    Content(name="gone", start=2, points=[("x", 1.0, 1, 1)], params={"p": "1"}, deleted=True),
    Content(name="far", start=1, points=[("x", 1, 1, 20_000_000_000), ("x", 0.5, 1, 2**62)]),
)


def check_all_comes_back(backend: Backend, contents: list[Content]) -> None:
    study, ids = write(backend, *contents)
    for reader, deleted in ((backend.reader, False), (backend.reader.deleted(), True)):
        wanted = {i: c for i, c in zip(ids, contents, strict=True) if c.deleted is deleted}
        check_what_is_read(reader, study, ids, wanted)


def check_what_is_read(
    reader: Reader, study: str, ids: list[str], present: Mapping[str, Content]
) -> None:
    """Of all these runs, the reader gives those that are present to it, and all of them."""
    wanted = [expected_run(study, *item) for item in present.items()]
    assert reader.runs(study).rows(named=True) == sorted(
        wanted, key=lambda row: (row["start_time"], row["run_id"])
    )
    assert reader.params(ids).rows() == sorted(
        (run_id, *item) for run_id, run in present.items() for item in run.params.items()
    )
    tags = reader.tags(ids).filter(~pl.col("key").str.starts_with("mlflow."))
    assert tags.rows() == sorted(
        (run_id, *item) for run_id, run in present.items() for item in run.all_tags.items()
    )
    curves = reader.curves(ids)
    assert set(curves["run_id"]) == {i for i, run in present.items() if run.points}
    assert_frame_equal(curves, curves.sort("run_id", "key", "step", "timestamp", "value"))
    for run_id, run in present.items():
        assert curve_of(run_id, curves) == expected_curve(run)
        newest = max((timestamp for _, _, timestamp, _ in run.points), default=0)
        assert reader.latest_timestamp(run_id) == newest


def searched(examples: int) -> settings:
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=examples, deadline=None, suppress_health_check=quiet)


class TestEveryReader:
    @searched(8)
    @given(contents=st.lists(CONTENTS, max_size=2))
    def test_any_runs_come_back(self, backend: Backend, contents: list[Content]) -> None:
        check_all_comes_back(backend, contents)

    @pytest.mark.slow
    @searched(150)
    @given(contents=st.lists(CONTENTS, max_size=5))
    def test_very_many_runs_come_back(self, backend: Backend, contents: list[Content]) -> None:
        check_all_comes_back(backend, contents)

    def test_columns_have_their_types_with_rows_and_without(self, backend: Backend) -> None:
        study, full = write(backend, *NASTY)
        for ids in (full, [], ["none", "it's none"]):
            assert dict(backend.reader.params(ids).schema) == types(TEXT_SCHEMA)
            assert dict(backend.reader.tags(ids).schema) == types(TEXT_SCHEMA)
            assert dict(backend.reader.curves(ids).schema) == types(CURVE_SCHEMA)
            assert (
                len(backend.reader.curves(ids, ["y"])) == len(backend.reader.curves(ids, [])) == 0
            )
        for name in (study, "demo' OR '1'='1"):
            assert dict(backend.reader.runs(name).schema) == types(RUN_SCHEMA)
        assert backend.reader.runs("demo' OR '1'='1").is_empty()
        assert backend.reader.latest_timestamp("none") == 0

    def test_what_is_deleted_is_not_read_by_its_id_either(self, backend: Backend) -> None:
        content = Content(points=[("x", 1.0, 7, 1)], params={"p": "1"}, tags={"t": "1"})
        study, (kept, gone) = write(backend, content, replace(content, deleted=True))
        assert backend.reader.runs(study)["run_id"].to_list() == [kept]
        for read in (backend.reader.params, backend.reader.tags, backend.reader.curves):
            assert set(read([kept, gone])["run_id"]) == {kept}
        assert backend.reader.latest_timestamp(gone) == 0
        deleted = backend.reader.deleted()
        assert deleted.runs(study)["run_id"].to_list() == [gone]
        for read in (deleted.params, deleted.tags, deleted.curves):
            assert set(read([kept, gone])["run_id"]) == {gone}
        assert (deleted.latest_timestamp(gone), deleted.latest_timestamp(kept)) == (7, 0)
        backend.client.restore_run(gone)
        assert deleted.runs(study).is_empty()
        assert set(backend.reader.curves([kept, gone])["run_id"]) == {kept, gone}
        assert backend.reader.latest_timestamp(gone) == 7

    def test_a_deleted_study_is_gone_with_its_runs(self, backend: Backend) -> None:
        study, ids = write(backend, Content(points=[("x", 1.0, 7, 1)]))
        experiment = backend.client.get_experiment_by_name(study).experiment_id
        backend.client.delete_experiment(experiment)
        assert backend.reader.runs(study).is_empty()
        assert study not in set(backend.reader.runs(None)["study"])
        assert backend.reader.curves(ids).is_empty()
        deleted = backend.reader.deleted()
        assert deleted.runs(study)["run_id"].to_list() == ids
        ours = deleted.runs(None).filter(pl.col("run_id").is_in(ids))
        assert ours["study"].to_list() == [study]
        assert deleted.curves(ids)["value"].to_list() == [1.0]

    def test_runs_of_all_studies_name_theirs(self, backend: Backend) -> None:
        first, (a,) = write(backend, Content(start=2_000))
        second, (b,) = write(backend, Content(start=1_000, tags={"mlflow.parentRunId": a}))
        runs = backend.reader.runs(None)
        assert runs.equals(runs.sort("start_time", "run_id"))
        ours = runs.filter(pl.col("run_id").is_in([a, b]))
        assert ours.select("study", "run_id", "parent_run_id").rows() == [
            (second, b, a),
            (first, a, None),
        ]

    def test_values_come_back_as_they_were_logged(self, backend: Backend) -> None:
        _, (run_id, *_) = write(backend, NASTY[0])
        curves = backend.reader.curves([run_id])
        logged = [repr(value) for _, value, _, _ in NASTY[0].points]
        assert [repr(value) for value in curves["value"]] == logged

    def test_the_newest_of_several_values_at_one_step_lives(self, backend: Backend) -> None:
        points = [("x", 1.0, 10, 5), ("x", 3.0, 12, 5), ("x", 2.0, 11, 5)]
        _, (run_id,) = write(backend, Content(points=points))
        backend.client.log_batch(run_id, metrics=[Metric(*points[0])])  # an exact duplicate
        curves = backend.reader.curves([run_id])
        assert curves["value"].to_list() == [1.0, 2.0, 3.0]
        assert live(curves)["value"].to_list() == [3.0]

    def test_only_the_metrics_that_are_asked_for(self, backend: Backend) -> None:
        keys = ["train/total_loss", "val/total_loss", "value/relative_error/prose"]
        _, (run_id,) = write(backend, Content(points=[(key, 1.0, 1, 0) for key in keys]))
        assert backend.reader.curves([run_id])["key"].to_list() == keys
        assert backend.reader.curves([run_id], keys[1:])["key"].to_list() == keys[1:]
        assert backend.reader.curves([run_id], ["none"]).is_empty()
        assert backend.reader.curves([run_id], []).is_empty()

    def test_the_newest_point_need_not_have_the_greatest_step(self, backend: Backend) -> None:
        """After a rollback MLflow's own latest value is older than what was logged since."""
        points = [("x", 1.0, 10, 50), ("x", 2.0, 30, 5), ("y", 2.0, 20, 90)]
        _, (run_id,) = write(backend, Content(points=points))
        assert backend.reader.latest_timestamp(run_id) == 30

    def test_an_edited_attempt_is_named(self, backend: Backend) -> None:
        content = Content(points=[("x", 1.0, 7, 1)], attempts=[(1, -1)])
        _, (run_id,) = write(backend, content)
        backend.client.set_tag(run_id, "suite.attempt.1", "[]")
        with pytest.raises(SuiteError, match=r"the tag suite\.attempt\.1 does not describe"):
            backend.reader.curves([run_id])
        backend.client.delete_run(run_id)  # or no test may read all runs of this store


def frames(backend: Backend, study: str, ids: Sequence[str]) -> list[pl.DataFrame]:
    """Everything of a study, with the names of runs for their ids."""
    reader = backend.reader
    named = dict(reader.runs(study).select("run_id", "name").rows())
    read = (reader.runs(study), reader.params(ids), reader.tags(ids), reader.curves(ids))
    told = [frame.with_columns(pl.col("run_id").replace(named)) for frame in read]
    return [frame.sort([c for c in frame.columns if c != "study"]) for frame in told]


def test_equal_content_gives_equal_frames(backends: dict[str, Backend]) -> None:
    (name, (first, *_)), *others = {
        name: (frames(backend, *write(backend, *NASTY)), backend)
        for name, backend in backends.items()
    }.items()
    assert name == "sqlite"
    assert [len(frame) for frame in first] == [4, 3, 9, 15]
    for _, (found, _) in others:
        for ours, theirs in zip(first, found, strict=True):
            ignored = [column for column in ("study",) if column in ours.columns]
            assert_frame_equal(ours.drop(ignored), theirs.drop(ignored))


def test_a_server_reads_as_the_database_behind_it(server: Backend) -> None:
    _, ours = write(server, *NASTY)
    runs = server.reader.runs(None)
    ids = runs["run_id"].to_list()
    assert_frame_equal(runs, server.database.runs(None))
    assert_frame_equal(server.reader.params(ids), server.database.params(ids))
    assert_frame_equal(server.reader.tags(ids), server.database.tags(ids))
    assert_frame_equal(server.reader.curves(ids), server.database.curves(ids))
    gone, behind = server.reader.deleted(), server.database.deleted()
    deleted = gone.runs(None)
    assert not deleted.is_empty()
    assert_frame_equal(deleted, behind.runs(None))
    assert_frame_equal(gone.params(ours), behind.params(ours))
    assert_frame_equal(gone.curves(ours), behind.curves(ours))


def test_a_server_is_read_page_by_page(server: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking._tracking_service import client as tracking_client

    points = [("x", float(n), 100 - n // 2, n % 5) for n in range(20)]
    study, ids = write(server, *[Content(name=f"r{n}", points=points) for n in range(5)])
    monkeypatch.setattr(client_reader, "_PAGE", 2)
    monkeypatch.setattr(client_reader, "_RUNS_A_REQUEST", 3)
    monkeypatch.setattr(tracking_client, "GET_METRIC_HISTORY_MAX_RESULTS", 3)
    assert_frame_equal(server.reader.runs(study), server.database.runs(study))
    assert_frame_equal(server.reader.tags(ids), server.database.tags(ids))
    curves = server.reader.curves(ids)
    assert len(curves) == 100
    assert_frame_equal(curves, server.database.curves(ids))
