"""Look-up of the topics, partitions and servers that a request names.

Everything is answered from this server's own applied catalog, which may lag: items that it does not
know yet get errors that clients retry.

Does not depend on any one API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from ids import GroupId, ServerId
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.context import RequestContext
from vdl.kafka.host import LogStream
from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_ID, offsets_topic
from vdl.kafka.views.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TRANSACTIONS_TOPIC_ID,
    transactions_topic,
)
from vdl.state.catalog import Catalog, TopicInfo

Topic = TopicInfo

_VIEWS: Mapping[str | bytes, Callable[[Catalog], Topic]] = {
    OFFSETS_TOPIC: offsets_topic,
    OFFSETS_TOPIC_ID: offsets_topic,
    TRANSACTIONS_TOPIC: transactions_topic,
    TRANSACTIONS_TOPIC_ID: transactions_topic,
}
"""Kafka's internal topics, which are views here, by name and by id."""
INTERNAL_NAMES = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
INTERNAL_IDS = frozenset({OFFSETS_TOPIC_ID, TRANSACTIONS_TOPIC_ID})

NO_TOPIC_ID = bytes(16)


def find_topic(ctx: RequestContext, key: str | bytes) -> Topic | None:
    """Return the topic of that name, or (16 bytes) of that id, including internal topics.

    An id that the request's permission check did not know stays unknown (`RequestContext`).
    """
    if ctx.unknown_ids is not None and key in ctx.unknown_ids:
        return None
    catalog = ctx.server.host.catalog
    topic = catalog.topics.get(key) if isinstance(key, str) else catalog.topics_by_id.get(key)
    if topic is None and key in _VIEWS:
        return _VIEWS[key](catalog)
    return topic


def is_internal(ctx: RequestContext, key: str | bytes) -> bool:
    """Return True for a topic that clients can only read."""
    topic = find_topic(ctx, key)
    # A topic of that name that was created in an older version is a topic like any other.
    return topic is not None and topic.topic_id in INTERNAL_IDS


def all_topics(ctx: RequestContext) -> list[Topic]:
    """Return all topics by name."""
    catalog = ctx.server.host.catalog
    found = list(catalog.topics.values())
    found += [_VIEWS[name](catalog) for name in INTERNAL_NAMES if name not in catalog.topics]
    return sorted(found, key=attrgetter("name"))


def partition_group(topic: Topic, index: int) -> GroupId:
    """Return the group of a partition. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    groups = topic.partitions
    if not 0 <= index < len(groups):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic '{topic.name}' has {len(groups)} partitions",
        )
    return groups[index]


def led_stream(ctx: RequestContext, topic_name: str, index: int, epoch: int = -1) -> LogStream:
    """Return the log of a partition that this server leads, in the client's leader epoch. Raises
    KafkaError."""
    topic = find_topic(ctx, topic_name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stream = ctx.server.stream(partition_group(topic, index), topic.name)
    if stream is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    error = check_leader_epoch(stream, epoch)
    if not error and not stream.is_leader:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error:
        raise KafkaError(error)
    return stream


def check_leader_epoch(stream: LogStream, epoch: int) -> ErrorCode:
    """Return the error of a client's leader epoch (KIP-320), or NONE; -1 is not checked."""
    term = stream.term
    if epoch in (-1, term):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < term else ErrorCode.UNKNOWN_LEADER_EPOCH


def endpoint(ctx: RequestContext, server_id: ServerId) -> tuple[str, int] | None:
    """Return the address of a server for clients of this request's listener; None if it has
    none."""
    server = ctx.server.host.catalog.servers.get(server_id)
    if server is None:
        return None
    return server.listeners.get(ctx.connection.listener)


def leader_endpoints(
    ctx: RequestContext, server_id: ServerId
) -> list[tuple[int, str, int, str | None]]:
    """Return (id, host, port, rack) of a leader, for the hints of KIP-951; empty if unknown."""
    address = endpoint(ctx, server_id)
    if address is None:
        return []
    rack = ctx.server.host.catalog.servers[server_id].rack
    return [(server_id, address[0], address[1], rack or None)]
