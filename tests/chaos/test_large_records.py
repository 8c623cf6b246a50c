"""Large records while servers, disks and links fail under them: none is lost, torn or repeated.

They are written ahead of their entries, on the leader and then on the followers, and every fault
strikes at a random moment of that. Beside them a producer of small records goes on. At the end all
that was acknowledged is read, and the copies on the disks are compared entry by entry.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.conftest import MakeDiskSet
from tests.chaos.harness.cluster import create_topic, leader, wait_equal, wait_healthy
from tests.chaos.harness.copies import assert_equal, read_copies
from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import MIB
from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ReplicaSet
from tests.chaos.harness.wires import Wires

pytestmark = pytest.mark.takes_turns(parts=2)

LARGE, SMALL = "large", "small"
SIZES = (17 << 20, 30 << 20)
DISK_BYTES = 2048 * MIB
STRIKES = int(os.environ.get("STRIKES", "4"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
SECONDS_MAX = 120.0
HANGS_SECONDS = 5.0
"""More than `raft.disk_patience`."""
CUT_SECONDS = 3.0
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
SETTINGS: dict[str, object] = {"storage.checkpoint_interval": "2s"}


class LargeLoad:
    """A producer of one large record after the other, in a thread of its own."""

    def __init__(self, servers: ReplicaSet, rng: random.Random) -> None:
        self._bootstrap = servers.bootstrap
        self._rng = random.Random(rng.random())
        self.acknowledged: dict[int, bytes] = {}
        """Digest by offset."""
        self.errors: list[str] = []
        self.in_flight = 0
        self._digests: list[bytes] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="large", daemon=True)
        admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
        topic = NewTopic(
            LARGE, 1, servers.nodes,
            config={"max.message.bytes": str(64 << 20), "segment.bytes": str(128 << 20)},
        )  # fmt: skip
        admin.create_topics([topic])[LARGE].result(timeout=30)

    def __enter__(self) -> LargeLoad:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join(SECONDS_MAX + 10)
        assert not self._thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                "message.timeout.ms": int(SECONDS_MAX * 1_000),
                **QUIET,
            }
        )
        while not self._ends.is_set():
            value = self._rng.randbytes(64) * (self._rng.randint(*SIZES) // 64)
            digest = sha256(value).digest()
            self._digests.append(digest)
            self.in_flight += 1
            producer.produce(
                LARGE, value, partition=0,
                on_delivery=lambda error, message, digest=digest: self._sent(
                    error, message.offset(), digest
                ),
            )  # fmt: skip
            while len(producer) > 1:
                producer.poll(0.02)
        producer.flush(SECONDS_MAX)

    def _sent(self, error: KafkaError | None, offset: int, digest: bytes) -> None:
        self.in_flight -= 1
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[offset] = digest

    def wait_more(self, count: int = 1) -> None:
        """Wait until `count` more are acknowledged."""
        wanted, deadline = len(self.acknowledged) + count, time.monotonic() + SECONDS_MAX
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"nothing is acknowledged: {self.errors}"
            time.sleep(0.02)

    def check(self) -> None:
        """Check that all acknowledged records are there, once each and in the order sent."""
        assert self.errors == []
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap, "group.id": "unused", "check.crcs": True,
                "receive.message.max.bytes": 1_000_000_000, **QUIET,
            }
        )  # fmt: skip
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + SECONDS_MAX
        try:
            consumer.assign([TopicPartition(LARGE, 0, 0)])
            while max(found, default=-1) < max(self.acknowledged):
                assert time.monotonic() < deadline, f"{len(found)} records came"
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found[message.offset() or 0] = sha256(message.value() or b"").digest()
        finally:
            consumer.close()
        assert {offset: found[offset] for offset in self.acknowledged} == self.acknowledged
        assert list(found.values()) == self._digests[: len(found)]


Fault = Callable[[DiskSet, int], None]
"""Strikes a server, and returns when it runs again."""


def kill(servers: DiskSet, server_id: int) -> None:
    servers.kill(server_id)
    servers.start(server_id)


def cut_power(servers: DiskSet, server_id: int) -> None:
    servers.power_cut(server_id)
    servers.start(server_id)


def fail(servers: DiskSet, server_id: int) -> None:
    """Fail the disk: the server must end by itself."""
    servers.disks[server_id].fail()
    servers.wait_stopped(server_id, seconds_max=SECONDS_MAX)
    servers.remount(server_id, check=True)
    servers.start(server_id)


def hang(servers: DiskSet, server_id: int) -> None:
    """Have all writes to the disk wait for some seconds."""
    descriptor = os.open(servers.disks[server_id].mount_point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, FIFREEZE, 0)
        time.sleep(HANGS_SECONDS)
    finally:
        fcntl.ioctl(descriptor, FITHAW, 0)
        os.close(descriptor)


@contextmanager
def loads(servers: ReplicaSet, rng: random.Random) -> Iterator[LargeLoad]:
    """Run both producers; check at the end that nothing acknowledged is lost."""
    wait_healthy(servers)
    create_topic(servers, SMALL)
    small = Load(servers.bootstrap, SMALL, IDEMPOTENT)
    with LargeLoad(servers, rng) as large:
        small.start()
        large.wait_more(2)
        yield large
        large.wait_more(2)
        small.stop()
    wait_healthy(servers)
    large.check()
    assert_kept(small, read_back(servers.bootstrap, SMALL))
    assert small.failures == {}


def strike(servers: DiskSet, large: LargeLoad, rng: random.Random, fault: Fault) -> None:
    """Let the fault strike the leader or a follower while a large record is under way."""
    large.wait_more()
    leads = leader(servers, LARGE)
    followers = [server_id for server_id in servers.server_ids if server_id != leads]
    time.sleep(rng.uniform(0.0, 0.8))
    fault(servers, rng.choice([leads, leads, *followers]))
    large.wait_more()
    wait_healthy(servers)


@pytest.mark.parametrize("fault", [kill, cut_power, fail, hang])
def test_large_records_outlive_a_server(make_disk_set: MakeDiskSet, fault: Fault) -> None:
    """Whatever part of one is on its disk, all is as acknowledged, on each server."""
    rng = random.Random(f"{SEED} {fault.__name__}")
    servers = make_disk_set(disk_bytes=DISK_BYTES, settings=SETTINGS)
    servers.up()
    with loads(servers, rng) as large:
        for _ in range(STRIKES):
            strike(servers, large, rng, fault)
    wait_equal(servers)
    servers.kill(*servers.server_ids)  # at once: a stop has others elect a leader, which appends
    assert_equal(read_copies(servers.stores), replicas=servers.nodes)


def test_large_records_on_a_full_disk_are_refused_and_go_on(make_disk_set: MakeDiskSet) -> None:
    """No server ends, and what was acknowledged is kept. They go on when a topic is deleted."""
    rng = random.Random(f"{SEED} full")
    servers = make_disk_set(disk_bytes=640 * MIB, settings=SETTINGS)
    servers.up()
    wait_healthy(servers)
    pids = [servers.pid(server_id) for server_id in servers.server_ids]
    create_topic(servers, SMALL)
    small = Load(servers.bootstrap, SMALL, IDEMPOTENT)
    small.start()
    with LargeLoad(servers, rng) as large:
        deadline = time.monotonic() + SECONDS_MAX
        acknowledged, since = 0, time.monotonic()
        while time.monotonic() < since + 10.0:
            assert time.monotonic() < deadline, f"{acknowledged} records fit, and more"
            if len(large.acknowledged) > acknowledged:
                acknowledged, since = len(large.acknowledged), time.monotonic()
            time.sleep(0.1)
        admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
        where = TopicPartition(LARGE, 0, max(large.acknowledged))
        admin.delete_records([where])[where].result(timeout=30)
        kept = {offset: d for offset, d in large.acknowledged.items() if offset >= where.offset}
        large.wait_more()
    assert acknowledged > 3
    assert [servers.pid(server_id) for server_id in servers.server_ids] == pids
    small.stop()
    assert_kept(small, read_back(servers.bootstrap, SMALL))
    assert set(kept) <= set(large.acknowledged)


def test_large_records_outlive_cut_links() -> None:
    """In one direction or both, while a follower receives or holds one."""
    rng = random.Random(f"{SEED} links")
    servers = ReplicaSet(3)
    try:
        with Wires(servers) as wires:
            servers.up()
            with loads(servers, rng) as large:
                for _ in range(STRIKES):
                    large.wait_more()
                    leads = leader(servers, LARGE)
                    other = rng.choice([one for one in servers.server_ids if one != leads])
                    ways = rng.choice(
                        [[(leads, other)], [(other, leads)], [(leads, other), (other, leads)]]
                    )
                    time.sleep(rng.uniform(0.0, 0.8))
                    wires.cut(*ways)
                    time.sleep(CUT_SECONDS)
                    wires.heal()
                    large.wait_more()
            wait_equal(servers)
            servers.kill(*servers.server_ids)
            stores = [servers.directory / str(one) / "store" for one in servers.server_ids]
            assert_equal(read_copies(stores), replicas=servers.nodes)
    finally:
        servers.close()
