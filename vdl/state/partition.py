"""Replicated state of one partition besides its records.

It consists of producer windows and transactions, the log start offset, and the compaction limits.

Windows follow from the committed batches, and so do open and aborted transactions: a marker is a
batch of its own and ends a transaction in its own entry (KIP-98). The log start offset is moved by
commands in the partition's own log, which are entries without records: deleted records stay deleted
under every later leader. Compaction limits are set by commands as well; each replica compacts in
its own time. Commands also forget idle producers, because a server cannot rely on any time in the
log. The state is the same on every replica. A partition's snapshot is this state plus a few numbers
about its log.

A snapshot does not hold the list of aborted transactions, which may be long. The replica receives
the log, and rebuilds the list as it passes the entries that the snapshot's state already reflects.
For that the snapshot holds the aborted transactions that began before the log's start and end
behind it: no more than are open at one time.

Does not depend on records, leadership, or the log itself.
"""

from __future__ import annotations

import msgspec

from ids import NO_INDEX, Index, Offset
from vdl.errors import ErrorCode
from vdl.state import aborted
from vdl.state.aborted import AbortedRange, AbortedTransactions
from vdl.state.answer import CommandAnswer
from vdl.state.producers import NO_TRANSACTION, Producers
from vdl.state.table import decode_value, encode_value

_KEY_COMPACTION = b"c"
_KEY_UNLISTED = b"b"
"""Sorts behind the keys of aborted transactions."""
_KEY_LOG_START = b"s"


class AdvanceLogStart(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1
):
    """Delete records below `offset`, by retention or by a client's request (KIP-107)."""

    offset: Offset


class ExpireProducers(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2
):
    """Forget producers whose newest batch is in an entry up to `index`.

    They were idle for `producer.id.expiration.ms` (KIP-98). Known to peers of protocol version 4.
    """

    index: Index


class Compact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Compact the log: keep only the newest record of each key in entries up to `upto`.

    Deletion markers in entries up to `markers_upto` are removed as well. A later command supersedes
    all earlier ones. Known to peers of protocol version 6.
    """

    upto: Index
    markers_upto: Index


class EndTransactionMarker(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4
):
    """End a producer's transaction in this partition.

    A coordinator sends this command to the partition's leader, which appends the marker that
    clients know (`vdl.records.markers`); the marker is the entry, not this command. Known to peers
    of protocol version 8.
    """

    producer_id: int
    producer_epoch: int
    """From `transaction_version` 2 on, newer than the transaction's epoch (KIP-890)."""
    coordinator_epoch: int
    """Coordinator's Raft term: an older coordinator is fenced."""
    commit: bool
    transaction_version: int
    """Level of `transaction.version` that the transaction began under (KIP-1228)."""
    number: int = 0
    """Number of the transaction within its transactional id; 0 in an administrator's command.

    It keeps a repeated or late marker from ending the next transaction.
    """


PartitionCommand = AdvanceLogStart | ExpireProducers | Compact | EndTransactionMarker
DecodeError = msgspec.DecodeError
_COMMAND: msgspec.msgpack.Decoder[PartitionCommand] = msgspec.msgpack.Decoder(PartitionCommand)


def encode_command(command: PartitionCommand) -> bytes:
    """Return the payload of an entry without records, or of a message to a leader."""
    return encode_value(command)


def decode_command(data: bytes | bytearray | memoryview) -> PartitionCommand:
    """Decode a command. Raise DecodeError if this version cannot apply it."""
    return _COMMAND.decode(data)


class PartitionState:
    """Replicated state of one partition, fed by the log stream; see the module."""

    __slots__ = (
        "_compaction_is_dirty", "_start_is_dirty", "_unlisted", "_unlisted_is_dirty", "aborted",
        "compact_upto", "log_start_offset", "markers_upto", "producers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.producers = Producers()
        self.aborted = AbortedTransactions()
        self.log_start_offset = Offset(0)
        """Records below it are deleted, even if their batch is still on disk. Never moves back."""
        self.compact_upto = NO_INDEX
        """Entries up to it are to be compacted. Never moves back."""
        self.markers_upto = NO_INDEX
        """Deletion markers in entries up to it are removed.

        Invariant: never above `compact_upto`, never moves back.
        """
        self._start_is_dirty = False
        self._compaction_is_dirty = False
        self._unlisted: dict[int, Offset] | None = None
        """Producer id → first offset of its transaction that is open where the rebuilt list ends.

        None if the list of aborted transactions is complete.
        """
        self._unlisted_is_dirty = False

    def apply(self, data: bytes | bytearray | memoryview, *, end_offset: Offset) -> CommandAnswer:
        """Apply a command that is committed behind `end_offset` records.

        Raise msgspec.DecodeError for an unknown command: a replica that does not understand one
        must stop rather than diverge.
        """
        command = _COMMAND.decode(data)
        if isinstance(command, ExpireProducers):
            self.producers.expire(command.index)
        elif isinstance(command, Compact):
            self._compact(command)
        else:
            # An EndTransactionMarker is never an entry: see the class.
            assert isinstance(command, AdvanceLogStart), command
            start = min(command.offset, end_offset)
            if start > self.log_start_offset:
                self.log_start_offset = start
                self._start_is_dirty = True
                self.aborted.remove_below(start)
        return CommandAnswer(ErrorCode.NONE)

    def apply_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        offset: Offset,
        index: Index,
        timestamp: int,
        number: int = 0,
    ) -> None:
        """Apply a marker committed at `offset`, in the entry at `index`."""
        first_offset = self.producers.apply_marker(
            producer_id, epoch, coordinator_epoch, index, timestamp, number
        )
        if first_offset != NO_TRANSACTION and not commit:
            self.aborted.add(AbortedRange(producer_id, first_offset, offset, index))

    # --- rebuilding the list after a snapshot ------------------------------------------------
    @property
    def lists_all(self) -> bool:
        """True if `aborted` is complete. Until then it must not be used for answers."""
        return self._unlisted is None

    def pass_batch(self, producer_id: int, base_offset: Offset) -> None:
        """Pass a transactional batch of an entry that the state already reflects, in log order.

        Entries below `markers_upto` are included: compaction ends at a segment boundary, and a
        transaction may span it. If a leader compacts while it sends its log, the batch may arrive
        after its marker was removed. The next aborted transaction of that producer is then listed
        from this batch on. That is too early, but no record of the producer is left in between.
        """
        if self._unlisted is not None and producer_id not in self._unlisted:
            self._unlisted[producer_id] = base_offset
            self._unlisted_is_dirty = True

    def pass_marker(self, producer_id: int, *, commit: bool, offset: Offset, index: Index) -> None:
        """Pass a marker, likewise."""
        if self._unlisted is None or (first := self._unlisted.pop(producer_id, None)) is None:
            return
        self._unlisted_is_dirty = True
        # If its records were removed since, it is no longer listed.
        if not commit and offset >= self.log_start_offset and index > self.markers_upto:
            self.aborted.add(AbortedRange(producer_id, first, offset, index))

    def passed_all(self) -> None:
        """End the rebuilding: all entries that the state reflects were passed."""
        self._unlisted_is_dirty = self._unlisted_is_dirty or self._unlisted is not None
        self._unlisted = None

    def _compact(self, command: Compact) -> None:
        upto = max(self.compact_upto, command.upto)
        markers_upto = max(self.markers_upto, min(command.markers_upto, upto))
        if (upto, markers_upto) != (self.compact_upto, self.markers_upto):
            self.compact_upto, self.markers_upto = upto, markers_upto
            self._compaction_is_dirty = True
            # All replicas are compacted up to there: none has a record of these transactions left.
            self.aborted.remove_upto(markers_upto)

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Return (key, value) of what changed since the last call; None for a removed key."""
        dirty = self.aborted.take_dirty() + self.producers.take_dirty()
        if self._unlisted_is_dirty:
            self._unlisted_is_dirty = False
            unlisted = self._unlisted
            dirty.append((_KEY_UNLISTED, None if unlisted is None else _pairs(unlisted)))
        if self._start_is_dirty:
            self._start_is_dirty = False
            dirty.append((_KEY_LOG_START, encode_value(self.log_start_offset)))
        if self._compaction_is_dirty:
            self._compaction_is_dirty = False
            dirty.append((_KEY_COMPACTION, self._stored_compaction()))
        return dirty

    def load(
        self, items: list[tuple[bytes, bytes]], listed: AbortedTransactions | None = None
    ) -> None:
        """Replace the whole state.

        `listed` is the result of `listed_in` for these items, if available.
        """
        self.log_start_offset = Offset(0)
        self._start_is_dirty = False
        self.compact_upto = self.markers_upto = NO_INDEX
        self._compaction_is_dirty = False
        count = aborted.count_of(items)
        if listed is None:
            self.aborted.load(items[:count])
        else:
            listed.age = self.aborted.age + 1
            self.aborted = listed
        items = items[count:]
        self._unlisted, self._unlisted_is_dirty = None, False
        if items and items[0][0] == _KEY_UNLISTED:
            self._unlisted = dict(decode_value(items[0][1], list[tuple[int, Offset]]))
            items = items[1:]
        if items and items[0][0] == _KEY_COMPACTION:
            self.compact_upto, self.markers_upto = decode_value(items[0][1], tuple[Index, Index])
            items = items[1:]
        if items and items[-1][0] == _KEY_LOG_START:
            self.log_start_offset = decode_value(items[-1][1], Offset)
            items = items[:-1]
        self.producers.load(items)

    @staticmethod
    def listed_in(items: list[tuple[bytes, bytes]]) -> AbortedTransactions:
        """Decode the aborted transactions in stored items. They may be many; safe in any thread."""
        listed = AbortedTransactions()
        listed.load(items[: aborted.count_of(items)])
        return listed

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return the whole state in key order, for checkpoints and digests."""
        return self.aborted.items() + self._items(self._unlisted)

    def snapshot_items(self, start: Offset) -> list[tuple[bytes, bytes]]:
        """Return the state for a replica that has, or receives, the entries from `start` on.

        Only valid while this replica's own list is complete.
        """
        assert self._unlisted is None
        reaching = self.aborted.between(start, start)
        return self._items({one.producer_id: one.first_offset for one in reaching})

    def _items(self, unlisted: dict[int, Offset] | None) -> list[tuple[bytes, bytes]]:
        """Return everything except the list of aborted transactions."""
        items = self.producers.items()
        if self.compact_upto:
            items.insert(0, (_KEY_COMPACTION, self._stored_compaction()))
        if unlisted is not None:
            items.insert(0, (_KEY_UNLISTED, _pairs(unlisted)))
        if self.log_start_offset:
            items.append((_KEY_LOG_START, encode_value(self.log_start_offset)))
        return items

    def _stored_compaction(self) -> bytes:
        return encode_value((self.compact_upto, self.markers_upto))

    @property
    def item_count(self) -> int:
        """Approximate number of items of a snapshot, in constant time."""
        return len(self.producers) + 1


def _pairs(unlisted: dict[int, Offset]) -> bytes:
    return encode_value(sorted(unlisted.items()))
