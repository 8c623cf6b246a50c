"""S3 server on this machine, and a gate in front of it that loses answers.

Both are processes of their own, because a client that waits for a response of the store may hold
Python's lock.

    python -m tests.pipeline.objects SERVER PATTERN    the gate, on a port that it prints
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@contextlib.contextmanager
def object_server() -> Iterator[str]:
    """Run a server on a free port; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            while running.poll() is None:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.05)
            assert running.poll() is None
            yield f"http://127.0.0.1:{port}"
        finally:
            running.kill()


def make_bucket(address: str, name: str) -> None:
    """Create an empty bucket."""
    from pyarrow.fs import S3FileSystem

    found = S3FileSystem(
        access_key="me", secret_key="word", endpoint_override=address.removeprefix("http://"),
        scheme="http", region="us-east-1", allow_bucket_creation=True,
    )  # fmt: skip
    found.create_dir(name)
    found.delete_dir_contents(name)


LOSE, LEFT = "/.lose/", "/.left"
"""Paths of requests to the gate itself."""
HOP = frozenset({"connection", "content-length", "expect", "transfer-encoding"})
"""Headers of one connection, in lower case."""


class Gate:
    """Proxy of an S3 server. Use in a `with`.

    `address`: address for clients. Answers to writes of paths with PATTERN are lost, as often as
    `lose` says: the server has done the request, and the connection breaks.
    """

    def __init__(self, server: str, pattern: str) -> None:
        command = [sys.executable, "-m", "tests.pipeline.objects", server, pattern]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.communicate()

    def lose(self, times: int) -> None:
        """Lose the next answers, instead of those that are left of an earlier call."""
        self._ask(f"{LOSE}{times}")

    def left(self) -> int:
        """Return the number of answers that have not been lost yet."""
        return int(self._ask(LEFT))

    def _ask(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.address}{path}", timeout=30) as answer:
            found: bytes = answer.read()
            return found


class _Handler(BaseHTTPRequestHandler):
    """The gate's side of a connection."""

    protocol_version = "HTTP/1.1"
    server_address: tuple[str, int]
    pattern: re.Pattern[str]
    times = 0

    def do_GET(self) -> None:
        if self.path.startswith(LOSE):
            type(self).times = int(self.path.removeprefix(LOSE))
        if self.path.startswith((LOSE, LEFT)):
            self._answer(200, [], str(self.times).encode())
            return
        body = self._body()
        headers = {n: v for n, v in self.headers.items() if n.lower() not in HOP}
        server = http.client.HTTPConnection(*self.server_address)
        server.request(self.command, self.path, body, headers)
        with contextlib.closing(server), server.getresponse() as answer:
            told, data = answer.getheaders(), answer.read()
        is_write = self.command in {"PUT", "POST"}
        if is_write and self.times and self.pattern.search(self.path):
            type(self).times -= 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer.status, told, data)

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def _body(self) -> bytes:
        """Return the request's body, which may come in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        told = {name.lower(): value for name, value in headers}
        for name, value in told.items():
            if name not in HOP:
                self.send_header(name, value)
        length = told.get("content-length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


def main() -> None:
    server = urlsplit(sys.argv[1])
    _Handler.server_address = (str(server.hostname), int(server.port or 80))
    _Handler.pattern = re.compile(sys.argv[2])
    gate = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{gate.server_address[1]}\n")
    sys.stdout.flush()
    gate.serve_forever()


if __name__ == "__main__":
    main()
