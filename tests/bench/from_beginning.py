"""Read a partition from its first record to its last, cached and cold.

Cached: right after it was written; it is longer than any cache of a server, so it comes mostly from
the page cache. Cold: more data than such a cache holds has been written to another topic,
everything is on disk, and the system has dropped the pages of all servers' files with either. The
share that came from the disk is reported, too.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, TopicPartition

from tests.bench.end_to_end import reader
from tests.bench.load import RECORD_BYTES, send, throughput, throughput_producer
from tests.bench.page_cache import forget
from tests.bench.rounds import Figures
from tests.bench.systems import System, io_bytes
from tests.bench.topics import CALL_SECONDS_MAX, create_led_topic

CALL_RECORDS = 10_000
REST_SECONDS = 1.5
"""Pause without producers between the last record's acknowledgement and the first read."""
PUSHED_OUT_MB = 200.0
"""Half as much again as a server keeps in memory (`storage.cache_bytes`)."""


def from_beginning(system: System, topic: str, megabytes: float) -> Figures:
    """Return the rates of both reads, of a new topic with `megabytes`."""
    bootstrap = system.bootstrap
    began = time.time()
    _fill(bootstrap, topic, megabytes)
    cached = _measured(system, topic)
    _fill(bootstrap, f"{topic}_other", PUSHED_OUT_MB)
    # The system drops only pages that are on disk; Kafka leaves writing them to the system.
    os.sync()
    for directory in system.data_directories():
        forget(directory, changed_since=began)
    before = _from_disk(system)
    cold = _measured(system, topic)
    from_disk_mb = (_from_disk(system) - before) / 1e6
    figures = {f"cached_{name}": value for name, value in cached.items()}
    figures |= {f"cold_{name}": value for name, value in cold.items()}
    return figures | {"cold_from_disk_part": from_disk_mb / megabytes}


def _fill(bootstrap: str, topic: str, megabytes: float) -> None:
    create_led_topic(bootstrap, topic)
    send(throughput_producer(bootstrap), topic, 1, megabytes)


def _measured(system: System, topic: str) -> Figures:
    time.sleep(REST_SECONDS)
    consumer = reader(system.bootstrap)
    try:
        where = TopicPartition(topic, 0, 0)
        end: int = consumer.get_watermark_offsets(where, timeout=CALL_SECONDS_MAX)[1]
        megabytes = end * RECORD_BYTES / 1e6
        return throughput(system.pids(), megabytes, lambda: _read(consumer, where, end))
    finally:
        consumer.close()


def _read(consumer: Consumer, where: TopicPartition, count: int) -> None:
    consumer.assign([where])
    while count > 0:
        messages = consumer.consume(CALL_RECORDS, timeout=CALL_SECONDS_MAX)
        assert messages, f"{count} records did not come"
        assert messages[0].error() is None, messages[0].error()
        count -= len(messages)


def _from_disk(system: System) -> int:
    return sum(io_bytes(pid, "read_bytes") for pid in system.pids())
