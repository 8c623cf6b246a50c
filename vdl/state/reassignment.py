"""Changes of a group's target members while the old members are still needed.

A replica that is no longer wanted may still belong to the majority that holds acknowledged entries,
until the group itself has removed it. So the command that decides its removal does not delete it:
it is *leaving*, and its server keeps it until the group's leader reports that the group has done
its part (`vdl/logstream/membership/reassignment.py`). Cancelling works in the same way: then the
replicas that were to be added are leaving.

The leader's report names the `revision` that it has completed. Any change of the target members
makes a new revision, and reports about older ones are ignored.

Does not depend on topics, on leaders, or on how a group changes its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ids import ReplicaNumber, ServerId

FIRST_REPLICA: Final = ReplicaNumber(1)
"""Replica number of a group's initial members."""


class ReplicaInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One copy of a group. (server id, replica number) is never allocated twice for a group."""

    server_id: ServerId
    replica_number: ReplicaNumber


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Reassignment state of one group."""

    revision: int = 0
    """Number of changes of the target members since the first reassignment."""
    origin: list[ServerId] = []
    """Servers before the reassignment in progress, preferred leader first.

    Empty while none is in progress, and after it was cancelled.
    """
    leaving: list[ReplicaInfo] = []
    """Replicas that are no longer wanted and may still be members."""
    former: list[ReplicaInfo] = []
    """Last number allocated on each server without a replica, by server.

    A new replica on that server gets the next number.
    """

    @property
    def is_open(self) -> bool:
        """True if the group must still change its members or report that it has."""
        return bool(self.origin or self.leaving)


NEVER_MOVED = Move()


class Reassignment(msgspec.Struct, frozen=True):
    """A reassignment in progress, as Kafka reports it (KIP-455). Server ids."""

    replicas: list[ServerId]
    """All replicas: the target ones, preferred leader first, then the leaving ones."""
    adding: list[ServerId]
    removing: list[ServerId]


def reassigned(
    wanted: Sequence[ReplicaInfo], move: Move, servers: Sequence[ServerId], *, cancels: bool = False
) -> tuple[list[ReplicaInfo], Move]:
    """Return the target members, on `servers`, and the reassignment state that leads there.

    A second reassignment replaces the first; cancelling it returns to where the first one began.
    """
    held = {replica.server_id: replica for replica in (*wanted, *move.leaving)}
    former = {replica.server_id: replica.replica_number for replica in move.former}
    after = [
        held.get(server) or ReplicaInfo(server, ReplicaNumber(former.get(server, 0) + 1))
        for server in servers
    ]
    leaving = [held[server] for server in sorted(held.keys() - set(servers))]
    origin = move.origin or [replica.server_id for replica in wanted]
    if {replica.server_id for replica in wanted} == set(servers):
        # Only the order changes. Replicas that are being added or removed continue.
        return after, msgspec.structs.replace(move, origin=[] if cancels else move.origin)
    return after, Move(
        revision=move.revision + 1,
        origin=[] if cancels else origin,
        leaving=leaving,
        former=[replica for replica in move.former if replica.server_id not in servers],
    )


def finished(move: Move) -> Move:
    """Return the state after the group removed all leaving replicas: only the numbers are kept."""
    former = {replica.server_id: replica for replica in (*move.former, *move.leaving)}
    return Move(revision=move.revision, former=[former[server] for server in sorted(former)])


def renumbered(replicas: Sequence[ReplicaInfo], server_id: ServerId) -> list[ReplicaInfo]:
    """Return the same replicas, with the next number for the one on that server."""
    return [
        ReplicaInfo(server_id, ReplicaNumber(replica.replica_number + 1))
        if replica.server_id == server_id
        else replica
        for replica in replicas
    ]


def in_progress(wanted: Sequence[ReplicaInfo], move: Move) -> Reassignment | None:
    """Return the reassignment to report; None if none is in progress or it was cancelled."""
    if not move.origin:
        return None
    to_be = [replica.server_id for replica in wanted]
    removing = [replica.server_id for replica in move.leaving]
    adding = [server for server in to_be if server not in move.origin]
    return Reassignment([*to_be, *removing], adding, removing)
