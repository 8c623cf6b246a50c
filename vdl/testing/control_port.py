"""The control port of `vdl test-server`: the cluster's commands over HTTP, for any language.

    POST /kill?server=2             {"ok": true}
    POST /partition?first=1&second=3&ways=one-way
    GET  /state                     {"ok": true, "servers": […]}

`ROUTES` has the commands and the names of their arguments. One request a connection. A request must
have the token that the first line of the program has (`Authorization: Bearer …`), and name this
machine as its host: neither another user of the machine nor a web page that resolves a name of its
own to 127.0.0.1 commands the cluster.

It listens on loopback only. Everything is bounded: CONNECTIONS_MAX connections, of which a further
one displaces the oldest, REQUEST_BYTES_MAX and REQUEST_SECONDS_MAX for a request. Requests run one
after the other, in the caller's thread: the supervisor forks, so it has no other.

Does not depend on the cluster: `take` returns requests, and `Request.answer` answers them.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from urllib.parse import parse_qsl, urlsplit

from vdl.server.http import is_of_this_machine
from vdl.testing.errors import ClusterError

HOST = "127.0.0.1"
CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 5.0
STATE = "state"
"""The one route that changes nothing, by GET; a command by the name `status`."""

_SERVERS = ("server*",)
ROUTES: Mapping[str, tuple[str, ...]] = {
    "start": _SERVERS,
    "wait": (),
    "kill": _SERVERS,
    "stop": _SERVERS,
    "pause": _SERVERS,
    "resume": _SERVERS,
    "partition": ("first", "second", "ways?"),
    "isolate": ("server",),
    "heal": (),
    "slow_disk": ("server", "seconds"),
    "lose_disk": _SERVERS,
    "advance_time": ("seconds", "server*"),
    "power_cut": _SERVERS,
    "restore": (),
    "topic": ("partitions?", "config*"),
    "topics": ("count", "partitions?", "config*"),
    "grow_topic": ("topic", "partitions"),
    "delete_topics": ("topic*",),
    "leader": ("topic", "partition"),
    "status": (),
}
"""Names of the arguments of each command, in its order: once, at most once (?), any number (*)."""


class _Refused(Exception):
    """A request that is not carried out: the status, and why."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Head(BaseHTTPRequestHandler):
    """The parsed head of a request. Raises _Refused."""

    def __init__(self, data: bytes) -> None:
        self.rfile = BytesIO(data)
        self.raw_requestline = self.rfile.readline()
        self.parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse: the parser calls this."""
        del explain
        raise _Refused(HTTPStatus(code), message or "not a request")


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    deadline: float
    received: bytes = b""

    def answer(self, status: int, document: Mapping[str, object]) -> None:
        """Send a response, and close."""
        body = json.dumps(document).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.socket.settimeout(REQUEST_SECONDS_MAX)
        try:
            self.socket.sendall(head.encode() + body)
        except OSError:
            pass  # the client is gone
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Request:
    """A command with its words."""

    command: str
    words: list[str]
    _connection: _Connection

    def answer(self, document: Mapping[str, object]) -> None:
        """Answer it: status 200 if `ok`, else 400."""
        self._connection.answer(200 if document.get("ok") else 400, document)


class ControlPort:
    """A listening port. `take` is called when one of its descriptors can be read."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Listen on a free port, and register with `selector`. Raises OSError."""
        self._selector = selector
        self._listening = socket.create_server((HOST, 0), backlog=CONNECTIONS_MAX)
        self._listening.setblocking(False)
        self._token = secrets.token_urlsafe(24)
        self._connections: list[_Connection] = []
        """Without a whole request, the oldest first."""
        selector.register(self._listening, selectors.EVENT_READ, self)

    def about(self) -> dict[str, str]:
        """Return the address and the token."""
        port = self._listening.getsockname()[1]
        return {"url": f"http://{HOST}:{port}", "token": self._token}

    def close(self) -> None:
        """Stop listening and close all connections."""
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.unregister(self._listening)
        self._listening.close()

    def wait_seconds(self) -> float | None:
        """Return how long to wait at most before `take` is called again."""
        if not self._connections:
            return None
        return max(0.0, self._connections[0].deadline - time.monotonic())

    def take(self) -> list[Request]:
        """Return the requests that have arrived. Refuses those that are none."""
        self._accept()
        found = []
        for connection in list(self._connections):
            try:
                request = self._read(connection)
            except _Refused as error:
                self._forget(connection)
                connection.answer(error.status, {"ok": False, "error": str(error)})
            except OSError:
                self._drop(connection)
            else:
                if request is not None:
                    found.append(request)
                elif time.monotonic() >= connection.deadline:
                    self._drop(connection)
        return found

    def _accept(self) -> None:
        for _ in range(CONNECTIONS_MAX):
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            if len(self._connections) >= CONNECTIONS_MAX:
                self._drop(self._connections[0])
            accepted.setblocking(False)
            found = _Connection(accepted, time.monotonic() + REQUEST_SECONDS_MAX)
            self._connections.append(found)
            self._selector.register(accepted, selectors.EVENT_READ, self)

    def _read(self, connection: _Connection) -> Request | None:
        """Return a request once it is whole. Raises _Refused, OSError."""
        try:
            data = connection.socket.recv(REQUEST_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        if not data:
            raise ConnectionAbortedError
        connection.received += data
        head, end, body = connection.received.partition(b"\r\n\r\n")
        if len(connection.received) > REQUEST_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too long")
        if not end:
            return None
        parsed = _Head(head + end)
        # A body is not used, but what is unread would cut the response off.
        length = parsed.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > REQUEST_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a body is not expected")
        if len(body) < int(length):
            return None
        command, words = self._understood(parsed)
        self._forget(connection)
        return Request(command, words, connection)

    def _understood(self, head: _Head) -> tuple[str, list[str]]:
        """Return the command and its words. Raises _Refused."""
        hosts = head.headers.get_all("Host", [])
        if not all(is_of_this_machine(urlsplit(f"//{host}").hostname or "") for host in hosts):
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, f"use {HOST} as host")
        sent = head.headers.get("Authorization", "")
        if not hmac.compare_digest(sent.encode(), f"Bearer {self._token}".encode()):
            raise _Refused(HTTPStatus.UNAUTHORIZED, "expected Authorization: Bearer TOKEN")
        target = urlsplit(head.path)
        name = target.path.strip("/").replace("-", "_")
        if name not in ROUTES and name != STATE:
            known = " ".join([STATE, *ROUTES])
            raise _Refused(HTTPStatus.NOT_FOUND, f"unknown command {name!r}; known: {known}")
        method = "GET" if name == STATE else "POST"
        if head.command != method:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"expected {method} /{name}")
        try:
            pairs = parse_qsl(target.query, keep_blank_values=True, max_num_fields=1_000)
            return ("status" if name == STATE else name), words_of(name, pairs)
        except (ValueError, ClusterError) as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from None

    def _forget(self, connection: _Connection) -> None:
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)

    def _drop(self, connection: _Connection) -> None:
        self._forget(connection)
        connection.socket.close()


def words_of(name: str, pairs: list[tuple[str, str]]) -> list[str]:
    """Return the arguments of a command in its order. Raises ClusterError."""
    words = []
    names = ROUTES.get(name, ())
    for argument in names:
        found = [value for key, value in pairs if key == argument.rstrip("?*")]
        if argument[-1] not in "?*" and not found:
            raise ClusterError(f"{name} needs {argument}=")
        if argument[-1] != "*" and len(found) > 1:
            raise ClusterError(f"{name} takes one {argument.rstrip('?')}=")
        words += found
    wrong = [key for key, _ in pairs if key not in {one.rstrip("?*") for one in names}]
    if wrong:
        known = " ".join(one.rstrip("?*") for one in names) or "nothing"
        raise ClusterError(f"{name} does not take {wrong[0]!r}; it takes {known}")
    if any(not word or len(word.split()) != 1 for word in words):
        raise ClusterError("a value is empty or has white space")
    return words
