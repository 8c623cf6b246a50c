"""Committed offsets of consumer groups.

Each carries the id of the topic it belongs to: when a topic is deleted and one of the same name is
created, the old positions mean nothing there and are not answered.

Must not know: groups beyond their id, which topics exist.
"""

from __future__ import annotations

import msgspec

from vdl.state.commands import OffsetCommit
from vdl.state.table import decode_value, digest_key, encode_value

NO_EXPIRY = -1

_Key = tuple[str, str, int]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group's position in one partition."""

    offset: int
    leader_epoch: int
    """Of the record before it, -1 when the client did not say (KIP-320)."""
    metadata: str
    topic_id: bytes
    committed_ms: int
    expires_ms: int = NO_EXPIRY
    """Set by clients before OffsetCommit v5; otherwise the group's retention decides."""

    def expired(self, now_ms: int, *, idle_since_ms: int, retention_ms: int) -> bool:
        """Whether nobody will ask for it any more (KIP-211)."""
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

    __slots__ = ("_by_group", "_dirty")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._dirty: set[_Key] = set()

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """What the group committed last."""
        return self._by_group.get(group_id, {}).get((topic, partition))

    def of(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """All of a group by (topic, partition); not to be changed."""
        return self._by_group.get(group_id, {})

    def commit(
        self, group_id: str, offsets: list[OffsetCommit], now_ms: int, retention_ms: int
    ) -> None:
        """Set the positions; the last one of a partition counts."""
        expires_ms = NO_EXPIRY if retention_ms < 0 else now_ms + retention_ms
        positions = self._by_group.setdefault(group_id, {})
        for new in offsets:
            positions[new.topic, new.partition] = CommittedOffset(
                offset=new.offset,
                leader_epoch=new.leader_epoch,
                metadata=new.metadata,
                topic_id=new.topic_id,
                committed_ms=now_ms,
                expires_ms=expires_ms,
            )
            self._dirty.add((group_id, new.topic, new.partition))

    def expired(
        self, group_id: str, now_ms: int, *, idle_since_ms: int, retention_ms: int
    ) -> list[tuple[str, int]]:
        """Which (topic, partition) of a group without members are over, in order."""
        return sorted(
            position
            for position, committed in self.of(group_id).items()
            if committed.expired(now_ms, idle_since_ms=idle_since_ms, retention_ms=retention_ms)
        )

    def remove(self, group_id: str, positions: list[tuple[str, int]]) -> None:
        """Forget positions the group has."""
        committed = self._by_group[group_id]
        for topic, partition in positions:
            del committed[topic, partition]
            self._dirty.add((group_id, topic, partition))
        if not committed:
            del self._by_group[group_id]

    def remove_group(self, group_id: str) -> None:
        """Forget all positions of a group."""
        for topic, partition in self._by_group.pop(group_id, {}):
            self._dirty.add((group_id, topic, partition))

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) of every position that changed since the last call, None where it went."""
        dirty, self._dirty = self._dirty, set()
        taken: list[tuple[bytes, bytes | None]] = []
        for key in dirty:
            committed = self.get(*key)
            taken.append((offset_key(*key), None if committed is None else _encode(key, committed)))
        taken.sort()
        return taken

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
        return sorted(
            (offset_key(group_id, *place), _encode((group_id, *place), committed))
            for group_id, positions in self._by_group.items()
            for place, committed in positions.items()
        )

    def load(self, values: list[bytes]) -> None:
        """Replace everything."""
        self._by_group = {}
        self._dirty = set()
        for value in values:
            stored = decode_value(value, StoredOffset)
            positions = self._by_group.setdefault(stored.group_id, {})
            positions[stored.topic, stored.partition] = stored.position


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key a position is stored under."""
    return digest_key(b"o", group_id, topic, partition)


def _encode(key: _Key, position: CommittedOffset) -> bytes:
    return encode_value(StoredOffset(*key, position))
