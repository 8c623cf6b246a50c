"""Requests that librdkafka has no call for, over VDL's own client: sizes of logs, share groups,
types of groups, documentation of settings.

They are asked of each server by itself. A cluster may be too old for one of them, and a login may
be of a kind that the client does not know (Kerberos, OAUTHBEARER, certificates in line): the
command then goes without, or says what is missing (`NotOffered`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vdl.commands.cluster.admin_requests import own_client_settings
from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.workers import Workers
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings, ClientSettingsError
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.runtime import EncodeError

FIND_COORDINATOR = 10
_SERVERS_AT_ONCE = 8


class NotOffered(Exception):
    """No answer to be had: the reason."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Single requests to the servers of a cluster, by their ids. Calls raise NotOffered."""

    cluster: Cluster
    addresses: dict[int, tuple[str, int]]
    settings: ClientSettings

    def at(self, server: int, api_key: int, message: Any) -> Any:
        """Return a server's response."""
        if server not in self.addresses:
            raise NotOffered(f"server {server} is not there")
        host, port = self.addresses[server]
        try:
            with KafkaClient(
                host,
                port,
                settings=self.settings,
                timeout_seconds=self.cluster.timeout_seconds,
            ) as client:
                return client.request(api_key, message)
        except (Unreachable, ClientSettingsError) as error:
            raise NotOffered(str(error)) from None
        except EncodeError as error:
            # The server's newest version has no place for what is asked.
            raise NotOffered(f"server {server} is too old: {error}") from None

    def at_each(
        self, servers: Iterable[int], api_key: int, message: Any
    ) -> dict[int, Any | NotOffered]:
        """Return each server's response, or why there is none; some servers at a time."""

        def one(server: int) -> Any:
            try:
                return self.at(server, api_key, message)
            except NotOffered as error:
                return error

        names = sorted(servers)
        with Workers(_SERVERS_AT_ONCE) as pool:
            return dict(zip(names, pool.map(one, names), strict=True))

    def coordinator(self, group: str) -> int:
        """Return the server that coordinates a group."""
        asked = FindCoordinatorRequest(coordinator_keys=[group])
        answer = self.at(min(self.addresses), FIND_COORDINATOR, asked)
        (found,) = answer.coordinators
        if found.error_code:
            raise NotOffered(f"{group}: no coordinator: {found.error_message}")
        server: int = found.node_id
        return server


def direct(cluster: Cluster) -> Direct:
    """Return the direct requests of a cluster. Raises NotOffered for a login that VDL's own client
    does not know."""
    where = cluster.connection
    try:
        settings = own_client_settings(cluster.properties(), where.source, where.folder)
    except ClientSettingsError as error:
        raise NotOffered(str(error)) from None
    brokers = cluster.metadata().brokers
    addresses = {server: (str(one.host), int(one.port)) for server, one in brokers.items()}
    return Direct(cluster, addresses, settings)
