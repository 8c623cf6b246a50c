"""Settings of the console process, as the server sends them to it in JSON. They hold no secrets.

Does not depend on what they are used for.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from vdl.config.console import MECHANISMS, OFF, console_listener

if TYPE_CHECKING:
    from vdl.config.settings import Config  # the console itself has no use for it

_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, not bound


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The whole configuration of a console."""

    server: int
    mode: str
    """`loopback` or `on`."""
    changes: bool
    origin: str
    names: tuple[str, ...]
    """Names of this machine that a URL may have, besides addresses and localhost."""
    host: str
    """Address of the server's own listener that is asked, and its port."""
    port: int
    protocol: str
    mechanisms: tuple[str, ...]
    """Logins that the listener and the console know; none if clients do not log in."""
    certificate: str
    """PEM file that the listener shows, which is trusted there. Empty: none."""
    ca: str
    """Authorities of other servers' listeners; empty: those of the system."""
    admin: tuple[str, str, str]
    """PEM files for the admin plane: certificate, key, CA. Empty: it is not encrypted."""
    registry: str
    """Base URL of the schema registry; empty: none."""
    registry_login: str
    """File with `user:password` for it. Empty: none."""
    log_format: str
    log_level: str

    def as_json(self) -> dict[str, Any]:
        """Return the JSON that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Return the settings in a JSON of `as_json`."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
        }
        return cls(**fields)

    @property
    def has_login(self) -> bool:
        """True if users of the console log in."""
        return bool(self.mechanisms)


def console_settings(config: Config) -> ConsoleSettings:
    """Return the settings of a server's console, which its configuration must have."""
    listener = console_listener(config.listeners)
    assert config.console.mode != OFF, config.console
    assert config.http is not None, config.console
    assert listener is not None, config.listeners
    has_login = listener.protocol.has_login
    shown, files = listener.tls.own, config.tls
    ca = config.console.ca or listener.tls.ca or files.ca
    names = {socket.gethostname(), listener.advertised_host, config.http.host}
    return ConsoleSettings(
        server=config.server_id,
        mode=config.console.mode,
        changes=config.console.changes,
        origin=config.console.origin,
        names=tuple(sorted(name.lower() for name in names if name)),
        host=_reachable(listener.host),
        port=listener.port,
        protocol=listener.protocol.value,
        mechanisms=tuple(m for m in MECHANISMS if has_login and m in listener.mechanisms),
        certificate=str(shown.certificate) if shown is not None else "",
        ca=str(ca or ""),
        admin=(str(files.certificate), str(files.key), str(files.ca))
        if files.secures_links
        else ("", "", ""),
        registry=config.console.registry,
        registry_login=str(config.console.registry_login or ""),
        log_format=config.log.format,
        log_level=config.log.level,
    )


def _reachable(host: str) -> str:
    """Return an address to connect to, for one to listen on."""
    return _UNSPECIFIED.get(host, host)
