"""Topics, their partitions and settings.

A page of partitions asks only for the offsets and sizes of its rows: a topic may have thousands.

Does not depend on HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from vdl.console.parameters import LIST, Listing, Parameters, long
from vdl.console.problems import check_code, error_name
from vdl.console.question import (
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    EARLIEST,
    LATEST,
    Question,
    Where,
    by_leader,
    by_topic,
)
from vdl.kafka.client import Unreachable
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

TOPICS: Final = (*LIST, "internal")
PARTITIONS: Final = ("topic", "page", "per_page", "search", "sort", "order", "problems")
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_SUMMED_MAX: Final = 1_000
"""Partitions of a topic that are added up."""
_SOURCES: Final = {
    1: "topic",
    2: "server",
    3: "cluster",
    4: "static",
    5: "default",
    6: "logger",
    8: "group",
}


def topics(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET topics`."""
    listing = Listing(given, ("name", "partitions", "replication", "under_replicated"))
    with_internal = given.boolean("internal")
    rows = [
        topic_row(one)
        for one in question.metadata(None).topics
        if not one.error_code and (with_internal or not one.is_internal) and listing.finds(one.name)
    ]
    return {"page": listing.info(len(rows)), "topics": listing.choose(rows)}


def topic_row(topic: Any) -> dict[str, Any]:
    """Return the row of a topic, from Metadata."""
    partitions = topic.partitions
    return {
        "name": topic.name,
        "id": str(uuid.UUID(bytes=bytes(topic.topic_id))),
        "partitions": len(partitions),
        "replication": max((len(one.replica_nodes) for one in partitions), default=0),
        "internal": topic.is_internal,
        "without_leader": sum(one.leader_id < 0 for one in partitions),
        "under_replicated": sum(len(one.isr_nodes) < len(one.replica_nodes) for one in partitions),
    }


def topic(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET topic`."""
    name = given.text("topic", most=249)
    found = question.topic(name)
    row = topic_row(found)
    records = size = None
    if len(found.partitions) <= _SUMMED_MAX:
        leaders = _leaders(name, found.partitions)
        starts, ends = question.offsets(leaders, EARLIEST), question.offsets(leaders, LATEST)
        known = [
            end - start
            for start, end in ((starts[place], ends[place]) for place in leaders)
            if start is not None and end is not None
        ]
        if len(known) == len(leaders):
            records = sum(known)
        sizes = _sizes(question, leaders)
        if len(sizes) == len(leaders):
            size = sum(sizes.values())
    row |= {"records": long(records), "bytes": long(size)}
    return {"topic": row, "settings": settings(question, TOPIC_RESOURCE, name)}


def partitions(question: Question, given: Parameters) -> dict[str, Any]:
    """Answer `GET partitions`."""
    name = given.text("topic", most=249)
    listing = Listing(given, ("partition",))
    found = [
        one
        for one in question.topic(name).partitions
        if (listing.search in ("", str(one.partition_index)))
    ]
    if given.boolean("problems"):
        found = [
            one for one in found if one.leader_id < 0 or len(one.isr_nodes) < len(one.replica_nodes)
        ]
    if listing.is_descending:
        found.reverse()
    some = found[listing.place]
    leaders = _leaders(name, some)
    starts, ends = question.offsets(leaders, EARLIEST), question.offsets(leaders, LATEST)
    sizes = _sizes(question, leaders)
    return {
        "page": listing.info(len(found)),
        "partitions": [
            {
                "partition": one.partition_index,
                "leader": one.leader_id if one.leader_id >= 0 else None,
                "term": one.leader_epoch,
                "replicas": list(one.replica_nodes),
                "isr": list(one.isr_nodes),
                "offline": list(one.offline_replicas),
                "start": long(starts[name, one.partition_index]),
                "end": long(ends[name, one.partition_index]),
                "bytes": long(sizes.get((name, one.partition_index))),
                "error": error_name(one.error_code) if one.error_code else "",
            }
            for one in some
        ],
    }


def _leaders(name: str, rows: list[Any]) -> dict[Where, int]:
    return {(name, one.partition_index): one.leader_id for one in rows}


def _sizes(question: Question, leaders: Mapping[Where, int]) -> dict[Where, int]:
    """Return the bytes of the leaders' replicas; those that are not known are left out."""
    found: dict[Where, int] = {}
    for server, places in by_leader(leaders).items():
        wanted = [DescribableLogDirTopic(name, some) for name, some in by_topic(places).items()]
        try:
            answer = question.ask_server(server, DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(wanted))
        except Unreachable:
            continue
        for directory in answer.results:
            for one in directory.topics:
                for partition in one.partitions:
                    if not partition.is_future_key:
                        found[one.name, partition.partition_index] = partition.partition_size
    return found


def settings(
    question: Question, resource: int, name: str, server: int | None = None
) -> list[dict[str, Any]]:
    """Return the settings of a topic, or of a server, which answers itself. Raises Unreachable if
    that does not answer."""
    wanted = DescribeConfigsResource(resource, name, None)
    request = DescribeConfigsRequest([wanted], include_documentation=True)
    if server is None:
        answer = question.ask(DESCRIBE_CONFIGS, request)
    else:
        answer = question.ask_server(server, DESCRIBE_CONFIGS, request)
    (result,) = answer.results
    check_code(result.error_code, f"settings of {name}", result.error_message)
    rows = [
        {
            "name": one.name,
            "value": None if one.is_sensitive else one.value,
            "source": _SOURCES.get(one.config_source, "other"),
            "is_sensitive": one.is_sensitive,
            "is_read_only": one.read_only,
            "documentation": one.documentation or "",
        }
        for one in result.configs
    ]
    return sorted(rows, key=lambda row: str(row["name"]))
