"""The state of one coordinator group: groups, their committed offsets, transactions.

These state machines share one log, because only a member of the current generation may commit an
offset: membership and commits are decided at the same point of the log. A group id belongs to one
kind of group at a time. A group without members gives way to one of another kind, which inherits
its offsets. Transactions are a separate table and do not depend on groups; offsets that a
transaction commits in a group stay in `pending` until it ends.

Does not depend on requests, on timers, or on which groups belong to this coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ids import GroupId, Index
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.changed_parts import ChangedParts
from vdl.state.consumer_group import GROUP_BYTES, ConsumerGroup, GroupState
from vdl.state.consumer_groups import (
    ConsumerGroups,
    GroupEvent,
    GroupsDeleted,
    JoinAnswer,
    LeaveAnswer,
    SyncAnswer,
)
from vdl.state.group_kinds import COORDINATOR_IS_FULL, GroupKind, GroupTable, GroupTouched
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.groups import (
    ConsumersExpired,
    Heard,
    HeartbeatAnswer,
    ModernGroups,
    TargetsAssigned,
)
from vdl.state.modern.member import JOINING_EPOCH
from vdl.state.modern.migration import CONSUMER_PROTOCOL, downgraded, upgraded
from vdl.state.offsets import NO_EXPIRY, Offsets
from vdl.state.pending_offsets import PendingOffset, PendingOffsets
from vdl.state.share_coordination import ShareCoordination, ShareOffsetsAnswer
from vdl.state.share_groups import ShareGroupChanged
from vdl.state.subscription import subscribed_topics
from vdl.state.table import ALL, Scan, decode_value, encode_value, text_bytes
from vdl.state.transactions import TransactionAnswer, Transactions

KEY_PREFIXES = {GroupKind.CONSUMER: b"m", GroupKind.SHARE: b"s"}
"""Key prefix of each kind's groups; classic groups are stored under "g", offsets under "o"."""
COORDINATOR_BYTES_MAX = 7 << 19
"""Bound on the estimated size of a coordinator's state in a snapshot: 3.5 MiB.

Beyond half of the largest snapshot the log is no longer truncated; beyond all of it no replica can
be replaced. The bound is part of the commands' semantics, so that all replicas decide alike. If
committed offsets have bounds of their own (`RaisePositionsBound`), it applies to everything else.
"""

POSITIONS_BYTES_MAX = 64 << 20
POSITIONS_MAX = 1_000_000
"""Bounds of committed offsets set by a leader: bytes, as in `Offsets.bytes`, and number.

Offsets of transactions count when they are committed, and may exceed this bound when their
transactions end, by no more than the other bound.
"""

_BOUNDS_KEY = b"g"
"""Key of the bounds of committed offsets, once they have any.

A build that does not know this key takes it for an invalid group and refuses to start. With the
former bound it would refuse commits that other replicas apply.
"""

TRANSACTIONS_BYTES_MAX = COORDINATOR_BYTES_MAX // 2
"""Bound on the estimated size of transactional ids, within `COORDINATOR_BYTES_MAX`.

Clients that keep creating new ids must not prevent groups from committing.
"""


@dataclass(slots=True)
class CommitAnswer:
    """Answer to CommitOffsets: all of them are committed, or none."""

    error: ErrorCode
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class OffsetsDeleted:
    """Answer to DeleteOffsets: an error of the group, or one error for each named offset.

    An offset that does not exist counts as deleted.
    """

    error: ErrorCode
    errors: list[ErrorCode] = field(default_factory=list)
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class OffsetsExpired:
    """Answer to ExpireOffsets: the number of offsets removed.

    Groups with nothing left are removed too.
    """

    count: int = 0
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PositionsBound:
    """Bounds of committed offsets, separate from the rest of the state."""

    bytes_max: int
    count_max: int


class Coordinator:
    """Replicated state of one coordinator; see the module."""

    def __init__(self) -> None:
        self.changed = ChangedParts()
        """Changes for views that show this state as Kafka's records. Not part of the state."""
        self.groups = ConsumerGroups(self.changed)
        self.consumer = ModernGroups(self.changed)
        self.share = ShareCoordination()
        self.offsets = Offsets(self.changed)
        self.pending = PendingOffsets()
        self.transactions = Transactions()
        self.positions_bound: PositionsBound | None = None
        """None: committed offsets share one bound with the rest."""
        self._is_bound_dirty = False
        self._coming: list[tuple[bytes, bytes]] = []
        """Items of a state being loaded, except committed offsets."""
        self.index = 0
        """Index of the current or last applied entry; 0 if this object has applied none."""
        self.tables: dict[GroupKind, GroupTable] = {
            GroupKind.CONSUMER: self.consumer,
            GroupKind.SHARE: self.share,
        }
        """Groups of each kind except the classic one."""
        groups = self.groups
        transactions = self.transactions
        self._apply_by_type: dict[type, Callable[[Any, int], Any]] = {
            commands.JoinGroup: self._join,
            commands.SyncGroup: self._sync,
            commands.LeaveGroup: self._leave,
            commands.ExpireMembers: groups.expire,
            commands.CompleteJoin: groups.complete_join,
            commands.DeleteGroups: self._delete_groups,
            commands.CommitOffsets: self._commit_offsets,
            commands.ExpireOffsets: self._expire_offsets,
            commands.ExpireOffsetsOf: self._expire_offsets_of,
            commands.DeleteOffsets: self._delete_offsets,
            commands.RaisePositionsBound: self._raise_positions_bound,
            commands.InitTransactions: self._init_transactions,
            commands.AddToTransaction: self._add_to_transaction,
            commands.EndTransaction: transactions.end,
            commands.CompleteTransactions: transactions.complete,
            commands.AbortTransactions: transactions.abort,
            commands.TimeOutTransactions: transactions.abort,
            commands.ExpireTransactionalIds: transactions.expire,
            commands.CommitTransactionOffsets: self._commit_transaction_offsets,
            commands.EndTransactionOffsets: self._end_transaction_offsets,
            commands.ConsumerHeartbeat: self._consumer_heartbeat,
            commands.LeaveConsumerGroup: self._leave_consumer_group,
            commands.AssignTargets: self._assign_targets,
            commands.ExpireConsumers: self._expire_consumers,
            commands.DowngradeConsumerGroup: self._downgrade_consumer_group,
            commands.JoinShareGroup: self._join_share_group,
            commands.LeaveShareGroup: self._of_share(self.share.leave),
            commands.RefreshShareGroup: self._of_share(self.share.refresh),
            commands.ClaimSharePartition: self.share.claim,
            commands.WriteShareState: self._of_share(self.share.write),
            commands.AlterShareOffsets: self._of_share(self._alter_share_offsets),
            commands.DeleteShareOffsets: self.share.delete,
        }

    def understands(self, command: Any) -> bool:
        """Return True if `apply` knows this kind of command.

        A command of an unknown kind must never be appended: every replica would stop at it, at
        every start.
        """
        return type(command) in self._apply_by_type

    def apply(self, command: Any, now_ms: int, index: Index) -> Any:
        """Apply one committed command; the answer's type depends on the command's.

        Every answer has `events`, in the order they happened.
        """
        self.index = index
        return self._apply_by_type[type(command)](command, now_ms)

    def group(self, group_id: str) -> ConsumerGroup | None:
        """Return a classic group by id; None is Kafka's Dead."""
        return self.groups.groups.get(group_id)

    # --- kinds of groups -------------------------------------------------------------------
    def kind_of(self, group_id: str) -> GroupKind | None:
        """Return the kind of a group; None if the group does not exist."""
        if group_id in self.groups.groups:
            return GroupKind.CLASSIC
        for kind, table in self.tables.items():
            if group_id in table:
                return kind
        return None

    def group_ids(self) -> Iterator[str]:
        """Yield the ids of groups of all kinds."""
        yield from self.groups.groups
        for table in self.tables.values():
            yield from table.ids()

    def partition_groups(self) -> Iterator[GroupId]:
        """Yield the group ids of all partitions that the state names, with repetitions.

        Also those of coordinators that take part in transactions.
        """
        yield from self.offsets.by_partition
        yield from self.pending.partition_groups()
        yield from self.share.states.partition_groups()
        for known in self.transactions.ids.values():
            yield from known.participants
        for consumers in self.consumer.groups.values():
            yield from (topic.last_group for topic in consumers.topics.values())
        for sharing in self.share.groups.groups.values():
            yield from (group for _, _, group in sharing.partitions)

    @property
    def _bytes_besides_offsets(self) -> int:
        # The tables are named one by one: every beginning transaction calls this.
        groups = self.groups.bytes_held + self.consumer.bytes_held + self.share.bytes_held
        return groups + self.pending.bytes + self.transactions.bytes

    @property
    def bytes_held(self) -> int:
        """Estimated size of the whole state in a snapshot."""
        return self._bytes_besides_offsets + self.offsets.bytes

    @property
    def shared_bytes(self) -> int:
        """Size that `COORDINATOR_BYTES_MAX` bounds: all, or all but committed offsets."""
        held = self._bytes_besides_offsets
        return held if self.positions_bound is not None else held + self.offsets.bytes

    @property
    def room_used(self) -> float:
        """Used fraction of the tightest bound. At 1 some commands are refused."""
        shared = self.shared_bytes / COORDINATOR_BYTES_MAX
        bound = self.positions_bound
        if bound is None:
            return shared
        of_bytes = self.offsets.bytes / bound.bytes_max
        return max(shared, of_bytes, len(self.offsets) / bound.count_max)

    def _room(self, held: int) -> int:
        """Return the size limit of a table that takes `held` bytes now.

        The table must not hold committed offsets.
        """
        return COORDINATOR_BYTES_MAX - self.shared_bytes + held

    def is_barred(self, group_id: str, kind: GroupKind) -> bool:
        """Return True if no member can join a group of this kind, because another kind has members.

        Share groups and other kinds never give way to one another, as in Kafka.
        """
        present = self.kind_of(group_id)
        if present is None or present is kind:
            return False
        if GroupKind.SHARE in (present, kind):
            return True
        if present is GroupKind.CLASSIC:
            return self.groups.groups[group_id].state is not GroupState.EMPTY
        return not self.tables[present].is_empty(group_id)

    def make_way(self, group_id: str, kind: GroupKind) -> list[GroupEvent]:
        """Delete the empty group of another kind that has this id, if any. Its offsets are kept.

        Called when a member joins a group of this kind and `is_barred` is False.
        """
        events: list[GroupEvent] = []
        present = self.kind_of(group_id)
        if present is not None and present is not kind:
            error = self._delete_group(group_id, events)
            assert error is ErrorCode.NONE, (group_id, error)
        return events

    # --- commands --------------------------------------------------------------------------
    def _join(self, command: commands.JoinGroup, now_ms: int) -> JoinAnswer | HeartbeatAnswer:
        if self.has_consumers(command.group_id):
            self.consumer.bytes_max = self._room(self.consumer.bytes_held)
            joined = self.consumer.joined(command, now_ms)
            if command.may_downgrade and joined.error is ErrorCode.NONE:
                joined.events += self._downgrade(command.group_id, now_ms)
            return joined
        if self.is_barred(command.group_id, GroupKind.CLASSIC):
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
        before = self.kind_of(command.group_id)
        answer = self.groups.join(command, now_ms, self._room(0))
        if before not in (None, GroupKind.CLASSIC) and command.group_id in self.groups.groups:
            self.tables[before].drop(command.group_id)
            answer.events.insert(0, GroupTouched(command.group_id, before))
        return answer

    def _sync(self, command: commands.SyncGroup, now_ms: int) -> SyncAnswer:
        if self.has_consumers(command.group_id):
            # The group was upgraded meanwhile; the classic leader's assignment no longer counts.
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
        return self.groups.sync(command, now_ms, self._room(0))

    def has_consumers(self, group_id: str) -> bool:
        """Return True for a group of the newer protocol with members, classic ones included."""
        group = self.consumer.groups.get(group_id)
        return group is not None and bool(group.members)

    def _leave(self, command: commands.LeaveGroup, now_ms: int) -> LeaveAnswer:
        if command.group_id in self.consumer:
            return self.consumer.left(command, now_ms)
        return self.groups.leave(command, now_ms)

    def _consumer_heartbeat(
        self, command: commands.ConsumerHeartbeat, now_ms: int
    ) -> HeartbeatAnswer:
        events = self._upgrade(command, now_ms)
        heard = self.heard(command)
        if heard.error is not ErrorCode.NONE:
            if events:
                events += self._downgrade(command.group_id, now_ms)
            return HeartbeatAnswer(heard.error, heard.message, events=events)
        events += self.make_way(command.group_id, GroupKind.CONSUMER)
        answer = self.consumer.heartbeat(command, heard, now_ms)
        answer.events[:0] = events
        return answer

    def _upgrade(self, command: commands.ConsumerHeartbeat, now_ms: int) -> list[GroupEvent]:
        """Convert a classic group that a member of the newer protocol joins.

        Return no events if not done.
        """
        group = self._upgraded(command, now_ms)
        if group is None:
            return []
        events = self.groups.give_away(command.group_id)
        self.consumer.adopt(group)
        return [*events, GroupTouched(group.group_id, GroupKind.CONSUMER, list(group.members))]

    def _upgraded(self, command: commands.ConsumerHeartbeat, now_ms: int) -> ModernGroup | None:
        """Return what a heartbeat converts the classic group into; None if it does not."""
        classic = self.group(command.group_id)
        if classic is None or not classic.members or command.upgrade is None:
            return None
        if command.member_epoch != 0 or len(classic.members) >= command.members_max:
            return None
        group = upgraded(classic, command.upgrade, now_ms)
        if group is None or self.shared_bytes - classic.bytes + group.bytes > COORDINATOR_BYTES_MAX:
            return None
        return group

    def heard_after_upgrade(self, command: commands.ConsumerHeartbeat) -> Heard:
        """Evaluate a heartbeat that may upgrade its group, without changing the state.

        Use: before such a command is proposed. One that is refused after the upgrade makes all
        members rebalance.
        """
        group = self._upgraded(command, 0)
        if group is None:
            return self.heard(command)
        classic_bytes = self.groups.groups[command.group_id].bytes
        room = self._room(self.consumer.bytes_held)
        self.consumer.bytes_max = room + classic_bytes - group.bytes
        return self.consumer.heard(command, group)

    def _downgrade_consumer_group(
        self, command: commands.DowngradeConsumerGroup, now_ms: int
    ) -> HeartbeatAnswer:
        events = self._downgrade(command.group_id, now_ms, keeps_generation=True)
        return HeartbeatAnswer(ErrorCode.NONE, events=events)

    def _downgrade(
        self, group_id: str, now_ms: int, *, keeps_generation: bool = False
    ) -> list[GroupEvent]:
        """Convert a group without members of the newer protocol into a classic one."""
        if not self.consumer.is_classic_again(group_id):
            return []
        group = self.consumer.give_away(group_id)
        generation = group.epoch
        if keeps_generation:
            # Members are in this generation and keep their partitions until they join the next one.
            generation = max(member.epoch for member in group.members.values())
            generation = generation if generation > JOINING_EPOCH else group.epoch
        touched = GroupTouched(group_id, GroupKind.CONSUMER, list(group.members))
        return [touched, *self.groups.adopt(downgraded(group, generation, now_ms), now_ms)]

    def _leave_consumer_group(
        self, command: commands.LeaveConsumerGroup, now_ms: int
    ) -> HeartbeatAnswer:
        answer = self.consumer.leave(command, now_ms)
        if command.may_downgrade and answer.error is ErrorCode.NONE and not command.is_static:
            answer.events += self._downgrade(command.group_id, now_ms)
        return answer

    def _expire_consumers(self, command: commands.ExpireConsumers, now_ms: int) -> ConsumersExpired:
        answer = self.consumer.expire(command, now_ms)
        if command.may_downgrade and answer.events:
            answer.events += self._downgrade(command.group_id, now_ms)
        return answer

    def heard(self, command: commands.ConsumerHeartbeat) -> Heard:
        """Evaluate a member's heartbeat against the current state, without changing it."""
        if self.is_barred(command.group_id, GroupKind.CONSUMER):
            return Heard(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {command.group_id} is not a consumer group."
            )
        self.consumer.bytes_max = self._room(self.consumer.bytes_held)
        return self.consumer.heard(command)

    def _assign_targets(self, command: commands.AssignTargets, now_ms: int) -> TargetsAssigned:
        self.consumer.bytes_max = self._room(self.consumer.bytes_held)
        return self.consumer.assign(command, now_ms)

    def targets_fit(self, command: commands.AssignTargets) -> bool:
        """Return False if AssignTargets would find no room, without changing the state."""
        self.consumer.bytes_max = self._room(self.consumer.bytes_held)
        return self.consumer.fit(command)

    def _of_share(self, apply: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        """Wrap `apply` so that share groups first get their current size limit."""

        def bounded(command: Any, now_ms: int) -> Any:
            self.share.bytes_max = self._room(self.share.bytes_held)
            return apply(command, now_ms)

        return bounded

    def _join_share_group(self, command: commands.JoinShareGroup, now_ms: int) -> ShareGroupChanged:
        if self.is_barred(command.group_id, GroupKind.SHARE):
            return ShareGroupChanged(ErrorCode.GROUP_ID_NOT_FOUND)
        self.share.bytes_max = self._room(self.share.bytes_held)
        return self.share.join(command, now_ms)

    def _alter_share_offsets(
        self, command: commands.AlterShareOffsets, now_ms: int
    ) -> ShareOffsetsAnswer:
        if self.is_barred(command.group_id, GroupKind.SHARE):
            return ShareOffsetsAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
        return self.share.alter(command, now_ms)

    @property
    def free_bytes(self) -> int:
        """Size by which the state may still grow, as bounded by `COORDINATOR_BYTES_MAX`."""
        return self._room(0)

    def bytes_of(self, group_id: str) -> int:
        """Return the estimated snapshot size of a group and its offsets; 0 if there is none."""
        held = self.offsets.bytes_of(group_id) + self.pending.bytes_of(group_id)
        match self.kind_of(group_id):
            case GroupKind.CLASSIC:
                held += self.groups.groups[group_id].bytes
            case GroupKind.CONSUMER:
                held += self.consumer.groups[group_id].bytes
            case GroupKind.SHARE:
                held += self.share.groups.groups[group_id].bytes
            case None:
                pass
        return held

    def commit_growth(self, command: commands.CommitOffsets) -> int:
        """Return how many bytes these offsets add at most."""
        return self.offsets.growth(command.group_id, command.offsets) + self._group_growth(command)

    def _group_growth(self, command: commands.CommitOffsets) -> int:
        """Return how many of these bytes are those of a newly created group."""
        if self.kind_of(command.group_id) is not None:
            return 0
        return GROUP_BYTES + text_bytes(command.group_id)

    def _has_room(self, command: commands.CommitOffsets) -> bool:
        """Return True if these offsets fit. Offsets that need no additional bytes always do."""
        if self.positions_bound is None:
            more = self.commit_growth(command)
            return more <= 0 or self.bytes_held + more <= COORDINATOR_BYTES_MAX
        of_group = self._group_growth(command)
        if of_group and self.shared_bytes + of_group > COORDINATOR_BYTES_MAX:
            return False
        more = self.offsets.growth(command.group_id, command.offsets)
        return self._positions_fit(self.positions_bound, command.group_id, command.offsets, more)

    def _positions_fit(
        self,
        bound: PositionsBound,
        group_id: str,
        offsets: list[commands.OffsetCommit],
        more: int,
    ) -> bool:
        """Return True if offsets that take `more` additional bytes fit within `bound`."""
        if more > 0 and self.offsets.bytes + more > bound.bytes_max:
            return False
        if len(self.offsets) + len(offsets) <= bound.count_max:
            return True
        present = self.offsets.of(group_id)
        new = {(one.topic, one.partition) for one in offsets} - present.keys()
        return not new or len(self.offsets) + len(new) <= bound.count_max

    def _raise_positions_bound(
        self, command: commands.RaisePositionsBound, now_ms: int
    ) -> CommandAnswer:
        before = self.positions_bound or PositionsBound(0, 0)
        self.positions_bound = PositionsBound(
            max(before.bytes_max, command.bytes_max), max(before.count_max, command.count_max)
        )
        self._is_bound_dirty = True
        return CommandAnswer(ErrorCode.NONE)

    def _check_commit(self, command: commands.CommitOffsets) -> ErrorCode:
        match self.kind_of(command.group_id):
            case GroupKind.CONSUMER:
                return self.consumer.check_commit(
                    command.group_id,
                    command.generation,
                    command.member_id,
                    knows_epochs=command.knows_epochs,
                )
            case GroupKind.SHARE:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case GroupKind.CLASSIC | None:
                return self.groups.check_commit(
                    command.group_id,
                    command.generation,
                    command.member_id,
                    command.group_instance_id,
                )

    def check_fetch(self, group_id: str, epoch: int, member_id: str | None) -> ErrorCode:
        """Return NONE if a member may read committed offsets (KIP-848).

        Other kinds of groups do not check this.
        """
        if group_id not in self.consumer:
            return ErrorCode.NONE
        return self.consumer.check_fetch(group_id, epoch, member_id)

    def _commit_offsets(self, command: commands.CommitOffsets, now_ms: int) -> CommitAnswer:
        error = self._check_commit(command)
        if error is ErrorCode.NONE and self.offsets.knows_later(command.group_id, command.offsets):
            # The proposer's catalog is behind; clients retry after this error.
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is ErrorCode.NONE and not self._has_room(command):
            error = COORDINATOR_IS_FULL
        if error is ErrorCode.NONE:
            if self.kind_of(command.group_id) is None:
                self.groups.ensure(command.group_id, now_ms)
            self.offsets.commit(command.group_id, command.offsets, now_ms, command.retention_ms)
            for offset in command.offsets:
                place = command.group_id, offset.topic, offset.partition
                self.pending.supersede(place, self.index)
        return CommitAnswer(error)

    # --- transactions ------------------------------------------------------------------------
    def _bound_transactions(self) -> None:
        room = self._room(self.transactions.bytes)
        self.transactions.bytes_max = min(room, TRANSACTIONS_BYTES_MAX)

    def _init_transactions(
        self, command: commands.InitTransactions, now_ms: int
    ) -> TransactionAnswer:
        self._bound_transactions()
        return self.transactions.init(command, now_ms)

    def _add_to_transaction(
        self, command: commands.AddToTransaction, now_ms: int
    ) -> TransactionAnswer:
        self._bound_transactions()
        return self.transactions.add(command, now_ms)

    def _check_transaction_commit(self, command: commands.CommitTransactionOffsets) -> ErrorCode:
        match self.kind_of(command.group_id):
            case GroupKind.CONSUMER:
                error = self.consumer.check_commit(
                    command.group_id, command.generation, command.member_id, knows_epochs=True
                )
                # Producers do not know the newer code.
                stale = error is ErrorCode.STALE_MEMBER_EPOCH
                return ErrorCode.ILLEGAL_GENERATION if stale else error
            case GroupKind.SHARE:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case GroupKind.CLASSIC | None:
                return self.groups.check_transaction_commit(
                    command.group_id,
                    command.generation,
                    command.member_id,
                    command.group_instance_id,
                )

    def _commit_transaction_offsets(
        self, command: commands.CommitTransactionOffsets, now_ms: int
    ) -> CommitAnswer:
        error = self.pending.check(
            command.producer_id, command.producer_epoch, command.number, command.asked_at
        )
        if error is ErrorCode.NONE:
            error = self._check_transaction_commit(command)
        if error is ErrorCode.NONE and self.offsets.knows_later(command.group_id, command.offsets):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return CommitAnswer(error)
        pending = [
            PendingOffset(command.producer_id, command.group_id, command.number, self.index, offset)
            for offset in command.offsets
        ]
        # They will become committed offsets, so those must fit as well.
        more = sum(one.bytes for one in pending) + GROUP_BYTES + text_bytes(command.group_id)
        growth = self.offsets.growth(command.group_id, command.offsets)
        bound = self.positions_bound
        if bound is None:
            more += growth
        elif not self._positions_fit(bound, command.group_id, command.offsets, growth):
            return CommitAnswer(COORDINATOR_IS_FULL)
        if self.shared_bytes + more > COORDINATOR_BYTES_MAX:
            return CommitAnswer(COORDINATOR_IS_FULL)
        if self.kind_of(command.group_id) is None:
            self.groups.ensure(command.group_id, now_ms)
        for one in pending:
            self.pending.add(one)
        return CommitAnswer(ErrorCode.NONE)

    def _end_transaction_offsets(
        self, command: commands.EndTransactionOffsets, now_ms: int
    ) -> CommandAnswer:
        ended = self.pending.end(
            command.producer_id,
            number=command.number,
            epoch=command.producer_epoch,
            index=self.index,
        )
        answer = CommandAnswer(ErrorCode.NONE)
        if not command.commits:
            return answer
        committed: dict[str, list[commands.OffsetCommit]] = {}
        for one in ended:
            committed.setdefault(one.group_id, []).append(one.offset)
            self.pending.supersede(one.place, one.index)
        for group_id, offsets in committed.items():
            if self.kind_of(group_id) is None:
                self.groups.ensure(group_id, now_ms)
            self.offsets.commit(group_id, offsets, now_ms, NO_EXPIRY)
        return answer

    # --- deleting ------------------------------------------------------------------------------
    def _delete_groups(self, command: commands.DeleteGroups, now_ms: int) -> GroupsDeleted:
        deleted = GroupsDeleted([])
        for group_id in command.group_ids:
            error = self._delete_group(group_id, deleted.events)
            if error is ErrorCode.NONE:
                self.offsets.remove_group(group_id)
                self.pending.remove_group(group_id)
            deleted.errors.append(error)
        return deleted

    def _delete_group(self, group_id: str, events: list[GroupEvent]) -> ErrorCode:
        kind = self.kind_of(group_id)
        if kind is None or kind is GroupKind.CLASSIC:
            return self.groups.delete(group_id, events)
        table = self.tables[kind]
        if not table.is_empty(group_id):
            return ErrorCode.NON_EMPTY_GROUP
        table.drop(group_id)
        events.append(GroupTouched(group_id, kind))
        return ErrorCode.NONE

    def _delete_offsets(self, command: commands.DeleteOffsets, now_ms: int) -> OffsetsDeleted:
        """Delete offsets of topics without subscribers.

        A member whose subscription cannot be parsed counts as subscribed to every topic.
        """
        kind = self.kind_of(command.group_id)
        group = self.group(command.group_id)
        subscribed: Set[str] | None = frozenset()
        if kind is GroupKind.CONSUMER:
            subscribed = self.consumer.groups[command.group_id].topic_names()
        elif group is None:
            return OffsetsDeleted(ErrorCode.GROUP_ID_NOT_FOUND)
        elif group.state is not GroupState.EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL:
                return OffsetsDeleted(ErrorCode.NON_EMPTY_GROUP)
            subscribed = _subscribed_topics(group)
        deleted = OffsetsDeleted(ErrorCode.NONE)
        for place in command.partitions:
            if subscribed is None or place[0] in subscribed:
                deleted.errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
                continue
            deleted.errors.append(ErrorCode.NONE)
            if place in self.offsets.of(command.group_id):
                self.offsets.remove(command.group_id, [place])
        return deleted

    def _expire_offsets(self, command: commands.ExpireOffsets, now_ms: int) -> OffsetsExpired:
        deleted = set(command.deleted_partitions)
        expired = OffsetsExpired(self.offsets.remove_partitions(deleted))
        self.pending.remove_partitions(deleted)
        self.share.states.remove_partitions(deleted)
        until_ms = now_ms if command.now_ms < 0 else command.now_ms
        self._expire_of(None, until_ms, command.retention_ms, expired)
        return expired

    def _expire_of(
        self, group_ids: list[str] | None, now_ms: int, retention_ms: int, expired: OffsetsExpired
    ) -> None:
        """Expire offsets of these groups; None for all groups."""
        for group, positions in self.expirable(now_ms, retention_ms, group_ids):
            self._expire(group.group_id, positions, expired)
            if group.state is GroupState.EMPTY and not self.offsets.of(group.group_id):
                error = self.groups.delete(group.group_id, expired.events)
                assert error is ErrorCode.NONE, error
        for group_id, positions in self.expirable_of_kinds(now_ms, retention_ms, group_ids):
            self._expire(group_id, positions, expired)
            kind = self.kind_of(group_id)
            assert kind is not None, group_id
            table = self.tables[kind]
            is_over = table.is_empty(group_id) and not self.pending.holds(group_id)
            if is_over and not self.offsets.of(group_id):
                table.drop(group_id)
                expired.events.append(GroupTouched(group_id, kind))

    def _expire_offsets_of(self, command: commands.ExpireOffsetsOf, now_ms: int) -> OffsetsExpired:
        deleted = set(command.deleted_partitions)
        expired = OffsetsExpired(self.offsets.remove_partitions(deleted, command.group_ids))
        self.pending.remove_partitions(deleted)
        self.share.states.remove_partitions(deleted)
        self._expire_of(command.group_ids, command.now_ms, command.retention_ms, expired)
        return expired

    def _expire(
        self, group_id: str, positions: list[tuple[str, int]], expired: OffsetsExpired
    ) -> None:
        if positions:
            self.offsets.remove(group_id, positions)
            expired.count += len(positions)

    def expirable_of_kinds(
        self, now_ms: int, retention_ms: int, group_ids: list[str] | None = None
    ) -> list[tuple[str, list[tuple[str, int]]]]:
        """As `expirable`, for groups of the consumer kind.

        Return their expired offsets in topics that no member subscribes to, each counted from its
        commit, and the groups without members and offsets.
        """
        found = []
        for group_id in self.consumer.ids() if group_ids is None else group_ids:
            group = self.consumer.groups.get(group_id)
            if group is None:
                continue
            positions = self.offsets.expired(
                group_id, now_ms, idle_since_ms=0, retention_ms=retention_ms
            )
            if positions and group.members:
                subscribed = group.topic_names()
                positions = [place for place in positions if place[0] not in subscribed]
            is_over = (
                not group.members
                and not self.offsets.of(group_id)
                and not self.pending.holds(group_id)
            )
            if positions or (is_over and group.changed_ms + retention_ms <= now_ms):
                found.append((group_id, positions))
        return found

    def expirable(
        self, now_ms: int, retention_ms: int, group_ids: list[str] | None = None
    ) -> list[tuple[ConsumerGroup, list[tuple[str, int]]]]:
        """Return the groups, by id, that ExpireOffsets would change, with the offsets to remove.

        `group_ids` restricts the search; None for all groups. For a group that never had members,
        retention counts from each commit (KIP-211), and so it does for topics that no member of a
        stable group subscribes to.
        """
        found = []
        for group_id in sorted(self.groups.groups) if group_ids is None else group_ids:
            group = self.groups.groups.get(group_id)
            if group is None:
                continue
            if group.state is GroupState.STABLE:
                positions = self._expired_unsubscribed(group, now_ms, retention_ms)
                if positions:
                    found.append((group, positions))
                continue
            if group.state is not GroupState.EMPTY or group.pending:
                continue
            if self.pending.holds(group_id):
                continue
            positions = self.offsets.expired(
                group_id,
                now_ms,
                idle_since_ms=group.changed_ms if group.protocol_type else 0,
                retention_ms=retention_ms,
            )
            if positions or not self.offsets.of(group_id):
                found.append((group, positions))
        return found

    def _expired_unsubscribed(
        self, group: ConsumerGroup, now_ms: int, retention_ms: int
    ) -> list[tuple[str, int]]:
        """Return expired offsets of a stable group in topics without subscribers.

        The list is empty if a member's subscription cannot be parsed.
        """
        if group.protocol_type != CONSUMER_PROTOCOL:
            return []
        old = self.offsets.expired(
            group.group_id, now_ms, idle_since_ms=0, retention_ms=retention_ms
        )
        if not old:
            return []
        subscribed = _subscribed_topics(group)
        if subscribed is None:
            return []
        return [place for place in old if place[0] not in subscribed]

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed key."""
        taken = self.groups.take_dirty(limit)
        taken += self.offsets.take_dirty(limit - len(taken))
        taken += self.pending.take_dirty(limit - len(taken))
        taken += self.transactions.take_dirty(limit - len(taken))
        for table in self.tables.values():
            taken += table.take_dirty(limit - len(taken))
        if self._is_bound_dirty and len(taken) < limit:
            self._is_bound_dirty = False
            taken += self._bound_items()
        return taken

    @property
    def large(self) -> Coordinator:
        """The state itself. See `LargeState`."""
        return self

    @property
    def changed_positions(self) -> int:
        """See `LargeState.changed_positions`."""
        return self.offsets.changed_count

    def _bound_items(self) -> list[tuple[bytes, bytes]]:
        bound = self.positions_bound
        if bound is None:
            return []
        return [(_BOUNDS_KEY, encode_value((bound.bytes_max, bound.count_max)))]

    @property
    def snapshots_in_parts(self) -> bool:
        """See `LargeState.snapshots_in_parts`."""
        return self.positions_bound is not None

    def scan(self) -> Scan:
        """Return the whole state, in pieces."""
        scans = [self.groups.scan(), self.offsets.scan()]
        scans += [self.pending.scan(), self.transactions.scan()]
        scans += [table.scan() for table in self.tables.values()]
        scans.append(iter(self._bound_items()))
        return Scan(chain.from_iterable(scans), self.take_dirty)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return the whole state in key order, for snapshots and digests."""
        found = self.groups.items() + self.offsets.items()
        found += self.pending.items() + self.transactions.items()
        for table in self.tables.values():
            found += table.items()
        return sorted(found + self._bound_items())

    @property
    def item_count(self) -> int:
        """Number of groups, members, offsets and transactional ids, in constant time."""
        tables = sum(len(table) for table in self.tables.values())
        transactions = len(self.pending) + len(self.transactions)
        return len(self.groups) + tables + len(self.offsets) + transactions

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace the whole state.

        Raise msgspec.DecodeError for a value that the coordinator never stored.
        """
        self.begin_load()
        self.load_more(items)
        self.end_load()

    def begin_load(self) -> None:
        """See `LargeState.begin_load`."""
        self.offsets.clear()
        self._coming = []

    def load_more(self, items: list[tuple[bytes, bytes]]) -> None:
        """See `LargeState.load_more`."""
        self.offsets.add(value for key, value in items if key[:1] == b"o")
        self._coming += [item for item in items if item[0][:1] != b"o"]

    def end_load(self) -> None:
        """See `LargeState.end_load`."""
        items, self._coming = self._coming, []
        bounds = [
            decode_value(value, tuple[int, int]) for key, value in items if key == _BOUNDS_KEY
        ]
        groups = [value for key, value in items if key[:1] == b"g" and key != _BOUNDS_KEY]
        self.groups.load(groups)
        self.pending.load(
            ended=[value for key, value in items if key[:1] == b"e"],
            pending=[value for key, value in items if key[:1] == b"p"],
        )
        self.transactions.load([value for key, value in items if key[:1] == b"t"])
        for kind, table in self.tables.items():
            prefix = KEY_PREFIXES[kind]
            table.load([value for key, value in items if key[:1] == prefix])
        self.share.states.load([value for key, value in items if key[:1] == b"q"])
        self.positions_bound = PositionsBound(*bounds[0]) if bounds else None
        self._is_bound_dirty = False


def _subscribed_topics(group: ConsumerGroup) -> set[str] | None:
    """Return the topics that members subscribe to; None if a subscription cannot be parsed."""
    subscribed: set[str] = set()
    for member in group.members.values():
        topics = subscribed_topics(member.metadata(group.protocol_name))
        if topics is None:
            return None
        subscribed |= topics
    return subscribed
