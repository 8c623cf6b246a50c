"""Committed offsets of consumer groups.

Each carries the id of its topic and of its partition's group. When a topic is deleted and another
one gets its name, the old offsets are not answered for the new one.

Must not know: groups beyond their id, which topics exist.
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
"""What a position takes in a snapshot, compressed, beside names and what is said along with it: the
16 bytes of its key and numbers that clients choose, which nothing makes smaller. A constant, so
that to commit a larger offset never takes more."""
NAME_COPIES = 6
"""How often a name is in a snapshot: compression finds it again within a window of 2 MiB, where the
state may be some thirty of them (`STATE_BYTES_MAX`), in an order like a shuffled one. A name of few
positions is missed each time, one of many hardly ever; the worst lies between."""
NAMES_BYTES_FREE = 64
"""What of a position's two names is longer counts each time: it is there each time when a snapshot
is unpacked, which has a bound, too."""
TOPIC_ID_BYTES = 16

_Key = tuple[str, str, int]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group's position in one partition."""

    offset: Offset
    leader_epoch: int
    """Of the record before it; -1: the client did not send it (KIP-320)."""
    metadata: str
    topic_id: bytes
    committed_ms: int
    expires_ms: int = NO_EXPIRY
    """Set by clients before OffsetCommit v5; otherwise the group's retention decides."""
    partition_group: GroupId = GroupId(0)
    """See `OffsetCommit.partition_group`."""

    def expired(self, now_ms: int, *, idle_since_ms: int, retention_ms: int) -> bool:
        """Whether it has expired (KIP-211)."""
        if self.expires_ms != NO_EXPIRY:
            return self.expires_ms <= now_ms
        return max(idle_since_ms, self.committed_ms) + retention_ms <= now_ms


class StoredOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position as it is stored."""

    group_id: str
    topic: str
    partition: int
    position: CommittedOffset


class Offsets:
    """All offsets of one coordinator."""

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
        """`changed`: told of positions that are committed, or go."""
        self._changed = changed
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._by_partition: Counter[GroupId] = Counter()
        self._by_topic: Counter[tuple[str, bytes]] = Counter()
        """Positions in each topic, by name and id."""
        self._bytes_by_group: Counter[str] = Counter()
        """Invariant: of each group with positions what they take, without names of topics."""
        self._topics: dict[tuple[str, bytes], tuple[str, bytes]] = {}
        """Each topic once: a million positions have few of them, and each command names its own
        anew."""
        self._count = 0
        self._dirty: set[_Key] = set()
        self.bytes = 0
        """What all positions take in a snapshot, about."""

    def __len__(self) -> int:
        """How many positions there are."""
        return self._count

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """What the group committed last."""
        return self._by_group.get(group_id, {}).get((topic, partition))

    def of(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """All of a group by (topic, partition); not to be changed."""
        return self._by_group.get(group_id, {})

    def knows_later(self, group_id: str, offsets: list[OffsetCommit]) -> bool:
        """Whether the group has a position in a partition that took the place of one of these."""
        positions = self.of(group_id)
        for new in offsets:
            old = positions.get((new.topic, new.partition))
            if old is not None and 0 < new.partition_group < old.partition_group:
                return True
        return False

    @property
    def changed_count(self) -> int:
        """How many changes `take_dirty` would tell of."""
        return len(self._dirty)

    def bytes_of(self, group_id: str) -> int:
        """What the positions of a group take in a snapshot, about, without names of topics."""
        return self._bytes_by_group[group_id]

    def growth(self, group_id: str, offsets: list[OffsetCommit]) -> int:
        """How many bytes more there are after these are committed, at most."""
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
        """Set the positions; the last one of a partition counts."""
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
        """Which (topic, partition) of a group without members are over, in order."""
        return sorted(
            position
            for position, committed in self.of(group_id).items()
            if committed.expired(now_ms, idle_since_ms=idle_since_ms, retention_ms=retention_ms)
        )

    @property
    def by_partition(self) -> Mapping[GroupId, int]:
        """How many positions there are in each partition, by its group id; not to be changed."""
        return self._by_partition

    def remove(self, group_id: str, positions: list[tuple[str, int]]) -> None:
        """Forget positions the group has."""
        committed = self._by_group[group_id]
        for place in positions:
            self._uncount(group_id, place[0], committed.pop(place))
            self._dirty.add((group_id, *place))
            self._changed.position(group_id, *place)
        if not committed:
            del self._by_group[group_id]

    def remove_group(self, group_id: str) -> None:
        """Forget all positions of a group."""
        if group_id in self._by_group:
            self.remove(group_id, list(self._by_group[group_id]))

    def remove_partitions(
        self, partition_groups: Set[GroupId], group_ids: Iterable[str] | None = None
    ) -> int:
        """Forget all positions in these partitions, of these groups alone if they are named; how
        many there were."""
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
        """The places of a group that are in these partitions."""
        return [
            place
            for place, committed in self.of(group_id).items()
            if committed.partition_group in partition_groups
        ]

    def _count_in(self, group_id: str, topic: str, position: CommittedOffset) -> None:
        """Before it is added."""
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
        """After it was taken out."""
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
        """(key, value) of positions that changed and were not taken since, None where one went."""
        dirty: list[tuple[bytes, bytes | None]] = []
        for key in taken(self._dirty, limit):
            committed = self.get(*key)
            dirty.append((offset_key(*key), None if committed is None else _encode(key, committed)))
        dirty.sort()
        return dirty

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
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
        """Forget everything, also what changed."""
        self._by_group = {}
        self._by_partition = Counter()
        self._by_topic = Counter()
        self._topics = {}
        self._bytes_by_group = Counter()
        self._dirty = set()
        self._count = self.bytes = 0

    def add(self, values: Iterable[bytes]) -> None:
        """Take positions as they are stored, none of which is there. Raises msgspec.DecodeError."""
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
    """What a position takes, however often its names are in a snapshot already."""
    names = text_bytes(group_id) + text_bytes(topic)
    return OFFSET_BYTES + text_bytes(metadata) + max(0, names - NAMES_BYTES_FREE)


def _topic_bytes(topic: tuple[str, bytes]) -> int:
    return TOPIC_ID_BYTES + text_bytes(topic[0])


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key a position is stored under."""
    return digest_key(b"o", group_id, topic, partition)


def _encode(key: _Key, position: CommittedOffset) -> bytes:
    return encode_value(StoredOffset(*key, position))
