"""Requests of clients that any server passes to a leader.

These are preferred leader elections, and queries for the state of the catalog's quorum. The server
that received the client's request queries the leader (`peers/queries.py`), which may be itself.

Does not depend on topics or the Kafka protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ids import GroupId, ServerId
from rpc.queries import (
    GROUPS_MAX,
    AskQuorum,
    Elect,
    Elected,
    Query,
    Quorum,
    QuorumMember,
    Reply,
)
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.peers.queries import Queries
from vdl.logstream.state import CATALOG_GROUP, HostState


class LeaderRequests:
    """Requests to leaders, for clients of this server."""

    __slots__ = ("_liveness", "_state", "_transfers", "queries")

    def __init__(self, state: HostState, transfers: Transfers, liveness: Liveness) -> None:
        self._state = state
        self._transfers = transfers
        self._liveness = liveness
        self.queries = Queries(state, self._answer)

    def elect_preferred(
        self,
        leader: ServerId,
        groups: Sequence[GroupId],
        *,
        deadline_ns: int,
        done: Callable[[frozenset[GroupId] | None], None],
    ) -> None:
        """Request the leader of these groups to transfer them to their preferred leaders.

        The request is sent in parts. `done` receives the groups that are not transferred; None: not
        all answers came, and any of the groups may have been transferred.
        """
        left = list(groups)
        refused: set[GroupId] = set()

        def ask() -> None:
            if not left:
                done(frozenset(refused))
                return
            query = Elect(tuple(left[:GROUPS_MAX]))
            del left[:GROUPS_MAX]
            self.queries.ask(leader, query, deadline_ns=deadline_ns, done=answered)

        def answered(reply: Reply | None) -> None:
            if isinstance(reply, Elected):
                refused.update(reply.refused)
                ask()
            else:
                done(None)

        ask()

    def describe_quorum(self, *, deadline_ns: int, done: Callable[[Quorum | None], None]) -> None:
        """Query the catalog's leader for the state of its members.

        `done` receives None if there is no leader, or no answer.
        """
        leader, _ = self._liveness.leader_of(CATALOG_GROUP)
        if leader < 0:
            done(None)
            return

        def answered(reply: Reply | None) -> None:
            done(reply if isinstance(reply, Quorum) else None)

        self.queries.ask(leader, AskQuorum(CATALOG_GROUP), deadline_ns=deadline_ns, done=answered)

    def _answer(self, query: Query) -> Reply | None:
        """Answer a query of another server, or of this one."""
        if isinstance(query, Elect):
            return Elected(tuple(self._transfers.hand_to_preferred(query.groups)))
        return self._quorum(query.group)

    def _quorum(self, group_id: GroupId) -> Quorum | None:
        state = self._state
        group = state.groups.get(group_id)
        if group is None or not group.serving:
            return None
        node = group.node
        in_sync = state.in_sync.lead(group, state.clock.now_ns())
        members: list[QuorumMember] = []
        for replica in group.members:
            progress = node.progress(replica)
            if progress is not None:
                heard_ms, caught_up_ms = in_sync.times(replica, state.clock)
                members.append(
                    QuorumMember(
                        server_id=server_of(replica),
                        is_learner=progress.is_learner,
                        last=node.last_index if replica == group.replica_id else progress.match,
                        heard_ms=heard_ms,
                        caught_up_ms=caught_up_ms,
                    )
                )
        return Quorum(state.server_id, node.term, node.commit, tuple(members))
