"""Produce requests without a client library, to measure the cost of the servers alone.

A library batches records as it sees fit, and has work of its own for every partition. Here a
request is one record, sent when it is due whatever is still in flight.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import deque

from tests.bench.frames import Connection, frame, leaders
from tests.bench.load import RECORD_BYTES
from tests.wire import codec_of
from vdl.kafka.wire import produce
from vdl.records.batch import Record, build_batch

PRODUCE_KEY = 0
VERSION = 9
TIMEOUT_MS = 30_000
ANSWER_SECONDS_MAX = 60.0


class Requests:
    """Requests to all partitions of a topic in turn, over the connections of all clients.

    Each client has one connection to every leader. Use in a `with`.
    """

    def __init__(
        self, bootstrap: str, topic: str, *, record_bytes: int = RECORD_BYTES, clients: int = 1
    ) -> None:
        addresses = leaders(bootstrap, topic)
        self._connections = [
            {address: Connection(address) for address in dict.fromkeys(addresses)}
            for _ in range(clients)
        ]
        self._selector = selectors.DefaultSelector()
        self._sent: dict[Connection, deque[float]] = {}
        for connection in self._all():
            self._sent[connection] = deque()
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._addresses = addresses
        batch = build_batch([Record(value=os.urandom(record_bytes))])
        self._frames = [
            produce_frame(topic, partition, memoryview(batch))
            for partition in range(len(addresses))
        ]
        self._turn = 0

    def _all(self) -> list[Connection]:
        return [connection for client in self._connections for connection in client.values()]

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.close()
        for connection in self._all():
            connection.close()

    def paced(self, *, rate: int, count: int) -> list[float]:
        """Return the milliseconds from sending to the answer, of `count` requests at `rate`."""
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
            answered = self._answered(wait)
            assert answered or sent < count, "a request was not answered"
            taken += answered
        return taken

    def in_flight(self, requests: int, *, seconds: float) -> list[float]:
        """Return the milliseconds of each request, with `requests` in flight for `seconds`."""
        taken: list[float] = []
        end = time.monotonic() + seconds
        for _ in range(requests):
            self._send()
        left = requests
        while left:
            answered = self._answered(ANSWER_SECONDS_MAX)
            assert answered, "a request was not answered"
            if time.monotonic() >= end:
                left -= len(answered)
                continue
            taken += answered
            for _ in answered:
                self._send()
        return taken

    def _send(self) -> None:
        partition = self._turn % len(self._frames)
        client = self._connections[self._turn // len(self._frames) % len(self._connections)]
        self._turn += 1
        connection = client[self._addresses[partition]]
        self._sent[connection].append(time.monotonic())
        connection.send(self._frames[partition])

    def _answered(self, wait_seconds: float) -> list[float]:
        """Return the milliseconds of requests answered within one wait for the first answer."""
        taken: list[float] = []
        for key, _ in self._selector.select(wait_seconds):
            connection = key.data
            answers = connection.answers()
            now = time.monotonic()
            for answer in answers:
                check_produced(answer)
                taken.append((now - self._sent[connection].popleft()) * 1_000)
        return taken


def produce_frame(topic: str, partition: int, batch: memoryview) -> bytes:
    """Return a request to append a batch with acks=all."""
    data = produce.PartitionProduceData(index=partition, records=batch)
    request = produce.ProduceRequest(
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
    return frame(PRODUCE_KEY, VERSION, request)


def check_produced(answer: bytes) -> None:
    """Raise AssertionError unless the record was appended."""
    # After the correlation id and a flexible header's empty tags.
    found = codec_of(produce).decode_response(memoryview(answer)[5:], VERSION)
    code = found.responses[0].partition_responses[0].error_code
    assert code == 0, f"a request was answered with error {code}"
