"""Clients that try to disrupt the others, in a process of their own.

Each client repeats one kind of request that is expensive for a server, on connections of its own.
Requests are built once, so that they cost the machine little.

Does not depend on what other clients do meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import socket
import struct
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from tests.wire import codec_of
from vdl.kafka.client import CLIENT_ID, KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.wire import (
    consumer_group_heartbeat,
    create_delegation_token,
    create_topics,
    delete_topics,
    describe_configs,
    fetch,
    header,
    join_group,
    list_transactions,
    metadata,
    offset_commit,
    push_telemetry,
    registry,
)

CLIENTS = 40
NAMES = 195_000
"""Almost the maximum number in a request."""
POSITIONS, POSITION_CHARS = 100, 4_000
CLIENT_ID_BYTES = 32_000
OPEN_HALF = 100
TIMEOUT_SECONDS = 20.0
PAUSE_SECONDS = 0.05
"""Pause after a connection that was ended."""
NICENESS = 10
PREFIX = "m-"
"""Prefix of the resources that these clients may use."""

Sent = tuple[Any, int, bytes, str]
"""Module of the API, version, body, client id."""


@dataclass(frozen=True, slots=True)
class Target:
    """Servers to attack, and the user to attack as."""

    host: str
    ports: tuple[int, ...]
    """Port of each server."""
    settings: ClientSettings
    logins: tuple[int, ...]
    """Ports that require authentication."""
    login_settings: ClientSettings


class _Client(KafkaClient):
    """Client that sends prepared requests."""

    def push(self, sent: Sent) -> int:
        """Send one request and read its answer; return the answer's size. Raises Unreachable."""
        module, version, body, client_id = sent
        self._correlation_id += 1
        head = header.encode_request_header(
            header.RequestHeader(module.API_KEY, version, self._correlation_id, client_id),
            is_flexible=version >= module.FLEXIBLE_FROM,
        )
        try:
            self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            return len(self._receive())
        except OSError as error:
            raise Unreachable(self._address, self._words(error)) from error


def _made(module: Any, message: Any, client_id: str = CLIENT_ID) -> Sent:
    version = module.MAX_VERSION
    return module, version, b"".join(codec_of(module).encode_request(message, version)), client_id


_again = itertools.repeat


# --- requests -------------------------------------------------------------------------------------
def _patterns() -> Iterator[Sent]:
    """Yield subscriptions by patterns that are large once compiled, all different."""
    for number in itertools.count():
        yield _made(
            consumer_group_heartbeat,
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=f"{PREFIX}{uuid.uuid4()}",
                member_id=str(uuid.uuid4()),
                rebalance_timeout_ms=10_000,
                subscribed_topic_regex=f"[\\x{{100}}-\\x{{10ffff}}]{{0,490}}x{number}",
                topic_partitions=[],
            ),
        )


def _transactions() -> Iterator[Sent]:
    for number in itertools.count():
        pattern = f"(.*a){{1,200}}{number}"
        request = list_transactions.ListTransactionsRequest(transactional_id_pattern=pattern)
        yield _made(list_transactions, request)


def _telemetry() -> Iterator[Sent]:
    metrics = zlib.compress(b"\x0a\x02\x12\x00" * 4_000_000)[: 1 << 20]
    for _ in itertools.count():
        yield _made(
            push_telemetry,
            push_telemetry.PushTelemetryRequest(
                client_instance_id=uuid.uuid4().bytes, compression_type=1, metrics=metrics
            ),
        )


@cache
def _wide_metadata() -> Iterator[Sent]:
    topics = [metadata.MetadataRequestTopic(name=f"x{number}") for number in range(NAMES)]
    return _again(_made(metadata, metadata.MetadataRequest(topics)))


@cache
def _wide_configs() -> Iterator[Sent]:
    rows = [describe_configs.DescribeConfigsResource(2, f"x{number}") for number in range(NAMES)]
    return _again(_made(describe_configs, describe_configs.DescribeConfigsRequest(rows)))


@cache
def _wide_deletions() -> Iterator[Sent]:
    rows = [delete_topics.DeleteTopicState(name=f"x{number}") for number in range(NAMES)]
    return _again(_made(delete_topics, delete_topics.DeleteTopicsRequest(rows, timeout_ms=1_000)))


def _groups() -> Iterator[Sent]:
    """Yield joins of members with large metadata, each in a group of its own."""
    protocols = [join_group.JoinGroupRequestProtocol("range", bytes(100_000))]
    for _ in itertools.count():
        yield _made(
            join_group,
            join_group.JoinGroupRequest(
                group_id=f"{PREFIX}{uuid.uuid4()}",
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=protocols,
                group_instance_id=str(uuid.uuid4()),
            ),
        )


def _positions() -> Iterator[Sent]:
    """Yield commits of the largest positions allowed, in new groups."""
    rows = [
        offset_commit.OffsetCommitRequestPartition(0, 1, committed_metadata="x" * POSITION_CHARS)
        for _ in range(POSITIONS)
    ]
    topics = [offset_commit.OffsetCommitRequestTopic(f"{PREFIX}topic", partitions=rows)]
    for _ in itertools.count():
        group = f"{PREFIX}{uuid.uuid4()}"
        request = offset_commit.OffsetCommitRequest(group_id=group, topics=topics)
        body = b"".join(codec_of(offset_commit).encode_request(request, 9))
        yield offset_commit, 9, body, CLIENT_ID


def _tokens() -> Iterator[Sent]:
    renewers = [create_delegation_token.CreatableRenewers("User", "x" * 200) for _ in range(50)]
    request = create_delegation_token.CreateDelegationTokenRequest(
        owner_principal_type=None, owner_principal_name=None, renewers=renewers, max_lifetime_ms=-1
    )
    return _again(_made(create_delegation_token, request))


def _sessions() -> Iterator[Sent]:
    """Yield fetches that each open a new session, with many partitions."""
    rows = [fetch.FetchPartition(number, partition_max_bytes=1) for number in range(1_000)]
    topics = [fetch.FetchTopic(topic=f"{PREFIX}topic", partitions=rows)]
    request = fetch.FetchRequest(max_bytes=1, session_epoch=0, topics=topics)
    return _again((fetch, 12, b"".join(codec_of(fetch).encode_request(request, 12)), CLIENT_ID))


def _client_ids() -> Iterator[Sent]:
    """Yield requests with different client ids of the maximum length."""
    for number in itertools.count():
        yield _made(
            metadata, metadata.MetadataRequest([]), f"{number}-".ljust(CLIENT_ID_BYTES, "i")
        )


def _audit() -> Iterator[Sent]:
    """Yield requests whose refusals are audited, each for another resource."""
    for _ in itertools.count():
        topic = create_topics.CreatableTopic(f"denied-{uuid.uuid4()}", 1, 1)
        yield _made(create_topics, create_topics.CreateTopicsRequest([topic]))


SENDERS: dict[str, Callable[[], Iterator[Sent]]] = {
    "patterns": _patterns,
    "transactions": _transactions,
    "telemetry": _telemetry,
    "wide_metadata": _wide_metadata,
    "wide_configs": _wide_configs,
    "wide_deletions": _wide_deletions,
    "groups": _groups,
    "positions": _positions,
    "tokens": _tokens,
    "fetch_sessions": _sessions,
    "client_ids": _client_ids,
    "audit": _audit,
}
CONNECTORS = ("failed_logins", "half_open")


# --- senders --------------------------------------------------------------------------------------
class _Mob:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.done: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.stop = threading.Event()

    def send(self, kind: str) -> None:
        """Run one client until all are to stop."""
        rng = random.Random(kind)
        requests = SENDERS[kind]()
        while not self.stop.is_set():
            try:
                with _Client(
                    self.target.host,
                    rng.choice(self.target.ports),
                    timeout_seconds=TIMEOUT_SECONDS,
                    settings=self.target.settings,
                ) as client:
                    while not self.stop.is_set():
                        client.push(next(requests))
                        self.done[kind] += 1
            except Unreachable:
                self.ended[kind] += 1
                self.stop.wait(PAUSE_SECONDS)

    def connect(self, kind: str) -> None:
        if kind == "failed_logins":
            self._log_in()
        else:
            self._open_half()

    def _log_in(self) -> None:
        """Log in as an existing user, and as others, with wrong passwords."""
        while not self.stop.is_set():
            settings = replace(
                self.target.login_settings,
                user=random.choice(("alice", str(uuid.uuid4()))),
                password="wrong",
            )
            with contextlib.suppress(Unreachable):
                port = random.choice(self.target.logins)
                with KafkaClient(self.target.host, port, settings=settings):
                    raise AssertionError("logged in")
            self.done["failed_logins"] += 1

    def _open_half(self) -> None:
        """Open connections that stop in the middle of a request, or of a handshake."""
        ports = (*self.target.ports, *self.target.logins)
        while not self.stop.is_set():
            half = []
            for number in range(OPEN_HALF):
                with contextlib.suppress(OSError):
                    one = socket.create_connection(
                        (self.target.host, ports[number % len(ports)]), timeout=1
                    )
                    half.append(one)
                    one.sendall(b"\0\0\4\0\0" if number % 2 else b"\x16\x03\x01")
                    self.done["half_open"] += 1
            self.stop.wait(1.0)
            for one in half:
                one.close()


@dataclass(frozen=True, slots=True)
class Told:
    """Numbers of the clients' operations, by kind."""

    done: dict[str, int]
    ended: dict[str, int]
    """Connections that the servers ended."""
    cpu_seconds: float
    """Their processor time, without what building the requests took."""


@contextlib.contextmanager
def hostile(target: Target, told: list[Told]) -> Iterator[None]:
    """Run forty of them during the block; `told` has their operations after its end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_be_hostile, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield
        ours.send(None)
        told.append(ours.recv())
    finally:
        ours.close()
        process.join(TIMEOUT_SECONDS)
        process.kill()
        process.join()


def _yield_the_machine() -> None:
    """Take processor time that others leave only: hostile clients run on machines of their own."""
    if os.environ.get("HOSTILE_CPU") == "equal":
        return
    os.nice(NICENESS)
    os.setsid()  # a session is a group of the scheduler, within which niceness counts
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")


def _be_hostile(pipe: Pipe, target: Target) -> None:
    registry.module(metadata.API_KEY)
    mob = _Mob(target)
    kinds = os.environ.get("HOSTILE_KINDS", "").split() or [*SENDERS, *CONNECTORS]
    for kind in kinds:
        if kind.startswith("wide"):
            SENDERS[kind]()  # takes a while
    began_seconds = time.process_time()
    _yield_the_machine()
    for kind in itertools.islice(itertools.cycle(kinds), CLIENTS):
        act = mob.send if kind in SENDERS else mob.connect
        threading.Thread(target=act, args=(kind,), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(None)
        pipe.recv()
        mob.stop.set()
        took_seconds = time.process_time() - began_seconds
        pipe.send(Told(dict(mob.done), dict(mob.ended), took_seconds))
