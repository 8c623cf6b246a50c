"""The replicated state of one partition beside its records: producer windows and transactions, log
start offset, and how far the log is to be compacted.

The windows follow from the committed batches, and so do open and aborted transactions: a marker is
a batch of its own, and what it ends, it ends in the entry that it is (KIP-98). The log start offset
is moved by commands in the partition's own log, between the batches (entries without records):
deleted records stay deleted under every later leader. What compaction removes is decided by
commands, too; each replica does it when it gets to it. Idle producers are forgotten by commands as
well, because a server cannot rely on any time in the log. All of it is the same on every replica. A
snapshot of a partition is this, and a few numbers about its log.

A snapshot does not hold the list of aborted transactions, which may be a long one: the replica gets
the log, from which it follows, and makes the list as it passes over the entries that the snapshot's
state reflects already. What it needs for that is which transactions reach over the log's start into
it and were aborted: no more than are open at one time.

Must not know: records, leadership, the log itself.
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
"""Behind those of aborted transactions."""
_KEY_LOG_START = b"s"


class AdvanceLogStart(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1
):
    """Records below `offset` are deleted: by retention, or because a client said so (KIP-107)."""

    offset: Offset


class ExpireProducers(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2
):
    """Producers are forgotten whose newest batch is in the entry at `index` or before it: they have
    been idle for `producer.id.expiration.ms` (KIP-98). Peers of protocol version 4 know it."""

    index: Index


class Compact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Of the entries up to `upto` only the newest record of each key stays; deletion markers in
    entries up to `markers_upto` go as well. A later command stands for all before it. Peers of
    protocol version 6 know it."""

    upto: Index
    markers_upto: Index


class EndTransactionMarker(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4
):
    """A producer's transaction ends here. A coordinator sends it to the partition's leader, which
    appends the marker that clients know (`vdl.records.markers`): that is the entry, not this.
    Peers of protocol version 8 know it."""

    producer_id: int
    producer_epoch: int
    """From `transaction_version` 2 on a newer one than that of the transaction (KIP-890)."""
    coordinator_epoch: int
    """The coordinator's Raft term: an older coordinator is fenced."""
    commit: bool
    transaction_version: int
    """The level of `transaction.version` that the transaction was begun under (KIP-1228)."""
    number: int = 0
    """Of the transaction among those of its transactional id: a marker that comes again, or late,
    does not end the next one. 0: not said, by an administrator."""


PartitionCommand = AdvanceLogStart | ExpireProducers | Compact | EndTransactionMarker
DecodeError = msgspec.DecodeError
_COMMAND: msgspec.msgpack.Decoder[PartitionCommand] = msgspec.msgpack.Decoder(PartitionCommand)


def encode_command(command: PartitionCommand) -> bytes:
    """The payload of an entry without records; and of what is sent to a leader."""
    return encode_value(command)


def decode_command(data: bytes | bytearray | memoryview) -> PartitionCommand:
    """Raises DecodeError: a command that this version cannot apply."""
    return _COMMAND.decode(data)


class PartitionState:
    """See the module. Fed by the log stream."""

    __slots__ = (
        "_compaction_is_dirty", "_start_is_dirty", "_unlisted", "_unlisted_is_dirty", "aborted",
        "compact_upto", "log_start_offset", "markers_upto", "producers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.producers = Producers()
        self.aborted = AbortedTransactions()
        self.log_start_offset = Offset(0)
        """Records below are deleted, even where their batch is still on disk. Never moves back."""
        self.compact_upto = NO_INDEX
        """Entries up to it are to be compacted. Never moves back."""
        self.markers_upto = NO_INDEX
        """Deletion markers in entries up to it go. Never above `compact_upto`, never moves back."""
        self._start_is_dirty = False
        self._compaction_is_dirty = False
        self._unlisted: dict[int, Offset] | None = None
        """Producer id → first offset of its transaction that is open at the entry up to which the
        aborted ones are listed; None: all of them are."""
        self._unlisted_is_dirty = False

    def apply(self, data: bytes | bytearray | memoryview, *, end_offset: Offset) -> CommandAnswer:
        """Apply a command that is committed behind `end_offset` records. Raises
        msgspec.DecodeError: a replica that does not understand one stops rather than diverge."""
        command = _COMMAND.decode(data)
        if isinstance(command, ExpireProducers):
            self.producers.expire(command.index)
        elif isinstance(command, Compact):
            self._compact(command)
        else:
            # A marker is no entry of its own: see the class.
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
        """A marker is committed at `offset`, in the entry at `index`."""
        first_offset = self.producers.apply_marker(
            producer_id, epoch, coordinator_epoch, index, timestamp, number
        )
        if first_offset != NO_TRANSACTION and not commit:
            self.aborted.add(AbortedRange(producer_id, first_offset, offset, index))

    # --- the list of a replica that began with a snapshot ------------------------------------
    @property
    def lists_all(self) -> bool:
        """Whether `aborted` is complete. Until then nobody is to be sent what it would say."""
        return self._unlisted is None

    def pass_batch(self, producer_id: int, base_offset: Offset) -> None:
        """A batch of a transaction, in an entry that the state reflects already; in their order.

        Also of one below `markers_upto`: compaction ends with a segment, and a transaction may
        reach over that. If a leader compacts while it sends its log, the batch may come and its
        marker be gone. Then the next aborted transaction of that producer is listed from here on:
        from too early, but no record of the producer is left in between."""
        if self._unlisted is not None and producer_id not in self._unlisted:
            self._unlisted[producer_id] = base_offset
            self._unlisted_is_dirty = True

    def pass_marker(self, producer_id: int, *, commit: bool, offset: Offset, index: Index) -> None:
        """A marker, likewise."""
        if self._unlisted is None or (first := self._unlisted.pop(producer_id, None)) is None:
            return
        self._unlisted_is_dirty = True
        # Where its records are gone since, it was taken off the list.
        if not commit and offset >= self.log_start_offset and index > self.markers_upto:
            self.aborted.add(AbortedRange(producer_id, first, offset, index))

    def passed_all(self) -> None:
        """All entries that the state reflects were passed."""
        self._unlisted_is_dirty = self._unlisted_is_dirty or self._unlisted is not None
        self._unlisted = None

    def _compact(self, command: Compact) -> None:
        upto = max(self.compact_upto, command.upto)
        markers_upto = max(self.markers_upto, min(command.markers_upto, upto))
        if (upto, markers_upto) != (self.compact_upto, self.markers_upto):
            self.compact_upto, self.markers_upto = upto, markers_upto
            self._compaction_is_dirty = True
            # All replicas are compacted so far: no record of these is left anywhere.
            self.aborted.remove_upto(markers_upto)

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) pairs that changed since the last call; None deletes."""
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
        """Replace the whole state. `listed`: what `listed_in` has made of the items."""
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
        """The aborted transactions that stored items list, which may be many: in any thread."""
        listed = AbortedTransactions()
        listed.load(items[: aborted.count_of(items)])
        return listed

    def items(self) -> list[tuple[bytes, bytes]]:
        """The whole state, in key order: checkpoints and digests."""
        return self.aborted.items() + self._items(self._unlisted)

    def snapshot_items(self, start: Offset) -> list[tuple[bytes, bytes]]:
        """What stands for the state where the entries from `start` on are had, or come. Only while
        it lists all itself."""
        assert self._unlisted is None
        reaching = self.aborted.between(start, start)
        return self._items({one.producer_id: one.first_offset for one in reaching})

    def _items(self, unlisted: dict[int, Offset] | None) -> list[tuple[bytes, bytes]]:
        """All but the list of aborted transactions."""
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
        """The number of items of a snapshot, at no cost, about."""
        return len(self.producers) + 1


def _pairs(unlisted: dict[int, Offset]) -> bytes:
    return encode_value(sorted(unlisted.items()))
