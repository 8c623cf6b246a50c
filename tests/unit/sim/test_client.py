"""The client's protocol engine, its metadata, and the range assignor."""

from __future__ import annotations

import pytest

from vdl.kafka.connections.connection import FrameReader
from vdl.kafka.wire import api_versions, heartbeat, metadata, registry
from vdl.kafka.wire.header import decode_request_header, encode_response_header
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError
from vdl.sim.client import NAMED_UP_TO, ClientConnection, Failure, Message
from vdl.sim.member import assign_range
from vdl.sim.metadata import MetadataCache
from vdl.sim.subscription import TopicPartition
from vdl.sim.transactional import OLD_PRODUCER
from vdl.sim.workload import OLD_CLIENT


def response(module: object, message: object, version: int, correlation_id: int) -> bytes:
    flexible = version >= module.FLEXIBLE_FROM and module is not api_versions  # type: ignore[attr-defined]
    head = encode_response_header(correlation_id, is_flexible=flexible)
    body = b"".join(module.encode_response(message, version))  # type: ignore[attr-defined]
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_pipelined_answers_reach_their_requests_whole_or_byte_by_byte(piece: int) -> None:
    """Answers come in order, whatever the chunks."""
    connection, answers = ClientConnection("c"), list[Message | Failure]()
    for version in (3, 4):
        connection.request(heartbeat, heartbeat.HeartbeatRequest("g"), version, answers.append)
    data = response(heartbeat, heartbeat.HeartbeatResponse(error_code=27), 3, 1)
    data += response(heartbeat, heartbeat.HeartbeatResponse(error_code=25), 4, 2)
    for start in range(0, len(data), piece):
        connection.receive(data[start : start + piece])
    assert [answer.error_code for answer in answers] == [27, 25]  # type: ignore[union-attr]


def test_requests_are_what_a_server_reads() -> None:
    """Header and body agree with the server's own reader, flexible or not."""
    connection = ClientConnection("client-x")
    connection.request(metadata, metadata.MetadataRequest(topics=None), 8, lambda answer: None)
    connection.request(metadata, metadata.MetadataRequest(topics=None), 13, lambda answer: None)
    server = FrameReader()
    for buffer in connection.outgoing:
        view = memoryview(buffer)
        while view:
            into = server.get_buffer()
            count = min(len(into), len(view))
            into[:count] = view[:count]
            server.buffer_updated(count)
            view = view[count:]
    versions = []
    while (frame := server.next_frame()) is not None:
        _, version, _, client_id, body_start = decode_request_header(frame, FLEXIBLE_FROM)
        assert client_id == "client-x"
        assert metadata.decode_request(frame[body_start:], version).topics is None
        versions.append(version)
    assert versions == [8, 13]


def test_answer_to_another_request_is_refused() -> None:
    """A wrong correlation id makes the whole connection untrustworthy."""
    connection = ClientConnection("c")
    connection.request(heartbeat, heartbeat.HeartbeatRequest("g"), 3, lambda answer: None)
    with pytest.raises(WireError):
        connection.receive(response(heartbeat, heartbeat.HeartbeatResponse(), 3, 7))


def test_lost_connection_leaves_unknown_outcomes() -> None:
    """A request that was sent may have been carried out."""
    connection, answers = ClientConnection("c"), list[Message | Failure]()
    connection.request(heartbeat, heartbeat.HeartbeatRequest("g"), 3, answers.append)
    connection.close("reset")
    assert answers == [Failure("reset", sent=True)]


def partition(leader: int, epoch: int) -> metadata.MetadataResponse:
    return metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(1, "s1", 9092)],
        topics=[
            metadata.MetadataResponseTopic(
                name="t",
                topic_id=b"i" * 16,
                partitions=[metadata.MetadataResponsePartition(0, 0, leader, epoch)],
            )
        ],
    )


def test_metadata_of_an_older_epoch_is_ignored() -> None:
    """KIP-320: a lagging server does not send clients back to a deposed leader."""
    cache, tp = MetadataCache(), TopicPartition("t", 0)
    assert not cache.update(partition(1, 5), whole=False)
    cache.update(partition(2, 4), whole=False)
    assert cache.leader(tp) == 1
    cache.update(partition(3, 6), whole=False)
    assert cache.leader(tp) == 3
    recreated = partition(2, 0)
    recreated.topics[0].topic_id = b"j" * 16
    cache.update(recreated, whole=False)
    assert cache.leader(tp) == 2
    assert cache.names == {b"j" * 16: "t"}


def test_metadata_without_a_leader_is_asked_for_again() -> None:
    """`update` reports that something is missing."""
    cache = MetadataCache()
    assert cache.update(partition(-1, 5), whole=False)
    gone = metadata.MetadataResponse(
        brokers=partition(1, 1).brokers,
        topics=[metadata.MetadataResponseTopic(error_code=3, name="t")],
    )
    assert cache.update(gone, whole=False)
    assert cache.missing == {"t"}
    assert cache.partitions("t") == []


def test_range_assignor_gives_each_partition_to_one_member() -> None:
    """Kafka's range: contiguous, the first members get one more."""
    assert assign_range([0, 1, 2, 3, 4], ["b", "a"]) == {"a": [0, 1, 2], "b": [3, 4]}
    assert assign_range([0], ["b", "a", "c"]) == {"a": [0], "b": [], "c": []}
    for members in range(1, 8):
        for count in range(10):
            given = assign_range(list(range(count)), [f"m{i}" for i in range(members)])
            assert sorted(p for part in given.values() for p in part) == list(range(count))


def test_old_clients_speak_the_very_versions_that_they_are_capped_at() -> None:
    """A version in between would silently become an older one, and the worlds others."""
    for caps in (OLD_CLIENT, OLD_PRODUCER, NAMED_UP_TO):
        for api_key, version in caps.items():
            assert version in registry.module(api_key).CLIENT_VERSIONS, (api_key, version)
