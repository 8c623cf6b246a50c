"""Cost of idle encrypted connections, and the effect of many handshakes on other clients.

A run is three new servers, whose links are encrypted. At 200 requests a second of one record an
unencrypted producer is measured three times: alone; beside `--idle` open but silent connections
with TLS to one server; and while a client of that server makes and ends handshakes at full speed
with `--at-once` of them in progress. Memory is that server's increase. Ratios of the producer's
times are within the run.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from tests.bench.connections import FILES_SPARE, allow_files
from tests.bench.requests import Requests
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.systems import cpu_seconds, rss_mb
from tests.bench.topics import create_led_topic
from tests.chaos.harness.replica_set import ReplicaSet
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set

RATE = 200
PARTITIONS = 6
WARM_UP_SECONDS = 3
TOPIC = "handshakes"
PLAIN_STEP, TLS_STEP = 4, 7
"""Offsets of these listeners' ports from those for logins."""
LISTENERS = """
[[listeners]]
name = "PLAINTEXT"
listen = "127.0.0.1:{plain}"

[[listeners]]
name = "SSL"
listen = "127.0.0.1:{tls}"
"""
OPEN_TO_ALL = "[kafka]\nallow.everyone.if.no.acl.found = true\n"
CROWD_HOST = "127.0.0.2"
"""A separate address, so that limits per address do not affect the producer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--idle", type=int, default=5_000)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20, help="each load, in each run")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    allow_files(options.idle + 5 * FILES_SPARE)
    yield Comparison({"vdl": partial(run, options)})


def run(options: argparse.Namespace) -> Figures:
    servers = ReplicaSet(3)
    try:
        configure(servers)
        servers.up()
        base, seconds = servers.base_port, options.seconds
        plain = ",".join(f"127.0.0.1:{base + PLAIN_STEP + i}" for i in range(3))
        create_led_topic(plain, TOPIC, PARTITIONS)
        pids = [servers.pid(1)]
        place = base + TLS_STEP, servers.directory / "tls" / "ca.pem"
        with Requests(plain, TOPIC, clients=1) as requests:
            requests.paced(rate=RATE, count=RATE * WARM_UP_SECONDS)
            alone = requests.paced(rate=RATE, count=RATE * seconds)
            before = rss_mb(pids)
            with crowd(*place, options.at_once, options.idle) as pipe:
                opened_seconds: float = pipe.recv()
                idle_mb = rss_mb(pids) - before
                idle = requests.paced(rate=RATE, count=RATE * seconds)
            with crowd(*place, options.at_once, 0) as pipe:
                pipe.recv()
                used, began = cpu_seconds(pids), time.monotonic()
                shaking = requests.paced(rate=RATE, count=RATE * seconds)
                pipe.send(None)
                done: int = pipe.recv()
                used, took = cpu_seconds(pids) - used, time.monotonic() - began
        figures = percentiles("alone", alone) | percentiles("idle", idle)
        figures |= percentiles("handshakes", shaking)
        return figures | {
            "idle_p99_ratio": figures["idle_p99_ms"] / figures["alone_p99_ms"],
            "handshakes_p99_ratio": figures["handshakes_p99_ms"] / figures["alone_p99_ms"],
            "opened_per_second": options.idle / opened_seconds,
            "idle_kb_each": idle_mb * 1e3 / options.idle,
            "handshakes_per_second": done / took,
            "server_cpu_ms_per_handshake": used * 1e3 / done,
            "rss_mb": rss_mb(pids),
        }
    finally:
        servers.close()


def configure(servers: ReplicaSet) -> None:
    """Configure servers before their start: encrypted links, and one listener of each kind.

    The listeners require no login.
    """
    made = make_replica_set(servers.directory, count=3, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    write_configs(made)
    for server in made.servers:
        base = servers.base_port + server.id - 1
        more = LISTENERS.format(plain=base + PLAIN_STEP, tls=base + TLS_STEP)
        text = server.config_file.read_text(encoding="utf-8")
        server.config_file.write_text(text.replace("[kafka]\n", OPEN_TO_ALL) + more)


# --- the crowd, in a process of its own ---------------------------------------------------------
@contextmanager
def crowd(port: int, ca: Path, at_once: int, count: int) -> Iterator[Pipe]:
    """Run a crowd of clients in a process of its own until the block ends.

    With `count` > 0: that many connections that stay open; the pipe sends the seconds in which they
    were opened. With 0: connections that end as soon as they are open, from the pipe's message
    until something is sent through it; then it sends their number.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_crowd, args=(theirs, port, ca, at_once, count))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _be_crowd(pipe: Pipe, port: int, ca: Path, at_once: int, count: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    clients = _Clients(port, context)
    asyncio.run(clients.stand(pipe, at_once, count) if count else clients.shake(pipe, at_once))


class _Clients:
    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port = port
        self._context = context
        self.standing: list[asyncio.StreamWriter] = []
        self.done = 0

    async def _connect(self) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, local_addr=(CROWD_HOST, 0)
        )
        self.done += 1
        return writer

    async def stand(self, pipe: Pipe, at_once: int, count: int) -> None:
        """Open all connections, and wait."""
        began = time.monotonic()

        async def some() -> None:
            while len(self.standing) + at_once <= count:
                self.standing.append(await self._connect())

        await asyncio.gather(*[some() for _ in range(at_once)])
        while len(self.standing) < count:
            self.standing.append(await self._connect())
        pipe.send(time.monotonic() - began)
        await asyncio.to_thread(_wait, pipe)

    async def shake(self, pipe: Pipe, at_once: int) -> None:
        """Open and end connections repeatedly."""

        async def some() -> None:
            while True:
                (await self._connect()).transport.abort()

        (await self._connect()).transport.abort()
        pipe.send(None)
        self.done = 0
        tasks = [asyncio.create_task(some()) for _ in range(at_once)]
        await asyncio.to_thread(_wait, pipe)
        pipe.send(self.done)
        for task in tasks:
            task.cancel()


def _wait(pipe: Pipe) -> None:
    """Wait for a message, or the end of the pipe."""
    with suppress(EOFError):
        pipe.recv()
