"""A tracker that cannot be relied on: a proxy before a real one, with faults on demand."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Mode = Literal["pass", "down", "500", "429", "502", "hang", "late", "lost", "truncated", "empty"]
AWAY: tuple[Mode, ...] = ("down", "500", "429", "502", "hang")
"""Modes in which no request reaches the tracker."""
ANSWER_LOST: tuple[Mode, ...] = ("lost", "truncated", "empty")
"""Modes in which the tracker does its work, and whoever asked is not told."""


class UnreliableProxy:
    """Listens on the loopback address, and hands requests on unless it is told otherwise.

    ============ =====================================================================
    pass         hand on
    down         refuse connections
    500 429      MLflow's own words for a server error, and for too many requests
    502          a gateway's page, which is not JSON
    hang         take the request, and say nothing for as long as the mode lasts
    late         hang, and then hand on what nobody waits for any more
    lost         hand on, and cut the connection instead of answering
    truncated    hand on, and cut the connection in the middle of the answer
    empty        hand on, and answer 200 without a body
    ============ =====================================================================

    Args:
        upstream: the tracker's port.

    Attributes:
        disturbed: requests to which something was done so far.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._mode: Mode = "pass"
        self._only = ""
        self._left = -1
        self._mode_over = threading.Event()
        self._guard = threading.Lock()
        self.disturbed = 0
        self._server = self._listen(0)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def set(self, mode: Mode, *, only: str = "", times: int = -1) -> None:
        """Change what happens to requests.

        Args:
            mode: what to do.
            only: with requests whose path ends so; others pass.
            times: to so many of them; -1 for as long as the mode lasts.
        """
        if self._mode == "down" != mode:
            self._server = self._listen(self.port)
        if mode == "down" != self._mode:
            self._server.shutdown()
            self._server.server_close()
        with self._guard:
            self._mode, self._only, self._left = mode, only, times
            self._mode_over.set()
            self._mode_over = threading.Event()

    @contextlib.contextmanager
    def fault(self, mode: Mode, *, only: str = "", times: int = -1) -> Iterator[None]:
        """A mode for a while."""
        self.set(mode, only=only, times=times)
        try:
            yield
        finally:
            self.set("pass")

    def close(self) -> None:
        self.set("down")

    def _listen(self, port: int) -> ThreadingHTTPServer:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        server = _Server(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def decide(self, path: str) -> tuple[Mode, threading.Event]:
        """What is to happen to a request, and what is set when the mode is over."""
        with self._guard:
            if self._mode == "pass" or not path.split("?")[0].endswith(self._only):
                return "pass", self._mode_over
            if self._left == 0:
                return "pass", self._mode_over
            self._left -= 1
            self.disturbed += 1
            return self._mode, self._mode_over

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Hand a request on; status, headers and body of the answer."""
        upstream = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)
        try:
            upstream.request(method, path, body, headers)
            answer = upstream.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            upstream.close()


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: whoever asked has gone away, which is the purpose."""


class _Handler(BaseHTTPRequestHandler):
    owner: UnreliableProxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode, over = self.owner.decide(self.path)
        if mode in ("hang", "late"):
            over.wait()
        if mode in ("pass", "late", *ANSWER_LOST):
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            status, answered, content = self.owner.ask(self.command, self.path, headers, body)
            if mode == "pass":
                self._answer(status, answered, content)
            elif mode == "truncated":
                self._answer(status, answered, content, cut=len(content) // 2)
            elif mode == "empty":
                self._answer(200, [], b"")
        elif mode == "502":
            self._answer(502, [("Content-Type", "text/html")], b"<h1>Bad Gateway</h1>")
        elif mode in ("500", "429"):
            code = "INTERNAL_ERROR" if mode == "500" else "REQUEST_LIMIT_EXCEEDED"
            said = {"error_code": code, "message": f"the proxy says {mode}"}
            self._answer(
                int(mode), [("Content-Type", "application/json")], json.dumps(said).encode()
            )
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in headers:
            if key.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:cut])

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle  # noqa: N815 - as http.server asks

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
