"""Who is alive and who leads what, as the links between servers prove it.

A list heartbeat from a server proves to every follower of a group on its list that the leader
lives, and its acknowledgement proves to the leader that the peer does. Both are looked up here when
a group falls due, not when the heartbeat arrives: a heartbeat costs the same whatever the number of
groups.

Who led a group is known until the group is deleted, and then to nobody: a server without a replica
of it hears of its leaders like any other, and a peer that lags may name one once more.

Must not know: timers, sockets.
"""

from __future__ import annotations

from ids import NO_LEADER, GroupId, NodeId, ServerId, Term
from rpc.denials import Denial
from rpc.hello import VERSION_OF_DENIALS
from rpc.leaders import LeaderChange, LeaderConflict, LeaderLists, OutFrame
from rpc.peer import FrameType
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import server_of
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.state import HostState


class Liveness:
    """The leader lists of one server, both directions, on the server's clock."""

    __slots__ = ("_contradictions", "_deletions", "_led", "_lists", "_loop_time", "_state")

    def __init__(self, state: HostState, contradictions: Contradictions) -> None:
        self._state = state
        self._contradictions = contradictions
        self._loop_time = state.loop_time
        self._deletions = 0
        """Grows by one with each group that the applied catalog deletes."""
        self._lists = LeaderLists(self._conflict_found)
        self._led: dict[GroupId, int] = {}
        """Group → term this server leads it in."""

    def _conflict_found(self, conflict: LeaderConflict) -> None:
        self._contradictions.found(
            conflict.server_id, conflict.group, message="leader list", says=str(conflict)
        )

    # --- this server's own groups ---------------------------------------------------------
    def lead(
        self, group_id: GroupId, term: Term, replica_id: NodeId, in_sync: tuple[ServerId, ...] = ()
    ) -> bool:
        """This server leads the group; True when that is new. `in_sync`: see `rpc.leaders`."""
        if self._led.get(group_id) == term:
            return False
        self._led[group_id] = term
        self._lists.sender.set(group_id, term, replica_id, in_sync)
        return True

    def in_sync_changed(self, group: Group) -> None:
        """Other replicas of a group that is led here are in sync now: peers get the new list, and
        whoever waits for copies is looked at."""
        in_sync = self._state.in_sync[group.group_id]
        if self._led.get(group.group_id) == in_sync.term:
            self._lists.sender.set(group.group_id, in_sync.term, group.replica_id, in_sync.servers)
        if group.awaits_copies:
            self._state.outbox.mark_dirty(group)

    def resign(self, group_id: GroupId) -> bool:
        """It does not, or not any more; True when that is new."""
        if self._led.pop(group_id, None) is None:
            return False
        self._lists.sender.drop(group_id)
        return True

    def entered(self, group_id: GroupId, term: Term) -> None:
        """The replica here is in this term: whoever leads an older one is deposed, or will be."""
        self._lists.receiver.entered(group_id, term)

    def forget(self, group_id: GroupId) -> None:
        """The group was deleted."""
        self.resign(group_id)
        self._lists.receiver.forget_group(group_id)

    def catalog_changed(self) -> None:
        """The applied catalog may have deleted groups, whether they had a replica here or not."""
        catalog = self._state.catalog
        deletions = catalog.next_group_id - len(catalog.groups)
        if deletions != self._deletions:
            self._deletions = deletions
            self._lists.receiver.forget_groups(catalog.has_deleted)

    # --- links ----------------------------------------------------------------------------
    def link_up(self, server_id: ServerId) -> list[OutFrame]:
        """A new session: what to send first."""
        self._lists.connected(server_id)
        return self.beat(server_id)

    def link_down(self, server_id: ServerId) -> None:
        self._lists.disconnected(server_id)

    def beat(self, server_id: ServerId) -> list[OutFrame]:
        """What to send at a heartbeat."""
        clock = self._state.clock
        return self._lists.frames(
            server_id,
            clock.now_ns(),
            wall_ms=clock.wall_ms(),
            denies=self._state.alive[server_id].version >= VERSION_OF_DENIALS,
        )

    def outdated(self, server_id: ServerId) -> list[Denial]:
        """What a server claims that takes no denials, and is older than what is known here."""
        takes_denials = self._state.alive[server_id].version >= VERSION_OF_DENIALS
        return [] if takes_denials else self._lists.receiver.denials(server_id)

    def received(
        self, server_id: ServerId, frame_type: FrameType, payload: memoryview
    ) -> list[LeaderChange]:
        """A HEARTBEAT or LEADERS frame; returns what is new. Raises RemoteError."""
        changes = self._lists.received(server_id, frame_type, payload, self._state.clock.now_ns())
        changed: list[LeaderChange] = []
        for change in changes:
            if self._state.catalog.has_deleted(change.group):
                self._lists.receiver.forget_group(change.group)
            else:
                changed.append(change)
        return changed

    def wall_received(self, server_id: ServerId) -> tuple[int, int]:
        """(wall clock in the server's last heartbeat, when the newest of our heartbeats was sent
        that it has acknowledged, -1 for none)."""
        lists = self._lists
        return lists.receiver.wall_ms(server_id), lists.sender.acked_ns(server_id)

    def silent_ns(self, server_id: ServerId) -> int:
        """How long ago it was that a server confirmed its list and was sent the newest heartbeat
        that it acknowledged, the longer of both; since the clock began, if one never was."""
        lists = self._lists
        confirmed_ns = lists.receiver.confirmed_ns(server_id)
        return self._loop_time.age_ns(max(0, min(confirmed_ns, lists.sender.acked_ns(server_id))))

    def heard_ago(self, replica: NodeId) -> int:
        """Ticks since this server sent the newest heartbeat that a replica's server has
        acknowledged: what was sent to it before that has been read there, if it came at all."""
        acked_ns = self._lists.sender.acked_ns(server_of(replica))
        return self._loop_time.age_ns(acked_ns) // TICK_NS

    # --- proofs ---------------------------------------------------------------------------
    def leader_heard(self, group_id: GroupId) -> tuple[Term, NodeId, int] | None:
        """(term, replica id, nanoseconds since it was certainly alive) of the listed leader of a
        group, if its server has confirmed its list on a live link."""
        found = self._lists.receiver.confirmed(group_id)
        if found is None:
            return None
        leader, confirmed_ns = found
        return leader.term, leader.replica, self._loop_time.age_ns(confirmed_ns)

    def is_peer_heard(self, server_id: ServerId, group_id: GroupId, *, within_ns: int) -> bool:
        """Whether the peer has acknowledged, within that time, that this server leads the group."""
        sent_ns = self._lists.sender.heard_ns(server_id, group_id)
        return sent_ns >= 0 and self._loop_time.age_ns(sent_ns) < within_ns

    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """The servers whose replicas are in sync, as the freshest leader that the other servers'
        lists name has last said; also when it leads no longer and nobody does."""
        leader = self._lists.receiver.leader(group_id)
        return () if leader is None else leader.in_sync

    def count(self, server_id: ServerId) -> int:
        """How many groups another server leads, as its list says."""
        return self._lists.receiver.count(server_id)

    def listed_leader(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """(server id, term) as the other servers' lists have it; (-1, term) when it is known that
        the term's leader gave up, (-1, -1) when nothing is known."""
        leader = self._lists.receiver.leader(group_id)
        if leader is None:
            return NO_LEADER
        return leader.server_id or NO_LEADER[0], leader.term

    def leader_of(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """(server id, term) of a group's leader, the freshest known: by the lists, and by the
        replica here, if there is one; (-1, -1) for none alive."""
        state = self._state
        group = state.groups.get(group_id)
        listed = self.listed_leader(group_id)
        if group is not None:
            node = group.node
            if node.lead and node.term >= listed[1]:
                listed = (server_of(node.lead), node.term)
            elif node.term > listed[1]:
                return NO_LEADER
        server, term = listed
        if server == state.server_id or server in state.alive:
            return server, term
        return NO_LEADER
