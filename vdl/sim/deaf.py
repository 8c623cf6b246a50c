"""Clients that make a server hold memory: they do not read responses or finish requests.

A `Deaf` opens many connections to one server and keeps them for seconds; then for a while it has
none. On half of them it fetches everything, repeatedly, and reads almost nothing. On the others it
begins a produce request of the largest size and sends a part of it.

Does not depend on the servers' bounds or on how they are checked.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from rpc.streams import DialFailed, Stream
from segments.api import Buffer
from vdl.clock import MS
from vdl.kafka.wire import fetch
from vdl.kafka.wire.header import RequestHeader, encode_request_header
from vdl.sim.network import SimDialer, SimStream
from vdl.sim.unsent import write_unsent

if TYPE_CHECKING:
    from vdl.sim.workload import Env

CONNECTIONS = 64
WINDOW_BYTES = 1 << 10
"""Window of a connection that reads nothing: the data that both kernels hold."""
REQUESTS = 60
FETCH_VERSION = 11
ANNOUNCED_BYTES = 400 << 10
STAND_MS = (500, 4_000)
REST_MS = (200, 2_000)


class Deaf:
    """One client that makes servers hold memory, on many connections."""

    def __init__(self, env: Env, host: str, rng: Random) -> None:
        self._env = env
        self._rng = rng
        self._clock = env.make_clock()
        self._dialer = SimDialer(env.network, host, self._clock)
        self._open: list[_Connection] = []
        self._stopped = False
        self._clock.call_later(rng.randint(*REST_MS) * MS, self._stand)

    def stop(self) -> None:
        """Close all connections for good."""
        self._stopped = True
        self._rest()

    def _stand(self) -> None:
        if self._stopped:
            return
        address = self._rng.choice(self._env.bootstrap)
        for number in range(CONNECTIONS):
            sent = self._asks_much() if number % 2 else self._begins()
            connection = _Connection(sent)
            self._open.append(connection)
            self._dialer.dial(address, connection.dialed)
        self._clock.call_later(self._rng.randint(*STAND_MS) * MS, self._rest)

    def _rest(self) -> None:
        connections, self._open = self._open, []
        for connection in connections:
            connection.close()
        if not self._stopped:
            self._clock.call_later(self._rng.randint(*REST_MS) * MS, self._stand)

    def _asks_much(self) -> list[Buffer]:
        partitions = [
            fetch.FetchPartition(tp.partition, fetch_offset=0, partition_max_bytes=1 << 30)
            for tp in self._env.partitions
        ]
        topics = [fetch.FetchTopic(self._env.topic, partitions=partitions)]
        request = fetch.FetchRequest(max_wait_ms=100, min_bytes=1, topics=topics)
        body = fetch.encode_request(request, FETCH_VERSION)
        frame = _framed(fetch.API_KEY, FETCH_VERSION, b"".join(body))
        return [frame] * REQUESTS

    def _begins(self) -> list[Buffer]:
        part = self._rng.randint(ANNOUNCED_BYTES // 4, ANNOUNCED_BYTES - 1)
        return [ANNOUNCED_BYTES.to_bytes(4, "big"), bytes(part)]


class _Connection:
    """Connection that sends its data and reads nothing. A `StreamOwner`."""

    def __init__(self, sent: list[Buffer]) -> None:
        self._unsent = deque(sent)
        self._stream: Stream | None = None
        self._closed = False

    def dialed(self, result: Stream | DialFailed) -> None:
        if isinstance(result, DialFailed):
            return
        if self._closed:
            result.close()
            return
        assert isinstance(result, SimStream), result
        self._stream = result
        result.narrow(WINDOW_BYTES)
        result.pause_reading()
        result.start(self)
        self.writable()

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(1))

    def buffer_updated(self, received: int) -> None:
        """Ignore the byte."""

    def writable(self) -> None:
        if self._stream is not None:
            write_unsent(self._stream, self._unsent)

    def ended(self, cause: str) -> None:
        del cause
        self._stream = None


def _framed(api_key: int, version: int, body: bytes) -> bytes:
    header = RequestHeader(api_key, version, 1, "deaf")
    head = encode_request_header(header, is_flexible=False)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body
