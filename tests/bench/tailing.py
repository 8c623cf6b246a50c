"""Many consumers at the end of one partition, beside one producer, all in one selector loop.

Fifty client libraries would take more of the machine than the servers do; here a consumer is a
connection that always has a Fetch request waiting, with librdkafka's defaults (at least one byte,
for half a second). All batches have the same number of records, so a batch's first offset
identifies it and its time of sending, and its contents are not read.
"""

from __future__ import annotations

import os
import selectors
import statistics
import time
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct

from tests.bench.frames import Connection, frame, leaders
from tests.bench.load import RECORD_BYTES
from tests.bench.requests import ANSWER_SECONDS_MAX, check_produced, produce_frame
from tests.bench.rounds import Figures, percentiles
from tests.bench.systems import cpu_seconds
from tests.wire import codec_of
from vdl.kafka.wire import fetch
from vdl.records.batch import HEADER_BYTES, LENGTH_FROM, Record, build_batch

FETCH_KEY = 1
FETCH_VERSION = 12
"""The newest version that names topics instead of their ids."""
WAIT_MS_MAX = 500
PARTITION_BYTES_MAX = 1 << 20
BATCHES_PER_SECOND = 200
"""Rate of a producer with linger 5 ms."""
WARM_UP_SECONDS = 1.0

_OFFSET_AND_LENGTH = Struct(">qi")


@dataclass(slots=True)
class _Consumer:
    """One reader: its position, and the age of each batch at its arrival (ms)."""

    connection: Connection
    offset: int = 0
    taken: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Taken:
    """Measurements of one or more stretches."""

    times: list[list[float]]
    """For each consumer: milliseconds from a batch's sending to its arrival."""
    seconds: float = 0.0
    server_cpu: float = 0.0
    client_cpu: float = 0.0
    """CPU seconds."""

    def figures(self) -> Figures:
        """Return the figures over all consumers and for the slowest one."""
        return percentiles("", list(chain.from_iterable(self.times))) | {
            "worst_p99_ms": max(statistics.quantiles(one, n=100)[98] for one in self.times),
            "server_cpu_seconds_per_second": self.server_cpu / self.seconds,
            "client_cpu_seconds_per_second": self.client_cpu / self.seconds,
        }


class Tailing:
    """Consumers of a new topic's only partition. Use in a `with`."""

    def __init__(
        self, bootstrap: str, topic: str, *, consumers: int, bytes_per_second: int
    ) -> None:
        (address,) = leaders(bootstrap, topic)
        self._topic = topic
        self._batch_records = bytes_per_second // (BATCHES_PER_SECOND * RECORD_BYTES)
        records = [Record(value=os.urandom(RECORD_BYTES)) for _ in range(self._batch_records)]
        self._produce = produce_frame(topic, 0, memoryview(build_batch(records)))
        self._sent: list[float] = []
        """Time of sending of each batch, in the order of offsets."""
        self._producer = Connection(address)
        self._consumers = [_Consumer(Connection(address)) for _ in range(consumers)]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._producer.socket, selectors.EVENT_READ, None)
        for consumer in self._consumers:
            self._selector.register(consumer.connection.socket, selectors.EVENT_READ, consumer)

    def __enter__(self) -> Tailing:
        for consumer in self._consumers:
            self._fetch(consumer)
        return self

    def __exit__(self, *exc: object) -> None:
        self._selector.close()
        self._producer.close()
        for consumer in self._consumers:
            consumer.connection.close()

    def taken(self) -> Taken:
        """Return an empty measurement."""
        return Taken([[] for _ in self._consumers])

    def measure(self, pids: list[int], seconds: float, taken: Taken) -> None:
        """Add a stretch of `seconds` to `taken`. `pids` are the servers'."""
        self._run(WARM_UP_SECONDS)
        for consumer in self._consumers:
            consumer.taken.clear()
        used, own, began = cpu_seconds(pids), time.process_time(), time.monotonic()
        self._run(seconds)
        taken.seconds += time.monotonic() - began
        taken.server_cpu += cpu_seconds(pids) - used
        taken.client_cpu += time.process_time() - own
        for times, consumer in zip(taken.times, self._consumers, strict=True):
            times += consumer.taken

    def _run(self, seconds: float) -> None:
        """Send for `seconds`; return when every consumer has everything."""
        due = time.monotonic()
        end = due + seconds
        while due < end or self._is_behind():
            now = time.monotonic()
            while due < end and now >= due:
                self._sent.append(now)
                self._producer.send(self._produce)
                due += 1 / BATCHES_PER_SECOND
                now = time.monotonic()
            ready = self._selector.select(due - now if due < end else ANSWER_SECONDS_MAX)
            assert ready or due < end, "records did not come"
            for key, _ in ready:
                self._take(key.data)

    def _is_behind(self) -> bool:
        last = len(self._sent) * self._batch_records
        return any(consumer.offset < last for consumer in self._consumers)

    def _take(self, consumer: _Consumer | None) -> None:
        """Take in the data of one connection; None is the producer's."""
        if consumer is None:
            for answer in self._producer.answers():
                check_produced(answer)
            return
        for answer in consumer.connection.answers():
            self._read(consumer, answer)
            self._fetch(consumer)

    def _read(self, consumer: _Consumer, answer: bytes) -> None:
        now = time.monotonic()
        # After the correlation id and a flexible header's empty tags.
        found = codec_of(fetch).decode_response(memoryview(answer)[5:], FETCH_VERSION)
        partition = found.responses[0].partitions[0]
        assert partition.error_code == 0, f"a fetch was answered with error {partition.error_code}"
        records = memoryview(partition.records or b"")
        position = 0
        # A batch cut off at the end comes again, whole.
        while len(records) - position >= HEADER_BYTES:
            first, length = _OFFSET_AND_LENGTH.unpack_from(records, position)
            position += LENGTH_FROM + length
            if position > len(records):
                break
            consumer.taken.append((now - self._sent[first // self._batch_records]) * 1_000)
            consumer.offset = first + self._batch_records

    def _fetch(self, consumer: _Consumer) -> None:
        partition = fetch.FetchPartition(
            partition=0, fetch_offset=consumer.offset, partition_max_bytes=PARTITION_BYTES_MAX
        )
        request = fetch.FetchRequest(
            max_wait_ms=WAIT_MS_MAX,
            min_bytes=1,
            topics=[fetch.FetchTopic(topic=self._topic, partitions=[partition])],
        )
        consumer.connection.send(frame(FETCH_KEY, FETCH_VERSION, request))
