"""A copy of a live cluster's catalog, on which a plan is tried.

It is a `Catalog`, and decides as the cluster's own does: commands of the copy are refused for the
same reasons, and a server is drained by the same code. Its groups have the order of the live ones,
because a drain follows it. Settings, users and numbers of replicas are not copied: no placement
depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

from ids import DirectoryId, GroupId, Index, ServerId
from vdl.commands.changes.live_cluster import LiveCluster, LivePartition
from vdl.state import commands
from vdl.state.balance import Where
from vdl.state.catalog import Catalog

LEAVING, WAITING, JOINING = "leaving", "waiting", "joining"


class CatalogCopy:
    """The copy, and which of its groups is which partition."""

    def __init__(self, live: LiveCluster) -> None:
        members = [one.member for one in live.servers.values()]
        voters = [one.server_id for one in members if one.is_voter]
        self.catalog = Catalog(
            live.cluster_id,
            coordinator_groups=0,
            initial_voters={server: directory_of(server) for server in voters},
        )
        self.where: dict[GroupId, Where] = {}
        for one in members:
            if not one.is_voter and one.standing != WAITING:
                self.admit(one.server_id)
            if one.standing not in (WAITING, JOINING):
                self.register(one.server_id, one.rack)
        self._create(sorted(live.partitions.values(), key=lambda p: (p.group_id, p.where)))
        for one in members:
            if one.standing == LEAVING:
                self.decommission(one.server_id)

    def admit(self, server: ServerId) -> str:
        """Add a server. Return why that is refused, empty if it is not."""
        message: str = self._apply(
            commands.AdmitServer(server, directory_of(server), "", 0)
        ).message
        return message

    def register(self, server: ServerId, rack: str) -> None:
        """Let a server serve clients."""
        is_voter = server in self.catalog.voters
        self._apply(commands.RegisterServer(server, directory_of(server), rack, {}, is_voter))

    def decommission(self, server: ServerId) -> str:
        """Begin to remove a server. Return why that is refused, empty if it is not."""
        command: commands.Command = commands.DecommissionVoter(server, directory_of(server))
        if server in self.catalog.added:
            command = commands.DecommissionServer(server, directory_of(server), is_leaving=True)
        message: str = self._apply(command).message
        for topic, partition in self.where.values():
            message = message.replace(f"{_name((topic, partition))}-0", f"{topic}-{partition}")
        return message

    def move_votes(self, server: ServerId, able: Sequence[ServerId]) -> ServerId | None:
        """Give the votes of a leaving server to another, as the catalog's leader would now.

        Return the other one; None if it has no votes, or no other can take them. `able`: servers
        that are there.
        """
        before = self.catalog.voters
        self._apply(commands.MoveVotes(list(able)))
        return next(
            (
                new
                for old, new in zip(before, self.catalog.voters, strict=True)
                if old == server != new
            ),
            None,
        )

    def in_progress(self) -> list[tuple[GroupId, tuple[ServerId, ...]]]:
        """Return the groups that are being moved, and their replicas of before."""
        moves, open_moves = self.catalog.moves, self.catalog.open_moves & self.where.keys()
        return [(group, tuple(moves[group].origin)) for group in sorted(open_moves)]

    def drain(self, command: commands.DrainServers) -> list[tuple[GroupId, tuple[ServerId, ...]]]:
        """Begin what the catalog's leader would begin now. Return groups and their replicas of
        before."""
        begun = [(group, self.replicas(group)) for group, _ in self.catalog.drain_plan(command)]
        self._apply(command)
        return begun

    def reassign(self, where: Where, servers: Iterable[ServerId], replicas_max: int = 0) -> str:
        """Begin to move a partition. Return why that is refused, empty if it is not."""
        asked = commands.Reassign(_name(where), 0, list(servers))
        command = commands.AlterReassignments([asked], replicas_per_server_max=replicas_max)
        message: str = self._apply(command).errors[0][1]
        return message

    def finish(self, groups: Iterable[GroupId]) -> None:
        """Complete the moves of some groups."""
        moves = [commands.FinishedMove(one, self.catalog.move(one).revision) for one in groups]
        self._apply(commands.FinishReassignments(moves))

    def replicas(self, group: GroupId) -> tuple[ServerId, ...]:
        """Return the servers of a group, preferred leader first."""
        return tuple(replica.server_id for replica in self.catalog.replicas(group))

    def _create(self, partitions: Sequence[LivePartition]) -> None:
        """Copy partitions, each as a topic of its own: partitions of a topic need not have been
        created in one piece, nor have equally many replicas. One command creates all: each command
        counts the load of all servers."""
        topics, moves = [], []
        for partition in partitions:
            target, moving, name = partition.replicas, partition.moving, _name(partition.where)
            origin = list(target)
            if moving is not None:
                origin = [one for one in target if one not in moving.adding] + moving.removing
                moves.append(commands.Reassign(name, 0, list(target)))
            topic_id = sha256(name.encode()).digest()[:16]
            topics.append(commands.NewTopic(name, topic_id, assignments=[origin]))
        answer = self._apply(commands.CreateTopics(topics))
        for partition, created in zip(partitions, answer.topics, strict=True):
            self.where[created.group_ids[0]] = partition.where
        if moves:
            self._apply(commands.AlterReassignments(moves))

    def _apply(self, command: Any) -> Any:
        return self.catalog.apply(command, 0, Index(1))


def directory_of(server: ServerId) -> DirectoryId:
    """Return a directory id that stands for a server's."""
    return DirectoryId(server.to_bytes(16, "big"))


def _name(where: Where) -> str:
    """Return the name of a partition's topic in the copy. Names of topics may be as long as Kafka
    allows, so the partition is a digest with them."""
    return sha256(f"{where[0]}/{where[1]}".encode()).hexdigest()
