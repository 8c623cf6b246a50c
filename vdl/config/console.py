"""The keys of the web console, and the client port through which it asks.

The console has no permissions of its own: it logs in at one of the server's own listeners, with the
password of its user. The HTTP port has no TLS, so a console with passwords answers only on
loopback, where a proxy with TLS may stand in front of it (`http.console_origin`).

Does not depend on the console.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rpc.tls_context import ClientAuth
from vdl.config.values import Address, Scalar
from vdl.kafka.configs.options import ListenerOptions
from vdl.kafka.security.protocol import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

OFF, LOOPBACK = "off", "loopback"
MODES = (OFF, LOOPBACK, "on")
MECHANISMS = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)
"""Logins that the console can make, best first."""

_ORIGIN = re.compile(r"https://(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?")


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The web console on the HTTP port."""

    mode: str = OFF
    """`off`, `loopback` (clients on this machine only) or `on`."""
    changes: bool = False
    """True if users may change what Kafka's permissions allow; else all pages only read."""
    origin: str = ""
    """Address of a proxy in front of it, as browsers see it: https://console.example.com."""
    ca: Path | None = None
    """Authorities that sign the certificates of the other servers' listeners."""
    registry: str = ""
    """Base URL of the schema registry by which values are decoded; empty: none."""
    registry_login: Path | None = None
    """File with `user:password` for it."""


def console_origin(raw: Scalar) -> str:
    """Parse an origin. Raise ValueError(expected value)."""
    if not isinstance(raw, str) or not (raw == "" or _ORIGIN.fullmatch(raw)):
        raise ValueError("an origin such as https://console.example.com, in small letters")
    return raw


def console_registry(raw: Scalar) -> str:
    """Parse the base URL of a schema registry. Raise ValueError(expected value)."""
    if raw == "":
        return ""
    if isinstance(raw, str) and raw.startswith(("http://", "https://")):
        try:
            found = urlsplit(raw)
            is_whole = found.hostname and found.port != 0
        except ValueError:  # such as a port that is no number
            is_whole = False
        if is_whole and not (found.username or found.password or found.query or found.fragment):
            return raw
    raise ValueError("a URL such as http://127.0.0.1:8081, without user and password")


def console_listener(listeners: Iterable[ListenerOptions]) -> ListenerOptions | None:
    """Return the listener through which the console asks: one with a login that it can make, else
    one without a login, else None.

    The console has no certificate to show: that of the server would lend its users the server's own
    permissions. So listeners that require one are left out."""
    found = [one for one in listeners if one.tls.client_auth is not ClientAuth.REQUIRED]
    for one in found:
        if one.protocol.has_login and set(MECHANISMS) & set(one.mechanisms):
            return one
    return next((one for one in found if not one.protocol.has_login), None)


def console_problem(
    options: ConsoleOptions, listeners: Iterable[ListenerOptions], http: Address | None
) -> str:
    """Return the reason why the console must not be served; empty if it may."""
    if options.mode == OFF:
        return ""
    if http is None:
        return 'expected "off", because http.listen is "off"'
    listener = console_listener(listeners)
    if listener is None:
        return (
            'expected "off", because no listener without required client certificates has a login '
            "by SCRAM or PLAIN, or none at all"
        )
    if options.mode == LOOPBACK or http.is_loopback:
        return ""
    if listener.protocol.has_login:
        return (
            f'expected "loopback", because {http} has no TLS and would show passwords to the '
            "network; put a proxy with TLS in front of the console (http.console_origin)"
        )
    if Address(listener.host, listener.port).is_loopback:
        return (
            f'expected "loopback", because {http} would show to the network what the listener '
            f"{listener.name} shows to this machine only"
        )
    return ""
