"""A traced request: its stages add up, and its names are bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rpc.traces import PARTITIONS_NAMED, TOPICS_NAMED, TracedRequest
from vdl.clock import MS
from vdl.kafka.api import API
from vdl.kafka.connections.admission import Exchange
from vdl.kafka.connections.connection import Request
from vdl.kafka.connections.traced_request import NAME_CHARS_MAX, Times, traced
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

FETCH, METADATA, OFFSET_COMMIT = 1, 3, 8
TOPIC_ID = bytes(range(16))
INFO: Any = SimpleNamespace(
    principal="User:alice", listener="PLAINTEXT", peer_host="10.0.0.1", peer_port=50_123, id=6
)
CONTEXT: Any = SimpleNamespace(
    host=SimpleNamespace(
        server_id=3,
        catalog=SimpleNamespace(topics_by_id={TOPIC_ID: SimpleNamespace(name="orders")}),
    ),
    clock=SimpleNamespace(wall_ms=lambda: 1_764_489_600_000),
)


def exchange(key: int, message: object, *, client_id: str | None = "client") -> Exchange:
    """Return one that arrived within 5 ms, waited 10, and worked 20."""
    request = Request(key, 0, 77, client_id, memoryview(b""), 100, 5 * MS, 1)
    made = Exchange(API[key], request, started_ns=15 * MS)
    made.worked_ns = 35 * MS
    made.request = message
    return made


def trace(made: Exchange, about: Any = None, *, busy_ns: int = 0) -> TracedRequest:
    """The answer is known after 30 ms more, and given to the socket after 40."""
    return traced(made, INFO, CONTEXT, None, about, Times(65 * MS, busy_ns, 105 * MS, 50))


def durations(request: TracedRequest) -> dict[str, int]:
    return {stage.name: round(stage.duration_ns / MS) for stage in request.stages}


def test_stages_add_up_to_the_time() -> None:
    request = trace(exchange(METADATA, MetadataRequest()))
    assert durations(request) == {"receive": 5, "queue": 10, "work": 20, "wait": 30, "send": 40}
    assert sum(stage.duration_ns for stage in request.stages) == request.total_ns
    assert request.busy_ns == 100 * MS
    assert request.began_ms == 1_764_489_600_000 - 104
    assert (request.server_id, request.principal, request.correlation_id) == (3, "User:alice", 77)
    assert request.peer == "10.0.0.1:50123"


@pytest.mark.parametrize("busy_ms", [0, 25])
def test_wait_of_a_long_poll_does_not_count(busy_ms: int) -> None:
    """Only what the poll waited for beside records does."""

    class Poll:
        def trace(self, into: TracedRequest, since_ns: int, until_ns: int) -> list[Any]:
            into.partitions = ["orders-1"]
            middle_ns = until_ns - busy_ms * MS
            return [("wait", since_ns, middle_ns), ("read", middle_ns, until_ns)]

    request = trace(exchange(FETCH, None), Poll(), busy_ns=busy_ms * MS)
    assert request.busy_ns == (70 + busy_ms) * MS
    assert durations(request).get("read", 0) == busy_ms
    assert request.partitions == ["orders-1"]


def test_handler_that_had_the_answer_waited_for_nothing() -> None:
    made = exchange(METADATA, MetadataRequest())
    request = traced(made, INFO, CONTEXT, None, None, Times(0, 0, 105 * MS, 50))
    assert durations(request) == {"receive": 5, "queue": 10, "work": 20, "send": 70}


def test_names_are_cut_and_counted() -> None:
    """A request with very many names costs no more than one with a few."""
    partitions = [OffsetCommitRequestPartition(number) for number in range(1_000)]
    topics = [
        OffsetCommitRequestTopic(f"t{number}", partitions=partitions) for number in range(1_000)
    ]
    message = OffsetCommitRequest(group_id="g" * 5_000, topics=topics)
    request = trace(exchange(OFFSET_COMMIT, message, client_id="c" * 30_000))
    assert request.partitions == [f"t0-{number}" for number in range(PARTITIONS_NAMED)]
    assert request.partition_count == 1_000 * TOPICS_NAMED
    assert len(request.topics) == TOPICS_NAMED
    assert len(request.client_id) == len(request.group) == NAME_CHARS_MAX
    assert request.bytes < 20_000


def test_topic_is_named_by_its_id() -> None:
    known, unknown = MetadataRequestTopic(TOPIC_ID, None), MetadataRequestTopic(bytes(16), None)
    request = trace(exchange(METADATA, MetadataRequest(topics=[known, unknown])))
    assert request.partitions == ["orders", "?"]
