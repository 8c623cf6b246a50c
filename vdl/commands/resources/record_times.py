"""Times of single records: of the first one at an offset or behind it.

The record itself is read, with a bounded fetch at exactly that offset. So the time is exact, on
compacted topics and across markers of transactions, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.output import Steps, fail
from vdl.commands.resources.topic_facts import Where

if TYPE_CHECKING:
    from confluent_kafka import Consumer

At = tuple[Where, int]
"""A partition and an offset."""

PARTITIONS_AT_ONCE = 100
"""Partitions that are read together; one batch of each is in memory."""
_FETCH_BYTES = 64 << 10
"""Bytes of a partition in one response; a larger batch comes by itself."""
_SECONDS = 15
"""Longest wait for the partitions that are read together."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first record. `time_ms` is None if it has no time (a record of Kafka 0.9). Both are None
    if there is no record: only markers of transactions, or records that are not committed."""

    offset: int | None
    time_ms: int | None


def first_records(
    cluster: Cluster, wanted: Iterable[At], *, isolation: str, steps: Steps
) -> dict[At, Found | None]:
    """Return the first record at each offset or behind it; None where no leader answers in time.

    An offset below the start of the log counts as the start. `isolation`: read_committed or
    read_uncommitted.
    """
    found: dict[At, Found | None] = {}
    rounds = list(_rounds(wanted))
    if not rounds:
        return found
    settings = {
        # No group is joined, and nothing is committed.
        "group.id": "vdl",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "fetch.message.max.bytes": _FETCH_BYTES,
        "fetch.wait.max.ms": 50,
        "queued.min.messages": 1,
        "queued.max.messages.kbytes": 1024,
    }
    consumer = cluster.consumer(**settings)
    try:
        for some in rounds:
            found |= _read(cluster, consumer, some, steps)
    finally:
        consumer.close()
    return found


def _rounds(wanted: Iterable[At]) -> Iterator[dict[Where, int]]:
    """Yield offsets that are read together: some partitions, each at one offset only."""
    rest = sorted(set(wanted))
    while rest:
        some: dict[Where, int] = {}
        later = []
        for place, offset in rest:
            if place in some or len(some) == PARTITIONS_AT_ONCE:
                later.append((place, offset))
            else:
                some[place] = offset
        yield some
        rest = later


def _read(
    cluster: Cluster, consumer: Consumer, wanted: Mapping[Where, int], steps: Steps
) -> dict[At, Found | None]:
    from confluent_kafka import KafkaError, TopicPartition

    found: dict[Where, Found] = {}
    consumer.assign([TopicPartition(*place, offset) for place, offset in wanted.items()])
    deadline = time.monotonic() + _SECONDS
    while len(found) < len(wanted) and time.monotonic() < deadline:
        try:
            messages = consumer.consume(len(wanted) - len(found), timeout=0.5)
        except kafka_exception() as error:
            fail(cluster.words(error))
        answered = []
        for message in messages:
            place = str(message.topic()), int(message.partition() or 0)
            if place in found or place not in wanted:
                continue
            problem = message.error()
            if problem is None:
                time_ms = message.timestamp()[1]
                found[place] = Found(message.offset(), time_ms if time_ms >= 0 else None)
            elif problem.code() == KafkaError._PARTITION_EOF:
                found[place] = Found(None, None)
            else:
                continue
            steps.advance()
            answered.append(TopicPartition(*place))
        if answered:
            # A partition with an answer needs no further fetch.
            consumer.pause(answered)
    # A pause outlives the assignment, and a later round may read the partition elsewhere.
    consumer.resume([TopicPartition(*place) for place in found])
    consumer.unassign()
    return {(place, offset): found.get(place) for place, offset in wanted.items()}
