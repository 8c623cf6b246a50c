"""Calls to the admin services of a cluster's servers, one after the other until one answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ids import ServerId
from rpc.errors import AdminError, TlsFailed
from vdl.commands.checks.cluster_status import (
    DESCRIBE_CLUSTER_KEY,
    find_admin,
)
from vdl.commands.cluster.admin_requests import admin_settings
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import fail
from vdl.config.values import Address
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings, ClientSettingsError
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

TOO_OLD = "its version is too old for this command"

_Result = TypeVar("_Result")


def call_servers(
    connection: Connection,
    call: Callable[[AdminClient], _Result | None],
    *,
    otherwise: str = "no server answers",
) -> _Result:
    """Return the first result of `call` that is not None, of one server after the other.

    Raises click.ClickException if there is none, with the servers' problems or with `otherwise`.
    """
    problems: dict[str, None] = {}
    try:
        settings = admin_settings(connection)
        for server_id, client in _admin_clients(connection, settings, problems):
            try:
                with client:
                    result = call(client)
            except AdminError as error:
                problems[f"server {server_id}: {_words(error)}"] = None
                continue
            if result is not None:
                return result
    except (ClientSettingsError, TlsFailed) as error:
        fail(str(error))
    fail("; ".join(problems) or otherwise)


def _words(error: AdminError) -> str:
    if error.code == "UNIMPLEMENTED":
        return TOO_OLD
    return error.details or error.code


def _admin_clients(
    connection: Connection, settings: ClientSettings, problems: dict[str, None]
) -> Iterator[tuple[ServerId, AdminClient]]:
    """Yield clients of the servers' admin services. Note in `problems` why one has none."""
    from rpc.admin_client import AdminClient  # gRPC takes a while to load

    tried: set[ServerId] = set()
    wait = connection.timeout_seconds
    for address in addresses(connection.bootstrap):
        try:
            with KafkaClient(
                address.host, address.port, settings=settings, timeout_seconds=wait
            ) as kafka:
                everyone = DescribeClusterRequest(include_fenced_brokers=True)
                brokers = kafka.request(DESCRIBE_CLUSTER_KEY, everyone).brokers
        except Unreachable as error:
            problems[str(error)] = None
            continue
        for broker in brokers:
            server_id, place = ServerId(broker.broker_id), Address(broker.host, broker.port)
            if server_id in tried:
                continue
            tried.add(server_id)
            try:
                with KafkaClient(
                    place.host, place.port, settings=settings, timeout_seconds=wait
                ) as kafka:
                    admin = find_admin(kafka, server_id, place)
            except Unreachable as error:
                problems[str(error)] = None
                continue
            yield (
                server_id,
                AdminClient(
                    (admin.host, admin.port),
                    files=settings.admin_files(),
                    timeout_s=wait,
                ),
            )
