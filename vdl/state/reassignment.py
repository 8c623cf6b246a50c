"""How what the members of a group are to be is changed while the old ones are still needed.

A replica that is no longer wanted may still be one of the majority that holds what was acknowledged
until the group itself has removed it. So it is not deleted by the command that decides its removal:
it is *leaving*, and its server keeps it, until the group's leader says that the group has done its
part (`vdl/logstream/membership/reassignment.py`). Cancelling is the same way back: then the
replicas that were to come are leaving.

A leader that says so names the `revision` that it has seen through. Any change of what is wanted
makes a new one, and words about an older one count for nothing.

Must not know: topics, who leads, how a group changes its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ids import ReplicaNumber, ServerId

FIRST_REPLICA: Final = ReplicaNumber(1)
"""Replica number of a group's founding members."""


class ReplicaInfo(msgspec.Struct, frozen=True, array_like=True):
    """One copy of a group: (server id, replica number) is never given out twice for a group."""

    server_id: ServerId
    replica_number: ReplicaNumber


class Move(msgspec.Struct, frozen=True, array_like=True):
    """What reassignments have left behind, and have still to do, of one group."""

    revision: int = 0
    """How often it was changed what the members are to be, since the first reassignment."""
    origin: list[ServerId] = []
    """The servers of before the reassignment that is in progress, preferred leader first; empty
    while there is none, and once it is cancelled."""
    leaving: list[ReplicaInfo] = []
    """Not wanted any more, and perhaps still members."""
    former: list[ReplicaInfo] = []
    """The last number given out on each server that has no replica any more, by server: who comes
    back gets the next one."""

    @property
    def is_open(self) -> bool:
        """Whether the group has still to do its part."""
        return bool(self.origin or self.leaving)


NEVER_MOVED = Move()


class Reassignment(msgspec.Struct, frozen=True):
    """A reassignment in progress, as Kafka tells of it (KIP-455). Server ids."""

    replicas: list[ServerId]
    """All there are: those that are to be, preferred leader first, then those that go."""
    adding: list[ServerId]
    removing: list[ServerId]


def reassigned(
    wanted: Sequence[ReplicaInfo], move: Move, servers: Sequence[ServerId], *, cancels: bool = False
) -> tuple[list[ReplicaInfo], Move]:
    """What the members are to be, on `servers`, and the move that leads there. A second
    reassignment takes the place of the first, and still goes back to where that one began."""
    held = {replica.server_id: replica for replica in (*wanted, *move.leaving)}
    former = {replica.server_id: replica.replica_number for replica in move.former}
    after = [
        held.get(server) or ReplicaInfo(server, ReplicaNumber(former.get(server, 0) + 1))
        for server in servers
    ]
    leaving = [held[server] for server in sorted(held.keys() - set(servers))]
    origin = move.origin or [replica.server_id for replica in wanted]
    if {replica.server_id for replica in wanted} == set(servers):
        # Only their order changes. Whoever is still on the way goes on.
        return after, msgspec.structs.replace(move, origin=[] if cancels else move.origin)
    return after, Move(
        revision=move.revision + 1,
        origin=[] if cancels else origin,
        leaving=leaving,
        former=[replica for replica in move.former if replica.server_id not in servers],
    )


def finished(move: Move) -> Move:
    """The group has removed all that were leaving: nothing is left but the memory of numbers."""
    former = {replica.server_id: replica for replica in (*move.former, *move.leaving)}
    return Move(revision=move.revision, former=[former[server] for server in sorted(former)])


def renumbered(replicas: Sequence[ReplicaInfo], server_id: ServerId) -> list[ReplicaInfo]:
    """The same replicas, with the next number for the one on that server."""
    return [
        ReplicaInfo(server_id, ReplicaNumber(replica.replica_number + 1))
        if replica.server_id == server_id
        else replica
        for replica in replicas
    ]


def in_progress(wanted: Sequence[ReplicaInfo], move: Move) -> Reassignment | None:
    """What is to be told of it; None when nothing is in progress that was not cancelled."""
    if not move.origin:
        return None
    to_be = [replica.server_id for replica in wanted]
    removing = [replica.server_id for replica in move.leaving]
    adding = [server for server in to_be if server not in move.origin]
    return Reassignment([*to_be, *removing], adding, removing)
