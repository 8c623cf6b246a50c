"""Partitions that are reassigned to other servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.wire import AnyApiClient
from vdl.config.values import parse_address
from vdl.kafka.client import Unreachable
from vdl.kafka.wire import alter_partition_reassignments as alter
from vdl.kafka.wire import list_partition_reassignments as listing
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic

SECONDS_MAX = 60.0
RETRIED = {6, 7, 41}
"""Errors of a request whose catalog leader has just died."""


def ask(bootstrap: str, key: int, request: object) -> Any:
    """Return the answer of some running server."""
    for address in map(parse_address, bootstrap.split(",")):
        try:
            with AnyApiClient(address.host, address.port, timeout_seconds=10.0) as client:
                return client.request(key, request)
        except Unreachable:
            continue
    raise AssertionError("no server answers")


def move(bootstrap: str, topic: str, targets: Mapping[int, list[int] | None]) -> None:
    """Reassign partitions; None cancels the reassignment of one."""
    partitions = [alter.ReassignablePartition(index, where) for index, where in targets.items()]
    request = alter.AlterPartitionReassignmentsRequest(
        5_000, True, [alter.ReassignableTopic(topic, partitions)]
    )
    answer = _answer(bootstrap, 45, request)
    assert {row.error_code for row in answer.responses[0].partitions} == {0}


def moving(bootstrap: str) -> int:
    """Return the number of partitions that are moving."""
    answer = _answer(bootstrap, 46, listing.ListPartitionReassignmentsRequest(5_000, None))
    return sum(len(topic.partitions) for topic in answer.topics)


def wait_moved(bootstrap: str) -> float:
    """Wait until nothing moves; return the seconds."""
    began = time.monotonic()
    while moving(bootstrap):
        assert time.monotonic() - began < SECONDS_MAX, "replicas do not get on"
        time.sleep(0.1)
    return time.monotonic() - began


def replicas(bootstrap: str, topic: str) -> dict[int, list[int]]:
    """Return the servers of each partition, the preferred leader first."""
    request = MetadataRequest([MetadataRequestTopic(name=topic)])
    found = ask(bootstrap, 3, request).topics[0]  # type: ignore[attr-defined]
    return {row.partition_index: row.replica_nodes for row in found.partitions}


def _answer(bootstrap: str, api_key: int, request: object) -> Any:
    """Return the answer without an error; ask again while there is no controller."""
    deadline = time.monotonic() + SECONDS_MAX
    while (answer := ask(bootstrap, api_key, request)).error_code in RETRIED:
        assert time.monotonic() < deadline, answer.error_message
        time.sleep(0.2)
    assert answer.error_code == 0, answer.error_message
    return answer
