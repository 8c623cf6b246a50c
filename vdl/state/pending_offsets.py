"""Offsets of open transactions, invisible until the transactions end.

A transaction's offsets are kept here, by producer, in the coordinator of the consumer group. When
the transaction commits they become the group's committed offsets; when it aborts they are removed.
An offset that was committed later in the log than a pending one wins, as in Kafka.

For each producer the number of its newest ended transaction is kept. An offset of that transaction
or an older one is too late, because only the producer's next transaction would end it. Only the
latest `ENDED_MAX` producers are kept. For a producer that is not kept, an offset is accepted only
if its transaction was found open after the last forgotten end.

Does not depend on groups beyond their ids, on who may commit, or on whether a transaction is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

import msgspec

from ids import GroupId
from vdl.errors import ErrorCode
from vdl.state.commands import OffsetCommit
from vdl.state.table import ALL, decode_value, digest_key, encode_value, taken, text_bytes

ENDED_MAX = 4_096
"""Number of producers whose newest ended transaction is kept."""
ENDED_BYTES = 24
"""Estimated size of one of them in a snapshot."""
PENDING_BYTES = 96
"""Estimated size of a pending offset in a snapshot, without names and metadata."""

Place = tuple[str, str, int]
"""(group, topic, partition)."""


class PendingOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An offset of an open transaction."""

    producer_id: int
    group_id: str
    number: int
    """Number of the transaction."""
    index: int
    """Index of the entry that added it."""
    offset: OffsetCommit

    @property
    def place(self) -> Place:
        """Place of the committed offset that it may become."""
        return self.group_id, self.offset.topic, self.offset.partition

    @property
    def bytes(self) -> int:
        """Estimated size in a snapshot."""
        names = text_bytes(self.group_id) + text_bytes(self.offset.topic)
        return PENDING_BYTES + names + text_bytes(self.offset.metadata)


class EndedTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest transaction of a producer that ended here."""

    producer_id: int
    number: int
    epoch: int
    """Epoch of its marker."""
    index: int
    """Index of the marker's entry."""


NOBODY = -1
"""Takes the producer id's place in the record of the newest forgotten end."""


class PendingOffsets:
    """Pending offsets of one coordinator; see the module."""

    __slots__ = (
        "_by_group", "_by_place", "_by_producer", "_bytes_by_group", "_dirty", "_ended",
        "_forgotten_index", "bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, PendingOffset]] = {}
        self._by_place: dict[Place, set[int]] = {}
        self._by_group: Counter[str] = Counter()
        self._bytes_by_group: Counter[str] = Counter()
        """Invariant: size of each group's pending offsets, for groups that have any."""
        self._ended: dict[int, EndedTransaction] = {}
        """Invariant: in the order of their entries."""
        self._forgotten_index = 0
        """Index of the newest forgotten end; 0 if none is forgotten."""
        self._dirty: set[tuple[int, Place | None]] = set()
        self.bytes = 0
        """Estimated size of everything in a snapshot."""

    def __len__(self) -> int:
        """Return the number of pending offsets plus that of producers with ended transactions."""
        return sum(self._by_group.values()) + len(self._ended)

    # --- queries -----------------------------------------------------------------------------
    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return True if an open transaction may still change the group's offset (KIP-447)."""
        return (group_id, topic, partition) in self._by_place

    def holds(self, group_id: str) -> bool:
        """Return True if an open transaction has offsets of the group. It does not expire then."""
        return group_id in self._by_group

    def bytes_of(self, group_id: str) -> int:
        """Return the estimated size of a group's pending offsets in a snapshot."""
        return self._bytes_by_group[group_id]

    def open(self) -> list[tuple[int, int]]:
        """Return (producer id, number) of the newest transaction of each producer that has
        offsets."""
        return [
            (producer_id, max(pending.number for pending in places.values()))
            for producer_id, places in self._by_producer.items()
            if places
        ]

    def partition_groups(self) -> Iterator[GroupId]:
        """Yield the group ids of all partitions, with repetitions."""
        for places in self._by_producer.values():
            for pending in places.values():
                yield pending.offset.partition_group

    def check(self, producer_id: int, epoch: int, number: int, asked_at: int = -1) -> ErrorCode:
        """Return NONE if a producer's transaction may still commit offsets here.

        The transaction was found open after entry `asked_at` was applied here; -1 if that is not
        known.
        """
        ended = self._ended.get(producer_id)
        if ended is None:
            if self.may_have_forgotten(asked_at):
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # verify it again
            return ErrorCode.NONE
        if epoch < ended.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.INVALID_TXN_STATE if number <= ended.number else ErrorCode.NONE

    def may_have_forgotten(self, asked_at: int) -> bool:
        """Return True if an end after entry `asked_at` may be forgotten; False for -1.

        It may be that of a producer which is known again: an older end of it was repeated.
        """
        return 0 <= asked_at < self._forgotten_index

    # --- changes -------------------------------------------------------------------------------
    def add(self, pending: PendingOffset) -> None:
        """Add a pending offset; it replaces an earlier one of the same producer and place."""
        self._drop(pending.producer_id, pending.place)
        self._by_producer.setdefault(pending.producer_id, {})[pending.place] = pending
        self._by_place.setdefault(pending.place, set()).add(pending.producer_id)
        self._by_group[pending.group_id] += 1
        self._bytes_by_group[pending.group_id] += pending.bytes
        self.bytes += pending.bytes
        self._dirty.add((pending.producer_id, pending.place))

    def end(self, producer_id: int, *, number: int, epoch: int, index: int) -> list[PendingOffset]:
        """End transaction `number` of a producer at entry `index`.

        Return its offsets, in the order in which they were added, and stop holding them. The list
        is empty if the transaction had ended before.
        """
        ended = self._ended.get(producer_id)
        if ended is not None and ended.number >= number:
            return []
        if ended is None:
            self.bytes += ENDED_BYTES
        else:
            del self._ended[producer_id]
        self._ended[producer_id] = EndedTransaction(producer_id, number, epoch, index)
        self._dirty.add((producer_id, None))
        while len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            self._forgotten_index = self._ended.pop(oldest).index
            self.bytes -= ENDED_BYTES
            self._dirty.update(((oldest, None), (NOBODY, None)))
        mine = [
            pending
            for pending in self._by_producer.get(producer_id, {}).values()
            if pending.number <= number
        ]
        mine.sort(key=lambda pending: (pending.index, pending.place))
        for pending in mine:
            self._drop(producer_id, pending.place)
        return mine

    def supersede(self, place: Place, index: int) -> None:
        """Drop a place's pending offsets from before entry `index`, which committed an offset."""
        for producer_id in sorted(self._by_place.get(place, ())):
            if self._by_producer[producer_id][place].index < index:
                self._drop(producer_id, place)

    def remove_group(self, group_id: str) -> None:
        """Drop the pending offsets of a deleted group."""
        if group_id in self._by_group:
            for place in [place for place in self._by_place if place[0] == group_id]:
                for producer_id in sorted(self._by_place[place]):
                    self._drop(producer_id, place)

    def remove_partitions(self, partition_groups: Set[int]) -> None:
        """Drop the pending offsets in deleted partitions."""
        for producer_id, pending in list(self._by_producer.items()):
            for place, one in list(pending.items()):
                if one.offset.partition_group in partition_groups:
                    self._drop(producer_id, place)

    def _drop(self, producer_id: int, place: Place) -> None:
        pending = self._by_producer.get(producer_id, {}).pop(place, None)
        if pending is None:
            return
        if not self._by_producer[producer_id]:
            del self._by_producer[producer_id]
        producers = self._by_place[place]
        producers.discard(producer_id)
        if not producers:
            del self._by_place[place]
        self._by_group[place[0]] -= 1
        self._bytes_by_group[place[0]] -= pending.bytes
        if not self._by_group[place[0]]:
            del self._by_group[place[0]], self._bytes_by_group[place[0]]
        self.bytes -= pending.bytes
        self._dirty.add((producer_id, place))

    # --- storing -------------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed key."""
        dirty: list[tuple[bytes, bytes | None]] = []
        for producer_id, place in taken(self._dirty, limit):
            if place is None:
                ended = self._ended.get(producer_id)
                if producer_id == NOBODY:
                    ended = self._forgotten()
                value = None if ended is None else encode_value(ended)
                dirty.append((_ended_key(producer_id), value))
            else:
                pending = self._by_producer.get(producer_id, {}).get(place)
                value = None if pending is None else encode_value(pending)
                dirty.append((_pending_key(producer_id, place), value))
        dirty.sort()
        return dirty

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        known = list(self._ended.values())
        if self._forgotten_index:
            known.append(self._forgotten())
        ended = [(_ended_key(one.producer_id), encode_value(one)) for one in known]
        pending = [
            (_pending_key(producer_id, place), encode_value(one))
            for producer_id, places in self._by_producer.items()
            for place, one in places.items()
        ]
        return sorted(ended + pending)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        for ended_id in list(self._ended):
            if (ended := self._ended.get(ended_id)) is not None:
                yield _ended_key(ended_id), encode_value(ended)
        if self._forgotten_index:
            yield _ended_key(NOBODY), encode_value(self._forgotten())
        for producer_id in list(self._by_producer):
            for place in list(self._by_producer.get(producer_id, ())):
                pending = self._by_producer.get(producer_id, {}).get(place)
                if pending is not None:
                    yield _pending_key(producer_id, place), encode_value(pending)

    def _forgotten(self) -> EndedTransaction:
        return EndedTransaction(NOBODY, 0, 0, self._forgotten_index)

    def load(self, *, ended: list[bytes], pending: list[bytes]) -> None:
        """Replace everything."""
        self._by_producer = {}
        self._by_place = {}
        self._by_group = Counter()
        self._bytes_by_group = Counter()
        loaded = [decode_value(value, EndedTransaction) for value in ended]
        loaded.sort(key=lambda one: one.index)
        self._ended = {one.producer_id: one for one in loaded}
        forgotten = self._ended.pop(NOBODY, None)
        self._forgotten_index = 0 if forgotten is None else forgotten.index
        self.bytes = ENDED_BYTES * len(self._ended)
        for value in pending:
            self.add(decode_value(value, PendingOffset))
        self._dirty = set()


def _ended_key(producer_id: int) -> bytes:
    return digest_key(b"e", producer_id)


def _pending_key(producer_id: int, place: Place) -> bytes:
    return digest_key(b"p", producer_id, *place)
