"""The lag of groups, in records and in seconds.

Records: the end of the partition less the committed offset, as Kafka's tools count; of a share
group, what the servers count. Below zero if the log lost what was committed.

Seconds: now less the time of the first record that is not committed. 0 if there is none. The record
is read, so the figure is exact by the clocks of this machine and of who wrote the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.output import progress
from vdl.commands.resources.group_facts import GroupDescription, Positions, positions
from vdl.commands.resources.record_times import At, Found, first_records
from vdl.commands.resources.topic_facts import Where, offsets
from vdl.commands.workers import Workers

_GROUPS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """A partition of a group. None is what is not known: no offset, no leader, no time."""

    topic: str
    partition: int
    offset: int | None
    end_offset: int | None
    lag: int | None
    lag_seconds: float | None
    record_time_ms: int | None
    """Time of the first record that is not committed; None if there is none."""
    member: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "record_time_ms": self.record_time_ms,
            "member": self.member,
        }


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's partitions."""

    group: GroupDescription
    partitions: tuple[PartitionLag, ...]
    at_ms: int
    """The time that the seconds count to."""

    @property
    def lag(self) -> int:
        """Records of all partitions whose lag is known."""
        return sum(one.lag or 0 for one in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """Seconds of the partition that is furthest behind; None if that is not known."""
        if any(one.lag and one.lag_seconds is None for one in self.partitions):
            return None
        return max((one.lag_seconds or 0.0 for one in self.partitions), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        return {
            "group": self.group.group,
            "type": self.group.type,
            "state": self.group.state,
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "at_ms": self.at_ms,
            "partitions": [one.as_json() for one in self.partitions],
        }


def lags(
    cluster: Cluster, groups: Sequence[GroupDescription], *, isolation: str, topics: Iterable[str]
) -> list[GroupLag]:
    """Return the lag of groups; of some topics alone, if any are named. Raises
    click.ClickException."""
    only = frozenset(topics)
    with progress("reading the first records", unit="partitions") as steps:
        with Workers(_GROUPS_AT_ONCE) as pool:
            held = list(pool.map(lambda one: positions(cluster, one.group, one.type), groups))
        places = [
            [place for place in _places(group, found) if not only or place[0] in only]
            for group, found in zip(groups, held, strict=True)
        ]
        ends = _ends(cluster, {place for some in places for place in some})
        # Groups may wait for the same record: it is read once.
        wanted = {
            (place, offset)
            for found, some in zip(held, places, strict=True)
            for place in some
            if (offset := found.offsets.get(place)) is not None and offset < (ends[place] or 0)
        }
        steps.total(len(wanted))
        records = first_records(cluster, wanted, isolation=isolation, steps=steps)
    at_ms = time.time_ns() // 1_000_000
    return [
        GroupLag(
            group,
            tuple(_of_partition(place, group, found, ends, records, at_ms) for place in some),
            at_ms,
        )
        for group, found, some in zip(groups, held, places, strict=True)
    ]


def _places(group: GroupDescription, found: Positions) -> list[Where]:
    """Return the partitions that a group has offsets of, or has given to members."""
    assigned = {place for member in group.members for place in member.partitions}
    return sorted(assigned | set(found.offsets))


def _ends(cluster: Cluster, places: set[Where]) -> dict[Where, int | None]:
    from confluent_kafka.admin import OffsetSpec

    return offsets(cluster, sorted(places), OffsetSpec.latest())


def _of_partition(
    place: Where,
    group: GroupDescription,
    found: Positions,
    ends: dict[Where, int | None],
    records: dict[At, Found | None],
    at_ms: int,
) -> PartitionLag:
    offset, end = found.offsets.get(place), ends[place]
    lag = found.lags.get(place)
    seconds: float | None = None
    record_time_ms = None
    if offset is not None and end is not None:
        lag = end - offset if lag is None else lag
        if offset >= end:
            seconds = 0.0
        elif (record := records[place, offset]) is not None:
            record_time_ms = record.time_ms
            if record.offset is None:
                seconds = 0.0
            elif record_time_ms is not None:
                seconds = max(at_ms - record_time_ms, 0) / 1_000
    members = [member for member in group.members if place in member.partitions]
    return PartitionLag(
        place[0], place[1], offset, end, lag, seconds, record_time_ms,
        members[0].id if len(members) == 1 else None,
    )  # fmt: skip
