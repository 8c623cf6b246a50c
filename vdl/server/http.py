"""The operations port: `/metrics` and `/health` over the least HTTP that scrapers need.

One request a connection, answered from memory and closed. GET and HEAD only, no body is read, and
everything is bounded: a request head of 8 KiB, 5 seconds, 32 connections, and 32 more that wait. It
listens on loopback unless configured otherwise, because it asks nobody who they are.

Must not know: what the routes tell. They are plain functions that return at once.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vdl.listening import listening_socket
from vdl.log import Log

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 5
CONNECTIONS_MAX = 32

_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Response:
    """One answer: `body` as it goes out."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[], Response]


def answer(request_head: bytes, routes: Mapping[str, Route], log: Log) -> bytes:
    """The bytes that answer a request head (all up to the empty line)."""
    method, response = _respond(request_head, routes, log)
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + response.body


def _respond(request_head: bytes, routes: Mapping[str, Route], log: Log) -> tuple[str, Response]:
    words = request_head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", _text(400, "not an HTTP request")
    method, target, _ = words
    route = routes.get(target.partition("?")[0])
    if route is None:
        return method, _text(404, "there is " + " and ".join(routes))
    if method not in {"GET", "HEAD"}:
        return method, _text(405, "GET or HEAD")
    try:
        return method, route()
    except Exception:  # noqa: BLE001 - an edge: a scrape must not end the server
        log.error("operations_route_failed", route=target, traceback=traceback.format_exc())
        return method, _text(500, "failed; see the server's log")


def _text(status: int, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class HttpServer:
    """Serves `routes` until closed. Built and owned by the server's loop."""

    def __init__(self, routes: Mapping[str, Route], log: Log) -> None:
        self._routes = routes
        self._log = log
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; the port that was bound. Raises OSError."""
        loop = asyncio.get_running_loop()
        listening = listening_socket(host, port, CONNECTIONS_MAX)
        bound: int = listening.getsockname()[1]
        # asyncio accepts as many in one go as may wait, before any of them can be turned away.
        self._server = await loop.create_server(
            lambda: _Connection(self._routes, self._log, self._connections),
            sock=listening,
            backlog=CONNECTIONS_MAX,
        )
        return bound

    def close(self) -> None:
        """Stop listening and drop what is open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    """Collects one request head, answers it, closes."""

    def __init__(self, routes: Mapping[str, Route], log: Log, peers: set[_Connection]) -> None:
        self._routes = routes
        self._log = log
        self._peers = peers
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), transport
        self._transport = transport
        if len(self._peers) >= CONNECTIONS_MAX:
            transport.abort()
            return
        self._peers.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(REQUEST_SECONDS_MAX, transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None, "data before the connection"
        if transport.is_closing():
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end >= 0:
            transport.write(answer(bytes(self._head[:end]), self._routes, self._log))
            transport.close()
        elif len(self._head) > REQUEST_BYTES_MAX:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._peers.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
