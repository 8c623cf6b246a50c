"""Servers that were added to a cluster after its birth.

An added server has a replica of the catalog that never votes, and replicas of partitions. It is
*leaving* from the command that decommissions it until it is removed or taken back: it gets no new
replica, and the partitions that it has are moved to other servers.

Does not depend on links, on leaders, or on how a partition moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from ids import SERVER_ID_MAX, DirectoryId, ServerId
from vdl.state.commands import DrainServers
from vdl.state.placement import Load, substitute
from vdl.state.reassignment import Move, ReplicaInfo

ADDED_SERVERS_MAX = 48
"""Limit on added servers. Servers remember the journals of 64 directories (`journal_marks.py`)."""
INITIAL_VOTERS_MIN = 3
"""Number of initial servers from which on others may be added.

With fewer, the loss of one directory may already lose the catalog. Added servers do not prevent it.
"""


class AddedServer(msgspec.Struct, frozen=True, array_like=True):
    """A server that was added, from its admission to its removal."""

    server_id: ServerId
    directory_id: DirectoryId
    host: str
    port: int
    """Address at which the other servers reach it."""
    is_leaving: bool = False


def why_not_added(server_id: ServerId, initial_voters: int) -> str:
    """Return why no server of this id can be added to a cluster of this size; empty if it can.

    `initial_voters`: number of servers with which the cluster began.
    """
    if not 0 < server_id <= SERVER_ID_MAX:
        return f"server ids are 1 to {SERVER_ID_MAX}"
    if initial_voters < INITIAL_VOTERS_MIN:
        return (
            f"the cluster began with {initial_voters} servers: servers can be added to one that "
            f"began with {INITIAL_VOTERS_MIN} or more"
        )
    return ""


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


class Drain:
    """Choice of the servers that take replicas from leaving ones, in one turn."""

    def __init__(
        self,
        load: Load,
        racks: Mapping[ServerId, str],
        leaving: frozenset[ServerId],
        command: DrainServers,
    ) -> None:
        """`load` counts what is chosen; `racks`: the servers that may take replicas."""
        self._load = load
        self._racks = racks
        self._leaving = leaving
        self._alive = frozenset(command.alive)
        self._replicas_max = command.replicas_per_server_max

    @property
    def has_room(self) -> bool:
        """True if some server may take another replica of some partition."""
        limit = self._replicas_max
        return not limit or any(self._load.replicas[server] < limit for server in self._racks)

    def begun(self, servers: list[ServerId]) -> list[ServerId] | None:
        """Return the servers of a partition without leaving ones; None if there are too few."""
        return self._without(servers, self._leaving.intersection(servers), self._racks)

    def changed(
        self, wanted: Sequence[ReplicaInfo], move: Move, *, drains: bool
    ) -> list[ServerId] | None:
        """Return other servers for a move in progress; None if it can go on as it is.

        `drains`: it leads away from a leaving server. A server that is down and was to take a
        replica then gives way, but only to one that is there.
        """
        servers = [replica.server_id for replica in wanted]
        away = set(self._leaving.intersection(servers))
        if away:
            return self._without(servers, away, self._racks)
        if not drains or not self._alive:
            return None
        away = set(servers).difference(move.origin, self._alive)
        there = {server: rack for server, rack in self._racks.items() if server in self._alive}
        return self._without(servers, away, there) if away else None

    def _without(
        self, servers: list[ServerId], away: Collection[ServerId], racks: Mapping[ServerId, str]
    ) -> list[ServerId] | None:
        wanted = list(servers)
        for position, server in enumerate(servers):
            if server not in away:
                continue
            chosen = substitute(
                self._load,
                racks,
                [other for other in wanted if other != server],
                alive=self._alive,
                replicas_max=self._replicas_max,
            )
            if chosen is None:
                return None
            wanted[position] = chosen
        for server in wanted:
            if server not in servers:
                self._load.replicas[server] += 1
        return wanted
