"""Committed offsets of consumer groups.

Each carries the id of its topic and of its partition's group. When a topic is deleted and another
one gets its name, the old offsets are not returned for the new topic.

Does not depend on groups beyond their ids, or on which topics exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

import msgspec

from ids import GroupId, Offset
from vdl.state.changed_parts import ChangedParts
from vdl.state.commands import OffsetCommit
from vdl.state.table import ALL, decode_value, digest_key, encode_value, taken, text_bytes

NO_EXPIRY = -1

OFFSET_BYTES = 48
"""Estimated size of a committed offset in a compressed snapshot, without names and metadata.

It covers the 16 bytes of its key and numbers chosen by clients, neither of which compresses. It is
constant, so that committing a larger offset never takes more.
"""
NAME_COPIES = 6
"""Number of occurrences of a name that are counted in a snapshot.

Compression finds repetitions within a window of 2 MiB, and the state may be some thirty windows
(`STATE_BYTES_MAX`) in shuffled order. A name with few offsets is missed each time, a name with many
hardly ever; the worst case lies between.
"""
NAMES_BYTES_FREE = 64
"""Bytes of an offset's two names beyond this count each time.

They are present each time when a snapshot is unpacked, and the unpacked size is bounded as well.
"""
TOPIC_ID_BYTES = 16

_Key = tuple[str, str, int]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offset that a group committed for one partition."""

    offset: Offset
    leader_epoch: int
    """Leader epoch of the last consumed record; -1 if the client did not send it (KIP-320)."""
    metadata: str
    topic_id: bytes
    committed_ms: int
    expires_ms: int = NO_EXPIRY
    """Set by clients before OffsetCommit v5; otherwise the group's retention decides."""
    partition_group: GroupId = GroupId(0)
    """See `OffsetCommit.partition_group`."""

    def expired(self, now_ms: int, *, idle_since_ms: int, retention_ms: int) -> bool:
        """Return True if it has expired (KIP-211)."""
        if self.expires_ms != NO_EXPIRY:
            return self.expires_ms <= now_ms
        return max(idle_since_ms, self.committed_ms) + retention_ms <= now_ms


class StoredOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed offset as stored."""

    group_id: str
    topic: str
    partition: int
    position: CommittedOffset


class Offsets:
    """Committed offsets of all groups of one coordinator."""

    __slots__ = (
        "_by_group",
        "_by_partition",
        "_by_topic",
        "_bytes_by_group",
        "_changed",
        "_count",
        "_dirty",
        "_topics",
        "bytes",
    )

    def __init__(self, changed: ChangedParts) -> None:
        """Notify `changed` of offsets that are committed or removed."""
        self._changed = changed
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._by_partition: Counter[GroupId] = Counter()
        self._by_topic: Counter[tuple[str, bytes]] = Counter()
        """Number of offsets in each topic, by name and id."""
        self._bytes_by_group: Counter[str] = Counter()
        """Invariant: size of the offsets of each group that has any, without topic names."""
        self._topics: dict[tuple[str, bytes], tuple[str, bytes]] = {}
        """One shared copy of each topic's name and id.

        A million offsets have few topics, and each command carries copies of its own.
        """
        self._count = 0
        self._dirty: set[_Key] = set()
        self.bytes = 0
        """Estimated size of all offsets in a snapshot."""

    def __len__(self) -> int:
        """Return the number of offsets."""
        return self._count

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return the offset that the group committed last."""
        return self._by_group.get(group_id, {}).get((topic, partition))

    def groups(self) -> list[str]:
        """Return the groups that have offsets."""
        return [group_id for group_id, found in self._by_group.items() if found]

    def of(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """Return a group's offsets by (topic, partition). The caller must not change them."""
        return self._by_group.get(group_id, {})

    def knows_later(self, group_id: str, offsets: list[OffsetCommit]) -> bool:
        """Return True if the group has an offset in a newer partition than one of these."""
        positions = self.of(group_id)
        for new in offsets:
            old = positions.get((new.topic, new.partition))
            if old is not None and 0 < new.partition_group < old.partition_group:
                return True
        return False

    @property
    def changed_count(self) -> int:
        """Number of changes that `take_dirty` would return."""
        return len(self._dirty)

    def bytes_of(self, group_id: str) -> int:
        """Return the estimated size of a group's offsets in a snapshot, without topic names."""
        return self._bytes_by_group[group_id]

    def growth(self, group_id: str, offsets: list[OffsetCommit]) -> int:
        """Return how many bytes committing these offsets adds at most."""
        positions = self.of(group_id)
        more = 0
        in_group = len(positions)
        in_topics: Counter[tuple[str, bytes]] = Counter()
        last = {(new.topic, new.partition): new for new in offsets}
        for place, new in last.items():
            old = positions.get(place)
            topic = new.topic, new.topic_id
            if old is not None:
                more += text_bytes(new.metadata) - text_bytes(old.metadata)
            else:
                more += _own_bytes(group_id, new.topic, new.metadata)
                if in_group < NAME_COPIES:
                    more += text_bytes(group_id)
                in_group += 1
            if old is None or old.topic_id != new.topic_id:
                if self._by_topic[topic] + in_topics[topic] < NAME_COPIES:
                    more += _topic_bytes(topic)
                in_topics[topic] += 1
        return more

    def commit(
        self, group_id: str, offsets: list[OffsetCommit], now_ms: int, retention_ms: int
    ) -> None:
        """Set the offsets; the last one of a partition counts."""
        expires_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
        positions = self._by_group.setdefault(group_id, {})
        for new in offsets:
            if (old := positions.pop((new.topic, new.partition), None)) is not None:
                self._uncount(group_id, new.topic, old)
            topic, topic_id = self._topic(new.topic, new.topic_id)
            place = topic, new.partition
            position = CommittedOffset(
                offset=new.offset,
                leader_epoch=new.leader_epoch,
                metadata=new.metadata,
                topic_id=topic_id,
                committed_ms=now_ms,
                expires_ms=expires_ms,
                partition_group=new.partition_group,
            )
            self._count_in(group_id, topic, position)
            positions[place] = position
            self._dirty.add((group_id, *place))
            self._changed.position(group_id, *place)

    def expired(
        self, group_id: str, now_ms: int, *, idle_since_ms: int, retention_ms: int
    ) -> list[tuple[str, int]]:
        """Return the expired (topic, partition) places of a group without members, in order."""
        return sorted(
            position
            for position, committed in self.of(group_id).items()
            if committed.expired(now_ms, idle_since_ms=idle_since_ms, retention_ms=retention_ms)
        )

    @property
    def by_partition(self) -> Mapping[GroupId, int]:
        """Number of offsets in each partition, by group id. The caller must not change it."""
        return self._by_partition

    def remove(self, group_id: str, positions: list[tuple[str, int]]) -> None:
        """Remove offsets that the group has."""
        committed = self._by_group[group_id]
        for place in positions:
            self._uncount(group_id, place[0], committed.pop(place))
            self._dirty.add((group_id, *place))
            self._changed.position(group_id, *place)
        if not committed:
            del self._by_group[group_id]

    def remove_group(self, group_id: str) -> None:
        """Remove all offsets of a group."""
        if group_id in self._by_group:
            self.remove(group_id, list(self._by_group[group_id]))

    def remove_partitions(
        self, partition_groups: Set[GroupId], group_ids: Iterable[str] | None = None
    ) -> int:
        """Remove all offsets in these partitions, only of `group_ids` if given.

        Return their number.
        """
        if self._by_partition.keys().isdisjoint(partition_groups):
            return 0
        count = 0
        for group_id in list(self._by_group) if group_ids is None else group_ids:
            gone = self.in_partitions(group_id, partition_groups)
            if gone:
                self.remove(group_id, gone)
                count += len(gone)
        return count

    def in_partitions(self, group_id: str, partition_groups: Set[GroupId]) -> list[tuple[str, int]]:
        """Return the group's places in these partitions."""
        return [
            place
            for place, committed in self.of(group_id).items()
            if committed.partition_group in partition_groups
        ]

    def _count_in(self, group_id: str, topic: str, position: CommittedOffset) -> None:
        """Count an offset, before it is added."""
        self._count += 1
        more = _own_bytes(group_id, topic, position.metadata)
        if len(self._by_group[group_id]) < NAME_COPIES:
            more += text_bytes(group_id)
        self.bytes += more
        self._bytes_by_group[group_id] += more
        place = topic, position.topic_id
        if self._by_topic[place] < NAME_COPIES:
            self.bytes += _topic_bytes(place)
        self._by_topic[place] += 1
        self._by_partition[position.partition_group] += 1

    def _uncount(self, group_id: str, topic: str, position: CommittedOffset) -> None:
        """Uncount an offset, after it was removed."""
        self._count -= 1
        less = _own_bytes(group_id, topic, position.metadata)
        if len(self._by_group[group_id]) < NAME_COPIES:
            less += text_bytes(group_id)
        self.bytes -= less
        self._bytes_by_group[group_id] -= less
        if not self._by_group[group_id]:
            assert not self._bytes_by_group[group_id], group_id
            del self._bytes_by_group[group_id]
        place = topic, position.topic_id
        self._by_topic[place] -= 1
        if self._by_topic[place] < NAME_COPIES:
            self.bytes -= _topic_bytes(place)
        if not self._by_topic[place]:
            del self._by_topic[place]
            del self._topics[place]
        partition_group = position.partition_group
        self._by_partition[partition_group] -= 1
        if not self._by_partition[partition_group]:
            del self._by_partition[partition_group]

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed offset."""
        dirty: list[tuple[bytes, bytes | None]] = []
        for key in taken(self._dirty, limit):
            committed = self.get(*key)
            dirty.append((offset_key(*key), None if committed is None else _encode(key, committed)))
        dirty.sort()
        return dirty

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return sorted(
            (offset_key(group_id, *place), _encode((group_id, *place), committed))
            for group_id, positions in self._by_group.items()
            for place, committed in positions.items()
        )

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        for group_id in list(self._by_group):
            for place in list(self.of(group_id)):
                if (committed := self.of(group_id).get(place)) is not None:
                    yield offset_key(group_id, *place), _encode((group_id, *place), committed)

    def clear(self) -> None:
        """Remove everything, including changes not taken yet."""
        self._by_group = {}
        self._by_partition = Counter()
        self._by_topic = Counter()
        self._topics = {}
        self._bytes_by_group = Counter()
        self._dirty = set()
        self._count = self.bytes = 0

    def add(self, values: Iterable[bytes]) -> None:
        """Load stored offsets, none of which is present yet.

        Raise msgspec.DecodeError if one is invalid.
        """
        for value in values:
            stored = decode_value(value, StoredOffset)
            position = stored.position
            topic, topic_id = self._topic(stored.topic, position.topic_id)
            if topic_id is not position.topic_id:
                position = msgspec.structs.replace(position, topic_id=topic_id)
            positions = self._by_group.setdefault(stored.group_id, {})
            self._count_in(stored.group_id, topic, position)
            positions[topic, stored.partition] = position

    def _topic(self, topic: str, topic_id: bytes) -> tuple[str, bytes]:
        named = topic, topic_id
        return self._topics.setdefault(named, named)


def _own_bytes(group_id: str, topic: str, metadata: str) -> int:
    """Return the size of an offset, without the names counted in `NAME_COPIES`."""
    names = text_bytes(group_id) + text_bytes(topic)
    return OFFSET_BYTES + text_bytes(metadata) + max(0, names - NAMES_BYTES_FREE)


def _topic_bytes(topic: tuple[str, bytes]) -> int:
    return TOPIC_ID_BYTES + text_bytes(topic[0])


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key that an offset is stored under."""
    return digest_key(b"o", group_id, topic, partition)


def _encode(key: _Key, position: CommittedOffset) -> bytes:
    return encode_value(StoredOffset(*key, position))
