"""Campaigns of a replica on a server without clients, if no other replica can be elected.

Such a replica does not campaign (`server_status.py`). If it has entries that the other remaining
voters lack, none of those can be elected either (§5.4.1), and the group may not go on without these
entries, for they may be committed. So it may campaign like any other after `TIMEOUTS` election
timeouts in which it heard no leader, gave no vote, and refused one to a server that serves. When it
leads, it brings others up to date, and its server transfers the leadership within seconds, as any
server that should not lead (`Transfers`, thesis §3.10).

The delay must not be much shorter: on slow disks elections take a few timeouts, and another
candidate would disturb them.
"""

from __future__ import annotations

from typing import Final

from ids import GroupId, ServerId
from raft.messages import MsgPreVote, MsgVote
from vdl.logstream.group.group import Group
from vdl.logstream.peers.leader_proofs import LeaderProofs
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.state import HostState

TIMEOUTS: Final = 5
RECENTLY: Final = 3
"""Election timeouts for which a refusal counts: a refused candidate requests votes again after
each."""


class LastResort:
    """Last resorts of one server, for as long as it serves no clients."""

    __slots__ = ("_election_ticks", "_proofs", "_refused", "_state", "_status")

    def __init__(self, state: HostState, status: ServerStatus, proofs: LeaderProofs) -> None:
        self._state = state
        self._status = status
        self._proofs = proofs
        self._election_ticks = state.options.election_ticks
        self._refused: dict[GroupId, int] = {}
        """By group: tick at which a candidate on a server that serves was last refused here because
        it lacks entries."""

    def requested(self, group: Group, request: MsgVote | MsgPreVote, server_id: ServerId) -> None:
        """Note that a candidate requests the vote of a replica here."""
        raft, group_id = group.node.raft, group.group_id
        if (
            not raft.may_lead
            and not group.is_loading  # a server that serves also loads states
            and not raft.log.is_up_to_date(index=request.index, term=request.log_term)
            and self._status.can_lead(server_id, group_id)
        ):
            self._refused[group_id] = self._state.loop_time.tick()

    def look(self) -> None:
        """Permit or end last-resort campaigns. Use: once a second."""
        state, status = self._state, self._status
        for group_id in sorted(status.last_resorts):
            group = state.groups.get(group_id)
            if group is None or status.serves:
                status.last_resorts.discard(group_id)
            elif group.node.lead and not group.node.is_leader:
                status.last_resorts.discard(group_id)
                group.node.allow_leading(allowed=False)
        tick = state.loop_time.tick()
        for group_id, refused in list(self._refused.items()):
            group = state.groups.get(group_id)
            if group is None or tick - refused > RECENTLY * self._election_ticks:
                del self._refused[group_id]
            elif group_id not in status.last_resorts and self._is_leaderless(group, tick):
                status.last_resorts.add(group_id)
                state.log.warning(
                    "leads_as_last_resort",
                    partition=state.told_of(group_id),
                    meaning=(
                        "only this server has the last entries, but it serves no clients; it "
                        "campaigns, then transfers leadership"
                    ),
                )
                group.node.allow_leading(allowed=status.may_lead_group(group_id))
                state.outbox.mark_dirty(group)

    def _is_leaderless(self, group: Group, tick: int) -> bool:
        group.catch_up(tick)
        if not group.node.is_leader:
            self._proofs.report_leader(group)
        elapsed = group.node.raft.election_elapsed
        return not group.node.is_leader and elapsed >= TIMEOUTS * self._election_ticks
