"""Source of the keys of tokens: a file, or an address that is requested over HTTPS.

Runs in a thread, because both may take long, within bounds. One deadline applies to the whole
answer, from the first packet to the last byte, so a slow issuer cannot extend it byte by byte. A
failure leaves the present keys in use.

Does not depend on tokens.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from vdl.kafka.security.oauth_options import OauthOptions

BYTES_MAX = 1 << 20
SECONDS_MAX = 10.0
"""Time for the whole request, except for the system's name resolution."""
_HTTPS_PORT = 443
_OK = 200


class KeysUnavailable(Exception):
    """Keys cannot be fetched; the argument is the reason."""


def fetch_keys(options: OauthOptions) -> bytes:
    """Return the present set of keys. Raises KeysUnavailable."""
    url = urllib.parse.urlsplit(options.jwks_url)
    if url.scheme == "file":
        return _read(Path(urllib.parse.unquote(url.path)))
    if url.scheme != "https" or not url.hostname:
        raise KeysUnavailable("has neither https:// nor file://")
    try:
        context = ssl.create_default_context(cafile=options.ca or None)
        target = urllib.parse.urlunsplit(("", "", url.path or "/", url.query, ""))
        with _connected(url.hostname, url.port or _HTTPS_PORT, context) as connection:
            connection.request("GET", target, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            # Redirects are not followed, either: an issuer must answer itself.
            if answer.status != _OK:
                raise KeysUnavailable(f"answered with {answer.status}")
            found = answer.read(BYTES_MAX + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise KeysUnavailable(str(error) or type(error).__name__) from None
    return _bounded(found)


@contextlib.contextmanager
def _connected(
    host: str, port: int, context: ssl.SSLContext
) -> Iterator[http.client.HTTPSConnection]:
    """Return a connection that ends at its deadline, in any state. Raises OSError."""
    end = time.monotonic() + SECONDS_MAX
    with _dialed(host, port, end) as plain:
        secured = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    with secured:
        secured.settimeout(_left(end))
        secured.do_handshake()  # the deadline is for all of it
        secured.settimeout(None)
        timer = threading.Timer(_left(end), _shut_down, (secured,))
        timer.daemon = True
        timer.start()
        try:
            connection = http.client.HTTPSConnection(host, port, context=context)
            connection.sock = secured
            yield connection
        except (OSError, ValueError, http.client.HTTPException):
            _left(end)
            raise
        finally:
            timer.cancel()
        _left(end)  # without a length, the shutdown looks like the end of the answer


def _shut_down(secured: ssl.SSLSocket) -> None:
    """End reading, from another thread.

    The socket's own method would remove the TLS layer that the reader uses.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(secured, socket.SHUT_RDWR)


def _dialed(host: str, port: int, end: float) -> socket.socket:
    """Return a socket connected to the first address that answers. Raises OSError."""
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        dialed = socket.socket(family, kind, protocol)
        try:
            dialed.settimeout(_left(end))
            dialed.connect(address)
        except OSError as error:
            dialed.close()
            failed = error
        else:
            return dialed
    raise failed or OSError("the host has no address")


def _left(end: float) -> float:
    """Return the seconds left. Raises OSError if there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise OSError(f"no response within {SECONDS_MAX:g} s")
    return left


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(BYTES_MAX + 1))
    except OSError as error:
        raise KeysUnavailable(error.strerror or "cannot be read") from None


def _bounded(found: bytes) -> bytes:
    if len(found) > BYTES_MAX:
        raise KeysUnavailable(f"larger than {BYTES_MAX} bytes")
    return found
