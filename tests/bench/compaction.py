"""What compaction costs those who produce, and what it leaves.

A run is three new servers and one partition: so many records over so many keys, three of ten of
them deletions, at a fixed rate; halfway its leader is killed and started again. The topic of the
`compacted` run is compacted meanwhile, that of the `kept` one is not. Then it is read from the
beginning: the newest value of every key must be there. At the end the three copies are compared
byte by byte.

`read_records` is what a reader from the beginning gets, `disk_mb` what one copy takes, `rss_max_mb`
the most that one server ever held, and `settle_seconds` the time until the last compaction had
ended after the last record.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.systems import cpu_seconds
from tests.chaos.harness.cluster import leader
from tests.chaos.harness.copies import assert_equal, read_copies

TOPIC = "keyed"
VALUE_BYTES = 100
DELETED = 0.3
QUIET_SECONDS = 25.0
"""Longer than a leader waits between two looks at what is to be compacted."""
PATIENCE_SECONDS = 1_800.0
SAMPLED = 50
"""Of so many records the latency of one is kept."""
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
    parser.set_defaults(rounds=1)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    kept = {"segment.bytes": COMPACTED["segment.bytes"]}
    make = partial(run, records=options.records, keys=options.keys, rate=options.rate)
    yield Comparison(
        {"kept": partial(make, kept), "compacted": partial(make, COMPACTED)}, baseline="kept"
    )


def run(configs: dict[str, str], *, records: int, keys: int, rate: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        admin = AdminClient({"bootstrap.servers": servers.bootstrap, "log_level": 0})
        topic = NewTopic(TOPIC, num_partitions=1, replication_factor=3, config=configs)
        admin.create_topics([topic])[TOPIC].result(timeout=60)
        before = cpu_seconds(servers.pids())
        began = time.monotonic()

        def strike() -> None:
            killed = leader(servers.replica_set, TOPIC)
            servers.kill_one(killed)
            servers.start_one(killed)

        newest, latencies = produce(servers.bootstrap, records, keys, rate, strike)
        produced = time.monotonic()
        figures = percentiles("ack", latencies)
        if "cleanup.policy" in configs:
            figures["settle_seconds"] = settle(servers, produced)
        found, count = read(servers.bootstrap)
        wrong = [key for key, value in newest.items() if found.get(key) != value]
        assert not wrong, f"{len(wrong)} of {len(newest)} keys have another value: {wrong[:3]}"
        figures |= {
            "read_records": count,
            "produce_seconds": produced - began,
            "cpu_seconds": cpu_seconds(servers.pids()) - before,
            "rss_max_mb": max(map(rss_max_mb, servers.pids())),
        }
        time.sleep(SETTLE_SECONDS)
        servers.stop()
        stores = [servers.store(server_id) for server_id in servers.ids]
        assert_equal(read_copies(stores), replicas=3)
        return figures | {"disk_mb": disk_mb(stores[0])}
    finally:
        servers.down()


def produce(
    bootstrap: str, records: int, keys: int, rate: int, strike: Callable[[], None]
) -> tuple[dict[bytes, bytes], list[float]]:
    """The newest value of each key that was not deleted; how long acknowledgements took (ms), a
    sample. `strike` is called once, halfway."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
    )
    rng = random.Random(1)
    newest: dict[bytes, bytes] = {}
    latencies: list[float] = []

    def sampled(sent: float) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            latencies.append((time.monotonic() - sent) * 1_000)

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
        if n == records // 2:
            strike()
    assert not producer.flush(PATIENCE_SECONDS)
    return newest, latencies


def settle(servers: Servers, since: float) -> float:
    """Seconds until no segment was rewritten any more, counted from `since`."""
    known, changed = -1, time.monotonic()
    deadline = changed + PATIENCE_SECONDS
    while time.monotonic() - changed < QUIET_SECONDS:
        assert time.monotonic() < deadline, "it compacts for ever"
        found = sum(compactions(server.read_text(encoding="utf-8")) for server in logs(servers))
        if found != known:
            known, changed = found, time.monotonic()
        time.sleep(0.5)
    return changed - since


def logs(servers: Servers) -> list[Path]:
    return [servers.store(server_id).parent / "server.log" for server_id in servers.ids]


def compactions(text: str) -> int:
    """How often a server has said that it compacted a log."""
    return text.count("event=log_compacted")


def read(bootstrap: str) -> tuple[dict[bytes, bytes], int]:
    """(the newest value of each key, records) that a reader from the beginning gets."""
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
    """What the log of the topic takes of a server's disk."""
    return max(
        sum(file.stat().st_size for file in log.iterdir()) / 1e6
        for log in (store / "logs").iterdir()
    )
