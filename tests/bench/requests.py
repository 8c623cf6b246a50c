"""Produce requests at a steady rate without a client library: what the servers take, and no more.

A library puts records together as it sees fit, and has work of its own for every partition. Here a
request is one record, sent when it is due whatever is still under way, on one connection a server.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from struct import Struct

from tests.bench.load import RECORD_BYTES
from vdl.config_values import parse_address
from vdl.kafka.client import KafkaClient
from vdl.kafka.wire import header, produce
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.records import Record, build_batch

METADATA_KEY, PRODUCE_KEY = 3, 0
VERSION = 9
TIMEOUT_MS = 30_000
ANSWER_SECONDS_MAX = 60.0
RECEIVE_BYTES = 1 << 16

_LENGTH = Struct(">i")


class _Connection:
    """To one server: what was sent and not answered, and what came of the next answer."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent: deque[float] = deque()
        self.received = bytearray()

    def answers(self) -> list[bytes]:
        """The answers that have come in."""
        piece = self.socket.recv(RECEIVE_BYTES)
        assert piece, "a server closed the connection"
        received = self.received
        received += piece
        found = []
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                break
            found.append(bytes(received[_LENGTH.size : end]))
            del received[:end]
        return found


class Requests:
    """Requests to all partitions of a topic, in turn. Use in a `with`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        first = parse_address(bootstrap.partition(",")[0])
        with KafkaClient(first.host, first.port) as client:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            metadata = client.request(METADATA_KEY, asked)
        self._connections = {
            broker.node_id: _Connection(broker.host, broker.port) for broker in metadata.brokers
        }
        self._selector = selectors.DefaultSelector()
        for connection in self._connections.values():
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        rows = sorted(metadata.topics[0].partitions, key=lambda row: int(row.partition_index))
        self._leaders = [self._connections[row.leader_id] for row in rows]
        batch = build_batch([Record(value=os.urandom(RECORD_BYTES))])
        self._frames = [
            _frame(topic, partition, memoryview(batch)) for partition in range(len(rows))
        ]
        self._turn = 0

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.close()
        for connection in self._connections.values():
            connection.socket.close()

    def paced(self, *, rate: int, count: int) -> list[float]:
        """Milliseconds from a request's sending to its answer, of `count` at `rate`."""
        taken: list[float] = []
        sent = 0
        due = time.monotonic()
        while len(taken) < count:
            now = time.monotonic()
            while sent < count and now >= due:
                self._send()
                sent += 1
                due += 1 / rate
                now = time.monotonic()
            wait = max(0.0, due - now) if sent < count else ANSWER_SECONDS_MAX
            ready = self._selector.select(wait)
            assert ready or sent < count, "a request was not answered"
            for key, _ in ready:
                connection = key.data
                answers = connection.answers()
                now = time.monotonic()
                for answer in answers:
                    _check(answer)
                    taken.append((now - connection.sent.popleft()) * 1_000)
        return taken

    def _send(self) -> None:
        partition = self._turn % len(self._frames)
        self._turn += 1
        connection = self._leaders[partition]
        connection.sent.append(time.monotonic())
        connection.socket.sendall(self._frames[partition])


def _frame(topic: str, partition: int, batch: memoryview) -> bytes:
    data = produce.PartitionProduceData(index=partition, records=batch)
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
    head = header.encode_request_header(
        header.RequestHeader(PRODUCE_KEY, VERSION, 0, "bench", 0), is_flexible=True
    )
    frame = b"".join([head, *produce.encode_request(request, VERSION)])
    return _LENGTH.pack(len(frame)) + frame


def _check(answer: bytes) -> None:
    """Raises AssertionError unless the record was taken."""
    # Behind the correlation id and a flexible header's empty tags.
    found = produce.decode_response(memoryview(answer)[5:], VERSION)
    code = found.responses[0].partition_responses[0].error_code
    assert code == 0, f"a request was answered with error {code}"
