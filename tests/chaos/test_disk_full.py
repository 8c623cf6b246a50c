"""Disks that are really full: small file systems, and a producer that does not stop.

A full disk is a temporary state. Nothing acknowledged is lost in it, no process dies, consumers
continue to read, leaders are elected; and when a topic is deleted, writes continue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from zlib import crc32

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.chaos.conftest import Figure, MakeDiskSet
from tests.chaos.harness.cluster import create_topic, leader, wait_equal, wait_healthy
from tests.chaos.harness.copies import assert_equal, read_copies
from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import MIB
from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, audit, read_back
from tests.clients.raw import PRODUCE_VERSION, RawConnection, produce_request
from vdl.errors import ErrorCode
from vdl.kafka.wire import produce
from vdl.records.batch import Record, build_batch

pytestmark = pytest.mark.takes_turns(parts=2)

DISK_BYTES = 64 * MIB
SMALL = {
    "storage.journal_file_bytes": "4MiB",
    "storage.journal_first_file_bytes": "2MiB",
    "storage.checkpoint_bytes": "2MiB",
    "storage.checkpoint_interval": "500ms",
    "storage.index_segment_entries": 1_024,
    "storage.meta_map_bytes": "16MiB",
    "kafka.log.segment.bytes": "2MiB",
}
TOPIC, FILLER, PROBE = "kept", "filler", "probe"
FILLER_VALUE_BYTES = 100_000
FILL_SECONDS_MAX = 60.0
GIVES_UP_MS = 5_000
"""Time without an acknowledgement after which the producer that fills the disks counts as refused.
"""
READ_SECONDS_MAX = 60.0
FULL_SECONDS = 5.0
"""Several election timeouts, and several probes for space."""
RESUME_SECONDS_MAX = 30.0
NEVER_GIVES_UP = {"message.timeout.ms": 300_000}
SETTLED_ACKS = 100


class Filler:
    """Producer of large incompressible values, round robin over partitions, as many as fit.

    Keeps (partition, offset) -> checksum of each acknowledged value.
    """

    def __init__(self, bootstrap: str, *, partitions: int = 1) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.errors: set[str] = set()

    def fill(self) -> None:
        """Produce until the servers refuse more."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "message.timeout.ms": GIVES_UP_MS,
                "max.in.flight": 1,
                "batch.size": 2 * FILLER_VALUE_BYTES,
                **QUIET,
            }
        )
        rng = random.Random(1)
        partitions = cycle(range(self._partitions))
        deadline = time.monotonic() + FILL_SECONDS_MAX
        while not self.errors:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} values fit, and more"
            if len(producer) < 20:
                value = rng.randbytes(FILLER_VALUE_BYTES)
                where = next(partitions)
                producer.produce(FILLER, value, partition=where, on_delivery=self._delivered)
            producer.poll(0.01)
        producer.flush(2 * GIVES_UP_MS / 1_000)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self.errors.add(error.name())
        else:
            self.acknowledged[place_of(message)] = crc32(message.value())  # type: ignore[attr-defined]

    def assert_kept(self) -> None:
        """Check that every acknowledged value can be read, also while the disks are full."""
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "unused", **QUIET})
        found: dict[tuple[int, int], int] = {}
        deadline = time.monotonic() + READ_SECONDS_MAX
        try:
            consumer.assign([TopicPartition(FILLER, n, 0) for n in range(self._partitions)])
            while missing := self.acknowledged.keys() - found.keys():
                assert time.monotonic() < deadline, (
                    f"{len(missing)} acknowledged values do not come"
                )
                for message in consumer.consume(100, timeout=0.5):
                    if message.error() is None:
                        found[place_of(message)] = crc32(message.value() or b"")
        finally:
            consumer.close()
        wrong = [at for at, checksum in self.acknowledged.items() if found[at] != checksum]
        assert not wrong, f"{len(wrong)} acknowledged values differ, first {wrong[0]}"


def place_of(message: object) -> tuple[int, int]:
    """Return (partition, offset)."""
    return message.partition(), message.offset()  # type: ignore[attr-defined]


def answer_to_produce(servers: DiskSet) -> int:
    """Return the error with which the leader answers one record."""
    host, port = servers.address(leader(servers, PROBE)).split(":")
    connection = RawConnection((host, int(port)))
    try:
        batch = bytes(build_batch([Record(None, b"no room")]))
        answer = connection.ask(
            produce_request(PROBE, batch), key=produce.API_KEY, version=PRODUCE_VERSION
        )
    finally:
        connection.close()
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


@contextmanager
def loaded(servers: DiskSet) -> Iterator[Load]:
    """Yield a producer that never stops retrying, whatever the disks do."""
    load = Load(servers.bootstrap, TOPIC, IDEMPOTENT, **NEVER_GIVES_UP)
    load.start()
    try:
        yield load
    finally:
        load.stop()


def wait_quiet(load: Load) -> None:
    """Wait until nothing has been acknowledged for a second."""
    before = -1
    deadline = time.monotonic() + FILL_SECONDS_MAX
    while before != len(load.acks):
        assert time.monotonic() < deadline, "small records are still taken"
        before = len(load.acks)
        time.sleep(1.0)


def test_full_disks_refuse_writes_and_do_all_else(
    make_disk_set: MakeDiskSet, figure: Figure
) -> None:
    """Filled completely: writes get a retriable error, reads work, servers stay up.

    A new leader is elected when the old one is killed; a deleted topic frees space, and writes
    continue.
    """
    servers = make_disk_set(disk_bytes=DISK_BYTES, settings=SMALL)
    servers.up()
    create_topic(servers, TOPIC)
    create_topic(servers, FILLER)
    create_topic(servers, PROBE)
    with loaded(servers) as load:
        load.wait_acknowledged(SETTLED_ACKS)
        pids = {number: servers.pid(number) for number in servers.server_ids}
        filler = Filler(servers.bootstrap)
        filler.fill()
        figure("filled_mib", len(filler.acknowledged) * FILLER_VALUE_BYTES // MIB)
        figure("errors_of_the_client", sorted(filler.errors))
        wait_quiet(load)
        code = answer_to_produce(servers)
        figure("answer_to_produce", ErrorCode(code).name)
        assert code == ErrorCode.KAFKA_STORAGE_ERROR

        # Reads continue, and nothing acknowledged is lost.
        filler.assert_kept()
        audit(load.acks[:], read_back(servers.bootstrap, TOPIC))
        assert {number: servers.pid(number) for number in servers.server_ids} == pids

        # Votes are written, and the killed server returns to its full disk.
        before = leader(servers, TOPIC)
        servers.kill(before)
        after = leader(servers, TOPIC)
        assert after != before
        audit(load.acks[:], read_back(servers.bootstrap, TOPIC))
        servers.start(before)
        servers.wait_serving(before)
        time.sleep(FULL_SECONDS)
        assert servers.running() == list(servers.server_ids)

        # Deleting a topic frees space without any further action.
        admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
        began = time.monotonic()
        admin.delete_topics([FILLER])[FILLER].result(timeout=RESUME_SECONDS_MAX)
        load.wait_acknowledged(SETTLED_ACKS, seconds_max=RESUME_SECONDS_MAX)
        figure("resumed_seconds", round(time.monotonic() - began, 2))
        wait_healthy(servers)
    assert load.failures == {}
    assert len(load.acks) == load.sent
    assert_kept(load, read_back(servers.bootstrap, TOPIC))
    figure("acknowledged", len(load.acks))
    wait_equal(servers)
    servers.kill(*servers.server_ids)
    figure("entries_equal_on_three_disks", assert_equal(read_copies(servers.stores), replicas=3))


@pytest.mark.parametrize("partitions", [1, 30])
def test_deleted_records_make_room(
    make_disk_set: MakeDiskSet, figure: Figure, partitions: int
) -> None:
    """Deleted records free space also on full disks.

    The deletion is an entry of the log for which records were refused, and entries that a full
    follower did not accept are before it. Each of many partitions has only one segment, which no
    other follows on a full disk.
    """
    servers = make_disk_set(disk_bytes=DISK_BYTES, settings=SMALL)
    servers.up()
    create_topic(servers, TOPIC)
    create_topic(servers, FILLER, partitions=partitions)
    with loaded(servers) as load:
        load.wait_acknowledged(SETTLED_ACKS)
        filler = Filler(servers.bootstrap, partitions=partitions)
        filler.fill()
        wait_quiet(load)
        figure("filled_mib", len(filler.acknowledged) * FILLER_VALUE_BYTES // MIB)
        admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
        everything = [TopicPartition(FILLER, n, OFFSET_END) for n in range(partitions)]
        began = time.monotonic()
        for deleted in admin.delete_records(everything).values():
            deleted.result(timeout=RESUME_SECONDS_MAX)
        figure("deleted_seconds", round(time.monotonic() - began, 2))
        load.wait_acknowledged(SETTLED_ACKS, seconds_max=RESUME_SECONDS_MAX)
        figure("resumed_seconds", round(time.monotonic() - began, 2))
        wait_healthy(servers)
    assert load.failures == {}
    assert_kept(load, read_back(servers.bootstrap, TOPIC))
    wait_equal(servers)
