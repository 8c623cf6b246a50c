"""Effect of large records on those who produce and read others.

A producer sends records of 1,000 bytes at a steady rate (linger 0, acks=all), in turn to three
partitions, one of which each server leads; a consumer at their ends reads them. Each round:

* `alone`: without others;
* `small_N`: beside a producer and a consumer of another topic that move N megabytes every few
  seconds (`--every`), as fast as they can, in records of 100 kB;
* `large_N`: the same megabytes as one record.

* `copies_N`: beside processes without servers that move, check and write the same megabytes as a
  large record needs at least: a client sends them to one, which checks and writes them, sends them
  to two others, which do the same, and at last to a reader. Each writes 512 KiB at a time in an
  allocated file, and leaves the disk alone for as long as that took.

So `small_N` shows what the bytes cost on this machine, `large_N` what their size adds, and
`copies_N` how much of that no server could save. These clients are processes of their own and have
a tenth of a server's weight: else a client would compute checksums where the other records wait for
the processor.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from pathlib import Path
from struct import Struct
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from crc32c import crc32c

from tests.bench.client_process import ClientProcess, weigh_little
from tests.bench.end_to_end import acknowledged_and_read
from tests.bench.load import throughput_producer
from tests.bench.rounds import Comparison, Figures, Run, percentiles
from tests.bench.servers import Servers
from tests.bench.systems import cpu_seconds
from tests.bench.topics import CALL_SECONDS_MAX, create_led_topic, delete_topic

BASELINE = "alone"
PARTITIONS = 3
MEGABYTE = 1_000_000
SMALL_BYTES = 100_000
BATCH_BYTES_MAX = 100 << 20
OVERHEAD_BYTES = 50_000
"""Bytes of the largest request that are not its record."""
POLL_SECONDS = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, nargs="+", default=[20, 100], help="of a record")
    parser.add_argument("--every", type=float, default=5.0, help="seconds; 0: without a pause")
    parser.add_argument("--rate", type=int, default=200, help="of the others, a second")
    parser.add_argument("--seconds", type=int, default=30, help="of each run")
    parser.add_argument("--only", nargs="+", default=[], help="columns to measure beside `alone`")
    parser.add_argument(
        "--setting", action="append", default=[], help="a line of each server's file"
    )
    parser.set_defaults(rounds=5)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    servers = Servers(settings="\n".join(options.setting))
    numbers = itertools.count()
    try:
        servers.up()
        runs: dict[str, Run] = {BASELINE: lambda: _latencies(servers, next(numbers), options)}
        for size in options.megabytes:
            runs[f"copies_{size}"] = partial(
                _beside_copies, servers, numbers, options, size * MEGABYTE
            )
            for name, is_large in (("small", False), ("large", True)):
                runs[f"{name}_{size}"] = partial(
                    _beside, servers, numbers, options, size * MEGABYTE, is_large=is_large
                )
        if options.only:
            runs = {name: run for name, run in runs.items() if name in (BASELINE, *options.only)}
        yield Comparison(runs, BASELINE)
    finally:
        servers.down()


def _latencies(servers: Servers, number: int, options: argparse.Namespace) -> Figures:
    topic = f"others-{number}"
    create_led_topic(servers.bootstrap, topic, PARTITIONS)
    used, began = cpu_seconds(servers.pids()), time.monotonic()
    acknowledged, read = acknowledged_and_read(
        servers.bootstrap,
        topic,
        rate=options.rate,
        count=options.rate * options.seconds,
        partitions=PARTITIONS,
    )
    cores = (cpu_seconds(servers.pids()) - used) / (time.monotonic() - began)
    delete_topic(servers.bootstrap, topic)
    figures = percentiles("ack", acknowledged) | percentiles("end_to_end", read)
    return figures | {"server_cores": cores}


def _beside(
    servers: Servers,
    numbers: Iterator[int],
    options: argparse.Namespace,
    size: int,
    *,
    is_large: bool,
) -> Figures:
    number = next(numbers)
    topic = f"beside-{number}"
    config = {"max.message.bytes": str(BATCH_BYTES_MAX), "segment.bytes": str(1 << 30)}
    create_led_topic(servers.bootstrap, topic, 1, config)
    record = min(size, BATCH_BYTES_MAX - OVERHEAD_BYTES) if is_large else SMALL_BYTES
    where = (servers.bootstrap, topic)
    with (
        ClientProcess(_produce, *where, record, size // record, options.every) as producer,
        ClientProcess(_consume, *where) as consumer,
    ):
        producer.wait_counting()
        consumer.wait_counting()
        sent, read, began = producer.count, consumer.count, time.monotonic()
        figures = _latencies(servers, number, options)
        elapsed = time.monotonic() - began
        sent, read = producer.count - sent, consumer.count - read
    delete_topic(servers.bootstrap, topic)
    return figures | {
        "produced_mb_per_second": sent / 1e6 / elapsed,
        "read_mb_per_second": read / 1e6 / elapsed,
    }


def _produce(
    bootstrap: str, topic: str, size: int, count: int, every: float, sent: Any, ends: Any
) -> None:
    """Run the producer's process: `count` records of `size` bytes each `every` seconds."""
    weigh_little()
    value = os.urandom(size)
    producer = throughput_producer(
        bootstrap,
        **{
            "message.max.bytes": 1_000_000_000,
            "batch.size": MEGABYTE,
            "queue.buffering.max.kbytes": 2_000_000,
        },
    )
    due = time.monotonic()
    while not ends.wait(max(0.0, due - time.monotonic())):
        for _ in range(count):
            producer.produce(topic, value, partition=0)
            producer.poll(0)
        assert producer.flush(CALL_SECONDS_MAX) == 0, "records were not acknowledged"
        sent[0] += size * count
        due = max(due + every, time.monotonic())


def _consume(bootstrap: str, topic: str, read: Any, ends: Any) -> None:
    """Run the consumer's process."""
    weigh_little()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "beside",
            "enable.auto.commit": False,
            "receive.message.max.bytes": 1_000_000_000,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not ends.is_set():
            message = consumer.poll(POLL_SECONDS)
            if message is not None:
                assert message.error() is None, message.error()
                read[0] += len(message.value() or b"")
    finally:
        consumer.close()


# --- the same copies without servers ------------------------------------------------------------
STEP_BYTES = 512 << 10
PAUSE_SECONDS_MAX = 0.01
CHUNK_BYTES = 256 << 10
_SIZE = Struct(">Q")


def _beside_copies(
    servers: Servers, numbers: Iterator[int], options: argparse.Namespace, size: int
) -> Figures:
    directory = servers.store(servers.ids[0]).parent
    with ExitStack() as stack:
        ports = stack.enter_context(_ports(3))
        paths = [str(directory / f"copies-{n}") for n in range(3)]
        for n in (1, 2):
            stack.enter_context(ClientProcess(_copy, ports[n], paths[n], ()))
        stack.enter_context(ClientProcess(_copy, ports[0], paths[0], ports[1:]))
        source = stack.enter_context(ClientProcess(_send_and_read, ports[0], size, options.every))
        source.wait_counting()
        sent, began = source.count, time.monotonic()
        figures = _latencies(servers, next(numbers), options)
        elapsed = time.monotonic() - began
        sent = source.count - sent
    for path in paths:
        Path(path).unlink()
    return figures | {"produced_mb_per_second": sent / 1e6 / elapsed}


@contextmanager
def _ports(count: int) -> Iterator[list[int]]:
    """Yield ports that were free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    yield ports


def _send_and_read(port: int, size: int, every: float, sent: Any, ends: Any) -> None:
    """Run the client's process: send `size` bytes each `every` seconds, and read them back."""
    weigh_little()
    value = os.urandom(size)
    due = time.monotonic()
    with _dialled(port) as there:
        while not ends.wait(max(0.0, due - time.monotonic())):
            there.sendall(_SIZE.pack(size) + value)
            crc32c(_received(there, size))
            sent[0] += size
            due = max(due + every, time.monotonic())


def _copy(port: int, path: str, others: Sequence[int], written: Any, ends: Any) -> None:
    """Run a process in a server's place."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    with socket.create_server(("127.0.0.1", port)) as listening, ExitStack() as stack:
        there = [stack.enter_context(_dialled(other)) for other in others]
        listening.settimeout(CALL_SECONDS_MAX)
        here, _ = listening.accept()
        stack.enter_context(here)
        here.settimeout(POLL_SECONDS)
        while not ends.is_set():
            try:
                head = here.recv(_SIZE.size, socket.MSG_WAITALL)
            except TimeoutError:
                continue
            if not head:
                break
            here.settimeout(None)
            size = _SIZE.unpack(head)[0]
            data = _received(here, size)
            os.posix_fallocate(fd, 0, size)
            _write(fd, data)
            for other in there:
                other.sendall(head)
                for at in range(0, size, CHUNK_BYTES):
                    other.sendall(data[at : at + CHUNK_BYTES])
            for other in there:
                assert other.recv(1) == b"."
            here.sendall(data if others else b".")
            here.settimeout(POLL_SECONDS)
            written[0] += size
    os.close(fd)


def _write(fd: int, data: memoryview) -> None:
    for at in range(0, len(data), STEP_BYTES):
        step, began = data[at : at + STEP_BYTES], time.monotonic()
        crc32c(step)
        os.pwrite(fd, step, at)
        os.fdatasync(fd)
        time.sleep(min(time.monotonic() - began, PAUSE_SECONDS_MAX))


def _dialled(port: int) -> socket.socket:
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "a process does not listen"
            time.sleep(POLL_SECONDS)


def _received(there: socket.socket, size: int) -> memoryview:
    """Receive `size` bytes into new memory."""
    data = memoryview(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))
    at = 0
    while at < size:
        at += there.recv_into(data[at : at + CHUNK_BYTES])
    return data
