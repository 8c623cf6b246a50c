"""Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator, ApiVersions."""

from __future__ import annotations

from typing import Any

from tests.differential.scenarios.topics import BAD_NAMES
from tests.differential.side import Side
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic

IDS_SINCE = 12
"""Metadata answers requests by id from this version on."""
KEYS_SINCE = 4
"""FindCoordinator accepts several keys from this version on (KIP-699)."""


def metadata(side: Side) -> None:
    topic = side.topic("known", 3)
    topic_id = side.topic_id(topic)

    def ask(label: str, *rows: MetadataRequestTopic, first: int = 4, **fields: Any) -> None:
        fields = {"allow_auto_topic_creation": False} | fields
        side.each(label, MetadataRequest(list(rows), **fields), first=first)

    def named(name: str | None, found: bytes = bytes(16)) -> MetadataRequestTopic:
        return MetadataRequestTopic(found, name)

    side.each("known", MetadataRequest([named(topic)]))
    side.each("none", MetadataRequest([]), first=1)
    ask("unknown", named(f"{side.prefix}.none"))
    ask("known and unknown", named(topic), named(f"{side.prefix}.none"))
    ask("twice", named(topic), named(topic))
    ask("unknown, twice", named(f"{side.prefix}.none"), named(f"{side.prefix}.none"))
    for shown in BAD_NAMES:
        ask(f"name {shown[:10]!r}", named(shown))
        ask(f"name {shown[:10]!r}, to be created", named(shown), allow_auto_topic_creation=True)
    unknown = bytes(15) + b"\7"
    ask("by id", named(None, topic_id), first=IDS_SINCE)
    ask("by unknown id", named(None, unknown), first=IDS_SINCE)
    ask("by id, twice", named(None, topic_id), named(None, topic_id), first=IDS_SINCE)
    ask("by id and by name", named(None, topic_id), named(topic), first=IDS_SINCE)
    ask("a name and its id", named(topic, topic_id), first=IDS_SINCE)
    ask("a name and another id", named(topic, unknown), first=IDS_SINCE)
    ask("neither name nor id", named(None), first=IDS_SINCE)
    ask("by id before that was possible", named(None, topic_id), first=10)
    ask("what one may do", named(topic), include_topic_authorized_operations=True, first=8)
    ask(
        "what one may do with the cluster",
        named(topic),
        include_cluster_authorized_operations=True,
        first=8,
    )


def metadata_creates(side: Side) -> None:
    """A topic that Metadata creates is at first reported as missing, and later found."""
    for version in side.versions(3):
        name = f"{side.prefix}.auto{version}"
        rows = [MetadataRequestTopic(name=name)]
        answer = side.quiet(MetadataRequest(rows), version=version)
        side.keep(f"creates v{version}", answer.topics[0].error_code in {0, 3, 5})
        side.await_topic(name, 1)
        side.ask(f"created v{version}", MetadataRequest(rows), version=version)


def describe_topic_partitions(side: Side) -> None:
    first, second = side.topic("described.a", 3), side.topic("described.b", 3)

    def ask(label: str, *names: str, cursor: Cursor | None = None, limit: int = 2_000) -> None:
        rows = [TopicRequest(name) for name in names]
        side.each(label, DescribeTopicPartitionsRequest(rows, limit, cursor))

    ask("two", first, second)
    ask("the other way round", second, first)
    ask("twice", first, first)
    ask("unknown", f"{side.prefix}.none")
    ask("no name", "")
    ask("bad name", "a b")
    ask("name too long", "n" * 250)
    ask("known and unknown", f"{side.prefix}.none", first)
    ask("two partitions at most", first, second, limit=2)
    ask("four partitions at most", first, second, limit=4)
    ask("three partitions at most", first, second, limit=3)
    ask("no partition", first, limit=0)
    ask("negative limit", first, limit=-1)
    ask("goes on", first, second, cursor=Cursor(first, 1))
    ask("goes on with the second", first, second, cursor=Cursor(second, 2))
    ask("goes on behind the last", first, second, cursor=Cursor(first, 3))
    ask("goes on with an unknown", first, second, cursor=Cursor(f"{first}x", 0))
    ask("negative cursor", first, cursor=Cursor(first, -1))


def describe_cluster(side: Side) -> None:
    side.each("plain", DescribeClusterRequest())
    side.each("what one may do", DescribeClusterRequest(True))
    for kind in (0, 2, 3, -1):
        side.each(f"endpoints {kind}", DescribeClusterRequest(False, kind), first=1)
    side.each("with fenced servers", DescribeClusterRequest(False, 1, True), first=2)


def find_coordinator(side: Side) -> None:
    side.coordinator(f"{side.prefix}.g")

    def ask(label: str, *keys: str, kind: int = 0) -> None:
        def make(version: int) -> FindCoordinatorRequest:
            if version < KEYS_SINCE:
                return FindCoordinatorRequest(keys[0] if keys else "", kind, [])
            return FindCoordinatorRequest("", kind, list(keys))

        side.each(label, make, first=1 if kind else 0)

    ask("a group", f"{side.prefix}.g")
    ask("no name", "")
    ask("two groups", f"{side.prefix}.g", f"{side.prefix}.g")
    ask("nothing")
    ask("no such kind", "k", kind=7)
    ask("negative kind", "k", kind=-1)
    ask("a share group", "k", kind=2)
    ask("a long name", "n" * 1_000)


def api_versions(side: Side) -> None:
    """The offered versions differ and are compared elsewhere; answers to bad requests do not."""

    def ask(label: str, name: str, number: str) -> None:
        for version in side.versions(18):
            if version >= 3:
                request = ApiVersionsRequest(name, number)
                answer = side.quiet(request, version=version)
                side.keep(f"{label} v{version}", answer.error_code)

    for version in side.versions(18):
        if version >= 3:
            offered = side.quiet(ApiVersionsRequest("a", "1"), version=version).supported_features
            side.keep(f"features v{version}", sorted(feature.name for feature in offered))
    ask("good", "a", "1")
    ask("no name", "", "1")
    ask("no version", "a", "")
    ask("spaces", "a b", "1")
    ask("a dash at the end", "a-", "1")
    ask("a dash at the start", "-a", "1")
    ask("dots", "a.b", "1.2-3")


SCENARIOS = (
    metadata,
    metadata_creates,
    describe_topic_partitions,
    describe_cluster,
    find_coordinator,
    api_versions,
)
