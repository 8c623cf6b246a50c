"""Servers that wait to be added to a cluster, and are added all at once.

Does not depend on how they are started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ids import ServerId
from rpc.admin import MemberChange
from vdl.commands.checks.admin_calls import call_servers
from vdl.commands.cluster.connection import Connection
from vdl.config.values import Address

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

_WAITING, _JOINING = "waiting", "joining"


def add_waiting(connection: Connection, addresses: Mapping[ServerId, Address]) -> set[ServerId]:
    """Add those of some servers that wait at one that answers. `addresses`: for other servers.

    Return the servers that the cluster has already and that wait all the same: they lost their
    data directory, and an operator decides about them. A server that cannot be added yet is left
    out: call again. Raises click.ClickException.
    """

    def call(client: AdminClient) -> set[ServerId]:
        standing = {one.server_id: one.standing for one in client.members()}
        for server, address in sorted(addresses.items()):
            if standing.get(server) == _WAITING:
                client.change_member(MemberChange.ADD, server, host=address.host, port=address.port)
        known = {server for server, found in standing.items() if found not in (_WAITING, _JOINING)}
        return known & addresses.keys()

    return call_servers(connection, call)
