"""Memory that clients can make servers hold, and the effect on other clients.

A run is three new servers and a topic of 6 partitions with 200 MB in it. First one producer alone,
at 200 requests a second of one record: milliseconds to the answer, and the servers' peak memory.
Then the same beside a crowd: consumers that request everything, repeatedly, and read nothing;
clients that begin a produce request of 40 MiB and send all but its end; and a consumer group whose
12 members send 1 MB of metadata each. `beside` covers all of that time, `arriving` its first
seconds, in which the crowd connects and sends as much as is accepted, `standing` the rest. With
PEER=kafka both systems are measured in each round.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from tests.bench.beside_peer import comparison, set_peer_defaults
from tests.bench.load import send, throughput_producer
from tests.bench.requests import Requests
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.systems import System, rss_mb
from tests.bench.topics import create_led_topic
from tests.wire import codec_of
from vdl.kafka.wire import fetch, join_group
from vdl.kafka.wire.header import RequestHeader, encode_request_header

PARTITIONS = 6
MEGABYTES = 200
RATE = 200
FRAME_BYTES = 40 << 20
MEMBERS = 12
MEMBER_BYTES = 1_000_000
FETCHES = 20
ARRIVING_SECONDS = 5
SAMPLE_SECONDS = 0.2
TOPIC = "memory"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--beginners", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20, help="each load, in each run")
    set_peer_defaults(parser)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    def one_pass(system: System, name: str) -> Figures:
        return _measured(system, f"{TOPIC}-{name}", options)

    yield comparison(one_pass, {})


def _measured(system: System, topic: str, options: argparse.Namespace) -> Figures:
    create_led_topic(system.bootstrap, topic, PARTITIONS)
    send(throughput_producer(system.bootstrap), topic, PARTITIONS, MEGABYTES)
    with Requests(system.bootstrap, topic, clients=1) as requests:
        requests.paced(rate=RATE, count=RATE * 3)
        alone, alone_mb = _watched(system, requests, options.seconds)
        with crowd(system.bootstrap, topic, options.consumers, options.beginners) as sent:
            beside, beside_mb = _watched(system, requests, options.seconds)
            sent_mb = sent() / 1e6
    arriving = RATE * ARRIVING_SECONDS
    return (
        percentiles("alone", alone)
        | percentiles("beside", beside)
        | percentiles("arriving", beside[:arriving])
        | percentiles("standing", beside[arriving:])
        | {"alone_rss_mb": alone_mb, "beside_rss_mb": beside_mb, "crowd_sent_mb": sent_mb}
    )


def _watched(system: System, requests: Requests, seconds: int) -> tuple[list[float], float]:
    """Return the milliseconds of each request, and the peak memory of the largest server."""
    most = [rss_mb(system.pids())]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            most.append(rss_mb(system.pids()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        taken = requests.paced(rate=RATE, count=RATE * seconds)
    finally:
        done.set()
        watcher.join()
    return taken, max(most)


@contextmanager
def crowd(bootstrap: str, topic: str, *counts: int) -> Iterator[Callable[[], int]]:
    """Run a crowd in a process of its own, so that it does not delay the measured clients.

    Yields a function that returns the bytes it has sent.
    """
    context = multiprocessing.get_context("spawn")
    sent, stop = context.Value("q", 0), context.Event()
    process = context.Process(target=_be_crowd, args=(sent, stop, bootstrap, topic, *counts))
    process.start()
    try:
        yield lambda: sent.value
    finally:
        stop.set()
        process.join()


def _be_crowd(
    sent: Synchronized[int], stop: Event, bootstrap: str, topic: str, *counts: int
) -> None:
    with Crowd(bootstrap, topic, *counts) as clients:
        while not stop.wait(SAMPLE_SECONDS):
            sent.value = clients.sent


class Crowd:
    """Clients that only send, in a thread of their own until the `with` block ends."""

    def __init__(self, bootstrap: str, topic: str, consumers: int, beginners: int) -> None:
        self.sent = 0
        self._servers = [
            (host, int(port))
            for host, _, port in (address.rpartition(":") for address in bootstrap.split(","))
        ]
        greedy = _fetch_frame(topic) * FETCHES
        begun = FRAME_BYTES.to_bytes(4, "big") + bytes(FRAME_BYTES - 1)
        members = [_join_frame(number) for number in range(MEMBERS)]
        what = [greedy] * consumers + [begun] * beginners + members
        self._next_server = itertools.cycle(self._servers)
        self._selector = selectors.DefaultSelector()
        self._standing: list[socket.socket] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        for data in what:
            self._open(memoryview(data))

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket), key
            key.fileobj.close()
        for client in self._standing:
            client.close()
        self._selector.close()

    def _open(self, data: memoryview) -> None:
        """Connect, and send from the beginning."""
        client = socket.socket()
        client.connect(next(self._next_server))
        client.setblocking(False)
        self._selector.register(client, selectors.EVENT_WRITE, (data, [0]))

    def _run(self) -> None:
        while not self._stopped.is_set():
            events = self._selector.select(0.1)
            if not events:
                continue
            for key, _ in events:
                self._send(key)
            time.sleep(0.001)  # so that it is not a load of its own

    def _send(self, key: selectors.SelectorKey) -> None:
        data, position = key.data
        client = key.fileobj
        assert isinstance(client, socket.socket), client
        try:
            count = client.send(data[position[0] : position[0] + (256 << 10)])
        except BlockingIOError:
            return
        except OSError:
            # Dropped by the server: it reconnects, as clients do.
            self._selector.unregister(client)
            client.close()
            with suppress(OSError):
                self._open(data)
            return
        position[0] += count
        self.sent += count
        if position[0] >= len(data):
            # Everything is sent; nothing is read, and the connection stays open.
            self._selector.unregister(client)
            self._standing.append(client)


def _framed(api_key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
    header = RequestHeader(api_key, version, 1, "crowd")
    head = encode_request_header(header, is_flexible=is_flexible)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def _fetch_frame(topic: str) -> bytes:
    partitions = [
        fetch.FetchPartition(index, fetch_offset=0, partition_max_bytes=50 << 20)
        for index in range(PARTITIONS)
    ]
    request = fetch.FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        topics=[fetch.FetchTopic(topic, partitions=partitions)],
    )
    body = b"".join(codec_of(fetch).encode_request(request, 11))
    return _framed(fetch.API_KEY, 11, body, is_flexible=False)


def _join_frame(number: int) -> bytes:
    metadata = bytes([number + 1]) * MEMBER_BYTES
    request = join_group.JoinGroupRequest(
        group_id="crowd",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol("range", metadata)],
    )
    body = b"".join(codec_of(join_group).encode_request(request, 2))
    return _framed(join_group.API_KEY, 2, body, is_flexible=False)
