"""Offsets of all partitions of some topics, in one request for each leader, and one more.

A client library creates several objects for each partition, and requests metadata before each list
of offsets: with thousands of partitions that dominates the planning of a batch. This reader handles
only the good case, like `fetch.py`, whose FAILURES it raises; for all others `topics.py` uses
librdkafka.

Does not depend on Spark, or on the handling of failures.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence

from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from vdl.kafka.wire.metadata import MetadataResponse
from vdl.pipeline.fast_client import FastClient
from vdl.pipeline.fetch import ISOLATION, NotFetched, ask_metadata, connect
from vdl.pipeline.positions import Positions, TopicPositions

LIST_OFFSETS_KEY = 2
Led = Mapping[str, Sequence[int]]
"""Topic → partitions that one server leads."""


def look_up(
    bootstrap: str,
    topics: Sequence[str],
    times: Sequence[int],
    *,
    isolation: str,
    client: FastClient,
) -> list[Positions]:
    """Return the offsets of all partitions for each time; -1 if no record is as young.

    A time is in ms since 1970, -2 for the start of a log, -1 for its end. Raises FAILURES.
    """
    metadata = ask_metadata(topics, bootstrap, client)
    found: list[dict[str, dict[int, int]]] = [{topic: {} for topic in topics} for _ in times]
    for place, led in _led(metadata).items():
        requests = [(LIST_OFFSETS_KEY, _request(led, time, isolation)) for time in times]
        with connect(*place, client) as server:
            answers: list[ListOffsetsResponse] = server.requests(requests)
        for offsets, answer in zip(found, answers, strict=True):
            _take(answer, offsets)
    ids = {row.name or "": _text(row.topic_id) for row in metadata.topics}
    counts = {row.name: len(row.partitions) for row in metadata.topics}
    for offsets in found:
        if {topic: len(of_topic) for topic, of_topic in offsets.items()} != counts:
            raise NotFetched("other partitions than requested")
    return [
        Positions({t: TopicPositions(ids[t], of_topic) for t, of_topic in offsets.items()})
        for offsets in found
    ]


def _led(metadata: MetadataResponse) -> dict[tuple[str, int], dict[str, list[int]]]:
    """Return server address → partitions it leads.

    Raises NotFetched if a partition has no leader.
    """
    places = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
    found: dict[tuple[str, int], dict[str, list[int]]] = {}
    for topic in metadata.topics:
        if topic.error_code:
            raise NotFetched(f"{topic.name}: error {topic.error_code}")
        for row in topic.partitions:
            place = places.get(row.leader_id)
            if row.error_code or place is None:
                raise NotFetched(f"{topic.name} {row.partition_index} has no leader")
            found.setdefault(place, {}).setdefault(topic.name or "", []).append(row.partition_index)
    return found


def _request(led: Led, time: int, isolation: str) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=partition, timestamp=time)
                for partition in partitions
            ],
        )
        for topic, partitions in led.items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=ISOLATION[isolation], topics=topics)


def _take(answer: ListOffsetsResponse, offsets: dict[str, dict[int, int]]) -> None:
    for topic in answer.topics:
        of_topic = offsets[topic.name]
        for row in topic.partitions:
            if row.error_code:
                raise NotFetched(f"{topic.name} {row.partition_index}: error {row.error_code}")
            of_topic[row.partition_index] = row.offset


def _text(topic_id: bytes) -> str:
    """Return the id as Kafka writes it."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()
