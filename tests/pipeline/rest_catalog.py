"""Iceberg's own REST catalog server, and a gate in front of it that loses responses.

The gate does what a proxy, a load balancer or a network does to a request: it can cut the
connection before or after the server's work, return 5xx for work that was done, or forward a
request only after the client has given up. It can require a token, which Iceberg's server does not.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.ecosystem.programs import Program, accepts, classes, free_port, java

MAIN = "vdl.CatalogServer"
COMMIT = re.compile(r"/v1/namespaces/[^/]+/tables/[^/]+")
TOKENS = "/v1/oauth/tokens"
ANSWER_SECONDS_MAX = 30
PASSED_ON = ("Content-Type", "Authorization")


@contextlib.contextmanager
def catalog_server(folder: Path, s3: str = "") -> Iterator[int]:
    """Run a server on a free port; yield the port.

    `s3`: the address of an S3 server. Skips the test if Maven Central or Java are missing.
    """
    class_path, port = classes("iceberg"), free_port()
    settings = {
        "uri": f"jdbc:sqlite:{folder}/rest.db",
        "warehouse": f"file://{folder}/warehouse",
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
        "s3.endpoint": s3,
        "s3.path-style-access": "true",
        "s3.access-key-id": "me",
        "s3.secret-access-key": "word",
        "client.region": "us-east-1",
        "http-client.type": "urlconnection",
    }
    command = java(class_path, MAIN, str(port), *(f"{k}={v}" for k, v in settings.items()))
    with Program(command, folder / "rest.log") as program:
        program.wait_for("the catalog has no port", lambda: accepts(port))
        yield port


class Gate:
    """Faulty proxy of the server. Use in a `with`.

    `address`: address for clients; `token`: requests without it are refused; `seen`: the tokens
    received; `paths`: the paths requested; `commits`: number of requested commits, and `updates`:
    their changes; `lost`: set when `lose` has lost one; `holds`: late requests are forwarded only
    by `carry_out`.
    """

    def __init__(self, port: int) -> None:
        self.token = ""
        self.refusal = "who are you"
        self.seen: set[str] = set()
        self.paths: list[str] = []
        self.commits = 0
        self.updates: list[dict[str, Any]] = []
        self.holds = False
        self.lost = threading.Event()
        self._port = port
        self._hows: list[str] = []
        self._late: list[Callable[[], tuple[int, bytes]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Gate:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def lose(self, *hows: str) -> None:
        """Set the faults of the next commits.

        "cut" after and "cut before" the server's work, "hang" after it; "late": 504, and the server
        receives it just before the next one or by `carry_out`; "twice": sent twice, with the second
        response; a status of an invalid response; "": none.
        """
        self._hows = list(hows)
        self.lost.clear()

    def carry_out(self) -> list[int]:
        """Forward the late requests; return their statuses."""
        late, self._late = self._late, []
        return [forward()[0] for forward in late]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                gate._serve(self)

            do_POST = do_HEAD = do_DELETE = do_GET

            def log_message(self, *arguments: Any) -> None:
                """Log nothing."""

        return Handler

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        path = request.path.partition("?")[0]
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.add(token)
        self.paths.append(request.path)
        if self.token and path != TOKENS and token != self.token:
            error = {"message": self.refusal, "type": "NotAuthorized", "code": 401}
            return self._answer(request, 401, json.dumps({"error": error}).encode())

        def forward() -> tuple[int, bytes]:
            server = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS_MAX)
            headers = {n: request.headers[n] for n in PASSED_ON if n in request.headers}
            server.request(request.command, request.path, body, headers)
            with contextlib.closing(server), server.getresponse() as answer:
                return answer.status, answer.read()

        if request.command != "POST" or not COMMIT.fullmatch(path):
            return self._answer(request, *forward())
        self.commits += 1
        self.updates += json.loads(body)["updates"]
        how = self._hows.pop(0) if self._hows else ""
        if how != "cut before" and not self.holds:
            self.carry_out()
        if not how:
            return self._answer(request, *forward())
        if how == "late":
            self._late.append(forward)
            return self._answer(request, 504, b"")
        if how != "cut before":
            forward()
        self.lost.set()
        if how == "twice":
            return self._answer(request, *forward())
        if how.isdigit():
            return self._answer(request, int(how), b"<html>something went wrong</html>")
        if how == "hang":
            # Until the client has disconnected.
            request.connection.recv(1)
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)
        return None

    def _answer(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
