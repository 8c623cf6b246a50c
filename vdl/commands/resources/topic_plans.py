"""Plans of `vdl topic`: what would change, and the change itself.

A plan is a list of objects of docs/cli.md. Does not depend on how plans are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.output import fail, progress
from vdl.commands.resources.topic_facts import (
    Where,
    alter_settings,
    descriptions,
    earliest_and_latest,
    offsets,
    refusals,
    settings,
)

PARTITIONS = "partitions"


def changes(
    cluster: Cluster,
    topics: Sequence[str],
    wanted: Mapping[str, str | None],
    partitions: int | None,
) -> list[dict[str, Any]]:
    """Return what changes in topics: settings (None: unset) and the number of partitions."""
    found = descriptions(cluster, topics)
    configs = settings(cluster, "TOPIC", topics) if wanted else {}
    plan: list[dict[str, Any]] = []
    for name in topics:
        present = {one.name: one.value for one in configs.get(name, ())}
        plan += [
            {"topic": name, "key": key, "from": present.get(key), "to": value}
            for key, value in wanted.items()
        ]
        if partitions is not None:
            now = len(found[name].partitions)
            plan.append({"topic": name, "key": PARTITIONS, "from": str(now), "to": str(partitions)})
    return plan


def apply_changes(
    cluster: Cluster,
    topics: Sequence[str],
    wanted: Mapping[str, str | None],
    partitions: int | None,
) -> dict[str, str]:
    """Do it. Return what was refused: topic → reason."""
    refused: dict[str, str] = {}
    with progress("changing topics"):
        if wanted:
            refused |= alter_settings(cluster, "TOPIC", {name: dict(wanted) for name in topics})
        if partitions is not None:
            from confluent_kafka.admin import NewPartitions

            rest = [NewPartitions(name, partitions) for name in topics if name not in refused]
            if rest:
                admin = cluster.admin()
                futures = admin.create_partitions(rest, request_timeout=cluster.timeout_seconds)
                refused |= refusals(cluster, futures)
    return refused


def deletions(cluster: Cluster, topics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the topics with the partitions and records that would go; None is not known."""
    found = descriptions(cluster, topics)
    places = [(name, one.id) for name, topic in found.items() for one in topic.partitions]
    starts, ends = earliest_and_latest(cluster, places)
    return [
        {
            "name": name,
            "partitions": len(topic.partitions),
            "records": record_count([(name, one.id) for one in topic.partitions], starts, ends),
        }
        for name, topic in found.items()
    ]


def record_count(
    places: Sequence[Where],
    starts: Mapping[Where, int | None],
    ends: Mapping[Where, int | None],
) -> int | None:
    """Return the records of partitions; None if the leader of one of them did not answer: a number
    that leaves some out would make a deletion look harmless."""
    count = 0
    for place in places:
        start, end = starts.get(place), ends.get(place)
        if start is None or end is None:
            return None
        count += end - start
    return count


def truncations(
    cluster: Cluster,
    topics: Sequence[str],
    partitions: Sequence[int],
    before_offset: int | None,
    before_time: int | None,
) -> list[dict[str, Any]]:
    """Return the new starts of partitions: at most `before_offset`, or the first record of
    `before_time` (ms); the end if neither is given."""
    from confluent_kafka.admin import OffsetSpec

    places: list[Where] = []
    for name, topic in descriptions(cluster, topics).items():
        known = [one.id for one in topic.partitions]
        if missing := sorted(set(partitions) - set(known)):
            fail(f"{name} has no partition {missing[0]}")
        places += [(name, one) for one in (sorted(set(partitions)) or known)]
    starts, ends = earliest_and_latest(cluster, places)
    at_time = (
        offsets(cluster, places, OffsetSpec.for_timestamp(before_time))
        if before_time is not None
        else {}
    )
    plan = []
    for place in places:
        start, end = starts[place], ends[place]
        new = end
        if before_offset is not None:
            new = before_offset
        elif before_time is not None:
            new = at_time[place]
        if start is None or end is None or new is None:
            fail(f"{place[0]}-{place[1]}: its leader does not answer")
        # A time behind the last record has no offset: all records are before it.
        new = end if new < 0 else min(max(new, start), end)
        plan.append(
            {
                "topic": place[0],
                "partition": place[1],
                "start_offset": start,
                "end_offset": end,
                "new_start_offset": new,
                "records": new - start,
            }
        )
    return plan


def truncate(cluster: Cluster, plan: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Do it. Return what was refused: partition → reason."""
    from confluent_kafka import TopicPartition

    asked = [
        TopicPartition(one["topic"], one["partition"], one["new_start_offset"])
        for one in plan
        if one["records"]
    ]
    if not asked:
        return {}
    with progress("deleting records"):
        futures = cluster.admin().delete_records(asked, request_timeout=cluster.timeout_seconds)
        named = {f"{one.topic}-{one.partition}": future for one, future in futures.items()}
        return refusals(cluster, named)
