"""HTTP as the console speaks it: heads of requests, and answers, as plain values.

One request a connection, no chunked bodies, no trailers. What is not understood is refused.

Does not depend on sockets, or on routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, unquote

from vdl.config.console import LOOPBACK
from vdl.console.problems import ConsoleError
from vdl.console.settings import ConsoleSettings
from vdl.server.http import is_loopback, is_of_this_machine

HEAD_BYTES_MAX: Final = 16 << 10
BODY_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX_WITHOUT_SESSION: Final = 16 << 10
PARAMETERS_MAX: Final = 20
API_HEADER: Final = "x-vdl-console"
_OF_PROXIES: Final = frozenset({"forwarded", "via", "x-real-ip"})
_FORWARDED: Final = "x-forwarded-"
_ONCE: Final = frozenset({"host", "content-length", "content-type", "cookie", "origin", API_HEADER})
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REASONS: Final = {
    200: "OK", 302: "Found", 304: "Not Modified", 400: "Bad Request", 401: "Unauthorized",
    403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large",
    421: "Misdirected Request", 429: "Too Many Requests", 500: "Internal Server Error",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; font-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a request. Names of headers are in small letters."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    peer: str
    """Address of the browser, or of a proxy."""
    local: tuple[str, int]
    """Address and port that it connected to."""

    @property
    def length(self) -> int:
        """Length of the body. Raises ConsoleError."""
        if "transfer-encoding" in self.headers:
            raise ConsoleError("bad_request", "expected a body with Content-Length")
        text = self.headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise ConsoleError("bad_request", "Content-Length: expected a number")
        return int(text)

    def check_length(self, most: int) -> None:
        """Raise ConsoleError if the body is too large."""
        if self.length > most:
            raise ConsoleError("too_large", f"expected a body of at most {most} bytes")

    def cookie(self, name: str) -> str:
        """Return a cookie; empty if there is none."""
        # Cookies of other programs on this host come along, in any form.
        for pair in self.headers.get("cookie", "").split(";"):
            found, _, value = pair.strip().partition("=")
            if found == name:
                return value
        return ""


def parse_head(data: bytes, peer: str, local: tuple[str, int]) -> Head:
    """Return the head of a request. Raises ConsoleError."""
    if len(data) > HEAD_BYTES_MAX:
        raise ConsoleError("too_large", "the head of the request is too long")
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not re.fullmatch(r"HTTP/1\.[01]", words[2]):
        raise ConsoleError("bad_request", "not a request of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or re.search(r"[\x00-\x08\x0a-\x1f]", value):
            raise ConsoleError("bad_request", "a header is not valid")
        name = name.lower()
        if name in headers and name in _ONCE:
            raise ConsoleError("bad_request", f"{name}: expected once")
        headers[name] = value.strip()
    path, _, query = words[1].partition("?")
    return Head(words[0], unquote(path), _parameters(query), headers, peer, local)


def _parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError:
        raise ConsoleError("bad_request", "the query of the URL is not valid") from None
    for name, value in pairs:
        if name in found:
            raise ConsoleError("bad_request", f"{name[:40]}: expected once")
        found[name] = value
    return found


# --- who asks -------------------------------------------------------------------------------------


def check_place(head: Head, settings: ConsoleSettings) -> None:
    """Raise ConsoleError if the browser is elsewhere, or the URL has a name that is not of this
    machine: a page may have a name of its own resolve to an address here (DNS rebinding)."""
    if settings.mode == LOOPBACK and not is_loopback(head.peer):
        raise ConsoleError("bad_origin", "the console is for browsers on this machine")
    if settings.mode == LOOPBACK and not settings.origin and _is_forwarded(head):
        # To a proxy on this machine every browser is on this machine.
        raise ConsoleError("bad_origin", "a proxy sent the request; http.console_origin is not set")
    host = head.headers.get("host")
    if host is None:
        raise ConsoleError("bad_request", "host: required")
    name = host_name(host)
    own = settings.origin.partition("://")[2]
    if host.lower() != own and name not in settings.names and not is_of_this_machine(name):
        raise ConsoleError("wrong_host", "use localhost or an address of this machine as host")


def _is_forwarded(head: Head) -> bool:
    return any(name in _OF_PROXIES or name.startswith(_FORWARDED) for name in head.headers)


def browser_address(head: Head, settings: ConsoleSettings) -> str:
    """Return the address that the proxy on this machine has seen, else that of the connection.

    It is for bounds and for the log: clients on this machine may invent it."""
    if settings.origin and is_loopback(head.peer):
        said = head.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        with suppress(ValueError):
            return str(ip_address(said))
    return head.peer


def check_origin(head: Head, settings: ConsoleSettings) -> None:
    """Raise ConsoleError unless a request to the API comes from a page of the console."""
    if head.headers.get(API_HEADER) != "1":
        raise ConsoleError("bad_origin", "expected the header X-VDL-Console: 1")
    if head.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ConsoleError("bad_origin", "the request comes from a page of another site")
    origin = head.headers.get("origin")
    own = {f"http://{head.headers['host'].lower()}", settings.origin} - {""}
    if origin is not None and origin.lower() not in own:
        raise ConsoleError("bad_origin", "the request comes from a page of another site")


def host_name(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    name, colon, _ = host.strip().lower().rpartition(":")
    return name if colon and not name.endswith(":") else host.strip().lower()


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. It is never kept by browsers, unless its headers say otherwise."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self, *, with_body: bool) -> bytes:
        """Return the bytes to send."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Cache-Control": "no-store",
            **SECURITY_HEADERS,
            **self.headers,
            "Connection": "close",
        }
        if self.status == 304:
            del headers["Content-Type"], headers["Content-Length"]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\n{lines}\r\n".encode()
        return head + self.body if with_body and self.status != 304 else head
