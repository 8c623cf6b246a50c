"""Cost of compaction for producers, and its result.

A run is three new servers and one partition: `--records` over `--keys`, three of ten of them
deletions, at a fixed rate. After a third its leader is killed and restarted, after two thirds all
servers are killed at once (`kill -9`). The topic of the `compacted` run is compacted meanwhile,
that of the `kept` one is not. Then it is read from the beginning: the newest value of every key
must exist. At the end the three copies are compared byte by byte.

With PEER=NAME in the environment the same records also go to a compacted topic of the peer, where
no server is killed.

`ack` covers all acknowledgements, `calm` those of records sent without a kill in the seconds before
or after. `read_records` is the number of records for a reader from the beginning, `disk_mb` the
size of one copy, `rss_max_mb` the most that one server ever held, and `settle_seconds` the time
from the last record to the end of the last compaction.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.rounds import Comparison, Figures, Run, percentiles
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.systems import Peer, cpu_seconds, peer_from_environment
from tests.chaos.harness.cluster import leader
from tests.chaos.harness.copies import assert_equal, read_copies

TOPIC = "keyed"
VALUE_BYTES = 100
DELETED = 0.3
QUIET_SECONDS = 25.0
"""Longer than a leader waits between two checks for logs to compact."""
PATIENCE_SECONDS = 1_800.0
SAMPLED = 50
"""One record of this many has its latency recorded."""
AROUND_STRIKE_SECONDS = (2.0, 20.0)
"""Seconds before and after a kill that are not calm."""
RUNS = ("kept", "compacted", "peer")
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "1000",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second")
    parser.add_argument("--only", choices=RUNS, action="append", help="not all runs")
    parser.set_defaults(rounds=1)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    kept = {"segment.bytes": COMPACTED["segment.bytes"]}
    make = partial(run, records=options.records, keys=options.keys, rate=options.rate)
    runs: dict[str, Run] = {"kept": partial(make, kept), "compacted": partial(make, COMPACTED)}
    peer = peer_from_environment()
    if peer is not None:
        runs["peer"] = partial(
            run_peer, peer, records=options.records, keys=options.keys, rate=options.rate
        )
    runs = {name: one for name, one in runs.items() if name in (options.only or RUNS)}
    yield Comparison(runs, baseline="kept" if "kept" in runs else "")


def run(configs: dict[str, str], *, records: int, keys: int, rate: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        create(servers.bootstrap, configs)
        before = cpu_seconds(servers.pids())
        rss_mb = 0.0

        def kill_leader() -> None:
            killed = leader(servers.replica_set, TOPIC)
            servers.kill_one(killed)
            servers.start_one(killed)

        def kill_all() -> None:
            nonlocal before, rss_mb
            before -= cpu_seconds(servers.pids())
            rss_mb = max(map(rss_max_mb, servers.pids()))
            servers.kill()
            servers.start()

        strikes = {records // 3: kill_leader, 2 * records // 3: kill_all}
        began = time.monotonic()
        produced = produce(servers.bootstrap, records, keys, rate, strikes)
        ended = time.monotonic()
        figures = produced.figures()
        if "cleanup.policy" in configs:
            figures["settle_seconds"] = settle(partial(compactions, servers), ended)
        figures |= {
            "read_records": produced.check(servers.bootstrap),
            "produce_seconds": ended - began,
            "cpu_seconds": cpu_seconds(servers.pids()) - before,
            "rss_max_mb": max(rss_mb, *map(rss_max_mb, servers.pids())),
        }
        time.sleep(SETTLE_SECONDS)
        servers.stop()
        stores = [servers.store(server_id) for server_id in servers.ids]
        assert_equal(read_copies(stores), replicas=3)
        return figures | {"disk_mb": disk_mb(stores[0]), "segments": segments(stores[0])}
    finally:
        servers.down()


def run_peer(peer: Peer, *, records: int, keys: int, rate: int) -> Figures:
    peer.up()
    try:
        create(peer.bootstrap, COMPACTED)
        before = cpu_seconds(peer.pids())
        began = time.monotonic()
        produced = produce(peer.bootstrap, records, keys, rate, {})
        ended = time.monotonic()
        copy = next(peer.data_directories()[0].glob(f"{TOPIC}-0"))

        def changes() -> int:
            return sum(file.stat().st_size for file in copy.glob("*.log"))

        return produced.figures() | {
            "settle_seconds": settle(changes, ended),
            "read_records": produced.check(peer.bootstrap),
            "produce_seconds": ended - began,
            "cpu_seconds": cpu_seconds(peer.pids()) - before,
            "rss_max_mb": max(map(rss_max_mb, peer.pids())),
            "disk_mb": sum(file.stat().st_blocks * 512 for file in copy.iterdir()) / 1e6,
            "segments": len(list(copy.glob("*.log"))),
        }
    finally:
        peer.down()


def create(bootstrap: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, num_partitions=1, replication_factor=3, config=configs)
    admin.create_topics([topic])[TOPIC].result(timeout=60)


@dataclass(slots=True)
class Produced:
    """The records written, and the times of their acknowledgements."""

    newest: dict[bytes, bytes] = field(default_factory=dict)
    """Value of each key that was not deleted."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """A sample: (time of sending, ms)."""
    strikes: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        before, after = AROUND_STRIKE_SECONDS
        calm = [
            latency
            for sent, latency in self.latencies
            if not any(at - before < sent < at + after for at in self.strikes)
        ]
        return percentiles("ack", [latency for _, latency in self.latencies]) | percentiles(
            "calm", calm
        )

    def check(self, bootstrap: str) -> int:
        """Check the values that a reader from the beginning gets; return the number of records."""
        found, count = read(bootstrap)
        wrong = [key for key, value in self.newest.items() if found.get(key) != value]
        assert not wrong, f"{len(wrong)} of {len(self.newest)} keys have another value: {wrong[:3]}"
        revived = found.keys() - self.newest.keys()
        assert not revived, f"{len(revived)} keys were deleted: {sorted(revived)[:3]}"
        return count


def produce(
    bootstrap: str, records: int, keys: int, rate: int, strikes: dict[int, Callable[[], None]]
) -> Produced:
    """Write all records. `strikes`: actions on the servers, by the record after which they run."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    rng = random.Random(1)
    produced = Produced()
    newest, latencies = produced.newest, produced.latencies

    def sampled(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            latencies.append((sent, (time.monotonic() - sent) * 1_000))

        return delivered

    began = time.monotonic()
    for n in range(records):
        key = b"key-%d" % rng.randrange(keys)
        value = None if rng.random() < DELETED else (b"%d " % n).ljust(VALUE_BYTES, b".")
        if value is None:
            newest.pop(key, None)
        else:
            newest[key] = value
        now = time.monotonic()
        told = sampled(now) if n % SAMPLED == 0 else None
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
        if n % 100 == 0:
            producer.poll(max(0.0, began + n / rate - now))
        if n in strikes:
            produced.strikes.append(now)
            strikes[n]()
    assert not producer.flush(PATIENCE_SECONDS)
    return produced


def settle(changes: Callable[[], int], since: float) -> float:
    """Return the seconds from `since` until the value of `changes` last changed."""
    known, changed = -1, time.monotonic()
    deadline = changed + PATIENCE_SECONDS
    while time.monotonic() - changed < QUIET_SECONDS:
        assert time.monotonic() < deadline, "it compacts for ever"
        found = changes()
        if found != known:
            known, changed = found, time.monotonic()
        time.sleep(0.5)
    return changed - since


def compactions(servers: Servers) -> int:
    """Return the number of compactions in the servers' logs."""
    logs = [servers.store(server_id).parent / "server.log" for server_id in servers.ids]
    return sum(log.read_text(encoding="utf-8").count("event=log_compacted") for log in logs)


def read(bootstrap: str) -> tuple[dict[bytes, bytes], int]:
    """Read from the beginning; return (the newest value of each key, number of records)."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "log_level": 0}
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found: dict[bytes, bytes] = {}
    count, position = 0, -1
    while True:
        message = consumer.poll(60)
        assert message is not None, f"nothing behind offset {position}"
        error, offset = message.error(), message.offset()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found, count
        assert offset is not None, "a record without an offset"
        assert offset > position, "offsets go back"
        count, position = count + 1, offset
        key, value = message.key(), message.value()
        assert key is not None, f"no key at offset {position}"
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value


def rss_max_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the system does not say")


def disk_mb(store: Path) -> float:
    """Return the size of the topic's log on a server's disk, in MB."""
    return max(
        sum(file.stat().st_size for file in log.iterdir()) / 1e6
        for log in (store / "logs").iterdir()
    )


def segments(store: Path) -> int:
    """Return the number of segments of the topic's log."""
    return max(len(list(log.glob("*.log"))) for log in (store / "logs").iterdir())
