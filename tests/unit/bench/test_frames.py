"""Complete requests are sent and complete answers received, however the bytes arrive."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.bench.frames import Connection, frame
from tests.bench.requests import PRODUCE_KEY, VERSION, check_produced, produce_frame
from tests.wire import codec_of
from vdl.kafka.wire import produce


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """Yield a connection and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(listener.getsockname())
        server, _ = listener.accept()
        with closing(connection), server:
            yield connection, server


def test_answers_that_come_in_pieces_are_whole(ends: tuple[Connection, socket.socket]) -> None:
    """An incomplete answer waits for the rest."""
    connection, server = ends
    server.sendall(b"\0\0\0\2ab\0\0\0\3c")
    assert connection.answers() == [b"ab"]
    server.sendall(b"de\0")
    assert connection.answers() == [b"cde"]


def test_answers_of_closed_connection_are_no_answers(
    ends: tuple[Connection, socket.socket],
) -> None:
    """A measurement must not continue without its server."""
    connection, server = ends
    server.close()
    with pytest.raises(AssertionError, match="closed"):
        connection.answers()


def test_produce_frame_of_batch_is_its_request() -> None:
    """Length, header, and a request for acknowledgement by all replicas."""
    made = produce_frame("topic", 7, memoryview(b"batch"))
    assert int.from_bytes(made[:4], "big") == len(made) - 4
    empty = produce.ProduceRequest()
    empty_body = b"".join(codec_of(produce).encode_request(empty, VERSION))
    head_bytes = len(frame(PRODUCE_KEY, VERSION, empty)) - len(empty_body)
    request = produce.decode_request(memoryview(made)[head_bytes:], VERSION)
    assert request.acks == -1
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, bytes(partition.records or b"")) == ("topic", 7, b"batch")


def test_produced_check_of_error_fails() -> None:
    """A refused record is no acknowledgement."""
    answer = produce.PartitionProduceResponse(index=0, error_code=6)
    topic = produce.TopicProduceResponse(name="topic", partition_responses=[answer])
    body = b"".join(produce.encode_response(produce.ProduceResponse(responses=[topic]), VERSION))
    with pytest.raises(AssertionError, match="error 6"):
        check_produced(b"\0\0\0\0\0" + body)
