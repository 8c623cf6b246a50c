"""Search for the most expensive request of one API: `python -m tests.price.worker KEY`.

A server of its own runs in this process, with an authorizer, twenty topics and a few groups, and
alone in its replica set: each request is its own, and all replicated data goes through its journal.
A client in another thread sends requests as a user with all permissions, and as one with none; the
two differ in their source address.

The search is a climb: from a request with one long list it tries one other choice after the other
(`wishes.steps`), and keeps the one with the longest turn of the loop. It uses small requests. Then
the best one of each version is tried, and the worst of these at the maximum size, at the size that
is decoded on the loop, and at the size that is processed at once; and with each other list as long.

Prints an object of JSON a line: a `Price`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

from tests.price.meter import Meter, Reading
from tests.price.wishes import (
    BYTES,
    ELEMENTS,
    KNOWN,
    PARTITIONS,
    Wish,
    changed,
    paths,
    steps,
    write,
)
from tests.wire import codec
from vdl.config.settings import parse_config
from vdl.kafka.api import API, load
from vdl.kafka.parts import PARTS, REPLICAS_MAX, Whole
from vdl.kafka.wire import create_topics, init_producer_id, offset_commit, registry
from vdl.kafka.wire.header import RequestHeader, encode_request_header
from vdl.server.loop import TurnLoop
from vdl.server.process import Process
from vdl.server.server import ServerState
from vdl.state.acls import CLUSTER_NAME
from vdl.state.commands import AclBinding, CreateAcls

CLIMB_ELEMENTS = 4_000
CLIMB_BYTES = 128 << 10
HELD_ELEMENTS = 20_000
HELD_BYTES = 2 << 20
"""Counting memory makes a server four times slower; the memory per byte is the same."""
FEW_BYTES = 31 << 10
"""Size of a request that is decoded on the loop."""
ANSWER_SECONDS = 20.0
CLIMB_SECONDS = 2.0
_FRAME = Struct(">i")
WHO = {"all": "127.0.0.2", "nothing": "127.0.0.3"}
"""Permissions, and the source address that has them."""
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Price:
    """Worst request found for one API, for a user with all permissions, or none."""

    key: int
    who: str
    version: int
    wish: str
    elements: int
    asked_bytes: int
    turn_ms: float
    loop_ms: float
    threads_ms: float
    held_per_byte: float
    """Peak memory, without the answer; the request is part of it."""
    answered_bytes: int
    replicated_bytes: int
    is_answered: bool
    """False if its connection ended, or the time limit passed."""


class Server:
    """The server, and the client that sends requests to it. Its loop is the main thread's."""

    def __init__(self, process: Process, loop: TurnLoop, meter: Meter, port: int) -> None:
        self._process = process
        self._loop = loop
        self._meter = meter
        self._port = port
        self._sockets: dict[str, socket.socket] = {}
        self._buffer = bytearray(_READ_BYTES)
        self._correlation_id = 0

    def on_loop(self, fn: Callable[[], Any]) -> Any:
        """Call a function on the server's loop."""

        async def call() -> Any:
            return fn()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def prepare(self) -> None:
        """Wait until the server serves, and create some names."""
        while getattr(self._process, "server", None) is None or (
            self._process.server.state is not ServerState.SERVING
            or self._process.server.frontend is None
        ):
            time.sleep(0.02)
        load()
        bindings = [
            AclBinding(kind, name, 3, "User:*", WHO["all"], 2, 3)
            for kind, name in ((2, "*"), (3, "*"), (4, CLUSTER_NAME), (5, "*"), (6, "*"), (7, "*"))
        ]
        decided = threading.Event()
        self.on_loop(
            lambda: self._process.server.frontend.context.host.propose_catalog(  # type: ignore[union-attr]
                CreateAcls(bindings),
                deadline_ns=self._process.server.clock.now_ns() + 10**10,
                done=lambda outcome: decided.set(),
            )
        )
        decided.wait(ANSWER_SECONDS)
        names = [f"t{number:06}" for number in range(KNOWN)]
        topics = [create_topics.CreatableTopic(name, PARTITIONS, 1) for name in names]
        self.call(19, 7, create_topics.CreateTopicsRequest(topics, 10_000))
        time.sleep(1.0)  # until they have leaders
        for name in names:
            self.call(22, 4, init_producer_id.InitProducerIdRequest(name, 60_000))
            position = offset_commit.OffsetCommitRequestPartition(0, 1)
            topic = offset_commit.OffsetCommitRequestTopic(name, partitions=[position])
            self.call(8, 8, offset_commit.OffsetCommitRequest(name, topics=[topic]))

    def call(self, key: int, version: int, message: Any) -> None:
        body = b"".join(codec(key).encode_request(message, version))
        self.ask("all", key, version, body, ANSWER_SECONDS)

    def ask(
        self, who: str, key: int, version: int, body: bytes, seconds: float
    ) -> tuple[Reading, int, int]:
        """Return (cost, bytes of the answer, bytes replicated). Without an answer, 0 bytes."""
        self._correlation_id += 1
        header = encode_request_header(
            RequestHeader(key, version, self._correlation_id, "price"),
            is_flexible=version >= registry.FLEXIBLE_FROM.get(key, 99),
        )
        frame = _FRAME.pack(len(header) + len(body)) + header + body
        connection = self._connection(who)
        connection.settimeout(seconds)
        before = self.on_loop(self._replicated)
        self._meter.begin()
        try:
            connection.sendall(frame)
            size = self._answer(connection)
        except OSError:  # it ended, or takes too long
            size = 0
        after = self.on_loop(self._replicated)  # in a later turn: that of the answer is counted
        reading = self._meter.reading()
        if not size:
            connection.close()
            del self._sockets[who]
        return reading, size, after - before

    def _replicated(self) -> int:
        return int(self._process.server.store.stats()["payload_bytes"])

    def _connection(self, who: str) -> socket.socket:
        if who not in self._sockets:
            self._sockets[who] = socket.create_connection(
                ("127.0.0.1", self._port), source_address=(WHO[who], 0)
            )
        return self._sockets[who]

    def _answer(self, connection: socket.socket) -> int:
        """Read an answer; return its size."""
        into = memoryview(self._buffer)
        have = 0
        while have < _FRAME.size:
            count = connection.recv_into(into[have:], _FRAME.size - have)
            if not count:
                return 0
            have += count
        (size,) = _FRAME.unpack_from(into)
        left = size
        while left:
            count = connection.recv_into(into, min(left, len(into)))
            if not count:
                return 0
            left -= count
        return size


def find(server: Server, key: int, who: str) -> Price:
    """Find the worst request, and price it."""
    api = API[key]
    newest = api.max_version
    ask = partial(server.ask, who, key)

    def turn_ms(version: int, wish: Wish) -> float:
        reading, _, _ = ask(version, write(key, version, wish).body, CLIMB_SECONDS)
        return reading.turn_ms

    rows = PARTS.get(key)
    wholes = [
        row for row in (rows if isinstance(rows, tuple) else (rows,)) if isinstance(row, Whole)
    ]
    elements = min([CLIMB_ELEMENTS, *(row.most(REPLICAS_MAX) for row in wholes)])
    first = next(paths(key, newest), ())
    best = Wish(first, elements=elements, bytes=CLIMB_BYTES)
    turn_ms(newest, replace(best, elements=10))  # first-use imports are not counted
    most = turn_ms(newest, best)
    for step in steps(key, newest):
        wish = changed(best, step)
        if wish is not None and (cost := turn_ms(newest, wish)) > most * 1.1:
            best, most = wish, cost
    worst: tuple[float, int, Wish] = most, newest, best
    for version in range(api.min_version, newest):
        path = best.path if best.path in paths(key, version) else next(paths(key, version), ())
        wish = replace(best, path=path)
        worst = max(worst, (turn_ms(version, wish), version, wish), key=lambda one: one[0])
    _, version, wish = worst
    full = [
        replace(wish, elements=ELEMENTS, bytes=BYTES),
        replace(wish, elements=ELEMENTS, bytes=FEW_BYTES),
        *(replace(wish, elements=row.most(REPLICAS_MAX), bytes=BYTES) for row in wholes),
        # A list that is cut costs more the smaller it is; one that is not cut shows when it is
        # long.
        *(Wish(path) for path in paths(key, version) if len(path) > 1),
    ]
    price = max(
        (_price(server, key, who, version, one) for one in full), key=lambda one: one.turn_ms
    )
    part = replace(wish, elements=HELD_ELEMENTS, bytes=HELD_BYTES)
    body = write(key, version, part).body
    tracemalloc.start()
    reading, answered, _ = ask(version, body, ANSWER_SECONDS)
    tracemalloc.stop()
    price.held_per_byte = max(0, reading.held_bytes - answered) / max(1, len(body))
    return price


def _price(server: Server, key: int, who: str, version: int, wish: Wish) -> Price:
    written = write(key, version, wish)
    reading, size, replicated = server.ask(who, key, version, written.body, ANSWER_SECONDS)
    return Price(
        key, who, version, str(wish), written.elements, len(written.body),
        reading.turn_ms, reading.loop_ms, reading.threads_ms, 0.0, size, replicated, size > 0,
    )  # fmt: skip


def main() -> int:
    keys = [int(text) for text in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="vdl-price-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        text = (
            f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n[server]\ndata_dir = "data"\n'
            '[admin]\nlisten = "off"\n[http]\nlisten = "off"\n[security]\nauthorizer = true\n'
        )
        config = parse_config(text, source="price", folder=Path(folder))
        meter = Meter()
        meter.watch()
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TurnLoop), loop
            process = Process(config, loop, lambda: None)
            threading.Thread(
                target=_client, args=(Server(process, loop, meter, port), keys, folder), daemon=True
            ).start()
            return runner.run(process.run())


def _client(server: Server, keys: list[int], folder: str) -> None:
    status = 1
    try:
        server.prepare()
        for key in keys:
            for who in WHO:
                print(json.dumps(asdict(find(server, key, who))), flush=True)
        status = 0
    except Exception:  # noqa: BLE001 - the thread's edge
        traceback.print_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
