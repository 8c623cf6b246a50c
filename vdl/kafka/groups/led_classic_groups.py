"""Classic groups of one coordinator while this server leads it: their requests and applied events.

A request that changes a group is proposed. When it was applied, its answer comes from its group
(`LiveGroup`), at once or when the others have joined or synced. An error is the answer at once.
Heartbeat is answered from the applied state.

Rules:

* Every request is answered exactly once.
* A new leader gives every member a whole session: no member is removed because of an election.
* A group with members of the newer protocol is left to `LedConsumerGroups`.

Does not depend on wire formats and versions (the caller builds responses), nor on other APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, assert_never

from vdl.clock import MS, Clock
from vdl.errors import ErrorCode
from vdl.kafka.groups.led_consumer_groups import ClassicStep, LedConsumerGroups
from vdl.kafka.groups.live_group import Joined, LiveGroup, Options, Synced, Waiter
from vdl.kafka.groups.rebalance_notes import RebalanceNotes
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state import commands
from vdl.state.consumer_group import GroupState
from vdl.state.consumer_groups import (
    ClassicEvent,
    GroupDeleted,
    JoinAnswer,
    JoinCompleted,
    MemberPending,
    MemberRemoved,
    RebalanceStarted,
    SyncCompleted,
)
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import COORDINATOR_IS_FULL, SYNC_IS_FULL
from vdl.state.modern.groups import HeartbeatAnswer


class Leader(Protocol):
    """The led coordinator that this object is part of."""

    @property
    def machine(self) -> Coordinator: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def options(self) -> Options: ...
    @property
    def consumer(self) -> LedConsumerGroups: ...
    @property
    def notes(self) -> RebalanceNotes: ...
    def propose(self, command: Any) -> None: ...
    def propose_for(self, asker: str, command: Any, done: Callable[[Outcome], None]) -> bool: ...
    def renew_session(self, group_id: str, member_id: str) -> None: ...
    def undecided(self, outcome: Outcome) -> ErrorCode: ...


class LedClassicGroups:
    """Leader's state of the classic groups: see the module."""

    def __init__(self, led: Leader) -> None:
        self._led = led
        self._machine = led.machine
        self._groups = led.machine.groups
        self._live: dict[str, LiveGroup] = {}
        """Groups with members or pending members, and others that requests named."""
        for group_id, group in self._groups.groups.items():
            if group.members or group.pending:
                self.live(group_id).resume()

    def live(self, group_id: str) -> LiveGroup:
        """Return the leader's state of one group."""
        live = self._live.get(group_id)
        if live is None:
            live = self._live[group_id] = LiveGroup(self._led, group_id)
        return live

    def synced_of(self, group_id: str) -> Collection[str]:
        """Return the members of a group that have their assignment of this generation."""
        live = self._live.get(group_id)
        return () if live is None else live.synced

    def silence_ns(self, group_id: str, member_id: str) -> int | None:
        """Return the time since a member's last request; None if that is not known."""
        live, group = self._live.get(group_id), self._machine.group(group_id)
        due_ns = None if live is None else live.sessions.get(member_id)
        member = None if group is None else group.members.get(member_id)
        if due_ns is None or member is None:
            return None
        return max(0, self._led.clock.now_ns() + member.session_timeout_ms * MS - due_ns)

    def close(self) -> None:
        """Answer all open requests, because this server no longer leads the coordinator."""
        groups, self._live = self._live, {}
        for live in groups.values():
            live.close(ErrorCode.NOT_COORDINATOR)

    # --- requests ----------------------------------------------------------------------------
    def join(self, asker: str, command: commands.JoinGroup, waiter: Waiter[Joined]) -> None:
        """Process a JoinGroup. `asker`: the client whose share it counts against
        (`RequestContext.asker`)."""
        group_id, member_id = command.group_id, command.member_id
        self._led.renew_session(group_id, member_id)
        if self._machine.has_consumers(group_id):
            self._join_consumers(asker, command, waiter)
            return

        def decided(outcome: Outcome) -> None:
            if outcome.kind is not OutcomeKind.APPLIED:
                waiter.complete(Joined(self._led.undecided(outcome), member_id))
            elif isinstance(outcome.result, HeartbeatAnswer):
                # It became a consumer protocol group meanwhile.
                self._join_consumers(asker, command, waiter)
            else:
                answer: JoinAnswer = outcome.result
                if answer.error is not ErrorCode.NONE:
                    waiter.complete(Joined(answer.error, answer.member_id))
                else:
                    self._led.notes.joined(group_id, answer.member_id)
                    self.live(group_id).joined(answer.member_id, waiter, answer.leader_before)

        if not self._led.propose_for(asker, command, decided):
            waiter.complete(Joined(COORDINATOR_IS_FULL, member_id))

    def _join_consumers(
        self, asker: str, command: commands.JoinGroup, waiter: Waiter[Joined]
    ) -> None:
        def told(step: ClassicStep) -> None:
            waiter.complete(Joined(step.error, step.member_id, member=step.member))

        self._led.consumer.join(asker, command, told)

    def sync(self, asker: str, command: commands.SyncGroup, waiter: Waiter[Synced]) -> None:
        """Process a SyncGroup: the group leader's assignment is proposed; other members wait for
        it. `asker` as in `join`."""
        group_id, member_id = command.group_id, command.member_id
        if self._machine.has_consumers(group_id):
            step = self._led.consumer.sync(command)
            waiter.complete(Synced(step.error, step.assignment, member=step.member))
            return
        error = self._groups.check_sync(command)
        if error is not ErrorCode.NONE:
            waiter.complete(Synced(error))
            return
        self._led.renew_session(group_id, member_id)
        group = self._machine.group(group_id)
        assert group is not None, group_id
        if group.state is not GroupState.COMPLETING_REBALANCE or group.leader != member_id:
            self.live(group_id).synced_by(member_id, waiter)
            return

        def decided(outcome: Outcome) -> None:
            if outcome.kind is not OutcomeKind.APPLIED:
                waiter.complete(Synced(self._led.undecided(outcome)))
            elif outcome.result.error is not ErrorCode.NONE:
                waiter.complete(Synced(outcome.result.error))
            else:
                self.live(group_id).synced_by(member_id, waiter)

        if not self._led.propose_for(asker, command, decided):
            waiter.complete(Synced(SYNC_IS_FULL))

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Process a Heartbeat, from the applied state, at once."""
        if self._machine.has_consumers(group_id):
            return self._led.consumer.classic_heartbeat(
                group_id, member_id, group_instance_id, generation
            )
        error = self._groups.check_heartbeat(group_id, generation, member_id, group_instance_id)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._led.renew_session(group_id, member_id)
        return error

    def renew(self, group_id: str, member_id: str) -> None:
        """Renew the session of a member of a classic group for a request of any kind."""
        group = self._machine.group(group_id)
        if group is None:
            return
        member = group.members.get(member_id)
        if member is not None:
            self.live(group_id).renew_session(member_id, member.session_timeout_ms)
        elif member_id in group.pending:
            self.live(group_id).renew_session(member_id, group.pending[member_id])

    # --- applied commands ----------------------------------------------------------------------
    def handle_event(self, event: ClassicEvent) -> None:
        """Turn an event into answers and timers. The state may be a later one."""
        live = self.live(event.group_id)
        match event:
            case RebalanceStarted():
                live.rebalance_started()
            case JoinCompleted():
                live.join_completed()
            case SyncCompleted():
                live.sync_completed()
            case MemberRemoved():
                live.member_removed(event.member_id, event.error)
            case MemberPending():
                live.renew_session(event.member_id, live.group.pending[event.member_id])
            case GroupDeleted():
                pass
            case _:
                assert_never(event)

    def drop_if_over(self, group_id: str) -> None:
        """Remove the leader's state of a group without members: it needs none."""
        group = self._machine.group(group_id)
        if group is None or not (group.members or group.pending):
            live = self._live.pop(group_id, None)
            if live is not None:
                live.close(ErrorCode.UNKNOWN_MEMBER_ID)
