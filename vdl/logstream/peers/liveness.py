"""Live servers and leaders, as proved by the links between servers.

A list heartbeat from a server proves to every follower of a group on its list that the leader is
alive, and its acknowledgement proves to the leader that the peer is. Both are looked up here when a
group is due, not when the heartbeat arrives: a heartbeat costs the same for any number of groups.

The last leader of a group is known until the group is deleted, but not longer: a server without a
replica of it also receives its leaders, and a peer that lags may list one once more.

Does not depend on timers or sockets.
"""

from __future__ import annotations

from collections.abc import Iterable

from ids import NO_LEADER, GroupId, NodeId, ServerId, Term
from rpc.denials import Denial
from rpc.hello import VERSION_OF_DENIALS
from rpc.leaders import LeaderChange, LeaderConflict, LeaderLists, OutFrame
from rpc.peer import FrameType
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.state import HostState


class Liveness:
    """The leader lists of one server, both directions, on the server's clock."""

    __slots__ = ("_contradictions", "_deletions", "_lists", "_loop_time", "_state", "led")

    def __init__(self, state: HostState, contradictions: Contradictions) -> None:
        self._state = state
        self._contradictions = contradictions
        self._loop_time = state.loop_time
        self._deletions = 0
        """Number that grows by one with each group that the applied catalog deletes."""
        self._lists = LeaderLists(self._conflict_found)
        self.led: dict[GroupId, int] = {}
        """Group → term in which this server leads it."""

    def _conflict_found(self, conflict: LeaderConflict) -> None:
        self._contradictions.found(
            conflict.server_id, conflict.group, message="leader list", says=str(conflict)
        )

    # --- this server's own groups ---------------------------------------------------------
    def lead(
        self, group_id: GroupId, term: Term, replica_id: NodeId, in_sync: tuple[ServerId, ...] = ()
    ) -> None:
        """Note that this server leads the group, or leads it in another term.

        `in_sync`: see `rpc.leaders`.
        """
        self.led[group_id] = term
        self._lists.sender.set(group_id, term, replica_id, in_sync)

    def in_sync_changed(self, group: Group) -> None:
        """Send the new in-sync list of a group led here, and check appends that wait for copies."""
        in_sync = self._state.in_sync[group.group_id]
        if self.led.get(group.group_id) == in_sync.term:
            self._lists.sender.set(group.group_id, in_sync.term, group.replica_id, in_sync.servers)
        if group.awaits_copies:
            self._state.outbox.mark_dirty(group)

    def resign(self, group_id: GroupId) -> None:
        """Note that this server does not lead the group."""
        if self.led.pop(group_id, None) is not None:
            self._lists.sender.drop(group_id)

    def entered(self, group_id: GroupId, term: Term) -> None:
        """Note the term of the replica here: leaders of older terms are deposed, or will be."""
        self._lists.receiver.entered(group_id, term)

    def forget(self, group_id: GroupId) -> None:
        """Forget a deleted group."""
        self.resign(group_id)
        self._lists.receiver.forget_group(group_id)

    def catalog_changed(self) -> None:
        """Forget groups that the applied catalog deleted, with or without a replica here."""
        catalog = self._state.catalog
        deletions = catalog.next_group_id - len(catalog.groups)
        if deletions != self._deletions:
            self._deletions = deletions
            self._lists.receiver.forget_groups(catalog.has_deleted)

    # --- links ----------------------------------------------------------------------------
    def link_up(self, server_id: ServerId) -> list[OutFrame]:
        """Start a session. Return the first frames to send."""
        self._lists.connected(server_id)
        return self.beat(server_id)

    def link_down(self, server_id: ServerId) -> None:
        self._lists.disconnected(server_id)

    def beat(self, server_id: ServerId) -> list[OutFrame]:
        """Return the frames to send at a heartbeat."""
        clock = self._state.clock
        return self._lists.frames(
            server_id,
            clock.now_ns(),
            wall_ms=clock.wall_ms(),
            denies=self._state.alive[server_id].version >= VERSION_OF_DENIALS,
        )

    def outdated(self, server_id: ServerId) -> list[Denial]:
        """Return the outdated claims of a server whose version takes no denials."""
        takes_denials = self._state.alive[server_id].version >= VERSION_OF_DENIALS
        return [] if takes_denials else self._lists.receiver.denials(server_id)

    def received(
        self, server_id: ServerId, frame_type: FrameType, payload: memoryview
    ) -> list[LeaderChange]:
        """Take a HEARTBEAT or LEADERS frame. Return the changes.

        Raise RemoteError if it is invalid.
        """
        changes = self._lists.received(server_id, frame_type, payload, self._state.clock.now_ns())
        changed: list[LeaderChange] = []
        for change in changes:
            if self._state.catalog.has_deleted(change.group):
                self._lists.receiver.forget_group(change.group)
            else:
                changed.append(change)
        return changed

    def wall_received(self, server_id: ServerId) -> tuple[int, int]:
        """Return the wall clock in the server's last heartbeat, and when our newest one was sent.

        The latter is the newest that the server has acknowledged, -1 for none.
        """
        lists = self._lists
        return lists.receiver.wall_ms(server_id), lists.sender.acked_ns(server_id)

    def silent_ns(self, server_id: ServerId) -> int:
        """Return for how long a server has been silent.

        The longer of two times: since it confirmed its list, and since the newest heartbeat was
        sent that it acknowledged; since the clock began, if there was none.
        """
        lists = self._lists
        confirmed_ns = lists.receiver.confirmed_ns(server_id)
        return self._loop_time.age_ns(max(0, min(confirmed_ns, lists.sender.acked_ns(server_id))))

    def heard_ago(self, replica: NodeId) -> int:
        """Return the ticks since the newest heartbeat that a replica's server acknowledged.

        They count from its sending. All that was sent to it before has been read there, if it
        arrived at all.
        """
        acked_ns = self._lists.sender.acked_ns(server_of(replica))
        return self._loop_time.age_ns(acked_ns) // TICK_NS

    def is_unread(self, group: Group, since_ns: int) -> bool:
        """Return True if too few peers for a majority have read what was sent to them by then.

        They will: their servers are linked. False if no majority is linked. A peer has read what
        was sent before the newest heartbeat that it acknowledged.
        """
        state, sender = self._state, self._lists.sender
        voters = group.node.membership.voters()
        linked = read = 0
        for replica in voters:
            server = server_of(replica)
            is_own = server == state.server_id
            linked += is_own or server in state.alive
            read += is_own or sender.acked_ns(server) >= since_ns
        return 2 * linked > len(voters) >= 2 * read

    # --- proofs ---------------------------------------------------------------------------
    def leader_heard(self, group_id: GroupId) -> tuple[Term, NodeId, int] | None:
        """Return the listed leader of a group, if its server confirmed its list on a live link.

        (term, replica id, nanoseconds since it was certainly alive).
        """
        found = self._lists.receiver.confirmed(group_id)
        if found is None:
            return None
        leader, confirmed_ns = found
        return leader.term, leader.replica, self._loop_time.age_ns(confirmed_ns)

    def is_peer_heard(self, server_id: ServerId, group_id: GroupId, *, within_ns: int) -> bool:
        """Return True if the peer acknowledged this server as the group's leader in that time."""
        sent_ns = self._lists.sender.heard_ns(server_id, group_id)
        return sent_ns >= 0 and self._loop_time.age_ns(sent_ns) < within_ns

    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """Return the servers of in-sync replicas, as last reported by the newest listed leader.

        The lists are those of the other servers. Also after that leader has resigned.
        """
        leader = self._lists.receiver.leader(group_id)
        return () if leader is None else leader.in_sync

    def count(self, server_id: ServerId) -> int:
        """Return the number of groups that another server leads, by its list."""
        return self._lists.receiver.count(server_id)

    def listed_leader(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """Return (server id, term) of a group's leader in the other servers' lists.

        (-1, term) if the term's leader is known to have resigned, (-1, -1) if nothing is known.
        """
        leader = self._lists.receiver.leader(group_id)
        if leader is None:
            return NO_LEADER
        return leader.server_id or NO_LEADER[0], leader.term

    def leader_of(self, group_id: GroupId) -> tuple[ServerId, Term]:
        """Return (server id, term) of a group's newest known leader; (-1, -1) if none is alive.

        Known by the lists, and by the replica here if there is one.
        """
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

    def leaderless(self, groups: Iterable[Group]) -> int:
        """Return how many of the groups with these replicas have no leader by `leader_of`.

        Fast for thousands, of which nearly all follow a leader that is alive.
        """
        alive, own, listed = self._state.alive, self._state.server_id, self._lists.receiver.leader
        count = 0
        for group in groups:
            raft, group_id = group.node.raft, group.group_id
            known = listed(group_id)
            if raft.lead and (known is None or known.term <= raft.term):
                server = server_of(raft.lead)
                count += server != own and server not in alive
            else:
                count += self.leader_of(group_id)[0] < 0
        return count
