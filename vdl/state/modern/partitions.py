"""Partitions of topics by topic id, as a value with one form: equal sets are equal bytes.

Must not know: whose partitions they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Partitions = tuple[tuple[bytes, tuple[int, ...]], ...]
"""(topic id, its partitions), both ascending; no topic without partitions."""

Place = tuple[bytes, int]
"""(topic id, partition)."""

NO_PARTITIONS: Partitions = ()

TOPIC_BYTES = 20
PARTITION_BYTES = 3
"""What a topic's id and a partition's number take in a snapshot, about."""


def partitions_of(places: Iterable[Place]) -> Partitions:
    """The value of a set of places; one that is named twice counts once."""
    by_topic: dict[bytes, set[int]] = {}
    for topic_id, index in places:
        by_topic.setdefault(topic_id, set()).add(index)
    return tuple((topic_id, tuple(sorted(by_topic[topic_id]))) for topic_id in sorted(by_topic))


def places_of(partitions: Partitions) -> Iterator[Place]:
    """Each partition, in order."""
    for topic_id, indexes in partitions:
        for index in indexes:
            yield topic_id, index


def count(partitions: Partitions) -> int:
    """How many there are."""
    return sum(len(indexes) for _, indexes in partitions)


def stored_bytes(partitions: Partitions) -> int:
    """What they take in a snapshot, about."""
    return TOPIC_BYTES * len(partitions) + PARTITION_BYTES * count(partitions)
