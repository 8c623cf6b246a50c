"""Traced requests of a whole cluster, collected from the admin plane of each server.

A server that does not answer, or that is too old to trace, is a problem that is shown beside the
requests of the others.

Does not depend on how requests are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ids import ServerId
from rpc.errors import AdminError, TlsFailed
from rpc.traces import TracedRequest, TraceFilter
from vdl.commands.checks.cluster_status import (
    NOT_SECURED,
    SERVERS_AT_ONCE,
    discover,
    find_admin,
)
from vdl.commands.cluster.connection import TIMEOUT_SECONDS
from vdl.commands.workers import Workers
from vdl.config.values import Address
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

POLL_SECONDS = 0.5
_OLD = "it is too old to trace requests"
_TOO_MANY = "it has its maximum of traces; they end by themselves"


@dataclass(slots=True)
class TracedServer:
    """One server. `problem`: why it traces nothing, or nothing more; empty while it does."""

    id: ServerId
    admin: Address | None = None
    problem: str = ""
    trace: int = 0
    """Number of its running trace; 0: none."""
    ended: str = ""
    """Reason why its trace ended."""
    requests: list[TracedRequest] = field(default_factory=list)


def servers_of(
    bootstrap: Iterable[Address],
    settings: ClientSettings = NOT_SECURED,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[TracedServer]:
    """Return the servers with the addresses of their admin planes. Raises Unreachable if none
    answers, ClientSettingsError for unusable files."""
    with ExitStack() as open_clients, Workers(SERVERS_AT_ONCE) as pool:

        def connect(address: Address) -> KafkaClient:
            client = KafkaClient(
                address.host, address.port, settings=settings, timeout_seconds=timeout_seconds
            )
            return open_clients.enter_context(client)

        connecting: dict[Address, Future[KafkaClient]] = {
            address: pool.submit(connect, address) for address in dict.fromkeys(bootstrap)
        }
        _, brokers = discover(connecting)
        found = [TracedServer(ServerId(broker.broker_id)) for broker in brokers]

        def look(server: TracedServer, address: Address) -> None:
            known = connecting.get(address)
            try:
                client = connect(address) if known is None else known.result()
                server.admin = find_admin(client, server.id, address)
            except Unreachable as error:
                server.problem = error.reason

        looks = [
            pool.submit(look, server, Address(broker.host, broker.port))
            for server, broker in zip(found, brokers, strict=True)
        ]
        for one in looks:
            one.result()
    return sorted(found, key=lambda server: server.id)


class TracingCluster:
    """Admin planes of all servers. Use it in a `with` statement, which ends running traces."""

    def __init__(
        self,
        servers: list[TracedServer],
        settings: ClientSettings = NOT_SECURED,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.servers = servers
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._pool = Workers(SERVERS_AT_ONCE)

    def __enter__(self) -> TracingCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        # A server that did not answer is not asked again while ^C ends the command: a trace that
        # is not read ends by itself.
        if kind is not KeyboardInterrupt:
            self.end()
        self._pool.__exit__(kind, *more)

    def end(self) -> None:
        """End the running traces, and get the rest of what they have found."""
        self._read(ends=True)

    def slowest(self) -> None:
        """Get the slowest requests of the last minutes of each server."""

        def ask(server: TracedServer) -> None:
            with self._client(server) as client:
                server.requests = client.slowest_requests()

        self._each(ask, self.servers)

    def start(self, wanted: TraceFilter) -> None:
        """Begin a trace on each server."""

        def ask(server: TracedServer) -> None:
            with self._client(server) as client:
                server.trace = client.start_trace(wanted)
            if not server.trace:
                server.problem = _TOO_MANY

        self._each(ask, self.servers)

    def until_ended(self, requests_max: int, seconds: float) -> Iterator[int]:
        """Read the traces until all have ended, or there are enough requests. Yield the number of
        requests so far."""
        ends = time.monotonic() + seconds
        while any(server.trace for server in self.servers):
            self._read(ends=time.monotonic() >= ends)
            count = sum(len(server.requests) for server in self.servers)
            yield count
            if count >= requests_max:
                return
            if any(server.trace for server in self.servers):
                time.sleep(min(POLL_SECONDS, max(0.0, ends - time.monotonic())))

    def _read(self, *, ends: bool) -> None:
        def ask(server: TracedServer) -> None:
            with self._client(server) as client:
                found = client.read_trace(server.trace, ends=ends)
            server.requests += found.requests
            server.ended = found.ended
            if found.ended:
                server.trace = 0

        self._each(ask, [server for server in self.servers if server.trace])

    def _client(self, server: TracedServer) -> AdminClient:
        from rpc.admin_client import AdminClient

        assert server.admin is not None, server
        files = self._settings.admin_files()
        address = server.admin.host, server.admin.port
        return AdminClient(address, files=files, timeout_s=self._timeout_seconds)

    def _each(self, ask: Callable[[TracedServer], None], servers: list[TracedServer]) -> None:
        """Call `ask` for each of the servers, at the same time. What fails is their problem."""

        def asked(server: TracedServer) -> None:
            try:
                ask(server)
            except TlsFailed as error:
                server.problem = str(error)
            except AdminError as error:
                server.problem = f"admin service: {error.details or error.code}"
                if error.code == "UNIMPLEMENTED":
                    server.problem = _OLD
            if server.problem:
                server.trace = 0

        waiting = [self._pool.submit(asked, one) for one in servers if one.admin is not None]
        for one in waiting:
            one.result()
