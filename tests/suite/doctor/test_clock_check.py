from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from suite.doctor import server
from suite.doctor.clock_check import _of_server, duration
from suite.tracking.reader import without_password
from suite.tracking.recorder import RunRecorder
from suite.tracking.store import Store

NOW = 1_800_000_000.0


@pytest.mark.parametrize("ahead", [-90.0, 0.0, 4.0, 6.0, 3 * 3_600.0])
@pytest.mark.parametrize("what", ["start", "point", "heartbeat"])
def test_a_record_of_the_future_is_told_with_its_run(
    store: Store,
    begin: Callable[..., RunRecorder],
    examine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    what: str,
) -> None:
    at = int((NOW + ahead) * 1_000)
    earlier = int((NOW - 3_600) * 1_000)
    run_id = store.client.create_run("0", start_time=at if what == "start" else earlier).info.run_id
    store.client.create_run("0", start_time=earlier)
    if what == "point":
        store.log_points(run_id, [("loss", 0.5, at, 64)])
    if what == "heartbeat":
        store.set_tags(run_id, {"suite.heartbeat": str(at)})
    monkeypatch.setattr(time, "time", lambda: NOW)
    found = examine(store.home)
    if ahead <= 5:
        assert found.good("clock") == [
            f"the newest time on record is {duration(max(-ahead, 0))} ago"
        ]
        return
    finding = found.only("clock").finding
    assert finding.severity == "warning"
    assert finding.what == (
        f"the newest time on record is {duration(ahead)} in the future of this machine's clock"
    )
    assert finding.where == (f"run {run_id}",)


def test_a_store_without_runs_has_no_time(store: Store, examine: Callable[..., Any]) -> None:
    assert examine(store.home).good("clock") == ["nothing is on record yet"]


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes) -> Iterator[str]:
    """A server that gives one answer to everything."""

    class Fixed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Fixed) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield f"http://me:secret@127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.parametrize(
    ("ahead", "severity", "said"),
    [
        (0.0, "ok", "the clock of the server (MLflow 3.17.2) agrees with this machine's"),
        (600.0, "warning", "10.0 minutes ahead of this machine's"),
        (-7_200.0, "warning", "2.0 hours behind this machine's"),
    ],
)
def test_the_clock_of_a_server(ahead: float, severity: str, said: str) -> None:
    with answering(200, {"Date": formatdate(time.time() + ahead, usegmt=True)}, b"3.17.2") as uri:
        answer = server.ask(uri)
        assert answer.version == "3.17.2"
        assert answer.ahead == pytest.approx(ahead, abs=3)  # a date has no parts of seconds
        finding = _of_server(uri)
        assert finding.severity == severity
        # the time is read again, so it may have moved on by a second
        assert said in finding.what or duration(abs(ahead) + 1) in finding.what


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [(200, {}, b"3.1"), (200, {"Date": "yesterday"}, b"3.1"), (401, {}, b"who?")],
)
def test_a_server_without_a_date_is_no_fault(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    with answering(status, headers, body) as uri:
        assert server.ask(uri).ahead is None
        assert server.find_unreachable(uri) is None
        assert _of_server(uri).severity == "note"


def test_nothing_that_answers_is_an_error_without_the_password() -> None:
    with answering(200, {}, b"") as uri:
        pass
    finding = server.find_unreachable(uri)
    assert finding is not None
    assert finding.severity == "error"
    assert "secret" not in repr(finding)
    assert "Connection refused" in finding.what


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:secret@host:5000/path", "https://host:5000/path"),
        ("postgresql://me:secret@host/db", "postgresql://host/db"),
        ("sqlite:////a b/mlflow.db", "sqlite:////a b/mlflow.db"),
        ("databricks", "databricks"),
    ],
)
def test_passwords_are_not_shown(uri: str, shown: str) -> None:
    assert without_password(uri) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 seconds"),
        (119.4, "119 seconds"),
        (120, "2.0 minutes"),
        (9_000, "2.5 hours"),
        (2_592_000, "30.0 days"),
    ],
)
def test_durations_for_a_person(seconds: float, text: str) -> None:
    assert duration(seconds) == text
