"""Codec of Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment.

These are the bytes that consumers of the classic protocol send with a join and receive with a sync.

A subscription: version i16, topics (a count i32, for each a length i16 and that many bytes of
UTF-8), user data (length i32, -1 for none). From version 1 the owned partitions (a count i32, for
each topic its name, and a count i32 of partitions i32), from 2 their generation i32, from 3 the
rack (as a name, -1 for none). Later versions append fields.

An assignment: version i16, partitions as above, user data.

Does not depend on groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

_VERSION = Struct(">h")
_COUNT = Struct(">i")
_LENGTH = Struct(">h")
_OWNED_FROM = 1
_GENERATION_FROM = 2
_RACK_FROM = 3

NamedPartitions = list[tuple[str, list[int]]]
"""(topic, its partitions)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of one consumer."""

    topics: frozenset[str]
    owned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rack: str | None = None


class _Reader:
    """Sequential reader of bytes. Every method raises ValueError if the bytes end early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: Struct) -> int:
        try:
            (value,) = kind.unpack_from(self._data, self._at)
        except StructError as error:
            raise ValueError(str(error)) from error
        self._at += kind.size
        assert isinstance(value, int), value
        return value

    def count(self, bytes_each: int) -> int:
        """Return the number of elements that follow, of at least `bytes_each` bytes each."""
        count = self.number(_COUNT)
        if not 0 <= count * bytes_each <= len(self._data) - self._at:
            raise ValueError(f"{count} elements")
        return count

    def maybe(self, length_kind: Struct) -> bytes | None:
        length = self.number(length_kind)
        if length < 0:
            return None
        if length > len(self._data) - self._at:
            raise ValueError(f"{length} bytes")
        start, self._at = self._at, self._at + length
        return self._data[start : self._at]

    def name(self) -> str:
        found = self.maybe(_LENGTH)
        if found is None:
            raise ValueError("no name")
        return found.decode()

    def partitions(self) -> NamedPartitions:
        found: NamedPartitions = []
        for _ in range(self.count(_LENGTH.size + _COUNT.size)):
            name = self.name()
            found.append((name, [self.number(_COUNT) for _ in range(self.count(_COUNT.size))]))
        return found


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics; None if these are not the bytes of a subscription."""
    reader = _Reader(metadata)
    try:
        return _topics(reader)[1]
    except ValueError:
        return None


def _topics(reader: _Reader) -> tuple[int, frozenset[str]]:
    """Return (version, topics)."""
    version = reader.number(_VERSION)
    if version < 0:
        raise ValueError(f"version {version}")
    return version, frozenset(reader.name() for _ in range(reader.count(_LENGTH.size)))


def read_subscription(metadata: bytes) -> Subscription | None:
    """Decode a subscription; None if these are not the bytes of one."""
    reader = _Reader(metadata)
    try:
        version, topics = _topics(reader)
        reader.maybe(_COUNT)
        owned: NamedPartitions = reader.partitions() if version >= _OWNED_FROM else []
        if version >= _GENERATION_FROM:
            reader.number(_COUNT)
        rack = reader.maybe(_LENGTH) if version >= _RACK_FROM else None
        return Subscription(
            topics,
            tuple((name, tuple(indexes)) for name, indexes in owned),
            rack.decode() if rack else None,
        )
    except ValueError:
        return None


def read_assignment(assignment: bytes) -> NamedPartitions | None:
    """Return the partitions; None if these are not the bytes of an assignment.

    An empty assignment has no partitions.
    """
    if not assignment:
        return []
    reader = _Reader(assignment)
    try:
        if reader.number(_VERSION) < 0:
            return None
        return reader.partitions()
    except ValueError:
        return None


def write_assignment(partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    """Encode an assignment that every consumer can read: version 0, without user data."""
    parts: list[bytes] = []
    count = 0
    for name, indexes in partitions:
        raw, numbers = name.encode(), list(indexes)
        parts.append(_LENGTH.pack(len(raw)) + raw + _COUNT.pack(len(numbers)))
        parts += map(_COUNT.pack, numbers)
        count += 1
    return b"".join((_VERSION.pack(0), _COUNT.pack(count), *parts, _COUNT.pack(-1)))
