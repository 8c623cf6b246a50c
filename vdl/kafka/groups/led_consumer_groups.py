"""Consumer protocol groups (KIP-848) of one coordinator while this server leads it.

The replicated state is in `vdl.state.modern`. This module keeps the leader's own state: when each
member's session ends, the deadline of each revocation, requests that wait for targets, and when
targets are computed next.

Rules:

* A heartbeat that changes nothing is answered from the applied state. A response that a client
  would act on (an error, a full assignment) is sent only after a quorum confirmed this leader: a
  deposed leader knows old epochs.
* A joining member is answered once it has a target; if that takes too long, it is asked to retry.
* A pattern is matched outside the loop. Its member's heartbeats are answered meanwhile; the
  matching topics are assigned once they are known. A member with an invalid pattern gets an error.
* Targets are computed at most once in `consumer.assignment.interval.ms`, for all changes that
  arrived meanwhile.
* While a group is rebalancing, its members get a shorter heartbeat interval: each step of the
  rebalance waits for some member's heartbeat.

Does not depend on wire formats or on other kinds of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import msgspec

from rpc.hello import VERSION_OF_DOWNGRADES
from vdl.clock import MS, Clock, Timer
from vdl.errors import ErrorCode
from vdl.kafka.groups.member_sessions import MemberSessions
from vdl.kafka.groups.pattern_subscriptions import Matched, PatternSubscriptions, Sender
from vdl.kafka.groups.rebalance_notes import RebalanceNotes, member_text
from vdl.kafka.groups.target_computation import (
    INLINE_WORK_MAX,
    Request,
    request_of,
    targets_of,
    work_of,
)
from vdl.kafka.host import Compute
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.patterns import BadPattern
from vdl.state import commands
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.consumer_group import ConsumerGroup
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.groups import Heard, HeartbeatAnswer
from vdl.state.modern.member import JOINING_EPOCH, STATIC_LEAVING_EPOCH, MemberState, ModernMember
from vdl.state.modern.migration import CONSUMER_PROTOCOL, protocol_of, told_assignment
from vdl.state.modern.partitions import count
from vdl.state.resource_configs import ResourceType
from vdl.state.subscription import read_assignment, subscribed_topics

TARGET_WAIT_NS = 3_000 * MS
"""Longest wait of a joining member for its target; then it is asked to retry."""
WATCH_NS = 500 * MS
"""Interval between checks for changed topics."""
LOOKED_MAX = 20
LOOK_AGAIN_NS = 10 * MS
"""Groups computed at a time after topics changed, and the delay until the next ones: a coordinator
may have thousands of groups, and all are affected at once."""
REPEAT_NS = 200 * MS
"""Delay until targets are proposed again if they were not appended or their outcome is unknown."""
NO_ROOM_NS = 30_000 * MS
"""Delay until targets that found no room are computed again: room may have been freed meanwhile."""
PATTERNS_WAIT_NS = 500 * MS
"""Longest wait of targets for the group's patterns to be matched. Then targets are computed from
the known matches, and again when the rest is known."""
LATE_NOTED_MAX = 10
"""Late members of one timer that are noted by name."""
MOVING_NS = 60_000 * MS
"""Time after its last change for which a group of several members counts as rebalancing."""
WAITING_INTERVAL_MS = 500
MOVING_INTERVAL_MS = 1_000
INTERVAL_PER_MEMBER_MS = 10
"""Heartbeat intervals of members of a rebalancing group: the least, and the increase for each
member, so that all members together send at most some hundred heartbeats a second."""


class Options(Protocol):
    """Settings of groups that have none of their own."""

    @property
    def group_consumer_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...


class Leader(Protocol):
    """The led coordinator that this object is part of."""

    @property
    def machine(self) -> Coordinator: ...
    @property
    def state_group(self) -> StateGroup: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def options(self) -> Options: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def compute(self) -> Compute: ...
    @property
    def pattern_work(self) -> PatternWork: ...
    @property
    def notes(self) -> RebalanceNotes: ...
    @property
    def own_topics(self) -> Mapping[str, TopicInfo]: ...
    def propose(self, command: Any) -> None: ...
    def propose_for(self, asker: str, command: Any, done: Callable[[Outcome], None]) -> bool: ...
    def undecided(self, outcome: Outcome) -> ErrorCode: ...
    def deadline_ns(self) -> int: ...


@dataclass(slots=True)
class Heartbeated:
    """Result of a heartbeat: an error, or the member's present state."""

    error: ErrorCode
    message: str = ""
    member: ModernMember | None = None
    has_assignment: bool = False
    """True if the response must carry the assignment: the member may not know it."""
    interval_ms: int = 0


@dataclass(slots=True)
class ClassicStep:
    """Result for a member of the classic protocol: an error, or the member's present state."""

    error: ErrorCode
    member_id: str = ""
    member: ModernMember | None = None
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class _Waiting:
    """Request that waits for targets. Hashed by identity: ten thousand may wait in one group, and
    all may time out at once."""

    deadline_ns: int
    again: Callable[[], None]
    give_up: Callable[[], None]


@dataclass(slots=True)
class _Step:
    """A heartbeat in progress."""

    command: commands.ConsumerHeartbeat
    is_full: bool
    """True if the member sent all its fields: it may have missed a response."""
    answer: Callable[[Heartbeated], None]
    sender: Sender
    is_confirmed: bool = False
    changed: bool = False
    """True if its assignment changed, or its epoch differs from the one the client sent."""
    deadline_ns: int = 0
    """Time until which it waits for a target; 0: it does not wait."""


class LedConsumerGroups:
    """Leader's state of the consumer groups: see the module."""

    def __init__(self, led: Leader) -> None:
        self._led = led
        self._groups = led.machine.consumer
        self._clock = led.clock
        self._sessions = MemberSessions(led.clock, self._session_over)
        self._revocations = MemberSessions(led.clock, self._revocation_over)
        self._phases = MemberSessions(led.clock, self._phase_over)
        """Deadlines of classic members that have to join, or to sync."""
        self._waiting: dict[str, dict[_Waiting, Timer]] = {}
        """By group: the waiting requests in order of arrival, and the timer of each."""
        self._patterns = PatternSubscriptions(led.catalog, led.own_topics, led.pattern_work)
        self._resolving: dict[str, int] = {}
        """By group with patterns that are not all matched: time until which its targets wait."""
        self._is_computing = False
        self._computed_ns: dict[str, int] = {}
        """By group: when its targets were last computed."""
        self._moved_ns: dict[str, int] = {}
        """By group: when its epoch last grew, as this leader saw it."""
        self._hidden: dict[str, dict[str, frozenset[str]]] = {}
        """By group and member: topics it could not see when its targets were last computed."""
        self._views_revision = 0
        self._without_room: dict[str, int] = {}
        """Groups whose targets found no room, and the time at which they are computed again."""
        self._due: dict[str, Timer] = {}
        """Groups whose targets will be computed."""
        self._topics_revision = led.catalog.topics_revision
        self._to_look: dict[str, None] = {}
        """Groups whose targets are to be computed because topics changed."""
        self._look_timer: Timer | None = None
        self._watch: Timer | None = None
        self._is_closed = False
        for group_id, group in self._groups.groups.items():
            self.changed(group_id, list(group.members))
            if group.members and _is_read_in_part(group):
                self._without_room[group_id] = led.clock.now_ns()
        if self._groups.groups:
            self._topics_revision = -1

    def close(self) -> None:
        """Stop because this server no longer leads the coordinator."""
        self._is_closed = True
        self._sessions.close()
        self._revocations.close()
        self._phases.close()
        self._patterns.close()
        for timer in (*self._due.values(), self._watch, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._due.clear()
        waiting, self._waiting = self._waiting, {}
        for some in waiting.values():
            for one, timer in some.items():
                timer.cancel()
                one.give_up()

    # --- heartbeats ----------------------------------------------------------------------------
    def heartbeat(
        self,
        command: commands.ConsumerHeartbeat,
        *,
        is_full: bool,
        answer: Callable[[Heartbeated], None],
        sender: Sender,
    ) -> None:
        """Let a member join or renew its session; `answer` is called once."""
        self._take(_Step(command, is_full, answer, sender))

    def _take(self, step: _Step) -> None:
        if self._is_closed:
            step.answer(Heartbeated(ErrorCode.NOT_COORDINATOR))
            return
        classic = self._led.machine.group(step.command.group_id)
        if classic is not None and classic.members and self._may_upgrade:
            topics = _topics_of(classic, self._led.catalog)
            step.command = msgspec.structs.replace(step.command, upgrade=topics)
            heard = self._led.machine.heard_after_upgrade(step.command)
            if heard.error is ErrorCode.NONE:
                self._propose(step)
            else:
                self._answer_error(step, heard)
            return
        refused = self._refusal(step)
        if refused is not None:
            step.answer(refused)
            return
        heard = self._led.machine.heard(step.command)
        if heard.error is not ErrorCode.NONE:
            self._answer_error(step, heard)
            return
        member = heard.member
        assert member is not None, step.command
        group = self._groups.groups.get(step.command.group_id)
        before = None if group is None else group.members.get(member.member_id)
        if group is not None and before is not None:
            self._renew(group, member)
        is_change = heard.is_change
        if before is not None and JOINING_EPOCH < step.command.member_epoch < before.epoch:
            # It missed the answer with its present epoch, and gets that first. If it had to revoke
            # partitions of an assignment that it never received, it would not report that: it
            # reports partitions when those it owns change.
            is_change = heard.grows_epoch
            member = member if is_change else before
        if is_change:
            self._propose(step)
        elif not step.is_confirmed and (step.is_full or step.command.member_epoch != member.epoch):
            self._confirm(step)
        else:
            self._applied(step, HeartbeatAnswer(ErrorCode.NONE, member=member, before=member))

    def _answer_error(self, step: _Step, heard: Heard) -> None:
        if step.is_confirmed:
            step.answer(Heartbeated(heard.error, heard.message))
        else:
            self._confirm(step)

    def _refusal(self, step: _Step) -> Heartbeated | None:
        """Return the error for a member whose pattern is invalid: the pattern it sends, or the one
        it sent before. None if there is no error."""
        command = step.command
        pattern = command.pattern
        if pattern is None:
            group = self._groups.groups.get(command.group_id)
            member = None if group is None else group.members.get(command.member_id)
            pattern = None if member is None else member.pattern
        error = self._patterns.refusal(pattern, step.sender) if pattern else None
        if error is None:
            return None
        return Heartbeated(ErrorCode.INVALID_REGULAR_EXPRESSION, refusal_text(error))

    def _confirm(self, step: _Step) -> None:
        def confirmed(current: bool) -> None:
            if not current:
                step.answer(Heartbeated(ErrorCode.NOT_COORDINATOR))
                return
            step.is_confirmed = True
            self._take(step)

        self._led.state_group.read_index(deadline_ns=self._led.deadline_ns(), done=confirmed)

    def _propose(self, step: _Step) -> None:
        def decided(outcome: Outcome) -> None:
            if outcome.kind is OutcomeKind.APPLIED:
                self._applied(step, outcome.result)
            else:
                step.answer(Heartbeated(self._led.undecided(outcome)))

        if not self._led.propose_for(step.sender.asker, step.command, decided):
            text = "The principal has its share of what the coordinator has room for."
            step.answer(Heartbeated(COORDINATOR_IS_FULL, text))

    def _applied(self, step: _Step, answer: HeartbeatAnswer) -> None:
        if answer.error is not ErrorCode.NONE:
            step.answer(Heartbeated(answer.error, answer.message))
            return
        member = answer.member
        assert member is not None, step.command
        group = self._groups.groups[step.command.group_id]
        if self._patterns.heard_from(group, member, step.sender):
            self._compute_later(group.group_id)
        if answer.before is None or answer.before.assigned != member.assigned:
            step.changed = True
        if step.command.member_epoch != member.epoch:
            step.changed = True
        has_to_wait = answer.grew_epoch and group.epoch > group.assignment_epoch
        if member.epoch == JOINING_EPOCH or has_to_wait:
            self._wait(step, member)
        else:
            self._finish(step, group, member)

    def _wait(self, step: _Step, member: ModernMember) -> None:
        """Wait for targets; then process the heartbeat again."""
        command = step.command
        step.command = msgspec.structs.replace(
            command,
            member_epoch=member.epoch,
            owned=command.owned if member.epoch == command.member_epoch else None,
        )
        step.deadline_ns = step.deadline_ns or self._clock.now_ns() + TARGET_WAIT_NS
        self._await_targets(
            command.group_id,
            _Waiting(step.deadline_ns, lambda: self._take(step), lambda: self._give_up(step)),
        )

    def _await_targets(self, group_id: str, waiting: _Waiting) -> None:
        left_ns = waiting.deadline_ns - self._clock.now_ns()
        if left_ns <= 0 or self._is_closed:
            waiting.give_up()
            return
        timer = self._clock.call_later(left_ns, lambda: self._wait_over(group_id, waiting))
        self._waiting.setdefault(group_id, {})[waiting] = timer
        self._compute_later(group_id)

    def _wait_over(self, group_id: str, waiting: _Waiting) -> None:
        others = self._waiting.get(group_id, {})
        if others.pop(waiting, None) is not None:
            if not others:
                del self._waiting[group_id]
            waiting.give_up()

    def _give_up(self, step: _Step) -> None:
        if self._is_closed:
            step.answer(Heartbeated(ErrorCode.NOT_COORDINATOR))
            return
        group = self._groups.groups.get(step.command.group_id)
        member = None if group is None else group.members.get(step.command.member_id)
        if group is None or member is None:
            step.answer(Heartbeated(ErrorCode.UNKNOWN_MEMBER_ID, "The member is gone."))
        elif member.epoch == JOINING_EPOCH:
            step.answer(
                Heartbeated(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The assignment is not computed yet."
                )
            )
        else:
            self._finish(step, group, member)

    def _finish(self, step: _Step, group: ModernGroup, member: ModernMember) -> None:
        step.answer(
            Heartbeated(
                ErrorCode.NONE,
                member=member,
                has_assignment=step.is_full or step.changed,
                interval_ms=self._interval_ms(group, member),
            )
        )

    def _interval_ms(self, group: ModernGroup, member: ModernMember) -> int:
        """Return the interval until the member's next heartbeat."""
        interval_ms = self._heartbeat_ms(group.group_id)
        count = len(group.members)
        if count < 2:
            return interval_ms
        moved_ns = self._moved_ns.get(group.group_id)
        if member.state is MemberState.UNRELEASED:
            wanted_ms = WAITING_INTERVAL_MS
        elif moved_ns is not None and self._clock.now_ns() - moved_ns < MOVING_NS:
            wanted_ms = MOVING_INTERVAL_MS
        else:
            return interval_ms
        return min(interval_ms, max(wanted_ms, count * INTERVAL_PER_MEMBER_MS))

    def leave(
        self, command: commands.LeaveConsumerGroup, answer: Callable[[ErrorCode, str], None]
    ) -> None:
        """Let a member leave the group."""
        command = msgspec.structs.replace(command, may_downgrade=self._may_downgrade)

        def decided(outcome: Outcome) -> None:
            if outcome.kind is not OutcomeKind.APPLIED:
                answer(self._led.undecided(outcome), "")
                return
            group = self._groups.groups.get(command.group_id)
            member = None if group is None else group.members.get(command.member_id)
            if group is not None and member is not None:
                self._renew(group, member)
            answer(outcome.result.error, outcome.result.message)

        self._led.state_group.propose(command, deadline_ns=self._led.deadline_ns(), done=decided)

    # --- members of the classic protocol ---------------------------------------------------------
    def join(
        self, asker: str, command: commands.JoinGroup, told: Callable[[ClassicStep], None]
    ) -> None:
        """Process a JoinGroup in a consumer protocol group; it is answered when the member has a
        target. A static member may replace the last member that speaks the consumer protocol; the
        group then becomes a classic group, and the client joins again."""
        command = msgspec.structs.replace(command, may_downgrade=self._may_downgrade)
        self._join(command, told, 0, asker)

    def _join(
        self,
        command: commands.JoinGroup,
        told: Callable[[ClassicStep], None],
        deadline_ns: int,
        asker: str = "",
    ) -> None:
        """`asker`: set in the first step only; a known member takes no more room."""

        def decided(outcome: Outcome) -> None:
            if outcome.kind is not OutcomeKind.APPLIED:
                told(ClassicStep(self._led.undecided(outcome), command.member_id))
            elif isinstance(outcome.result, HeartbeatAnswer):
                self._joined(command, outcome.result, told, deadline_ns)
            else:
                # It became a classic group meanwhile: the client has to retry.
                told(ClassicStep(ErrorCode.REBALANCE_IN_PROGRESS, command.member_id))

        if not self._led.propose_for(asker, command, decided):
            told(ClassicStep(COORDINATOR_IS_FULL, command.member_id))

    def _joined(
        self,
        command: commands.JoinGroup,
        answer: HeartbeatAnswer,
        told: Callable[[ClassicStep], None],
        deadline_ns: int,
    ) -> None:
        if answer.error is not ErrorCode.NONE:
            told(ClassicStep(answer.error, answer.new_member_id or command.member_id))
            return
        member, group = answer.member, self._groups.groups.get(command.group_id)
        assert member is not None, command
        is_classic = self._led.machine.group(command.group_id) is not None
        is_to_be = self._is_to_be_classic(command.group_id)
        if is_to_be:
            # The command may not have been appended when the last other member left.
            self._downgrade(command.group_id)
        if (group is None and is_classic) or is_to_be:
            told(ClassicStep(ErrorCode.REBALANCE_IN_PROGRESS, command.member_id))
            return
        if group is None or member.member_id not in group.members:
            told(ClassicStep(ErrorCode.UNKNOWN_MEMBER_ID, command.member_id))
            return
        self._renew(group, member)
        if member.epoch != JOINING_EPOCH and group.epoch == group.assignment_epoch:
            # It has to sync for its assignment.
            self._phases.renew(group.group_id, member.member_id, member.rebalance_timeout_ms)
            told(ClassicStep(ErrorCode.NONE, member.member_id, member))
            return
        again = msgspec.structs.replace(
            command, member_id=member.member_id, known_member_id_required=False
        )
        deadline_ns = deadline_ns or self._clock.now_ns() + TARGET_WAIT_NS
        self._await_targets(
            group.group_id,
            _Waiting(
                deadline_ns,
                lambda: self._join(again, told, deadline_ns),
                lambda: told(ClassicStep(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)),
            ),
        )

    def sync(self, command: commands.SyncGroup) -> ClassicStep:
        """Process a SyncGroup in such a group; return the member's present assignment."""
        group_id, member_id = command.group_id, command.member_id
        error = self._groups.check_classic(
            group_id, member_id, command.group_instance_id, command.generation
        )
        group = self._groups.groups[group_id]
        member = group.members.get(member_id)
        if error is ErrorCode.REBALANCE_IN_PROGRESS and member is not None:
            if member.state is not MemberState.UNREVOKED and member.epoch < group.epoch:
                self._await_join(group, member)
                return ClassicStep(error, member_id)
            error = ErrorCode.NONE
        if error is not ErrorCode.NONE or member is None:
            return ClassicStep(error, member_id)
        said = (command.protocol_type, command.protocol_name)
        meant = (CONSUMER_PROTOCOL, protocol_of(member))
        if any(one not in (None, other) for one, other in zip(said, meant, strict=True)):
            return ClassicStep(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        self._phases.end(group_id, member_id)
        self._renew(group, member)
        return ClassicStep(ErrorCode.NONE, member_id, member, told_assignment(group, member))

    def classic_heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Process a Heartbeat in such a group. REBALANCE_IN_PROGRESS: the member must rejoin."""
        error = self._groups.check_classic(group_id, member_id, instance_id, generation)
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            group = self._groups.groups[group_id]
            member = group.members[member_id]
            self._renew(group, member)
            if error is ErrorCode.REBALANCE_IN_PROGRESS:
                self._await_join(group, member)
        return error

    def _await_join(self, group: ModernGroup, member: ModernMember) -> None:
        if (group.group_id, member.member_id) not in self._phases:
            self._phases.renew(group.group_id, member.member_id, member.rebalance_timeout_ms)

    # --- sessions ------------------------------------------------------------------------------
    def _renew(self, group: ModernGroup, member: ModernMember) -> None:
        if member.classic is not None:
            period_ms = member.classic.session_timeout_ms
        else:
            period_ms = self.session_ms(group.group_id)
        self._sessions.renew(group.group_id, member.member_id, period_ms)

    def renew(self, group_id: str, member_id: str) -> None:
        """Renew a member's session for a request that is not a heartbeat."""
        group = self._groups.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None and member.epoch != STATIC_LEAVING_EPOCH:
            self._renew(group, member)

    def _session_over(self, group_id: str, member_ids: list[str]) -> None:
        self._note_late(group_id, member_ids, "session_timeout")
        self._expire(group_id, [(member_id, -1) for member_id in member_ids])

    def _note_late(self, group_id: str, member_ids: list[str], reason: str) -> None:
        """Note members that are about to be removed, the first few of them."""
        group = self._groups.groups.get(group_id)
        for member_id in member_ids[:LATE_NOTED_MAX]:
            one = None if group is None else group.members.get(member_id)
            if one is not None:
                text = member_text(one.client_id, one.client_host)
                self._led.notes.note("member_timed_out", group_id, member=text, reason=reason)

    def silence_ns(self, group_id: str, member_id: str) -> int | None:
        """Return the time since a member's last request; None if that is not known."""
        return self._sessions.silence_ns(group_id, member_id)

    def _phase_over(self, group_id: str, member_ids: list[str]) -> None:
        self._note_late(group_id, member_ids, "did_not_join")
        self._expire(group_id, [(member_id, -1) for member_id in member_ids])

    def _expire(self, group_id: str, members: list[tuple[str, int]]) -> None:
        self._led.propose(commands.ExpireConsumers(group_id, members, self._may_downgrade))

    def _revocation_over(self, group_id: str, member_ids: list[str]) -> None:
        group = self._groups.groups.get(group_id)
        members = [] if group is None else [group.members.get(one) for one in member_ids]
        late = [(member.member_id, member.epoch) for member in members if member is not None]
        if late:
            self._note_late(group_id, [member_id for member_id, _ in late], "did_not_revoke")
            self._expire(group_id, late)

    # --- applied commands ----------------------------------------------------------------------
    def changed(self, group_id: str, member_ids: Iterable[str]) -> None:
        """Process a change of these members, which may have been removed; the group may have
        changed, too."""
        group = self._groups.groups.get(group_id)
        if group is None:
            self._led.notes.forget(group_id)
            self._forget(group_id)
            return
        changed = list(member_ids)
        self._led.notes.moved(group, changed)
        for member_id in changed:
            self._member_changed(group, member_id)
        if not group.members:
            self._forget(group_id)
            return
        if self._is_to_be_classic(group_id):
            self._clock.call_soon(partial(self._downgrade, group_id))
        if group.epoch > group.assignment_epoch:
            self._moved_ns[group_id] = self._clock.now_ns()
            self._compute_later(group_id)
        else:
            for waiting, timer in self._waiting.pop(group_id, {}).items():
                timer.cancel()
                self._clock.call_soon(waiting.again)
        if self._watch is None:
            self._watch = self._clock.call_later(WATCH_NS, self._look_at_topics)

    def _is_to_be_classic(self, group_id: str) -> bool:
        """Return True if all its members speak the classic protocol and a command is to downgrade
        it."""
        is_due = self._migrates_back and self._groups.is_classic_again(group_id)
        return is_due and self._knows_downgrades

    def _downgrade(self, group_id: str) -> None:
        if not self._is_closed and self._groups.is_classic_again(group_id):
            self._led.propose(commands.DowngradeConsumerGroup(group_id))

    def _member_changed(self, group: ModernGroup, member_id: str) -> None:
        group_id = group.group_id
        key = (group_id, member_id)
        member = group.members.get(member_id)
        if member is None:
            for sessions in (self._sessions, self._revocations, self._phases):
                sessions.end(group_id, member_id)
            self._patterns.forget(group_id, member_id)
            return
        if key not in self._sessions:
            self._renew(group, member)
        if member.state is not MemberState.UNREVOKED or member.classic is not None:
            self._revocations.end(group_id, member_id)
        elif key not in self._revocations:
            self._revocations.renew(group_id, member_id, member.rebalance_timeout_ms)

    def _forget(self, group_id: str) -> None:
        for sessions in (self._sessions, self._revocations, self._phases):
            sessions.end_others(group_id, ())
        self._patterns.forget_group(group_id)
        self._resolving.pop(group_id, None)
        self._hidden.pop(group_id, None)
        self._without_room.pop(group_id, None)
        self._computed_ns.pop(group_id, None)
        self._moved_ns.pop(group_id, None)
        timer = self._due.pop(group_id, None)
        if timer is not None:
            timer.cancel()
        for waiting, timer in self._waiting.pop(group_id, {}).items():
            timer.cancel()
            waiting.give_up()

    # --- targets -------------------------------------------------------------------------------
    def _look_at_topics(self) -> None:
        """Recompute the targets of groups if topics changed. Stops when no group has members."""
        self._watch = None
        groups = [one for one in self._groups.groups.values() if one.members]
        self._patterns.keep_only(groups)
        if not groups:
            return
        revision = self._led.catalog.topics_revision
        views = self._led.catalog.acls.revision
        if revision != self._topics_revision:
            self._topics_revision = revision
            self._to_look.update(dict.fromkeys(group.group_id for group in groups))
        elif views != self._views_revision:
            for group_id in self._patterns.limited_groups():
                self._compute_later(group_id)
        self._views_revision = views
        now_ns = self._clock.now_ns()
        for group_id in [one for one, at_ns in self._without_room.items() if at_ns <= now_ns]:
            self._without_room[group_id] = now_ns + NO_ROOM_NS
            self._to_look[group_id] = None
        if self._to_look and self._look_timer is None:
            self._look_on()
        self._watch = self._clock.call_later(WATCH_NS, self._look_at_topics)

    def _look_on(self) -> None:
        self._look_timer = None
        for group_id in list(islice(self._to_look, LOOKED_MAX)):
            del self._to_look[group_id]
            self._compute_later(group_id)
        if self._to_look:
            self._look_timer = self._clock.call_later(LOOK_AGAIN_NS, self._look_on)

    def _compute_later(self, group_id: str, delay_ns: int = 0) -> None:
        if group_id in self._due:
            return
        last_ns = self._computed_ns.get(group_id)
        if last_ns is not None:
            pause_ns = self._assignment_pause_ms(group_id) * MS
            delay_ns = max(delay_ns, last_ns + pause_ns - self._clock.now_ns())
        self._due[group_id] = self._clock.call_later(delay_ns, lambda: self._compute(group_id))

    def _compute(self, group_id: str) -> None:
        if self._is_computing:
            self._due[group_id] = self._clock.call_later(REPEAT_NS, lambda: self._compute(group_id))
            return
        self._due.pop(group_id, None)
        group = self._groups.groups.get(group_id)
        if group is None or not group.members:
            return
        matched = self._patterns.matched(group)
        if matched.missing and self._waits_for_patterns(group_id, matched):
            return
        if not matched.missing:
            self._resolving.pop(group_id, None)
        self._computed_ns[group_id] = self._clock.now_ns()
        before = self._hidden.get(group_id, {})
        request = request_of(
            group,
            self._led.catalog,
            self._led.own_topics,
            matched,
            hidden_before=before,
            found_no_room=group_id in self._without_room,
        )
        if work_of(request) <= INLINE_WORK_MAX:
            self._computed(request, targets_of(request))
            return
        self._is_computing = True

        def done(result: commands.AssignTargets | BaseException | None) -> None:
            self._is_computing = False
            if isinstance(result, BaseException):
                raise result
            if not self._is_closed:
                self._computed(request, result)

        self._led.compute(lambda: targets_of(request), done)

    def _waits_for_patterns(self, group_id: str, matched: Matched) -> bool:
        """Start matching the missing patterns. Return True if the targets wait for the result."""
        now_ns = self._clock.now_ns()
        until_ns = self._resolving.setdefault(group_id, now_ns + PATTERNS_WAIT_NS)
        is_waiting = now_ns < until_ns
        if is_waiting:
            self._due[group_id] = self._clock.call_later(
                until_ns - now_ns, lambda: self._compute(group_id)
            )
        self._patterns.resolve(group_id, matched, lambda: self._resolved(group_id))
        return is_waiting

    def _resolved(self, group_id: str) -> None:
        """Compute a group's targets because more of its patterns are matched."""
        if self._is_closed or group_id not in self._resolving:
            return
        timer = self._due.pop(group_id, None)
        if timer is not None:
            timer.cancel()
        self._compute_later(group_id)

    def _computed(self, request: Request, command: commands.AssignTargets | None) -> None:
        if command is None:
            self._without_room.pop(request.group_id, None)
            return
        if not self._led.machine.targets_fit(command):
            # Proposing them would cost an entry of the log each time.
            self._found_no_room(request, command)
            return

        def decided(outcome: Outcome) -> None:
            if self._is_closed:
                return
            if outcome.kind is not OutcomeKind.APPLIED:
                self._compute_later(request.group_id, REPEAT_NS)
            elif not outcome.result.has_room:
                self._found_no_room(request, command)
            elif not outcome.result.is_current:
                self._compute_later(request.group_id)
            elif request.group_id in self._groups.groups:
                self._hidden[request.group_id] = dict(request.hidden)
                self._without_room.pop(request.group_id, None)

        self._led.state_group.propose(command, deadline_ns=self._led.deadline_ns(), done=decided)

    def _found_no_room(self, request: Request, command: commands.AssignTargets) -> None:
        self._without_room[request.group_id] = self._clock.now_ns() + NO_ROOM_NS
        if request.epoch > request.assignment_epoch:
            self._propose_without_room(request, command)

    def _propose_without_room(self, request: Request, command: commands.AssignTargets) -> None:
        """Propose no targets because they are too large to be kept: members keep theirs, and new
        ones get nothing until there is room."""
        none = commands.AssignTargets(
            group_id=command.group_id,
            group_epoch=command.group_epoch,
            next_epoch=command.next_epoch,
            topics=list(request.known.values()),
            patterns=[
                commands.ResolvedPattern(pattern, names)
                for pattern, names in sorted(request.known_patterns.items())
            ],
            targets=[],
        )
        if self._led.machine.targets_fit(none):
            self._led.propose(none)

    # --- settings ------------------------------------------------------------------------------
    def _setting(self, group_id: str, name: str, default: int) -> int:
        """Return a setting of one group, or the server's default."""
        own = self._led.catalog.resources.of(ResourceType.GROUP, group_id).get(f"consumer.{name}")
        return default if own is None else int(own)

    def session_ms(self, group_id: str) -> int:
        """Return the session timeout of a group's members."""
        default = self._led.options.group_consumer_session_timeout_ms
        return self._setting(group_id, "session.timeout.ms", default)

    @property
    def _may_upgrade(self) -> bool:
        return self._led.options.group_consumer_migration_policy in ("upgrade", "bidirectional")

    @property
    def _migrates_back(self) -> bool:
        return self._led.options.group_consumer_migration_policy in ("downgrade", "bidirectional")

    @property
    def _knows_downgrades(self) -> bool:
        return self._led.state_group.members_speak(VERSION_OF_DOWNGRADES)

    @property
    def _may_downgrade(self) -> bool:
        """True if a command that removes a member also has to downgrade the group, because some
        replicas do not know the command that only downgrades."""
        return self._migrates_back and not self._knows_downgrades

    def _heartbeat_ms(self, group_id: str) -> int:
        default = self._led.options.group_consumer_heartbeat_interval_ms
        return self._setting(group_id, "heartbeat.interval.ms", default)

    def _assignment_pause_ms(self, group_id: str) -> int:
        default = self._led.options.group_consumer_assignment_interval_ms
        return self._setting(group_id, "assignment.interval.ms", default)


def refusal_text(error: BadPattern) -> str:
    """Return Kafka's error text for an invalid pattern."""
    pattern = error.pattern
    return f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error.what}."


def _is_read_in_part(group: ModernGroup) -> bool:
    """Return True if partitions of the group's topics are in no member's target. There may have
    been no room for the targets under an earlier leader."""
    wanted = sum(topic.partitions for topic in group.topics.values())
    return sum(map(count, group.targets.values())) < wanted


def _topics_of(classic: ConsumerGroup, catalog: Catalog) -> list[commands.SubscribedTopic]:
    """Return this server's knowledge of the topics that classic members subscribe to or own."""
    names: set[str] = set()
    for member in classic.members.values():
        for protocol in member.protocols:
            names.update(subscribed_topics(protocol.metadata) or ())
        names.update(name for name, _ in read_assignment(member.assignment) or ())
    found = [catalog.topics[name] for name in sorted(names) if name in catalog.topics]
    return [
        commands.SubscribedTopic(
            topic.name, topic.topic_id, len(topic.partitions), topic.partitions[-1]
        )
        for topic in found
    ]
