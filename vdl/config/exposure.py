"""Report of the access to each port that a configuration permits.

`vdl serve --check` prints it, and a server uses it for a warning at its start. Logins and
certificates identify a client. Only an authorizer limits what it may do: without one, an ordinary
user can set the administrator's password. Secured listeners without an authorizer are a mistake or
a step of a migration, and are never silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc.tls_context import ClientAuth
from vdl.config.console import LOOPBACK, OFF, console_listener
from vdl.config.settings import Config
from vdl.config.values import Address
from vdl.kafka.configs.options import ListenerOptions
from vdl.kafka.security.protocol import SecurityProtocol

ALL = "may do everything: security.authorizer is off"
BY_LISTS = "may do what access control lists allow"
NO_AUTHORIZER = (
    "clients log in but may do everything, because no authorizer is set; set security.authorizer"
)


def lacks_authorizer(config: Config) -> bool:
    """Return True if clients authenticate at some port, but no authorizer limits them."""
    return not config.kafka.authorizer and any(
        listener.protocol is not SecurityProtocol.PLAINTEXT for listener in config.listeners
    )


def exposure(config: Config) -> Iterator[str]:
    """Yield one line for each port: name, address, permitted clients, and permitted operations."""
    limit = BY_LISTS if config.kafka.authorizer else ALL
    for listener in config.listeners:
        address = Address(listener.host, listener.port)
        yield f"{listener.name} {address}: {_clients_of(listener)} {limit}"
    has_certificates = config.tls.certificate is not None
    servers = "servers with a certificate" if has_certificates else "every process that connects"
    if config.peer is not None:
        yield f"peer {config.peer.listen}: {servers} may replicate all partitions"
    if config.admin is not None:
        yield f"admin {config.admin.listen}: {servers} may see and administer the set"
    if config.http is not None:
        yield f"http {config.http}: everyone may read health and metrics{_console(config)}"


def _console(config: Config) -> str:
    """Return the words about the web console; empty without one."""
    listener = console_listener(config.listeners)
    if config.console.mode == OFF or listener is None:
        return ""
    place = " of this machine" if config.console.mode == LOOPBACK else ""
    verb = "use" if config.console.changes else "read"
    return f"; browsers{place} may {verb} the console, with the rights of {listener.name}"


def _clients_of(listener: ListenerOptions) -> str:
    if listener.protocol.has_login:
        return f"users who log in ({', '.join(listener.mechanisms)})"
    if listener.tls.client_auth is ClientAuth.REQUIRED:
        return "holders of a certificate"
    if listener.tls.client_auth is ClientAuth.REQUESTED:
        return "holders of a certificate, and everyone else as User:ANONYMOUS,"
    return "everyone, as User:ANONYMOUS,"
