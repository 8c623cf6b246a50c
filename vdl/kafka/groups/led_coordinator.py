"""One coordinator group while this server leads it: what its groups share.

The state of consumer groups is replicated (`vdl.state.coordinator`) and survives any server. The
leader keeps its own state for each kind of groups: `LedClassicGroups`, `LedConsumerGroups`,
`LedShareGroups`. This module proposes for them, hands them the events of applied commands, and
expires offsets. It is created when this server starts to serve a coordinator group, and dropped
when it stops.

Does not depend on requests, wire formats or other coordinator groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, assert_never

from ids import GroupId
from rpc.hello import VERSION_OF_MANY_POSITIONS
from vdl.clock import MS, Clock, Timer
from vdl.errors import ErrorCode
from vdl.kafka.groups.led_classic_groups import LedClassicGroups
from vdl.kafka.groups.led_consumer_groups import LedConsumerGroups
from vdl.kafka.groups.led_share_groups import LedShareGroups
from vdl.kafka.groups.offset_expiry import OffsetExpiry, was_just_left
from vdl.kafka.groups.rebalance_notes import RebalanceNotes
from vdl.kafka.host import Compute
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.kafka.room_shares import (
    GroupShares,
    growth,
    positions_growth,
    room_of_positions,
    shared_room,
)
from vdl.log import Log
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.state import commands
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.consumer_groups import GroupEvent
from vdl.state.coordinator import (
    COORDINATOR_BYTES_MAX,
    POSITIONS_BYTES_MAX,
    POSITIONS_MAX,
    Coordinator,
)
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind, GroupTouched

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
        self.notes = RebalanceNotes(machine, clock, log)
        self.classic = LedClassicGroups(self)
        self.consumer = LedConsumerGroups(self)
        self.share = LedShareGroups(
            machine, clock, catalog, self.propose, lambda: self._tell_full(awaits_servers=False)
        )
        self._expiry = OffsetExpiry(machine, clock, self._propose_then)
        self._offsets_timer = self._check_offsets_later()

    @property
    def options(self) -> GroupOptions:
        """The current settings."""
        return self._options()

    def close(self) -> None:
        self._offsets_timer.cancel()
        self._expiry.close()
        self.consumer.close()
        self.share.close()
        self.classic.close()

    def propose(self, command: Any) -> None:
        """Propose for a timer, which is armed to try again."""
        self._propose_then(command, _ignore)

    def _propose_then(self, command: Any, done: Callable[[Outcome], None]) -> None:
        added = self.share.begin(command)

        def decided(outcome: Outcome) -> None:
            self.share.end(added)
            done(outcome)

        self.state_group.propose(
            command, deadline_ns=self.deadline_ns(), done=decided if added else done
        )

    def propose_for(self, asker: str, command: Any, done: Callable[[Outcome], None]) -> bool:
        """Propose a client's command. Return False, without proposing it, if the principal has used
        up its share of the coordinator's room. Without access control there are no shares."""
        if not asker or not self.options.authorizer:
            self._propose_then(command, done)
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
            self._propose_then(command, done)
            return True

        def decided(outcome: Outcome) -> None:
            self._end_shares(command.group_id, taken)
            done(outcome)

        self._propose_then(command, decided)
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
        self.classic.renew(group_id, member_id)

    # --- applied commands ----------------------------------------------------------------------
    def applied(self, result: Any) -> None:
        """Process the events in the answer of an applied command."""
        self.notes.applied(result, self.classic.synced_of)
        self.handle_events(result.events)

    def handle_events(self, events: list[GroupEvent]) -> None:
        """Turn the events of one command into answers and timers. The state is the one after all
        events."""
        of_classic: list[str] = []
        for event in events:
            if isinstance(event, GroupTouched):
                self._touched(event)
            else:
                of_classic.append(event.group_id)
                self.classic.handle_event(event)
        for group_id in dict.fromkeys(of_classic):
            self.classic.drop_if_over(group_id)

    def _touched(self, event: GroupTouched) -> None:
        match event.kind:
            case GroupKind.CONSUMER:
                self.consumer.changed(event.group_id, event.member_ids)
                if self.machine.group(event.group_id) is not None:
                    # It was downgraded: sessions of members begin.
                    self.classic.live(event.group_id).resume()
            case GroupKind.SHARE:
                self.share.touched(event.group_id)
            case GroupKind.CLASSIC:
                raise AssertionError(event)
            case _:
                assert_never(event.kind)

    def _expire_offsets(self) -> None:
        retention_ms = self.options.offsets_retention_minutes * 60_000
        deleted = self._deleted_partitions()
        now_ms = self._settled_ms()
        if self._expires_by_group:
            self._expiry.begin(retention_ms, deleted, now_ms)
        else:
            machine = self.machine
            of_kinds = machine.expirable_of_kinds(now_ms, retention_ms)
            # The older command names no groups, so it waits while one must not be named.
            is_held = any(was_just_left(machine, one, retention_ms, now_ms) for one, _ in of_kinds)
            if not is_held and (deleted or of_kinds or machine.expirable(now_ms, retention_ms)):
                self.propose(commands.ExpireOffsets(retention_ms, deleted, now_ms))
        self._offsets_timer = self._check_offsets_later()

    @property
    def _expires_by_group(self) -> bool:
        """True if all replicas know the command that names the groups."""
        if self.machine.positions_bound is not None:
            return True
        return self.state_group.members_speak(VERSION_OF_MANY_POSITIONS)

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
