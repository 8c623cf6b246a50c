"""Servers that were added to a cluster after its birth.

An added server has a replica of the catalog that never votes, and replicas of partitions. It is
*leaving* from the command that decommissions it until it is removed or taken back: it gets no new
replica, and the partitions that it has are moved to other servers.

Does not depend on links, on leaders, or on how a partition moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from ids import DirectoryId, ServerId
from vdl.state.reassignment import ReplicaInfo

ADDED_SERVERS_MAX = 48
"""Limit on added servers. Servers remember the journals of 64 directories (`journal_marks.py`)."""


class AddedServer(msgspec.Struct, frozen=True, array_like=True):
    """A server that was added, from its admission to its removal."""

    server_id: ServerId
    directory_id: DirectoryId
    host: str
    port: int
    """Address at which the other servers reach it."""
    is_leaving: bool = False


def why_not_without(
    leaving: Collection[ServerId],
    staying: Collection[ServerId],
    partitions: Mapping[str, Iterable[ReplicaInfo]],
) -> str:
    """Return why the cluster cannot go on with the servers `staying` alone; empty if it can.

    `leaving`: all servers that are to be removed. `partitions`: the replicas of each partition, by
    its name. One without a replica on these servers stays where it is.
    """
    count = len(staying)
    remain = "one server would remain" if count == 1 else f"{count} servers would remain"
    for name, replicas in partitions.items():
        servers = [replica.server_id for replica in replicas]
        if len(servers) > count and not set(leaving).isdisjoint(servers):
            return f"{name} has {len(servers)} replicas, but only {remain}"
    return ""
