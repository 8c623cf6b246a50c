"""Ranges of offsets to read, from the points that a user names.

The ends are those of the moment: without `--follow` a reader stops there, also while others write.

Does not depend on what is done with the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.output import fail
from vdl.commands.records.read_point import Kind, Point

if TYPE_CHECKING:
    from confluent_kafka.admin import OffsetSpec

Place = tuple[str, int]
"""Topic and partition."""
NO_OFFSET = -1


@dataclass(slots=True)
class PartitionRange:
    """Offsets [start, end) of a partition. `end` None: no end. `low`, `high`: those it has."""

    topic: str
    partition: int
    start: int
    end: int | None
    low: int
    high: int
    stop_ms: int | None = None
    """The first record of this time or later is not read, nor what follows."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def is_empty(self) -> bool:
        return self.end is not None and self.start >= self.end


def partition_numbers(cluster: Cluster, topics: Sequence[str]) -> dict[str, list[int]]:
    """Return the partitions of each topic, without creating it. Raises click.ClickException."""
    from confluent_kafka import TopicCollection

    asked = cluster.admin().describe_topics(TopicCollection(list(topics)))
    found = {}
    for topic in topics:
        try:
            described = asked[topic].result()
        except kafka_exception() as error:
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                fail(f"topic {topic!r} does not exist")
            fail(f"topic {topic!r}: {cluster.words(error)}")
        found[topic] = sorted(partition.id for partition in described.partitions)
    return found


def chosen_partitions(
    cluster: Cluster, topics: Sequence[str], chosen: Iterable[int]
) -> list[Place]:
    """Return the places to read: all partitions of the topics, or those chosen. Raises
    click.ClickException for one that does not exist."""
    numbers = partition_numbers(cluster, topics)
    wanted = sorted(set(chosen))
    for topic, existing in numbers.items():
        missing = [number for number in wanted if number not in existing]
        if missing:
            fail(f"topic {topic!r} has no partition {missing[0]}; it has {len(existing)}")
    return [(topic, number) for topic, existing in numbers.items() for number in wanted or existing]


def offsets(
    cluster: Cluster, places: Iterable[Place], spec: OffsetSpec, *, committed: bool
) -> dict[Place, int]:
    """Return the offset of a kind in each partition, NO_OFFSET where there is none. `committed`:
    the end is the last stable offset. Raises click.ClickException."""
    from confluent_kafka import IsolationLevel, TopicPartition

    asked = {TopicPartition(topic, partition): spec for topic, partition in places}
    if not asked:
        return {}
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    futures = cluster.admin().list_offsets(asked, isolation_level=level)
    return {
        (where.topic, where.partition): cluster.result(future).offset
        for where, future in futures.items()
    }


def ends(cluster: Cluster, places: Iterable[Place], *, committed: bool) -> dict[Place, int]:
    """Return the end offset of each partition as it is now. Raises click.ClickException."""
    from confluent_kafka.admin import OffsetSpec

    return offsets(cluster, places, OffsetSpec.latest(), committed=committed)


def ranges(
    cluster: Cluster,
    places: Sequence[Place],
    *,
    start: Point,
    until: Point | None,
    follow: bool,
    committed: bool,
) -> list[PartitionRange]:
    """Return the range of each partition. Raises click.ClickException."""
    from confluent_kafka.admin import OffsetSpec

    low = offsets(cluster, places, OffsetSpec.earliest(), committed=committed)
    high = ends(cluster, places, committed=committed)
    times: dict[int, Mapping[Place, int]] = {}
    for point in (start, until):
        if point is not None and point.kind is Kind.TIME and point.number not in times:
            spec = OffsetSpec.for_timestamp(point.number)
            times[point.number] = offsets(cluster, places, spec, committed=committed)
    return [
        range_of(
            place, low[place], high[place], start=start, until=until, follow=follow,
            times={number: found[place] for number, found in times.items()},
        )
        for place in places
    ]  # fmt: skip


def range_of(
    place: Place,
    low: int,
    high: int,
    *,
    start: Point,
    until: Point | None,
    follow: bool,
    times: Mapping[int, int],
) -> PartitionRange:
    """Return the range of a partition with records in [low, high). `times`: the offset of the
    first record of a time or later, NO_OFFSET if there is none."""
    first = offset_of(start, low, high, times)
    found = PartitionRange(*place, min(max(first, low), high), None if follow else high, low, high)
    if until is None:
        return found
    end = offset_of(until, low, high, times)
    if until.kind is Kind.TIME and times[until.number] == NO_OFFSET:
        # No record is that new yet: a follower meets the first one itself.
        found.stop_ms = until.number if follow else None
    else:
        found.end = end if follow else min(end, high)
    return found


def offset_of(point: Point, low: int, high: int, times: Mapping[int, int]) -> int:
    """Return the offset of a point in a partition with records in [low, high)."""
    if point.kind is Kind.START:
        return low
    if point.kind is Kind.END:
        return high
    if point.kind is Kind.OFFSET:
        return point.number
    if point.kind is Kind.BEFORE_END:
        return max(low, high - point.number)
    found = times[point.number]
    return high if found == NO_OFFSET else found
