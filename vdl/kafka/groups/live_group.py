"""One classic consumer group of a coordinator that is led here: open requests and timers.

What a client gets for a JoinGroup or SyncGroup after its command was applied, it gets from here: at
once, or when the generation, or its assignment, is set. Until then the request is open.

Rules:

* Timers only propose commands; `apply` decides.
* Every request is answered exactly once.
* After a stall of this server, late timers start again: the clients were not at fault.
* A member with an open request here is alive, and gets a whole session from its answer on. If its
  connection is gone, it does not.

Does not depend on requests, wire formats or other groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from vdl.clock import MS, Clock, Timer
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.groups.rebalance_notes import RebalanceNotes, client_of, member_text
from vdl.state import commands
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.coordinator import Coordinator
from vdl.state.modern.member import ModernMember

RETRY_NS = 500 * MS
"""Delay until a timer proposes its command again, if that was not appended or its outcome is
unknown."""

LATE_NOTED_MAX = 10
"""Late members of one timer that are noted by name."""

STALL_NS = 1_000 * MS
"""A timer this late means that the server was stalled, not that clients were silent."""


class Options(Protocol):
    """Settings used here."""

    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...


class Leader(Protocol):
    """The led coordinator of the group."""

    @property
    def machine(self) -> Coordinator: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def options(self) -> Options: ...
    @property
    def notes(self) -> RebalanceNotes: ...
    def propose(self, command: Any) -> None: ...


@dataclass(slots=True)
class Joined:
    """Result of a JoinGroup: an error, or the group in its present generation."""

    error: ErrorCode
    member_id: str
    group: ConsumerGroup | None = None
    leader_before: str | None = None
    """See `JoinAnswer.leader_before`."""
    member: ModernMember | None = None
    """The member in a consumer protocol group; then `group` is None."""


@dataclass(slots=True)
class Synced:
    """Result of a SyncGroup: an error, or the member's assignment in `group`."""

    error: ErrorCode
    assignment: bytes = b""
    group: ConsumerGroup | None = None
    member: ModernMember | None = None
    """As in `Joined`."""


Answer = TypeVar("Answer")


class Waiter(Generic[Answer]):
    """An open request, and the function that makes its response from the result."""

    __slots__ = ("later", "respond")

    def __init__(self, later: Later, respond: Callable[[Answer], Any]) -> None:
        self.later = later
        self.respond = respond

    @property
    def is_present(self) -> bool:
        """False if the client has disconnected."""
        return not self.later.cancelled

    def complete(self, answer: Answer) -> None:
        if not self.later.cancelled:
            self.later.complete(self.respond(answer))


class LiveGroup:
    """One such group: see the module."""

    __slots__ = (
        "_hold_end_ns",
        "_hold_members",
        "_phase_timer",
        "_session_due_ns",
        "_session_timer",
        "group_id",
        "joins",
        "led",
        "sessions",
        "synced",
        "syncs",
    )

    def __init__(self, led: Leader, group_id: str) -> None:
        self.led = led
        self.group_id = group_id
        self.joins: dict[str, Waiter[Joined]] = {}
        """Open JoinGroup requests by member id."""
        self.syncs: dict[str, Waiter[Synced]] = {}
        self.synced: set[str] = set()
        """Members that have requested their assignment of this generation from this leader."""
        self.sessions: dict[str, int] = {}
        """Member or pending member → end of its session (monotonic ns)."""
        self._session_timer: Timer | None = None
        self._session_due_ns = 0
        self._phase_timer: Timer | None = None
        """Runs while members have to join, or to sync."""
        self._hold_end_ns = 0
        self._hold_members = 0

    @property
    def group(self) -> ConsumerGroup:
        """The group as applied."""
        return self.led.machine.groups.groups[self.group_id]

    def resume(self) -> None:
        """Start from the applied state, when this server starts to serve it."""
        group = self.group
        for member in group.members.values():
            self.renew_session(member.member_id, member.session_timeout_ms)
        for member_id, session_timeout_ms in group.pending.items():
            self.renew_session(member_id, session_timeout_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            self.rebalance_started()
        elif group.state is GroupState.COMPLETING_REBALANCE:
            self._set_phase(group.rebalance_timeout_ms * MS, self._sync_timed_out)

    def close(self, error: ErrorCode) -> None:
        """Answer all open requests and stop the timers."""
        for timer in (self._session_timer, self._phase_timer):
            if timer is not None:
                timer.cancel()
        self._session_timer = self._phase_timer = None
        joins, self.joins = self.joins, {}
        syncs, self.syncs = self.syncs, {}
        for member_id, join in joins.items():
            join.complete(Joined(error, member_id))
        for sync in syncs.values():
            sync.complete(Synced(error))

    # --- requests ----------------------------------------------------------------------------
    def joined(self, member_id: str, waiter: Waiter[Joined], leader_before: str | None) -> None:
        """Answer an applied JoinGroup: at once, or when the generation is set."""
        group = self.group
        self.renew_session(member_id, group.members[member_id].session_timeout_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._await_join(member_id, waiter)
        else:
            waiter.complete(Joined(ErrorCode.NONE, member_id, group, leader_before))

    def synced_by(self, member_id: str, waiter: Waiter[Synced]) -> None:
        """Answer a valid SyncGroup: at once, or when the leader has sent the assignment."""
        self.synced.add(member_id)
        self._stop_phase_when_synced()
        if self.group.state is GroupState.STABLE:
            waiter.complete(self._assignment_of(member_id))
        else:
            self._await_sync(member_id, waiter)

    def _await_join(self, member_id: str, waiter: Waiter[Joined]) -> None:
        """Answer the request when the generation is set. An earlier request of the member, from
        another connection, is answered with an error."""
        earlier = self.joins.pop(member_id, None)
        self.joins[member_id] = waiter
        if earlier is not None:
            earlier.complete(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member_id))

    def _await_sync(self, member_id: str, waiter: Waiter[Synced]) -> None:
        """Answer the request when the leader has sent the assignment."""
        earlier = self.syncs.pop(member_id, None)
        self.syncs[member_id] = waiter
        if earlier is not None:
            earlier.complete(Synced(ErrorCode.REBALANCE_IN_PROGRESS))

    def _assignment_of(self, member_id: str) -> Synced:
        group = self.group
        return Synced(ErrorCode.NONE, group.members[member_id].assignment, group)

    # --- events ------------------------------------------------------------------------------
    def rebalance_started(self) -> None:
        group = self.group
        syncs, self.syncs = self.syncs, {}
        for member_id, sync in syncs.items():
            self.renew_session(member_id, group.members[member_id].session_timeout_ms)
            sync.complete(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
        timeout_ns = group.rebalance_timeout_ms * MS
        if group.held:
            self._hold_end_ns = self.led.clock.now_ns() + timeout_ns
            self._hold(group, timeout_ns)
        else:
            self._set_phase(timeout_ns, self._join_timed_out)

    def join_completed(self) -> None:
        """Answer all open joins. They are of members of the generation; the others were answered
        before."""
        group = self.group
        self.synced.clear()
        self._cancel_phase()
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._set_phase(group.rebalance_timeout_ms * MS, self._sync_timed_out)
        joins, self.joins = self.joins, {}
        for member_id, member in group.members.items():
            self.renew_session(member_id, member.session_timeout_ms)
        for member_id, join in joins.items():
            join.complete(Joined(ErrorCode.NONE, member_id, group))

    def sync_completed(self) -> None:
        syncs, self.syncs = self.syncs, {}
        for member_id, sync in syncs.items():
            self.renew_session(member_id, self.group.members[member_id].session_timeout_ms)
            sync.complete(self._assignment_of(member_id))
        self._stop_phase_when_synced()

    def member_removed(self, member_id: str, error: ErrorCode) -> None:
        self.sessions.pop(member_id, None)
        self.synced.discard(member_id)
        join = self.joins.pop(member_id, None)
        if join is not None:
            join.complete(Joined(error, member_id))
        sync = self.syncs.pop(member_id, None)
        if sync is not None:
            sync.complete(Synced(error))
        if error is ErrorCode.FENCED_INSTANCE_ID:
            # Its instance is the newest member now. Its request may have been answered too early,
            # with an unknown outcome, and it may never send another one.
            newest = next(reversed(self.group.members.values()))
            self.renew_session(newest.member_id, newest.session_timeout_ms)

    # --- sessions ------------------------------------------------------------------------------
    def renew_session(self, member_id: str, session_timeout_ms: int) -> None:
        """Restart a member's session because a request of it arrived. Called for every
        heartbeat."""
        due_ns = self.led.clock.now_ns() + session_timeout_ms * MS
        self.sessions[member_id] = due_ns
        if self._session_timer is None or due_ns < self._session_due_ns:
            self._arm_sessions(due_ns)

    def _arm_sessions(self, due_ns: int) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
        self._session_due_ns = due_ns
        delay_ns = max(0, due_ns - self.led.clock.now_ns())
        self._session_timer = self.led.clock.call_later(delay_ns, self._check_sessions)

    def _check_sessions(self) -> None:
        """Propose to remove members whose session ended. The timer runs at the earliest end that
        was known when it was armed; sessions may have been renewed since."""
        self._session_timer = None
        now_ns = self.led.clock.now_ns()
        sessions = self.sessions
        if now_ns - self._session_due_ns > STALL_NS:
            for member_id in sessions:
                sessions[member_id] = now_ns + self._session_ns(member_id)
        over = []
        for member_id, due_ns in sessions.items():
            if due_ns <= now_ns:
                if self._has_open_request(member_id):
                    sessions[member_id] = now_ns + self._session_ns(member_id)
                else:
                    over.append(member_id)
                    sessions[member_id] = now_ns + RETRY_NS
        if over:
            self._note_late(over, "session_timeout")
            self.led.propose(commands.ExpireMembers(self.group_id, over))
        if sessions:
            self._arm_sessions(min(sessions.values()))

    def _has_open_request(self, member_id: str) -> bool:
        join = self.joins.get(member_id)
        sync = self.syncs.get(member_id)
        return (join is not None and join.is_present) or (sync is not None and sync.is_present)

    def _session_ns(self, member_id: str) -> int:
        group = self.group
        member = group.members.get(member_id)
        timeout_ms = group.pending[member_id] if member is None else member.session_timeout_ms
        return timeout_ms * MS

    # --- the phases of a rebalance -------------------------------------------------------------
    def _set_phase(self, delay_ns: int, over: Callable[[], None]) -> None:
        self._cancel_phase()
        clock = self.led.clock
        due_ns = clock.now_ns() + delay_ns

        def due() -> None:
            if clock.now_ns() - due_ns > STALL_NS:
                self._set_phase(delay_ns, over)
            else:
                over()

        self._phase_timer = clock.call_later(delay_ns, due)

    def _cancel_phase(self) -> None:
        if self._phase_timer is not None:
            self._phase_timer.cancel()
            self._phase_timer = None

    def _stop_phase_when_synced(self) -> None:
        group = self.group
        if group.state is GroupState.STABLE and self.synced.issuperset(group.members):
            self._cancel_phase()

    def _hold(self, group: ConsumerGroup, left_ns: int) -> None:
        """Wait a little for more members before a first rebalance (KIP-134)."""
        self._hold_members = len(group.members)
        delay_ns = self.led.options.group_initial_rebalance_delay_ms * MS
        self._set_phase(min(delay_ns, left_ns), self._hold_timed_out)

    def _hold_timed_out(self) -> None:
        """Wait again if a member joined meanwhile, but never beyond the rebalance timeout."""
        group = self.group
        left_ns = self._hold_end_ns - self.led.clock.now_ns()
        if len(group.members) > self._hold_members and left_ns > 0:
            self._hold(group, left_ns)
        else:
            self._join_timed_out()

    def _join_timed_out(self) -> None:
        group = self.group
        self._set_phase(RETRY_NS, self._join_timed_out)
        absent = [one.member_id for one in group.members.values() if not one.joined]
        self._note_late([*absent, *group.pending], "did_not_join")
        self.led.propose(commands.CompleteJoin(self.group_id, group.generation))

    def _note_late(self, member_ids: list[str], reason: str) -> None:
        """Note members that are about to be removed, the first few of them."""
        members = self.group.members
        for member_id in member_ids[:LATE_NOTED_MAX]:
            one = members.get(member_id)
            known = None if one is None else member_text(one.client_id, one.client_host)
            self.led.notes.note(
                "member_timed_out",
                self.group_id,
                member=known or client_of(member_id),
                reason=reason,
                session_timeout_ms=None if one is None else one.session_timeout_ms,
                rebalance_timeout_ms=None if one is None else one.rebalance_timeout_ms,
            )

    def _sync_timed_out(self) -> None:
        """Propose to remove members that joined but do not sync: no member reads their
        partitions."""
        group = self.group
        missing = [member_id for member_id in group.members if member_id not in self.synced]
        self._cancel_phase()
        if missing:
            self._set_phase(RETRY_NS, self._sync_timed_out)
            self._note_late(missing, "did_not_sync")
            self.led.propose(
                commands.ExpireMembers(self.group_id, missing, generation=group.generation)
            )
