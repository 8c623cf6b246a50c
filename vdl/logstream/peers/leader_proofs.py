"""Proofs of live leaders and peers from the links, reported to the Raft nodes when needed.

With heartbeats by list, a quiet group has no messages of its own. The lists cover all groups of a
server at once (`liveness.py`). Their evidence is reported to a group at the two moments when it
counts: when one of its timers is due, and when a candidate requests its vote.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ids import NO_INDEX, NodeId, ServerId
from raft.messages import MsgHeartbeat
from raft.types import NONE
from rpc.denials import decode_denials
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import HostState

LATE_TIMEOUTS = 5
"""Election timeouts for which a list's acknowledgement counts for a peer that is heard of
otherwise. It passes through two turns of each server; both may be overloaded. It keeps no deposed
leader in office: a follower of a newer term denies the leader's claim with its next bytes."""


class LeaderProofs:
    """Leader proofs of one server."""

    __slots__ = ("_contradictions", "_liveness", "_state", "_within_ns")

    def __init__(
        self, state: HostState, liveness: Liveness, contradictions: Contradictions
    ) -> None:
        self._state = state
        self._liveness = liveness
        self._contradictions = contradictions
        self._within_ns = state.options.election_ticks * TICK_NS

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Call `done` once it is certain again which servers are alive; not from within this call.

        A client that has just lost its server connects to another one at once, before that one has
        noticed. True: a majority of the catalog's voters answered now, this server included if it
        is one. Other servers do not count: without those voters they decide nothing about the
        cluster, and however many of them are gone, it goes on.
        """
        state = self._state
        voters, servers = state.catalog.voters, state.catalog.servers
        # A server that waits to be added may be slow or far away.
        asked = [one for one in sorted(state.alive) if one in voters or one in servers]
        waiting = 1 + len(asked)
        heard = 0

        def confirmed(server: ServerId, answered: bool) -> None:
            nonlocal waiting, heard
            waiting -= 1
            heard += answered and server in voters
            if not waiting:
                done(2 * heard > len(voters))

        for server in asked:
            state.transport.confirm(server, partial(confirmed, server))
        state.clock.call_soon(partial(confirmed, state.server_id, True))

    def report_peers(self, group: Group) -> bool:
        """Report to a leading node which peers are there. Return True if they are a majority.

        A peer is there while bytes come from it, and it has recently acknowledged that this server
        leads. Acknowledgements alone would be too late under overload: each leader of a quiet group
        would be replaced by another that is equally late. A new leader is given the same time for
        the first one. It serves nothing until a majority holds an entry of its term.
        """
        unheard, alive = self._state.unheard, self._state.alive
        within_ns = LATE_TIMEOUTS * self._within_ns
        is_new = self._is_new(group, within_ns)
        heard = 1
        for replica in group.listed:
            server = server_of(replica)
            if server in unheard:
                continue
            if (is_new and server in alive) or self._has_acknowledged(group, replica, within_ns):
                group.node.peer_heard(replica)
                heard += 1
        return heard * 2 > len(group.listed)

    def _is_new(self, group: Group, within_ns: int) -> bool:
        """Return True if a leader has not committed in its term, which began within that time."""
        if group.node.own_term_committed:
            return False
        led = self._state.in_sync.get(group.group_id)
        return led is not None and self._state.loop_time.age_ns(led.since_ns) < within_ns

    def is_heard(self, group: Group, replica: NodeId) -> bool:
        """Return True if its server acknowledged this leader within an election timeout."""
        return self._has_acknowledged(group, replica, self._within_ns)

    def _has_acknowledged(self, group: Group, replica: NodeId, within_ns: int) -> bool:
        """Return True if the replica's server acknowledged this leader within that time.

        A server acknowledges a whole list; that counts for the replica that the catalog lists
        there, not for one of an earlier directory.
        """
        server = server_of(replica)
        hello = self._state.alive.get(server)
        return (
            hello is not None
            and replica not in self._state.dissenting.get(group.group_id, ())
            and hello.directory_id == self._state.catalog.directory_of(server)
            and self._liveness.is_peer_heard(server, group.group_id, within_ns=within_ns)
        )

    def look_at_in_sync(self, now_ns: int, *, share: int) -> None:
        """Check which replicas are in sync, for one `share`-th of the groups led here.

        Peers receive the changed lists.
        """
        for group in self._state.in_sync.look(now_ns, share=share, is_heard=self.is_heard):
            self._liveness.in_sync_changed(group)

    def denied(self, server: ServerId, payload: memoryview) -> None:
        """Take a DENIALS frame: a peer knows newer terms, and the leaders of older ones step down.

        Denials of a server without a member are ignored: a removed replica may have entered a term
        of its own. Raise MalformedFrame if the frame is malformed.
        """
        tick = self._state.loop_time.tick()
        for group_id, claimed, newer in decode_denials(payload):
            group = self._state.groups.get(group_id)
            if group is None or not group.node.is_leader or group.node.term != claimed:
                continue
            if any(server_of(member) == server for member in group.node.raft.progress):
                group.catch_up(tick)
                group.node.newer_term(newer)
                self._state.outbox.mark_dirty(group)

    def answer_claims(self, server: ServerId) -> None:
        """Deny outdated claims of a server of an older version.

        Each leader of an older term is answered as if it had sent a heartbeat to the replica here.
        """
        for denial in self._liveness.outdated(server):
            group = self._state.groups.get(denial.group)
            if group is not None and group.node.term > denial.claimed:
                node = group.node
                node.step(MsgHeartbeat(node.id, denial.replica, denial.claimed, NO_INDEX))
                self._state.outbox.mark_dirty(group)

    def report_leader(self, group: Group) -> bool:
        """Report to a node that its leader is alive, or which other replica leads.

        Return True if this may be more than a proof of the known leader.
        """
        heard = self._liveness.leader_heard(group.group_id)
        if heard is None:
            return False
        term, leader, ago_ns = heard
        node = group.node
        if node.term == term and node.lead not in {NONE, leader}:
            known = server_of(node.lead)
            says = f"server {server_of(leader)} leads term {term}, which server {known} leads"
            self._contradictions.found(
                server_of(leader), group.group_id, message="leader list", says=says
            )
            return False
        is_news = node.term != term or node.lead != leader
        # A leader of an older term is denied at the next heartbeat.
        node.leader_heard(ago_ns // TICK_NS, lead=leader, term=term)
        return is_news
