"""One coordinator group while this server leads it: open requests and timers.

The state of consumer groups is replicated (`vdl.state.coordinator`) and survives any server. This
module keeps the state of the current leader only: open JoinGroup and SyncGroup requests, when each
member's session ends, and the deadline of each rebalance. It is created when this server starts to
serve a coordinator group, and dropped when it stops.

Rules:

* Timers only propose commands; `apply` decides.
* Events of applied commands answer open requests. Every request is answered exactly once.
* A new leader gives every member a whole session: no member is removed because of an election.
* After a stall of this server, late timers start again: the clients were not at fault.
* A member with an open request here is alive, and gets a whole session from its answer on. If its
  connection is gone, it does not.

Does not depend on requests, wire formats or other coordinator groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

from ids import GroupId
from rpc.hello import VERSION_OF_MANY_POSITIONS
from vdl.clock import MS, Clock, Timer
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.groups.group_shares import (
    GroupShares,
    growth,
    positions_growth,
    room_of_positions,
    shared_room,
)
from vdl.kafka.groups.led_consumer_groups import LedConsumerGroups
from vdl.kafka.groups.led_share_groups import LedShareGroups
from vdl.kafka.groups.offset_expiry import OffsetExpiry
from vdl.kafka.host import Compute
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.log import Log
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.state import commands
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.consumer_groups import (
    ClassicEvent,
    GroupDeleted,
    GroupEvent,
    JoinCompleted,
    MemberPending,
    MemberRemoved,
    RebalanceStarted,
    SyncCompleted,
)
from vdl.state.coordinator import (
    COORDINATOR_BYTES_MAX,
    POSITIONS_BYTES_MAX,
    POSITIONS_MAX,
    Coordinator,
)
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind, GroupTouched
from vdl.state.modern.member import ModernMember

RETRY_NS = 500 * MS
"""Delay until a timer proposes its command again, if that was not appended or its outcome is
unknown."""

STALL_NS = 1_000 * MS
"""A timer this late means that the server was stalled, not that clients were silent."""

TOLD_NS = 60_000 * MS
"""Least time between two log events that room is short."""

FULL_FROM = 0.7
"""Ratio of its room: a commit refused with less in use was not refused for lack of room."""

RAISED_FROM = COORDINATOR_BYTES_MAX // 2
"""Bytes of positions (committed offsets) beyond which they get a bound of their own, before there
is no room."""

DELETED_MAX = 10_000
"""Offsets of deleted partitions that one check removes, roughly: all of a partition are removed
together. If positions have a bound of their own, the number of such partitions instead, because
their positions are removed over several turns. The next check removes the rest."""


class GroupOptions(Protocol):
    """Settings used here (`vdl.kafka.context.KafkaOptions`)."""

    @property
    def read_timeout_ms(self) -> int: ...
    @property
    def group_initial_rebalance_delay_ms(self) -> int: ...
    @property
    def group_consumer_session_timeout_ms(self) -> int: ...
    @property
    def group_consumer_heartbeat_interval_ms(self) -> int: ...
    @property
    def group_consumer_assignment_interval_ms(self) -> int: ...
    @property
    def group_consumer_migration_policy(self) -> str: ...
    @property
    def offsets_retention_minutes(self) -> int: ...
    @property
    def offsets_retention_check_ms(self) -> int: ...
    @property
    def authorizer(self) -> bool: ...


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
    """One consumer group of a coordinator that is led here."""

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

    def __init__(self, led: LedCoordinator, group_id: str) -> None:
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
        group = self.led.machine.group(self.group_id)
        assert group is not None, self.group_id
        return group

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
    def await_join(self, member_id: str, waiter: Waiter[Joined]) -> None:
        """Answer the request when the generation is set. An earlier request of the member, from
        another connection, is answered with an error."""
        earlier = self.joins.pop(member_id, None)
        self.joins[member_id] = waiter
        if earlier is not None:
            earlier.complete(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member_id))

    def await_sync(self, member_id: str, waiter: Waiter[Synced]) -> None:
        """Answer the request when the leader has sent the assignment."""
        earlier = self.syncs.pop(member_id, None)
        self.syncs[member_id] = waiter
        if earlier is not None:
            earlier.complete(Synced(ErrorCode.REBALANCE_IN_PROGRESS))

    def note_synced(self, member_id: str) -> None:
        """Note that the member has requested its assignment in this generation."""
        self.synced.add(member_id)
        self._stop_phase_when_synced()

    def assignment_of(self, member_id: str) -> Synced:
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
            sync.complete(self.assignment_of(member_id))
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
        self._set_phase(RETRY_NS, self._join_timed_out)
        self.led.propose(commands.CompleteJoin(self.group_id, self.group.generation))

    def _sync_timed_out(self) -> None:
        """Propose to remove members that joined but do not sync: no member reads their
        partitions."""
        group = self.group
        missing = [member_id for member_id in group.members if member_id not in self.synced]
        self._cancel_phase()
        if missing:
            self._set_phase(RETRY_NS, self._sync_timed_out)
            self.led.propose(
                commands.ExpireMembers(self.group_id, missing, generation=group.generation)
            )


class LedCoordinator:
    """One coordinator group while this server leads and serves it."""

    def __init__(
        self,
        state_group: StateGroup,
        clock: Clock,
        options: Callable[[], GroupOptions],
        catalog: Catalog,
        settled_ms: Callable[[], int],
        compute: Compute,
        pattern_work: PatternWork,
        own_topics: Mapping[str, TopicInfo],
        log: Log | None = None,
    ) -> None:
        """`options`: the current settings. `settled_ms`: the time of `AgreedTime` by which to
        delete. `compute`: runs long computations. `own_topics`: Kafka's internal topics by name,
        which are views here."""
        machine = state_group.machine
        assert isinstance(machine, Coordinator), machine
        self.machine = machine
        self.state_group = state_group
        self.clock = clock
        self._options = options
        self.catalog = catalog
        self.compute = compute
        self.pattern_work = pattern_work
        self.own_topics = own_topics
        self._settled_ms = settled_ms
        self._shares = GroupShares(machine, shared_room(machine), clock)
        self._position_shares: GroupShares | None = None
        """Set once positions have a bound of their own and some are committed."""
        self._is_raising = False
        """True while `RaisePositionsBound` is proposed."""
        self._log = log
        self._told_ns = -TOLD_NS
        """Time of the last log event that room is short."""
        self._live: dict[str, LiveGroup] = {}
        """Groups with members or pending members, and others that requests named."""
        for group_id, group in machine.groups.groups.items():
            if group.members or group.pending:
                self.live(group_id).resume()
        self.consumer = LedConsumerGroups(self)
        self.share = LedShareGroups(machine.share.groups, clock, catalog, self.propose)
        self._expiry = OffsetExpiry(machine, clock, self._propose_then)
        self._offsets_timer = self._check_offsets_later()

    @property
    def options(self) -> GroupOptions:
        """The current settings."""
        return self._options()

    def live(self, group_id: str) -> LiveGroup:
        live = self._live.get(group_id)
        if live is None:
            live = self._live[group_id] = LiveGroup(self, group_id)
        return live

    def close(self) -> None:
        self._offsets_timer.cancel()
        self._expiry.close()
        self.consumer.close()
        self.share.close()
        groups, self._live = self._live, {}
        for live in groups.values():
            live.close(ErrorCode.NOT_COORDINATOR)

    def propose(self, command: Any) -> None:
        """Propose for a timer, which is armed to try again."""
        self.state_group.propose(command, deadline_ns=self.deadline_ns(), done=_ignore)

    def _propose_then(self, command: Any, done: Callable[[Outcome], None]) -> None:
        self.state_group.propose(command, deadline_ns=self.deadline_ns(), done=done)

    def propose_for(self, asker: str, command: Any, done: Callable[[Outcome], None]) -> bool:
        """Propose a client's command. Return False, without proposing it, if the principal has used
        up its share of the coordinator's room. Without access control there are no shares."""
        if not asker or not self.options.authorizer:
            self.state_group.propose(command, deadline_ns=self.deadline_ns(), done=done)
            return True
        taken: list[tuple[GroupShares, str, int]] = []
        for shares, more in self._taken_from(command):
            if more <= 0:
                continue
            owner = shares.begin(asker, command.group_id, more)
            if owner is None:
                self._end_shares(command.group_id, taken)
                if isinstance(command, commands.CommitOffsets | commands.CommitTransactionOffsets):
                    self._raise_bound()
                return False
            taken.append((shares, owner, more))
        if not taken:
            self.state_group.propose(command, deadline_ns=self.deadline_ns(), done=done)
            return True

        def decided(outcome: Outcome) -> None:
            self._end_shares(command.group_id, taken)
            done(outcome)

        self.state_group.propose(command, deadline_ns=self.deadline_ns(), done=decided)
        return True

    def _taken_from(self, command: Any) -> Iterator[tuple[GroupShares, int]]:
        """Yield the shares that apply to the command, and the bytes it takes of each."""
        machine = self.machine
        bound, more = machine.positions_bound, positions_growth(machine, command)
        if bound is not None and more > 0:
            shares = self._position_shares
            if shares is None:
                room = room_of_positions(machine, bound)
                shares = self._position_shares = GroupShares(machine, room, self.clock)
            yield shares, more
        yield self._shares, growth(machine, command)

    def _end_shares(self, group_id: str, taken: list[tuple[GroupShares, str, int]]) -> None:
        for shares, owner, more in taken:
            shares.end(owner, group_id, more)

    def committed(self, error: ErrorCode) -> None:
        """Note that a commit of offsets was decided. If it found no room, make room, so that the
        client's retry may succeed."""
        machine = self.machine
        if machine.positions_bound is None and (
            error is COORDINATOR_IS_FULL or machine.offsets.bytes > RAISED_FROM
        ):
            self._raise_bound()
        elif error is COORDINATOR_IS_FULL and machine.room_used > FULL_FROM:
            self._tell_full(awaits_servers=False)

    def _raise_bound(self) -> None:
        """Give positions a bound of their own, if all replicas support it."""
        machine, group = self.machine, self.state_group
        if machine.positions_bound is not None or self._is_raising:
            return
        if not group.members_speak(VERSION_OF_MANY_POSITIONS):
            self._tell_full(awaits_servers=True)
            return
        self._is_raising = True

        def done(_: Outcome) -> None:
            self._is_raising = False

        command = commands.RaisePositionsBound(POSITIONS_BYTES_MAX, POSITIONS_MAX)
        group.propose(command, deadline_ns=self.deadline_ns(), done=done)

    def _tell_full(self, *, awaits_servers: bool) -> None:
        """Log that room is short. `awaits_servers`: there will be more room once all replicas
        support it."""
        now_ns = self.clock.now_ns()
        if self._log is None or now_ns - self._told_ns < TOLD_NS:
            return
        self._told_ns = now_ns
        self._log.warning(
            "coordinator_full",
            coordinator=self.state_group.group_id,
            offsets=len(self.machine.offsets),
            bytes=self.machine.bytes_held,
            awaits_servers=awaits_servers,
        )

    def undecided(self, outcome: Outcome) -> ErrorCode:
        """See `undecided`."""
        return undecided(self, outcome)

    def deadline_ns(self) -> int:
        return self.clock.now_ns() + self.options.read_timeout_ms * MS

    def renew_session(self, group_id: str, member_id: str) -> None:
        """Renew a member's session for a request of any kind."""
        self.consumer.renew(group_id, member_id)
        group = self.machine.group(group_id)
        if group is None:
            return
        member = group.members.get(member_id)
        if member is not None:
            self.live(group_id).renew_session(member_id, member.session_timeout_ms)
        elif member_id in group.pending:
            self.live(group_id).renew_session(member_id, group.pending[member_id])

    # --- applied commands ----------------------------------------------------------------------
    def handle_events(self, events: list[GroupEvent]) -> None:
        """Turn the events of one command into answers and timers. The state is the one after all
        events."""
        of_classic: list[str] = []
        for event in events:
            if isinstance(event, GroupTouched):
                self._touched(event)
            else:
                of_classic.append(event.group_id)
                self._handle_event(event)
        for group_id in dict.fromkeys(of_classic):
            group = self.machine.group(group_id)
            if group is None or not (group.members or group.pending):
                # A group without members needs no state here.
                live = self._live.pop(group_id, None)
                if live is not None:
                    live.close(ErrorCode.UNKNOWN_MEMBER_ID)

    def _touched(self, event: GroupTouched) -> None:
        match event.kind:
            case GroupKind.CONSUMER:
                self.consumer.changed(event.group_id, event.member_ids)
                if self.machine.group(event.group_id) is not None:
                    # It was downgraded: sessions of members begin.
                    self.live(event.group_id).resume()
            case GroupKind.SHARE:
                self.share.touched(event.group_id)
            case GroupKind.CLASSIC:
                raise AssertionError(event)
            case _:
                assert_never(event.kind)

    def _handle_event(self, event: ClassicEvent) -> None:
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

    def _expire_offsets(self) -> None:
        retention_ms = self.options.offsets_retention_minutes * 60_000
        deleted = self._deleted_partitions()
        now_ms = self._settled_ms()
        if self.machine.positions_bound is not None:
            self._expiry.begin(retention_ms, deleted, now_ms)
        elif (
            deleted
            or self.machine.expirable(now_ms, retention_ms)
            or self.machine.expirable_of_kinds(now_ms, retention_ms)
        ):
            self.propose(commands.ExpireOffsets(retention_ms, deleted, now_ms))
        self._offsets_timer = self._check_offsets_later()

    def _check_offsets_later(self) -> Timer:
        delay_ns = self.options.offsets_retention_check_ms * MS
        return self.clock.call_later(delay_ns, self._expire_offsets)

    def _deleted_partitions(self) -> list[GroupId]:
        """Return the group ids of deleted partitions with committed offsets or share-partitions, as
        many as one check removes."""
        found: list[GroupId] = []
        count = 0
        in_turns = self.machine.positions_bound is not None
        for partition_group, positions in self.machine.offsets.by_partition.items():
            if self.catalog.has_deleted(partition_group):
                found.append(partition_group)
                count += 1 if in_turns else positions
                if count >= DELETED_MAX:
                    break
        shared = set(self.machine.share.states.partition_groups())
        gone = [group for group in sorted(shared) if self.catalog.has_deleted(group)]
        return sorted({*found, *gone[:DELETED_MAX]})


def undecided(led: LedCoordinator, outcome: Outcome) -> ErrorCode:
    """Return the error for the proposer of a command that was not applied: 16 if it certainly never
    will be because another server leads, else 15; both make clients look for the coordinator again.
    10, which clients do not retry, for a command that is too large for any coordinator."""
    if outcome.kind is OutcomeKind.TOO_LARGE:
        return ErrorCode.MESSAGE_TOO_LARGE
    if outcome.kind is OutcomeKind.NOT_APPENDED and not led.state_group.is_leader:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _ignore(_: Outcome) -> None:
    """Ignore the outcome of a timer's command: the timer is armed again in any case."""
