"""Share groups with Kafka's own client: each record is acknowledged once, whatever dies (KIP-932).

VDL_SHARE_RECORDS sets the number of records; with a million there are ten consumers in three
processes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.raw import MODULES, RawConnection
from tests.clients.share_workers import ShareWorker, read_history
from tests.clients.topics import Topics
from vdl.errors import ErrorCode
from vdl.kafka.wire import describe_share_group_offsets as describe_wire
from vdl.kafka.wire import incremental_alter_configs as alter_wire

RECORDS = int(os.environ.get("VDL_SHARE_RECORDS", "20000"))
IS_LONG = RECORDS >= 1_000_000
PARTITIONS = 4
LIMIT = 10
"""Delivery limit: consumers die, and no record may be archived for that."""
SECONDS = 120.0 + RECORDS / 2_000
PAUSE_SECONDS = 0.2
GROUP_RESOURCE = 32

pytestmark = pytest.mark.java


def addresses(bootstrap: str) -> list[tuple[str, int]]:
    found = [address.rsplit(":", 1) for address in bootstrap.split(",")]
    return [(host, int(port)) for host, port in found]


def ask(address: tuple[str, int], module: Any, request: Any, version: int) -> Any:
    MODULES[module.API_KEY] = module
    connection = RawConnection(address)
    try:
        return connection.ask(request, key=module.API_KEY, version=version)
    finally:
        connection.close()


def configure(bootstrap: str, group: str, **configs: str) -> None:
    """Set `share.*` of a group."""
    changes = [
        alter_wire.AlterableConfig(f"share.{name.replace('_', '.')}", 0, value)
        for name, value in configs.items()
    ]
    resource = alter_wire.AlterConfigsResource(GROUP_RESOURCE, group, changes)
    request = alter_wire.IncrementalAlterConfigsRequest([resource], False)
    answer = ask(addresses(bootstrap)[0], alter_wire, request, 1)
    assert [one.error_code for one in answer.responses] == [0], answer


def offsets(bootstrap: str, group: str) -> list[tuple[int, int, int]] | None:
    """Return (partition, start offset, lag) from the coordinator; None while there is none."""
    asked = describe_wire.DescribeShareGroupOffsetsRequestGroup(group, None)
    request = describe_wire.DescribeShareGroupOffsetsRequest([asked])
    for address in addresses(bootstrap):
        try:
            (answer,) = ask(address, describe_wire, request, 1).groups
        except OSError:
            continue
        if answer.error_code == ErrorCode.NONE:
            return [
                (one.partition_index, one.start_offset, one.lag)
                for topic in answer.topics
                for one in topic.partitions
            ]
    return None


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Produce over all partitions; check that all are acknowledged."""
    failed: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failed, failed[0]


def wait_until_done(bootstrap: str, group: str, count: int) -> None:
    """Wait until every record is acknowledged or archived."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = offsets(bootstrap, group)
        if found is not None and sum(start for _, start, _ in found) == count:
            assert all(lag in (0, -1) for _, _, lag in found), found
            return
        assert time.monotonic() < deadline, found
        time.sleep(PAUSE_SECONDS)


def test_each_record_is_acknowledged_once_while_consumers_and_leaders_die(
    servers: ReplicaSet | None, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    """None is lost, none is delivered after it was acknowledged, and every delivery is counted."""
    topic = topics.create("queue", partitions=PARTITIONS)
    group = topics.unused_name("workers")
    configure(
        bootstrap,
        group,
        auto_offset_reset="earliest",
        delivery_count_limit=str(LIMIT),
        record_lock_duration_ms="15000",
    )
    sizes = (4, 3, 3) if IS_LONG else (2, 2)
    started = 0

    def start(consumers: int) -> ShareWorker:
        nonlocal started
        started += 1
        log = tmp_path / f"worker{started}"
        return ShareWorker(bootstrap, group, topic, log, consumers=consumers, releases_percent=1)

    workers = [start(consumers) for consumers in sizes]
    killed: list[ShareWorker] = []
    rounds = 5 if IS_LONG else 2
    try:
        for number in range(rounds):
            produce(bootstrap, topic, RECORDS // rounds)
            victim = number % len(workers)
            workers[victim].kill()
            killed.append(workers[victim])
            workers[victim] = start(sizes[victim])
            if servers is not None and number % 2:
                leader = topics.leader(topic, number % PARTITIONS)
                servers.kill(leader)
                time.sleep(2 * PAUSE_SECONDS)
                servers.start(leader)
                servers.wait_serving(leader)
        wait_until_done(bootstrap, group, RECORDS // rounds * rounds)
    finally:
        for worker in workers:
            worker.stop()
    history = read_history(tmp_path)
    count = RECORDS // rounds * rounds
    print(
        f"{count} records, {history.redeliveries} redeliveries, {len(history.accepted)}"
        f" acknowledgements seen, failed ones {dict(history.failures)},"
        f" of these given out again {dict(history.given_again)}"
    )
    assert history.problems(limit=LIMIT) == []
    expected = {(number % PARTITIONS, number // PARTITIONS) for number in range(count)}
    assert history.delivered.keys() == expected
    unseen = expected - history.accepted.keys()
    at_killed = set()
    for worker in killed:
        for path in worker.log.parent.glob(f"{worker.log.name}-*"):
            folder = tmp_path / f"only-{path.name}"
            folder.mkdir()
            (folder / path.name).write_bytes(path.read_bytes())
            at_killed |= read_history(folder).delivered.keys()
    # Their answer was on its way when the process or the leader died.
    failed = unseen & history.failed.keys()
    print(
        f"{len(unseen)} acknowledged without that being seen, {len(unseen - at_killed)} of them not"
        f" by who was killed; {len(failed)} whose member was told that it failed"
    )
    assert unseen <= at_killed | failed


def test_records_are_released_and_rejected(bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    """Released ones are delivered again, rejected ones are not."""
    topic = topics.create("sorted", partitions=PARTITIONS)
    group = topics.unused_name("sorters")
    configure(bootstrap, group, auto_offset_reset="earliest", delivery_count_limit=str(LIMIT))
    count = 400
    produce(bootstrap, topic, count)
    worker = ShareWorker(
        bootstrap,
        group,
        topic,
        tmp_path / "worker",
        consumers=1,
        releases_percent=20,
        rejects_percent=20,
    )
    try:
        wait_until_done(bootstrap, group, count)
    finally:
        worker.stop()
    history = read_history(tmp_path)
    assert history.problems(limit=LIMIT) == []
    assert not history.failures
    assert history.redeliveries > 0
    assert len(history.rejected) > 0
    assert not history.rejected.keys() & history.accepted.keys()
    done = history.accepted + history.rejected
    assert done == Counter(dict.fromkeys(history.delivered, 1))
    assert len(done) == count
