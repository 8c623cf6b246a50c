"""Offsets that transactions have committed and that nobody may see before these end.

A transaction's offsets wait here, by its producer, in the coordinator of the consumer group. When
the transaction commits they become the group's positions; when it aborts they are gone. A position
that was committed after one of them stands: the later one in the log wins, as in Kafka.

Of each producer the number of its newest ended transaction is kept: an offset of that one or an
older one comes too late, because nobody would end it but the producer's next transaction. Only the
latest `ENDED_MAX` producers are kept. Of one that is not, nobody knows; so an offset of it counts
only if its transaction was found open after the last end that is forgotten.

Must not know: groups beyond their id, who may commit, whether a transaction is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import OffsetCommit
from vdl.state.table import ALL, decode_value, digest_key, encode_value, taken, text_bytes

ENDED_MAX = 4_096
"""Producers of which it is known which transactions ended."""
ENDED_BYTES = 24
"""What one of them takes in a snapshot, about."""
PENDING_BYTES = 96
"""What a pending offset takes in a snapshot, about, beside its names and metadata."""

Place = tuple[str, str, int]
"""Group, topic, partition."""


class PendingOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An offset of an open transaction."""

    producer_id: int
    group_id: str
    number: int
    """Of the transaction."""
    index: int
    """Of the entry that committed it."""
    offset: OffsetCommit

    @property
    def place(self) -> Place:
        """Which position it is to become."""
        return self.group_id, self.offset.topic, self.offset.partition

    @property
    def bytes(self) -> int:
        """What it takes in a snapshot, about."""
        names = text_bytes(self.group_id) + text_bytes(self.offset.topic)
        return PENDING_BYTES + names + text_bytes(self.offset.metadata)


class EndedTransaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest transaction of a producer that ended here."""

    producer_id: int
    number: int
    epoch: int
    """Of its marker."""
    index: int
    """Of the marker's entry."""


NOBODY = -1
"""In the place of a producer: the newest of the ends that are forgotten."""


class PendingOffsets:
    """See the module."""

    __slots__ = (
        "_by_group", "_by_place", "_by_producer", "_bytes_by_group", "_dirty", "_ended",
        "_forgotten_index", "bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, PendingOffset]] = {}
        self._by_place: dict[Place, set[int]] = {}
        self._by_group: Counter[str] = Counter()
        self._bytes_by_group: Counter[str] = Counter()
        """Invariant: of each group with some what they take."""
        self._ended: dict[int, EndedTransaction] = {}
        """Invariant: in the order of their entries."""
        self._forgotten_index = 0
        """The entry of the newest end that is forgotten; 0: none is."""
        self._dirty: set[tuple[int, Place | None]] = set()
        self.bytes = 0
        """What all of it takes in a snapshot, about."""

    def __len__(self) -> int:
        """How many pending offsets there are, and producers whose transactions ended."""
        return sum(self._by_group.values()) + len(self._ended)

    # --- what is asked -----------------------------------------------------------------------
    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may yet move the group's position (KIP-447)."""
        return (group_id, topic, partition) in self._by_place

    def holds(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of the group: it does not expire."""
        return group_id in self._by_group

    def bytes_of(self, group_id: str) -> int:
        """What those of a group take in a snapshot, about."""
        return self._bytes_by_group[group_id]

    def check(self, producer_id: int, epoch: int, number: int, asked_at: int = -1) -> ErrorCode:
        """Whether a producer's transaction may still commit offsets here. `asked_at`: it was open
        after this entry was applied here; -1: nobody said."""
        ended = self._ended.get(producer_id)
        if ended is None:
            if 0 <= asked_at < self._forgotten_index:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it is to be asked again
            return ErrorCode.NONE
        if epoch < ended.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.INVALID_TXN_STATE if number <= ended.number else ErrorCode.NONE

    # --- what changes it -----------------------------------------------------------------------
    def add(self, pending: PendingOffset) -> None:
        """It takes the place of an earlier one of the same producer."""
        self._drop(pending.producer_id, pending.place)
        self._by_producer.setdefault(pending.producer_id, {})[pending.place] = pending
        self._by_place.setdefault(pending.place, set()).add(pending.producer_id)
        self._by_group[pending.group_id] += 1
        self._bytes_by_group[pending.group_id] += pending.bytes
        self.bytes += pending.bytes
        self._dirty.add((pending.producer_id, pending.place))

    def end(self, producer_id: int, *, number: int, epoch: int, index: int) -> list[PendingOffset]:
        """Transaction `number` of a producer ended at entry `index`: its offsets, in the order in
        which they were committed. They are not pending any more. Empty when it had ended before."""
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
        """What was committed at entry `index` is the group's position now: what is pending from
        before that entry never becomes one."""
        for producer_id in sorted(self._by_place.get(place, ())):
            if self._by_producer[producer_id][place].index < index:
                self._drop(producer_id, place)

    def remove_group(self, group_id: str) -> None:
        """The group is deleted."""
        if group_id in self._by_group:
            for place in [place for place in self._by_place if place[0] == group_id]:
                for producer_id in sorted(self._by_place[place]):
                    self._drop(producer_id, place)

    def remove_partitions(self, partition_groups: Set[int]) -> None:
        """These partitions are deleted."""
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
        """(key, value) of what changed and was not taken since, None where it went."""
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
        """Everything, in key order."""
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
