"""Answers of a Fetch that are encoded piece by piece: the same bytes as at once."""

from __future__ import annotations

import pytest

from vdl.kafka.partitions.fetch_answer import FetchAnswer
from vdl.kafka.wire.fetch import (
    FLEXIBLE_FROM,
    MAX_VERSION,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    encode_response,
)

IDS_FROM = 13
ENDPOINTS_FROM = 16
VERSIONS = range(4, MAX_VERSION + 1)


def partition(number: int, version: int) -> PartitionData:
    data = PartitionData(number, 0, 5, 5, 0, aborted_transactions=[], records=b"")
    if number % 3 == 0:
        data.records = [b"x" * 7, memoryview(b"yy")]
    elif number % 3 == 1 and version >= FLEXIBLE_FROM:
        data.current_leader = LeaderIdAndEpoch(1, 2)
    return data


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_in_several_pieces_have_one_entry(version: int) -> None:
    answer = FetchAnswer(version)
    topics: dict[str | bytes, list[PartitionData]] = {}
    for piece in range(50):  # so that the length of a list has two bytes
        for name in ("a", "bb"):
            key = name if version < IDS_FROM else (name * 16)[:16].encode()
            partitions = [partition(3 * piece + number, version) for number in range(3)]
            topics.setdefault(key, []).extend(partitions)
            answer.add(key, partitions)
    response = FetchResponse(throttle_time_ms=3)
    if version >= ENDPOINTS_FROM:
        response.node_endpoints = [NodeEndpoint(1, "host", 9, None)]
    encoded = b"".join(answer.encoded(response))
    for key, partitions in topics.items():
        name, topic_id = (key, bytes(16)) if isinstance(key, str) else ("", key)
        response.responses.append(FetchableTopicResponse(name, topic_id, partitions))
    assert encoded == b"".join(encode_response(response, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_without_topics(version: int) -> None:
    encoded = b"".join(FetchAnswer(version).encoded(FetchResponse()))
    assert encoded == b"".join(encode_response(FetchResponse(), version))
