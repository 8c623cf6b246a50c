"""The state of one coordinator group: consumer groups, their committed offsets, transactions.

These machines share one log, because only a member of the current generation may commit an offset:
both are decided at the same point of the log. Transactional ids are beside them, and know nothing
of them; what a transaction commits in a group waits in `pending` until it ends.

Must not know: which groups belong to this coordinator, requests, timers.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.consumer_group import GROUP_BYTES, ConsumerGroup, GroupState
from vdl.state.consumer_groups import (
    ConsumerGroups,
    GroupEvent,
    GroupsDeleted,
    JoinAnswer,
    SyncAnswer,
)
from vdl.state.offsets import NO_EXPIRY, Offsets
from vdl.state.pending_offsets import PendingOffset, PendingOffsets
from vdl.state.subscription import subscribed_topics
from vdl.state.table import text_bytes
from vdl.state.transactions import TransactionAnswer, Transactions

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members name the topics they subscribe to."""
COORDINATOR_BYTES_MAX = 7 << 19
"""How much groups and offsets of one coordinator may take in a snapshot, about: 3.5 MiB. Beyond
half of the largest snapshot the log is not cut any more; beyond all of it no replica can be
replaced. Part of what commands mean, so that all replicas decide alike."""


@dataclass(slots=True)
class CommitAnswer:
    """Answer to CommitOffsets: all of them are committed, or none."""

    error: ErrorCode
    events: list[GroupEvent] = field(default_factory=list)
    group_id: str = ""
    offsets: list[commands.OffsetCommit] = field(default_factory=list)
    """What was committed; empty with an error."""


@dataclass(slots=True)
class TransactionOffsetsEnded(CommandAnswer):
    """Answer to EndTransactionOffsets."""

    committed: dict[str, list[commands.OffsetCommit]] = field(default_factory=dict)
    """Group → what stands now."""


@dataclass(slots=True)
class OffsetsDeleted:
    """Answer to DeleteOffsets: an error of the group, or one for each position that was named.
    What is not there is deleted."""

    error: ErrorCode
    errors: list[ErrorCode] = field(default_factory=list)
    events: list[GroupEvent] = field(default_factory=list)


@dataclass(slots=True)
class OffsetsExpired:
    """Answer to ExpireOffsets: how many positions went; groups with nothing left went too."""

    count: int = 0
    events: list[GroupEvent] = field(default_factory=list)


class Coordinator:
    """See the module."""

    def __init__(self) -> None:
        self.groups = ConsumerGroups()
        self.offsets = Offsets()
        self.pending = PendingOffsets()
        self.transactions = Transactions()
        self._index = 0
        """Of the entry that is applied."""
        groups = self.groups
        transactions = self.transactions
        self._apply_by_type: dict[type, Callable[[Any, int], Any]] = {
            commands.JoinGroup: self._join,
            commands.SyncGroup: self._sync,
            commands.LeaveGroup: groups.leave,
            commands.ExpireMembers: groups.expire,
            commands.CompleteJoin: groups.complete_join,
            commands.DeleteGroups: self._delete_groups,
            commands.CommitOffsets: self._commit_offsets,
            commands.ExpireOffsets: self._expire_offsets,
            commands.DeleteOffsets: self._delete_offsets,
            commands.InitTransactions: self._init_transactions,
            commands.AddToTransaction: self._add_to_transaction,
            commands.EndTransaction: transactions.end,
            commands.CompleteTransactions: transactions.complete,
            commands.AbortTransactions: transactions.abort,
            commands.ExpireTransactionalIds: transactions.expire,
            commands.CommitTransactionOffsets: self._commit_transaction_offsets,
            commands.EndTransactionOffsets: self._end_transaction_offsets,
        }

    def understands(self, command: Any) -> bool:
        """Whether `apply` knows this kind of command. One that it does not must never be appended:
        every replica would stop at it, at each start again."""
        return type(command) in self._apply_by_type

    def apply(self, command: Any, now_ms: int, index: int) -> Any:
        """Apply one committed command; the answer's type goes with the command's. Every answer
        has `events`, in the order they happened."""
        self._index = index
        return self._apply_by_type[type(command)](command, now_ms)

    def group(self, group_id: str) -> ConsumerGroup | None:
        """A group by id; None is Kafka's Dead."""
        return self.groups.groups.get(group_id)

    @property
    def bytes_held(self) -> int:
        """What all of it takes in a snapshot, about."""
        transactions = self.pending.bytes + self.transactions.bytes
        return self.groups.bytes_held + self.offsets.bytes + transactions

    def _room(self, held: int) -> int:
        """How much what takes `held` bytes now may take, the rest being as it is."""
        return COORDINATOR_BYTES_MAX - self.bytes_held + held

    # --- commands --------------------------------------------------------------------------
    def _join(self, command: commands.JoinGroup, now_ms: int) -> JoinAnswer:
        self.groups.bytes_max = self._room(self.groups.bytes_held)
        return self.groups.join(command, now_ms)

    def _sync(self, command: commands.SyncGroup, now_ms: int) -> SyncAnswer:
        self.groups.bytes_max = self._room(self.groups.bytes_held)
        return self.groups.sync(command, now_ms)

    def _has_room(self, command: commands.CommitOffsets) -> bool:
        """Whether these offsets fit. Those that need no more than before always do."""
        more = self.offsets.growth(command.group_id, command.offsets)
        if command.group_id not in self.groups.groups:
            more += GROUP_BYTES + text_bytes(command.group_id)
        if more <= 0:
            return True
        return self.bytes_held + more <= COORDINATOR_BYTES_MAX

    def _commit_offsets(self, command: commands.CommitOffsets, now_ms: int) -> CommitAnswer:
        error = self.groups.check_commit(
            command.group_id,
            command.generation,
            command.member_id,
            command.group_instance_id,
        )
        if error is ErrorCode.NONE and self.offsets.knows_later(command.group_id, command.offsets):
            # The proposer's catalog is behind; clients try this error again.
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is ErrorCode.NONE and not self._has_room(command):
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        if error is ErrorCode.NONE:
            self.groups.ensure(command.group_id, now_ms)
            self.offsets.commit(command.group_id, command.offsets, now_ms, command.retention_ms)
            for offset in command.offsets:
                place = command.group_id, offset.topic, offset.partition
                self.pending.supersede(place, self._index)
            return CommitAnswer(error, [], command.group_id, command.offsets)
        return CommitAnswer(error)

    # --- transactions ------------------------------------------------------------------------
    def _init_transactions(
        self, command: commands.InitTransactions, now_ms: int
    ) -> TransactionAnswer:
        self.transactions.bytes_max = self._room(self.transactions.bytes)
        return self.transactions.init(command, now_ms)

    def _add_to_transaction(
        self, command: commands.AddToTransaction, now_ms: int
    ) -> TransactionAnswer:
        self.transactions.bytes_max = self._room(self.transactions.bytes)
        return self.transactions.add(command, now_ms)

    def _commit_transaction_offsets(
        self, command: commands.CommitTransactionOffsets, now_ms: int
    ) -> CommitAnswer:
        error = self.pending.check(command.producer_id, command.producer_epoch, command.number)
        if error is ErrorCode.NONE:
            error = self.groups.check_transaction_commit(
                command.group_id, command.generation, command.member_id, command.group_instance_id
            )
        if error is ErrorCode.NONE and self.offsets.knows_later(command.group_id, command.offsets):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return CommitAnswer(error)
        pending = [
            PendingOffset(
                command.producer_id, command.group_id, command.number, self._index, offset
            )
            for offset in command.offsets
        ]
        # They are to become positions: those must have room, too.
        more = sum(one.bytes for one in pending)
        more += self.offsets.growth(command.group_id, command.offsets)
        more += GROUP_BYTES + text_bytes(command.group_id)
        if self.bytes_held + more > COORDINATOR_BYTES_MAX:
            return CommitAnswer(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        self.groups.ensure(command.group_id, now_ms)
        for one in pending:
            self.pending.add(one)
        return CommitAnswer(ErrorCode.NONE)

    def _end_transaction_offsets(
        self, command: commands.EndTransactionOffsets, now_ms: int
    ) -> TransactionOffsetsEnded:
        ended = self.pending.end(
            command.producer_id,
            number=command.number,
            epoch=command.producer_epoch,
            index=self._index,
        )
        answer = TransactionOffsetsEnded(ErrorCode.NONE)
        if not command.commits:
            return answer
        for one in ended:
            answer.committed.setdefault(one.group_id, []).append(one.offset)
            self.pending.supersede(one.place, one.index)
        for group_id, offsets in answer.committed.items():
            self.groups.ensure(group_id, now_ms)
            self.offsets.commit(group_id, offsets, now_ms, NO_EXPIRY)
        return answer

    # --- deleting ------------------------------------------------------------------------------
    def _delete_groups(self, command: commands.DeleteGroups, now_ms: int) -> GroupsDeleted:
        deleted = GroupsDeleted([])
        for group_id in command.group_ids:
            error = self.groups.delete(group_id, deleted.events)
            if error is ErrorCode.NONE:
                self.offsets.remove_group(group_id)
                self.pending.remove_group(group_id)
            deleted.errors.append(error)
        return deleted

    def _delete_offsets(self, command: commands.DeleteOffsets, now_ms: int) -> OffsetsDeleted:
        """Members whose subscription cannot be read may subscribe to anything."""
        group = self.group(command.group_id)
        if group is None:
            return OffsetsDeleted(ErrorCode.GROUP_ID_NOT_FOUND)
        subscribed: Set[str] | None = frozenset()
        if group.state is not GroupState.EMPTY:
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
        until_ms = now_ms if command.now_ms < 0 else command.now_ms
        for group, positions in self.expirable(until_ms, command.retention_ms):
            if positions:
                self.offsets.remove(group.group_id, positions)
                expired.count += len(positions)
            if group.state is GroupState.EMPTY and not self.offsets.of(group.group_id):
                error = self.groups.delete(group.group_id, expired.events)
                assert error is ErrorCode.NONE, error
        return expired

    def expirable(
        self, now_ms: int, retention_ms: int
    ) -> list[tuple[ConsumerGroup, list[tuple[str, int]]]]:
        """Groups that ExpireOffsets would change now, by id, and which of their positions it would
        drop. A group nobody ever joined counts from each commit (KIP-211), and so do topics that no
        member of a stable group subscribes to."""
        found = []
        for group_id in sorted(self.groups.groups):
            group = self.groups.groups[group_id]
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
        """Expired offsets of a stable group in topics that no member subscribes to; none if a
        member's subscription cannot be read."""
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
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) of everything that changed since the last call, None where it went."""
        transactions = self.pending.take_dirty() + self.transactions.take_dirty()
        return self.groups.take_dirty() + self.offsets.take_dirty() + transactions

    def items(self) -> list[tuple[bytes, bytes]]:
        """The whole state, in key order: snapshots and digests."""
        transactions = self.pending.items() + self.transactions.items()
        return sorted(self.groups.items() + self.offsets.items() + transactions)

    @property
    def item_count(self) -> int:
        """The number of groups, members, offsets and transactional ids, at no cost."""
        transactions = len(self.pending) + len(self.transactions)
        return len(self.groups) + len(self.offsets) + transactions

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace the whole state. Raises msgspec.DecodeError for what it never stored."""
        self.groups.load([value for key, value in items if key[:1] == b"g"])
        self.offsets.load([value for key, value in items if key[:1] == b"o"])
        self.pending.load(
            ended=[value for key, value in items if key[:1] == b"e"],
            pending=[value for key, value in items if key[:1] == b"p"],
        )
        self.transactions.load([value for key, value in items if key[:1] == b"t"])


def _subscribed_topics(group: ConsumerGroup) -> set[str] | None:
    """The topics that members subscribe to; None if a member's subscription cannot be read."""
    subscribed: set[str] = set()
    for member in group.members.values():
        topics = subscribed_topics(member.metadata(group.protocol_name))
        if topics is None:
            return None
        subscribed |= topics
    return subscribed
