"""Remaining performance of an overloaded replica set, and its recovery.

A run is three new servers, a topic of many partitions, and one load for `--seconds`:

* `producers`: unmodified librdkafka, each in a process of its own, single records to all partitions
  in turn, a batch and a request for each; never more than `--queue` unanswered. Milliseconds are
  from `produce` to the report, so they include the client's own queue.
* `requests`: `--rate` small requests a second (ApiVersions and Metadata without topics) over
  `--connections` connections, sent when due, with at most 50 unanswered on each.
* `fetches`: `--consumers` connections that each request all partitions a server leads, from the
  beginning, as soon as the previous answer has arrived.

`elections_won` counts those between the beginning of the load and quiet: all were unnecessary.
Quiet means that all groups have leaders, no server reports overload, and health answers within half
a second. Meanwhile `/health` of each server is queried twice a second, and `vdl status` once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from confluent_kafka import KafkaError, Producer

from tests.bench.frames import Connection, frame, leaders
from tests.bench.load import RECORD_BYTES, send, throughput_producer
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import Servers
from tests.bench.systems import cpu_seconds
from tests.bench.topics import create_led_topic
from tests.chaos.harness.replica_set import ROOT
from vdl.kafka.wire import fetch
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.metadata import MetadataRequest

TOPIC = "overloaded"
LOADS = ("producers", "requests", "fetches")
UNANSWERED_MAX = 50
"""Unanswered small requests of one connection."""
FETCHED_MEGABYTES = 4
LOOK_SECONDS = 0.5
ANSWER_SECONDS_MAX = 0.5
"""Limit on a health query's time, for quiet."""
QUIET_SECONDS_MAX = 90.0
HOME_SECONDS = 5.0
"""Time without an election after which the leaders are taken to be the preferred ones."""
STATUS_SECONDS_MAX = 30.0
REPORT_SECONDS_MAX = 120.0

Answer = tuple[float, list[float], int]
"""Result of clients: seconds from their start to the last answer, milliseconds of each answer,
number of failures.
"""
Load = Callable[[Servers, argparse.Namespace], Answer]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--load", choices=LOADS, default=LOADS[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--queue", type=int, default=1_000, help="unanswered, of a producer")
    parser.add_argument("--connections", type=int, default=200, help="of small requests")
    parser.add_argument("--rate", type=int, default=10_000, help="small requests a second")
    parser.add_argument("--consumers", type=int, default=1_000, help="that fetch")


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    yield Comparison({"vdl": partial(run, options)})


def run(options: argparse.Namespace) -> Figures:
    servers = Servers()
    loads: dict[str, Load] = {
        "producers": _produce_all,
        "requests": _request_all,
        "fetches": _fetch_all,
    }
    try:
        servers.up()
        create_led_topic(servers.bootstrap, TOPIC, options.partitions)
        send(throughput_producer(servers.bootstrap), TOPIC, options.partitions, FETCHED_MEGABYTES)
        groups = servers.groups()
        _wait_home(servers)
        won, used = _elections(servers), cpu_seconds(servers.pids())
        with _watched(servers) as looks, _status(servers, options.seconds / 2) as status:
            seconds, taken, failed = loads[options.load](servers, options)
            ended, used = time.monotonic(), cpu_seconds(servers.pids()) - used
        figures = {
            "answered_per_second": len(taken) / seconds,
            "failed": float(failed),
            "server_cpu_us_per_answer": used * 1e6 / max(1, len(taken)),
            **percentiles("answer", taken),
            "until_last_answer_seconds": seconds,
            "health_slowest_seconds": max(took for took, _ in looks),
            "health_unanswered": float(sum(not health for _, health in looks)),
            "health_said_overloaded": float(any(health.get("overloaded") for _, health in looks)),
            "status_seconds": status[0],
            "quiet_seconds": _wait_quiet(servers, groups) - ended,
            "elections_won": _elections(servers) - won,
        }
        for number in servers.ids:
            metrics = servers.metrics(number)
            told = {n: v for n, v in metrics.items() if "late" in n or "overloaded" in n}
            _say(f"server {number}: {told}")
        return figures
    finally:
        servers.down()


# --- observations -------------------------------------------------------------------------------
@contextmanager
def _watched(servers: Servers) -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """Yield (seconds of a health query, health; empty without an answer) of all servers."""
    looks: list[tuple[float, dict[str, Any]]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for number in servers.ids:
                asked = time.monotonic()
                health = servers.health(number)
                looks.append((time.monotonic() - asked, health))
            is_over.wait(LOOK_SECONDS)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield looks
    finally:
        is_over.set()
        thread.join()


@contextmanager
def _status(servers: Servers, after_seconds: float) -> Iterator[list[float]]:
    """Yield the seconds that `vdl status` takes at half of the load, -1 without an answer.

    Known when the block ends.
    """
    took = [-1.0]

    def ask() -> None:
        time.sleep(after_seconds)
        asked = time.monotonic()
        command = [sys.executable, "-m", "vdl.cli", "status", "--bootstrap", servers.bootstrap]
        try:
            found = subprocess.run(
                command, check=False, cwd=ROOT, capture_output=True, timeout=STATUS_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            _say("vdl status: no answer")
            return
        took[0] = time.monotonic() - asked
        said = [line for line in found.stdout.decode().splitlines() if "overloaded: " in line]
        _say(f"vdl status, {took[0]:.1f} s: {said}")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        thread.join()


def _wait_quiet(servers: Servers, groups: int) -> float:
    """Return the time at which it was quiet (monotonic)."""
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while True:
        asked = time.monotonic()
        states = [servers.health(number) for number in servers.ids]
        now = time.monotonic()
        leading = sum(int(state.get("leading", 0)) for state in states)
        is_calm = not any(state.get("overloaded", True) for state in states)
        if leading == groups and is_calm and now - asked < ANSWER_SECONDS_MAX * len(states):
            return now
        assert now < deadline, f"{leading} of {groups} groups are led; {states}"
        time.sleep(LOOK_SECONDS / 5)


def _wait_home(servers: Servers) -> None:
    """Wait until leaders elected elsewhere at the beginning are transferred back.

    Some are transferred each second. Those elections are not caused by the load.
    """
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    won, since = _elections(servers), time.monotonic()
    while (now := time.monotonic()) - since < HOME_SECONDS:
        time.sleep(LOOK_SECONDS)
        if (newly := _elections(servers)) != won:
            assert now < deadline, "leaders do not come to rest"
            won, since = newly, now


def _elections(servers: Servers) -> float:
    name = "vdl_server_leaderships_won_total"
    return sum(servers.metrics(number).get(name, 0.0) for number in servers.ids)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


# --- loads --------------------------------------------------------------------------------------
def _in_processes(count: int, client: Callable[..., None], *arguments: object) -> Answer:
    """Run `count` clients, each in a process of its own; return their combined results."""
    context = multiprocessing.get_context("spawn")
    clients = []
    for number in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=client, args=(theirs, number, *arguments))
        process.start()
        theirs.close()
        clients.append((process, ours))
    for _, pipe in clients:
        pipe.recv()  # it is ready
    for _, pipe in clients:
        pipe.send(None)  # all begin
    seconds, taken, failed = 0.0, list[float](), 0
    for process, pipe in clients:
        told: Answer = pipe.recv()
        seconds, failed = max(seconds, told[0]), failed + told[2]
        taken += told[1]
        process.join()
    return seconds, taken, failed


def _produce_all(servers: Servers, options: argparse.Namespace) -> Answer:
    return _in_processes(
        options.producers,
        _produce,
        servers.bootstrap,
        options.partitions,
        options.queue,
        options.seconds,
    )


def _produce(
    pipe: Pipe, number: int, bootstrap: str, partitions: int, queue: int, seconds: float
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "queue.buffering.max.messages": queue,
            "message.timeout.ms": 30_000,
            "log_level": 0,
        }
    )
    producer.list_topics(TOPIC, timeout=REPORT_SECONDS_MAX)
    value, taken, failed = os.urandom(RECORD_BYTES // 10), list[float](), 0

    def timed(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            nonlocal failed
            del message
            failed += error is not None
            if error is None:
                taken.append((time.monotonic() - sent) * 1_000)

        return delivered

    pipe.send(None)
    pipe.recv()
    partition = number * 50  # each starts at another partition
    began = time.monotonic()
    end = began + seconds
    while (now := time.monotonic()) < end:
        try:
            producer.produce(TOPIC, value, partition=partition % partitions, on_delivery=timed(now))
            partition += 1
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    failed += producer.flush(REPORT_SECONDS_MAX)
    pipe.send((time.monotonic() - began, taken, failed))


def _request_all(servers: Servers, options: argparse.Namespace) -> Answer:
    addresses = list(dict.fromkeys(leaders(servers.bootstrap, TOPIC)))
    return _in_processes(1, _request, addresses, options.connections, options.rate, options.seconds)


def _request(
    pipe: Pipe,
    number: int,
    addresses: Sequence[tuple[str, int]],
    count: int,
    rate: int,
    seconds: float,
) -> None:
    del number
    frames = [frame(18, 3, ApiVersionsRequest("b", "1")), frame(3, 9, MetadataRequest(topics=[]))]
    selector = selectors.DefaultSelector()
    sent: list[tuple[Connection, deque[float]]] = []
    for each in range(count):
        connection = Connection(addresses[each % len(addresses)])
        connection.socket.setblocking(True)
        sent.append((connection, deque()))
        selector.register(connection.socket, selectors.EVENT_READ, sent[-1])
    taken: list[float] = []
    pipe.send(None)
    pipe.recv()
    turn, began = 0, time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        for _ in range(max(0, int((now - began) * rate) - turn)):
            connection, times = sent[turn % count]
            if len(times) < UNANSWERED_MAX:
                times.append(time.monotonic())
                connection.send(frames[turn // count % 2])
            turn += 1
        _take_answers(selector, taken, 0.001)
    end = time.monotonic() + REPORT_SECONDS_MAX
    while any(times for _, times in sent) and time.monotonic() < end:
        _take_answers(selector, taken, LOOK_SECONDS)
    pipe.send((time.monotonic() - began, taken, sum(len(times) for _, times in sent)))


def _take_answers(selector: selectors.DefaultSelector, taken: list[float], wait: float) -> None:
    for key, _ in selector.select(wait):
        connection, times = key.data
        answers = connection.answers()
        now = time.monotonic()
        taken += [(now - times.popleft()) * 1_000 for _ in answers]


def _fetch_all(servers: Servers, options: argparse.Namespace) -> Answer:
    led: dict[tuple[str, int], list[int]] = {}
    for partition, address in enumerate(leaders(servers.bootstrap, TOPIC)):
        led.setdefault(address, []).append(partition)
    return _in_processes(1, _fetch, led, options.consumers, options.seconds)


def _fetch(
    pipe: Pipe,
    number: int,
    led: dict[tuple[str, int], list[int]],
    count: int,
    seconds: float,
) -> None:
    del number
    frames = {address: _fetch_frame(partitions) for address, partitions in led.items()}
    addresses = list(led)
    selector = selectors.DefaultSelector()
    consumers = []
    for each in range(count):
        address = addresses[each % len(addresses)]
        consumer = (Connection(address), frames[address], deque[float]())
        consumers.append(consumer)
        selector.register(consumer[0].socket, selectors.EVENT_READ, consumer)
    taken: list[float] = []
    pipe.send(None)
    pipe.recv()
    began = time.monotonic()
    end = began + seconds
    unanswered = 0
    for connection, request, times in consumers:
        times.append(time.monotonic())
        connection.send(request)
        unanswered += 1
    while unanswered and time.monotonic() < end + REPORT_SECONDS_MAX:
        for key, _ in selector.select(LOOK_SECONDS):
            connection, request, times = key.data
            answers = connection.answers()
            now = time.monotonic()
            for _ in answers:
                taken.append((now - times.popleft()) * 1_000)
                if now < end:
                    times.append(now)
                    connection.send(request)
                else:
                    unanswered -= 1
    pipe.send((time.monotonic() - began, taken, unanswered))


def _fetch_frame(partitions: Sequence[int]) -> bytes:
    asked = [
        fetch.FetchPartition(index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in partitions
    ]
    request = fetch.FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 20,
        topics=[fetch.FetchTopic(TOPIC, partitions=asked)],
    )  # fmt: skip
    return frame(fetch.API_KEY, 11, request)
