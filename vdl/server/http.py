"""Operations port: `/metrics` and `/health` over the minimum of HTTP that scrapers need.

One request a connection, answered from memory and closed. GET and HEAD only, no body is read, and
everything is bounded: a request head of 8 KiB, 5 seconds, 32 connections, and 32 more that wait.
A further connection displaces another (`rpc/newcomers.py`), so that idle ones cannot keep a scraper
out. A spare descriptor is reserved, so that a server without free descriptors can still report its
state. The port listens on loopback unless configured otherwise, because it has no authentication.
On loopback a request must name an address or `localhost` as its host: a web page may have a name of
its own resolve to 127.0.0.1 (DNS rebinding), and would read the answers.

Routes are functions that return at once: a response, or an iterator that makes one in parts. The
parts of a long page share the turns of the loop with the server's other work. A route makes one
page at a time: clients that ask meanwhile get the same one, so that many scrapers take no more of a
turn than one.

Connections of browsers to the console are handed over with the bytes read so far (`HandOver`), and
count among the 32 only until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from rpc.newcomers import Newcomers
from vdl.listening import listening_socket
from vdl.log import Log

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 5
CONNECTIONS_MAX = 32
ACCEPT_RETRY_SECONDS = 1.0
"""Delay after there was no descriptor to accept with."""

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REASONS = {
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    421: "Misdirected Request",
    500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Response:
    """One response: `body` as it is sent."""

    status: int
    content_type: str
    body: bytes


Route = Callable[[], Response | Iterator[Response | None]]
"""An iterator yields None after each part of the work, and the response at last."""

HandOver = Callable[[socket.socket, str, bytes], int]
"""Takes over a connection from an address, with the bytes read so far, which include the whole
head. The caller closes its own copy of the socket. Returns 0, else the status that says why nothing
was taken: 403 or 503."""
_NOT_HANDED_OVER = {
    403: "the console is for browsers on this machine",
    503: "the console is busy",
}
HANDED_OVER = ("/", "/console")
"""Path that is handed over, and the beginning of others, up to a slash or the end."""

SLICE_SECONDS = 0.004
"""CPU time of one turn of the loop for one page."""
LATE_AFTER_SECONDS = 1.0
"""Time after which a page gets more of each turn: the turns of an overloaded server may take a
fifth of a second each, and a scraper waits for seconds only."""
LATE_SLICE_SECONDS = 0.02


def answer(
    request_head: bytes, routes: Mapping[str, Route], log: Log, *, is_local: bool = False
) -> bytes:
    """Return the whole response to a request head (all up to the empty line), made in one go.

    `is_local`: True at a port for this machine only.
    """
    method, path, response = _find(request_head, routes, is_local=is_local)
    if response is None:
        response = (_NOT_YET, *_made(path, routes[path], log))[-1]
    return _encoded(method, response)


def _made(path: str, route: Route, log: Log) -> Iterator[Response]:
    """Yield `_NOT_YET` after each part of the work, and the response at last."""
    try:
        made = route()
        if isinstance(made, Response):
            yield made
            return
        for part in made:
            yield _NOT_YET if part is None else part
    except Exception:  # noqa: BLE001 - an edge: a scrape must not end the server
        log.error("operations_route_failed", route=path, traceback=traceback.format_exc())
        yield _text(500, "failed; see the server's log")


def _encoded(method: str, response: Response) -> bytes:
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + response.body


def _find(
    request_head: bytes, routes: Mapping[str, Route], *, is_local: bool
) -> tuple[str, str, Response | None]:
    """Return (method, path of the route, response); the last is None if the route makes it."""
    first, *headers = request_head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", "", _text(400, "not an HTTP request")
    method, target, _ = words
    path = target.partition("?")[0]
    if is_local and not all(map(is_of_this_machine, _hosts(headers))):
        return method, path, _text(421, "use localhost or an address of this machine as host")
    if path not in routes:
        return method, path, _text(404, "not found; there is " + " and ".join(routes))
    if method not in {"GET", "HEAD"}:
        return method, path, _text(405, "expected GET or HEAD")
    return method, path, None


def _hosts(headers: Iterable[str]) -> Iterator[str]:
    """Yield the hosts of Host headers, without the port."""
    for header in headers:
        name, _, value = header.partition(":")
        if name.strip().lower() == "host":
            host, port_follows, _ = value.strip().rpartition(":")
            yield host if port_follows and not host.endswith(":") else value.strip()


def is_of_this_machine(host: str) -> bool:
    """Return True for an address, or the name that always means this machine."""
    if host.lower() in ("", "localhost"):
        return True
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return True for a client's address if it is on this machine."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def _text(status: int, text: str) -> Response:
    return Response(status, "text/plain; charset=utf-8", f"{text}\n".encode())


_NOT_YET = _text(500, "the route has no response")


class HttpServer:
    """Serves `routes` until closed. Built and owned by the server's loop.

    A client of a busy server waits for several of its turns, each of which may take a fifth of a
    second. So a connection is accepted, read and answered in one turn; asyncio's own transports
    need four."""

    def __init__(
        self, routes: Mapping[str, Route], log: Log, hand_over: HandOver | None = None
    ) -> None:
        """`hand_over` takes requests for the console; None if there is none."""
        self._hand_over = hand_over
        self._routes = routes
        self._log = log
        self._listening: socket.socket | None = None
        self._is_local = False
        self._connections: Newcomers[_Connection] = Newcomers(CONNECTIONS_MAX)
        self._pages: dict[str, _Page] = {}
        """Pages that are being made, by path."""
        self._spare = -1
        """Descriptor that is released to accept a connection; -1 while it is released."""

    async def start(self, host: str, port: int) -> int:
        """Listen and return the bound port. Raises OSError."""
        self._listening = listening = listening_socket(host, port, CONNECTIONS_MAX)
        listening.setblocking(False)
        self._is_local = ip_address(listening.getsockname()[0]).is_loopback
        bound: int = listening.getsockname()[1]
        self._take_spare()
        self._accept_again()
        return bound

    def close(self) -> None:
        """Stop listening and drop open connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for connection in self._connections:
            connection.abort()
        self._give_up_spare()

    def _accept_again(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _take_spare(self) -> None:
        if self._spare < 0 and self._listening is not None:
            with contextlib.suppress(OSError):  # another connection's end retries
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _give_up_spare(self) -> bool:
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        return True

    def _accept(self) -> None:
        try:
            self._accept_some()
        finally:
            if not self._connections:
                self._take_spare()

    def _accept_some(self) -> None:
        listening = self._listening
        assert listening is not None, "closed"
        for _ in range(CONNECTIONS_MAX):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    if self._give_up_spare():
                        continue
                    self._cannot_accept(listening, error)
                    return
                continue  # an error of the connection that was about to be accepted
            accepted.setblocking(False)
            connection = _Connection(
                accepted, address[0], self._answer, self._connections, self._take_spare
            )
            displaced = self._connections.add(connection, address[0])
            if displaced is not None:
                displaced.abort()
            connection.begin()

    def _answer(self, request_head: bytes, connection: _Connection) -> None:
        """Answer now or later, unless the connection is closed meanwhile."""
        if self._hand_over is not None and is_for_console(request_head):
            status = connection.hand_over(self._hand_over)
            if status:
                connection.send(_encoded("GET", _text(status, _NOT_HANDED_OVER[status])))
            else:
                connection.abort()
            return
        method, path, response = _find(request_head, self._routes, is_local=self._is_local)
        if response is not None:
            connection.send(_encoded(method, response))
            return
        page = self._pages.get(path)
        if page is not None:
            page.readers.append((connection, method))
            return
        parts = _made(path, self._routes[path], self._log)
        page = self._pages[path] = _Page(parts, lambda: self._pages.pop(path))
        page.readers.append((connection, method))
        page.make()

    def _cannot_accept(self, listening: socket.socket, error: OSError) -> None:
        """Report the error and retry later, as asyncio's own servers do."""
        loop = asyncio.get_running_loop()
        loop.call_exception_handler(
            {"message": "cannot accept", "exception": error, "socket": listening}
        )
        loop.remove_reader(listening)
        loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_again)


def is_for_console(request_head: bytes) -> bool:
    """Return True if a request is one of those that are handed over."""
    target = request_head.partition(b" ")[2].partition(b" ")[0].decode("latin-1")
    path = target.partition("?")[0]
    root, console = HANDED_OVER
    return path in HANDED_OVER or path.startswith(console + root)


class _Page:
    """A response in the making, and the clients that get it."""

    def __init__(self, parts: Iterator[Response], on_end: Callable[[], object]) -> None:
        """Call `on_end` once, before the response is sent, or when no client waits for it."""
        self.readers: list[tuple[_Connection, str]] = []
        """(connection, method)"""
        self._parts = parts
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._late_after_s = self._loop.time() + LATE_AFTER_SECONDS

    def make(self) -> None:
        """Make the response, as far as there is time in this turn, and send it once it is whole."""
        self.readers = [one for one in self.readers if not one[0].is_closed]
        if not self.readers:
            self._on_end()
            return
        is_late = self._loop.time() >= self._late_after_s
        end_s = time.thread_time() + (LATE_SLICE_SECONDS if is_late else SLICE_SECONDS)
        response = _NOT_YET
        for response in self._parts:
            if response is not _NOT_YET:
                break
            if time.thread_time() >= end_s:
                self._loop.call_soon(self.make)
                return
        self._on_end()
        encoded = {method: _encoded(method, response) for _, method in self.readers}
        for connection, method in self.readers:
            connection.send(encoded[method])


class _Connection:
    """Collects one request head, answers it, closes."""

    def __init__(
        self,
        accepted: socket.socket,
        host: str,
        answer: Callable[[bytes, _Connection], None],
        peers: Newcomers[_Connection],
        on_closed: Callable[[], None],
    ) -> None:
        self._socket = accepted
        self._host = host
        self._answer = answer
        self._peers = peers
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()
        self._unsent = memoryview(b"")
        self.is_closed = False

    def begin(self) -> None:
        """Read, and answer if the request is complete."""
        self._deadline = self._loop.call_later(REQUEST_SECONDS_MAX, self.abort)
        self._loop.add_reader(self._socket, self._read)
        self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(REQUEST_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if data and end >= 0:
            self._loop.remove_reader(self._socket)
            self._answer(bytes(self._head[:end]), self)
        elif not data or len(self._head) > REQUEST_BYTES_MAX:
            self.abort()

    def hand_over(self, to: HandOver) -> int:
        """Hand the connection over with all that was read. Return 0, else a status."""
        return to(self._socket, self._host, bytes(self._head))

    def send(self, response: bytes) -> None:
        """Send the response, and close once it is sent."""
        self._unsent = memoryview(response)
        self._send()

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent = memoryview(b"")
        if self._unsent:
            self._loop.add_writer(self._socket, self._send)
        else:
            self.abort()

    def abort(self) -> None:
        """Close the connection, even if data is unsent."""
        self.is_closed = True
        self._deadline.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._peers.remove(self)
        self._on_closed()
