"""The timers of all groups of one server: due groups, campaigns, and rest.

One timer serves all groups, set for the first that is due (`tick_wheel.py`). A due group first
receives the proofs of the links: a follower that its leader is alive, a leader that its peers are
(`peers/leader_proofs.py`). If it is still due, it campaigns when admitted (`campaigns.py`);
otherwise it rests (`quiescence.py`).
"""

from __future__ import annotations

from functools import partial

from ids import ServerId
from raft.node import NEVER_DUE
from raft.types import StateType
from vdl.logstream.elections.campaigns import Campaigns
from vdl.logstream.elections.quiescence import REST_TICKS, Quiescence
from vdl.logstream.elections.tick_wheel import TickWheel
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.commit_propagation import CommitPropagation
from vdl.logstream.peers.leader_proofs import LeaderProofs
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import HostState

HELD_BACK_TICKS = 3
"""Interval of the check whether a campaign that peers have not read yet is to be repeated."""


class Timers:
    """The timers of one server's groups."""

    __slots__ = (
        "_armed_tick", "_commits", "_election_ticks", "_liveness", "_loop_time", "_proofs",
        "_state", "_wheel", "at_rest", "campaigns",
    )  # fmt: skip

    def __init__(
        self, state: HostState, liveness: Liveness, proofs: LeaderProofs, commits: CommitPropagation
    ) -> None:
        self._state = state
        self._liveness = liveness
        self._proofs = proofs
        self._commits = commits
        self._loop_time = state.loop_time
        self._election_ticks = state.options.election_ticks
        self._wheel = TickWheel()
        self._armed_tick = 0
        """Invariant: while groups are scheduled and none is being called, the timer is set for this
        tick, which is not later than the first of theirs; 0: it is not set."""
        self.at_rest = Quiescence(state.server_id, self._election_ticks * TICK_NS)
        self.campaigns = Campaigns(
            state.options,
            state.loop_time,
            system_last=state.record.coordinator_groups,
            is_unread=liveness.is_unread,
        )

    # --- the one timer -------------------------------------------------------------------------
    def schedule(self, group: Group, tick: int, due: int) -> None:
        """Schedule the group `due` ticks after `tick`, the present one.

        `arm` must follow, or the end of a turn.
        """
        raft = group.node.raft
        log = raft.log
        if raft.state is not StateType.LEADER and (
            due == NEVER_DUE or log.committed < log.last_index
        ):
            # A learner may be a voter soon. A follower with uncommitted entries requests the commit
            # index, which may be lost.
            due = min(due, self._election_ticks)
        self._wheel.schedule(group, tick + max(1, due))

    def arm(self) -> None:
        """Set the timer for the earliest group that may be due."""
        ticks = self._wheel.ticks
        if not ticks:
            return
        tick = ticks[0]
        if self._armed_tick and self._armed_tick <= tick:
            return
        self._armed_tick = tick
        self._state.clock.call_later(self._loop_time.delay_ns(tick), partial(self._run, tick))

    def _run(self, armed: int) -> None:
        if self._armed_tick != armed or self._state.outbox.is_closed:
            return
        self._armed_tick = 0
        tick = self._loop_time.tick()
        for group in self._wheel.take_due(tick):
            self._fall_due(group, tick)
        self.arm()

    def _fall_due(self, group: Group, tick: int) -> None:
        """Run a due group, after reporting what the links prove."""
        state = self._state
        if state.groups.get(group.group_id) is not group:
            return
        node = group.node
        if node.is_leader:
            leader = state.server_id
            has_quorum = self._proofs.report_peers(group)
            due, _ = group.fall_due(tick)
            may_need_pump = True
            # Not if it has heartbeats to send, or waits for its transferee.
            is_quiet = not node.asks and not node.transferring
            may_rest = has_quorum and is_quiet and group.is_settled
        else:
            group.catch_up(tick)
            # Without an update and with time left there is nothing to pump: the most common case.
            may_need_pump = self._proofs.report_leader(group)
            if (
                node.lead
                and node.commit < node.last_index
                and self._liveness.heard_ago(node.lead) < self._election_ticks
            ):
                # Not all entries are committed here after a silent election timeout. A leader that
                # has not read the last request yet gets no other one.
                state.outbox.send(group.group_id, group.commit_request())
                state.outbox.mark_dirty(group)
            due = node.ticks_until_due()
            if due <= 1:
                if may_need_pump and group.needs_pump:
                    state.outbox.mark_dirty(group)
                self.ask_to_campaign(group)
                return
            leader = server_of(node.lead)
            is_heard = node.raft.election_elapsed * TICK_NS < self.at_rest.silent_ns
            # Not a learner: it has no timer of its own, and may be a voter soon.
            is_idle = node.commit == node.last_index and leader in state.alive
            may_rest = is_heard and is_idle and node.raft.is_voter
        if may_need_pump and group.needs_pump:
            state.outbox.mark_dirty(group)
        elif group.dirty:
            pass
        elif may_rest and self._rests(group, leader):
            self._wheel.schedule(group, tick + REST_TICKS)
        else:
            self.schedule(group, tick, due)  # the common case of a group at rest

    def _rests(self, group: Group, leader: ServerId) -> bool:
        if leader == self._state.server_id:
            return self.at_rest.lead(group)
        return self.at_rest.follow(group, leader)

    def forget(self, group: Group) -> None:
        """Forget a replica that is not here any more."""
        self.campaigns.forget(group)
        self.at_rest.forget(group.group_id)

    # --- campaigns -----------------------------------------------------------------------------
    def ask_to_campaign(self, group: Group) -> None:
        """Let a due group campaign, now or when admitted.

        `arm` must follow, or the end of a turn.
        """
        if self.campaigns.is_held_back(group, self._state.clock.now_ns()):
            self.schedule(group, self._loop_time.tick(), HELD_BACK_TICKS)
            return
        for one in self.campaigns.ask(group, self._state.clock.now_ns()):
            self._campaign(one)

    def admit(self) -> None:
        """Admit waiting groups at the end of a turn."""
        for one in self.campaigns.admit(self._state.clock.now_ns()):
            self._campaign(one)

    def look_at_campaigns(self, now_ns: int) -> None:
        """Let campaigns give back and take places. Use: ten times a second."""
        for one in self.campaigns.look(now_ns):
            self._campaign(one)

    def _campaign(self, group: Group) -> None:
        """Let an admitted group campaign, if it has no leader by now and gave no vote."""
        state = self._state
        if not state.is_here(group) or group.node.is_leader:
            return
        tick = self._loop_time.tick()
        group.catch_up(tick)
        self._proofs.report_leader(group)
        leader = group.node.lead
        due, _ = group.fall_due(tick)
        if leader and group.node.raft.state is not StateType.FOLLOWER:
            group.campaigning.because("timeout", leader)
        if group.needs_pump:
            state.outbox.mark_dirty(group)
        elif not group.dirty:
            self.schedule(group, tick, due)
            self.arm()

    # --- groups at rest ------------------------------------------------------------------------
    def look_at_peers(self) -> None:
        """Wake the resting groups that need a silent server. Use: ten times a second."""
        state = self._state
        silences = {server: self._liveness.silent_ns(server) for server in state.alive}
        others = state.catalog.servers.keys() - {state.server_id}
        for group in self.at_rest.look(silences, unlinked=len(others - silences.keys())):
            self._wake(group)

    def wake_all(self) -> None:
        """Wake all resting groups, which may not rest any longer."""
        for group in self.at_rest.take_all():
            self._wake(group)

    def _wake(self, group: Group) -> None:
        """Restart a group's timers, counting from when its leader was last heard."""
        if not self._state.is_here(group):
            return
        tick = self._loop_time.tick()
        if group.node.is_leader:
            self.schedule(group, tick, 1)
        else:
            group.catch_up(tick)
            self._proofs.report_leader(group)
            self.schedule(group, tick, group.node.ticks_until_due())
            self._commits.stepped(group)
        self.arm()
