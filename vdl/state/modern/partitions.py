"""Partitions of topics by topic id, as a canonical value: equal sets have equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Partitions = tuple[tuple[bytes, tuple[int, ...]], ...]
"""(topic id, its partitions), both ascending; no topic without partitions."""

Place = tuple[bytes, int]
"""(topic id, partition)."""

NO_PARTITIONS: Partitions = ()

TOPIC_BYTES = 20
PARTITION_BYTES = 3
"""Estimated size of a topic id and of a partition number in a snapshot."""


def partitions_of(places: Iterable[Place]) -> Partitions:
    """Return the canonical value of a set of places; duplicates count once."""
    by_topic: dict[bytes, set[int]] = {}
    for topic_id, index in places:
        by_topic.setdefault(topic_id, set()).add(index)
    return tuple((topic_id, tuple(sorted(by_topic[topic_id]))) for topic_id in sorted(by_topic))


def places_of(partitions: Partitions) -> Iterator[Place]:
    """Yield each partition, in order."""
    for topic_id, indexes in partitions:
        for index in indexes:
            yield topic_id, index


def count(partitions: Partitions) -> int:
    """Return the number of partitions."""
    return sum(len(indexes) for _, indexes in partitions)


def stored_bytes(partitions: Partitions) -> int:
    """Return the estimated size in a snapshot."""
    return TOPIC_BYTES * len(partitions) + PARTITION_BYTES * count(partitions)
