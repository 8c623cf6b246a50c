"""Many consumers behind, and many that are not: does each gain, and at what cost to others?

* `ten`: ten partitions with `--gigabytes` in all, and a producer that continues, round robin. Some
  seconds later a consumer of each starts at the first record. `seconds` is the time until each
  misses less than half a second of producing; `slowest_gain` the ratio of the slowest one's rate to
  the write rate of its partition.
* `tail`: fifty consumers wait at the end of a partition at a steady rate (tests/bench/tailing.py),
  without others (`alone`), and `beside` five that read partitions of the same server from their
  first record, repeatedly, while a producer writes to these as well. Both in turn, several times:
  the p99 of a single stretch of ten seconds varies by more than the effect of those five.

Consumers are bare connections, in one process and one selector loop: ten client libraries would
take more of the machine than the servers do. Each requests the next mebibyte of its partition when
it has the previous one, as librdkafka does at its defaults.

With PEER=NAME in the environment each round measures both systems (tests/bench/systems.py).
"""

from __future__ import annotations

import argparse
import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any

from tests.bench.beside_peer import comparison_of_rows, set_peer_defaults
from tests.bench.catch_up import NEAR_SECONDS, POLL_SECONDS, Producing
from tests.bench.client_process import ClientProcess
from tests.bench.frames import Connection, frame, leaders
from tests.bench.load import RECORD_BYTES, send, throughput_producer
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.systems import System, cpu_seconds
from tests.bench.tailing import (
    FETCH_KEY,
    FETCH_VERSION,
    PARTITION_BYTES_MAX,
    WAIT_MS_MAX,
    Tailing,
)
from tests.bench.topics import create_led_topic
from tests.wire import codec_of
from vdl.kafka.wire import fetch
from vdl.records.batch import HEADER_BYTES, LENGTH_FROM

TEN = 10
TAILING = 50
BEHIND = 5
SERVERS = 3
REST_SECONDS = 1.5

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_DELTA_AT = 23


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, default=5.0, help="that all of `ten` are behind")
    parser.add_argument("--rate", type=float, default=60.0, help="MB/s produced in `ten`")
    parser.add_argument("--megabytes", type=float, default=1_500.0, help="behind in `tail`")
    parser.add_argument("--beside-rate", type=float, default=20.0, help="MB/s produced in `tail`")
    parser.add_argument("--tail-rate", type=float, default=5.0, help="MB/s at whose end they wait")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each stretch of `tail`")
    parser.add_argument("--stretches", type=int, default=3, help="of each kind in `tail`, in turn")
    parser.add_argument("--alone-seconds", type=float, default=5.0, help="before `ten` begin")
    parser.add_argument("--seconds-max", type=float, default=120.0, help="for catching up")
    parser.add_argument("--only", nargs="+", choices=("ten", "tail"))
    set_peer_defaults(parser)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    yield comparison_of_rows({"ten": _ten, "tail": _tail}, options)


def _ten(system: System, options: argparse.Namespace) -> Figures:
    """Measure one consumer for each of ten partitions, all behind, beside their producer."""
    topic = "ten"
    create_led_topic(system.bootstrap, topic, TEN)
    send(throughput_producer(system.bootstrap), topic, TEN, options.gigabytes * 1_000)
    before = int(options.gigabytes * 1e9) // RECORD_BYTES
    time.sleep(REST_SECONDS)
    figures: Figures = {}
    with Producing(system.bootstrap, topic, options.rate, TEN) as producing:
        producing.wait_going()
        producing.clear()
        time.sleep(options.alone_seconds)
        figures |= percentiles("alone_ack", producing.taken())
        with behind_in(system.bootstrap, topic, range(TEN)) as behind:
            producing.clear()
            began, sent = time.monotonic(), producing.acknowledged
            used = cpu_seconds(system.pids())
            near = options.rate * 1e6 * NEAR_SECONDS / RECORD_BYTES / TEN
            met: dict[int, float] = {}
            """Records a second that each had read when it reached its partition's end."""
            while len(met) < TEN and time.monotonic() - began < options.seconds_max:
                time.sleep(POLL_SECONDS)
                end = (before + producing.acknowledged) / TEN - near
                for number, read in enumerate(behind.counts):
                    if read >= end:
                        met.setdefault(number, read / (time.monotonic() - began))
            elapsed = time.monotonic() - began
            written = (producing.acknowledged - sent) / elapsed
            is_caught_up = len(met) == TEN
            for number, read in enumerate(behind.counts):
                met.setdefault(number, read / elapsed)
            used = cpu_seconds(system.pids()) - used
        figures |= percentiles("beside_ack", producing.taken())
    return figures | {
        "is_caught_up": float(is_caught_up),
        "seconds": elapsed,
        "readers_mb_per_second": sum(met.values()) * RECORD_BYTES / 1e6,
        "slowest_gain": min(met.values()) / (written / TEN),
        "producer_mb_per_second": written * RECORD_BYTES / 1e6,
        "server_cores": used / elapsed,
    }


def _tail(system: System, options: argparse.Namespace) -> Figures:
    """Measure consumers at the end of a partition, without and with some that are far behind."""
    topic, far = "tail", "far"
    create_led_topic(system.bootstrap, topic)
    partitions = BEHIND * SERVERS
    create_led_topic(system.bootstrap, far, partitions)
    send(throughput_producer(system.bootstrap), far, partitions, options.megabytes)
    (where,) = leaders(system.bootstrap, topic)
    here = [n for n, at in enumerate(leaders(system.bootstrap, far)) if at == where][:BEHIND]
    assert len(here) == BEHIND, f"{where} leads {here} of {far}"
    time.sleep(REST_SECONDS)
    with (
        Producing(system.bootstrap, far, options.beside_rate, partitions) as producing,
        Tailing(
            system.bootstrap,
            topic,
            consumers=TAILING,
            bytes_per_second=int(options.tail_rate * 1e6),
        ) as tailing,
    ):
        producing.wait_going()
        alone, beside = tailing.taken(), tailing.taken()
        read, elapsed = [0] * BEHIND, 0.0
        for _ in range(options.stretches):
            tailing.measure(system.pids(), options.seconds, alone)
            with behind_in(system.bootstrap, far, here, again=True) as behind:
                began, before = time.monotonic(), behind.counts
                tailing.measure(system.pids(), options.seconds, beside)
                elapsed += time.monotonic() - began
                counts = zip(read, behind.counts, before, strict=True)
                read = [total + now - then for total, now, then in counts]
    figures = {
        f"{kind}_{name}": value
        for kind, taken in (("alone", alone), ("beside", beside))
        for name, value in taken.figures().items()
    }
    written = options.beside_rate * 1e6 / partitions
    return figures | {
        "behind_mb_per_second": sum(read) * RECORD_BYTES / 1e6 / elapsed,
        "slowest_gain": min(read) * RECORD_BYTES / elapsed / written,
    }


@contextmanager
def behind_in(
    bootstrap: str, topic: str, partitions: Sequence[int], *, again: bool = False
) -> Iterator[ClientProcess]:
    """Run consumers that read their partitions from the first record, in a process of their own.

    It counts the records that each has read, over all passes. `again`: a consumer that reaches the
    end starts again.
    """
    work = ClientProcess(
        _read_until, bootstrap, topic, list(partitions), again, counts=len(partitions)
    )
    with work as behind:
        behind.wait_counting()
        yield behind


@dataclass(slots=True)
class _Reader:
    """One such consumer."""

    connection: Connection
    topic: str
    partition: int
    offset: int = 0

    def ask(self) -> None:
        partition = fetch.FetchPartition(
            partition=self.partition,
            fetch_offset=self.offset,
            partition_max_bytes=PARTITION_BYTES_MAX,
        )
        request = fetch.FetchRequest(
            max_wait_ms=WAIT_MS_MAX,
            min_bytes=1,
            topics=[fetch.FetchTopic(topic=self.topic, partitions=[partition])],
        )
        self.connection.send(frame(FETCH_KEY, FETCH_VERSION, request))

    def take(self, answer: bytes, *, again: bool) -> int:
        """Take in an answer and request the next records. Return the number of records."""
        # After the correlation id and a flexible header's empty tags.
        found = codec_of(fetch).decode_response(memoryview(answer)[5:], FETCH_VERSION)
        partition = found.responses[0].partitions[0]
        assert partition.error_code == 0, f"a fetch was answered with error {partition.error_code}"
        assert not isinstance(partition.records, list), "decoded"
        records = memoryview(partition.records or b"")
        before, position = self.offset, 0
        # A batch cut off at the end comes again, whole.
        while len(records) - position >= HEADER_BYTES:
            first, length = _OFFSET_AND_LENGTH.unpack_from(records, position)
            if position + LENGTH_FROM + length > len(records):
                break
            self.offset = (
                first + _LAST_OFFSET_DELTA.unpack_from(records, position + _DELTA_AT)[0] + 1
            )
            position += LENGTH_FROM + length
        count = self.offset - before
        if again and self.offset >= partition.high_watermark:
            self.offset = 0
        self.ask()
        return count


def _read_until(
    bootstrap: str, topic: str, partitions: list[int], again: bool, read: Any, ends: Any
) -> None:
    """Run the consumers' process."""
    where = leaders(bootstrap, topic)
    selector = selectors.DefaultSelector()
    readers = [_Reader(Connection(where[number]), topic, number) for number in partitions]
    for number, reader in enumerate(readers):
        selector.register(reader.connection.socket, selectors.EVENT_READ, number)
        reader.ask()
    try:
        while not ends.is_set():
            for key, _ in selector.select(POLL_SECONDS):
                number = key.data
                for answer in readers[number].connection.answers():
                    read[number] += readers[number].take(answer, again=again)
    finally:
        selector.close()
        for reader in readers:
            reader.connection.close()
