from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from suite.errors import InputError, SuiteError
from suite.tracking import client_reader
from suite.tracking.client_reader import ClientReader
from suite.tracking.home import Home
from suite.tracking.reader import open_reader

Answer = tuple[int, str]  # status, body
EXPERIMENTS = json.dumps({"experiments": [{"experiment_id": "1", "name": "demo"}]})


@contextmanager
def answering(answer: Callable[[str], Answer]) -> Iterator[str]:
    """Address of a server that answers as it is told, given the path that is asked for."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def open_server(root: Path, uri: str) -> None:
    open_reader(Home(root=root, tracking_uri=uri))


@pytest.fixture(autouse=True)
def _mlflow_is_loaded() -> None:
    """Keep its seconds out of what is measured."""
    import mlflow.utils.rest_utils  # noqa: F401


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(InputError) as caught:
        open_server(tmp_path, f"http://me:secret@127.0.0.1:{port}/")
    assert time.monotonic() - begun < 5
    assert str(caught.value).startswith(
        f"the MLflow server http://127.0.0.1:{port}/ cannot be reached ("
    )
    assert "refused); start it, or set MLFLOW_TRACKING_URI to one that runs" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_host_that_has_no_address_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"http://none\.invalid:5000 cannot be reached \(.*\); st"):
        open_server(tmp_path, "http://none.invalid:5000")


def test_a_server_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_reader, "_CHECK_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        begun = time.monotonic()
        with pytest.raises(InputError, match=r"cannot be reached \(.*timed out"):
            open_server(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((200, "<html>hello</html>"), InputError, r"is no MLflow server \(HTTP 200 for /api/2\.0"),
        ((200, '{"detail": "hello"}'), InputError, "is no MLflow server"),
        ((200, "[]"), InputError, "is no MLflow server"),
        ((404, "not found"), InputError, r"is no MLflow server \(HTTP 404"),
        ((501, "no POST here"), InputError, r"is no MLflow server \(HTTP 501"),
        ((401, "who?"), InputError, "refuses to be read .HTTP 401.; set MLFLOW_TRACKING_USERNAME"),
        ((403, "Invalid Host header"), InputError, "in --allowed-hosts"),
        ((429, "slow down"), SuiteError, "answers with HTTP 429; try again"),
        ((500, "oh"), SuiteError, "answers with HTTP 500; try again"),
        ((503, "oh"), SuiteError, "answers with HTTP 503; try again"),
    ],
)
def test_what_answers_otherwise_is_told_apart(
    tmp_path: Path, answer: Answer, kind: type[SuiteError], message: str
) -> None:
    with answering(lambda path: answer) as uri:
        begun = time.monotonic()
        with pytest.raises(SuiteError, match=message) as caught:
            open_server(tmp_path, uri)
        assert time.monotonic() - begun < 5
    assert type(caught.value) is kind
    assert uri in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [EXPERIMENTS, "{}"])
def test_an_mlflow_server_is_let_in(tmp_path: Path, body: str) -> None:
    with answering(lambda path: (200, body)) as uri:
        open_server(tmp_path, uri)


def test_a_server_that_fails_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", "20")
    troubles = [(503, "starting"), (429, "slow down"), (500, "oh")]
    with answering(lambda path: troubles.pop() if troubles else (200, "{}")) as uri:
        assert ClientReader(uri).runs(None).is_empty()
    assert troubles == []


def test_a_server_that_stops_answering_is_told_when_patience_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUITE_TRACKER_PATIENCE", "0.3")
    with answering(lambda path: (200, EXPERIMENTS)) as uri:
        reader = ClientReader(uri)
        reader.check()
    begun = time.monotonic()
    with pytest.raises(
        SuiteError, match=r"has stopped answering \(.*refused\); try again when"
    ) as e:
        reader.runs(None)
    assert time.monotonic() - begun < 5
    assert uri in str(e.value)
    assert "SUITE_TRACKER_PATIENCE" in str(e.value)


def test_an_answer_that_asking_again_does_not_change_is_told_at_once() -> None:
    refusal = json.dumps({"error_code": "PERMISSION_DENIED", "message": "not yours"})
    asked = []

    def answer(path: str) -> Answer:
        asked.append(path)
        return 403, refusal

    with (
        answering(answer) as uri,
        pytest.raises(SuiteError, match=r"refuses a request \(PERMISSION_DENIED: .*not yours"),
    ):
        ClientReader(uri).runs("demo")
    assert len(asked) == 1
