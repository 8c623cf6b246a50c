"""Unique values produced at a steady rate by an unmodified librdkafka, and their outcomes.

Every value identifies itself (a number and bytes derived from it), so that a record read back
proves which one it is, and that it is complete. Times are of the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from vdl.check.anomalies import RETRIED
from vdl.check.history import Op, Record, Send
from vdl.check.report import find

RATE_PER_SECOND = 200
FLUSH_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 60.0
NS = 1_000_000_000
QUIET: dict[str, object] = {"log_level": 0, "error_cb": lambda error: None}
"""Client settings without logs: servers are expected to be away."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledged value: its offset, and the times of sending and answer."""

    number: int
    offset: int
    sent_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Configuration of the producer."""

    name: str
    settings: dict[str, object]
    is_idempotent: bool
    keeps_order: bool = True
    """True if values of a partition are stored in the order of sending, False if only those are
    that the client sent to a leader from whom it already had an answer in the same term."""


IDEMPOTENT = Variant("idempotent", {"enable.idempotence": True}, is_idempotent=True)
PLAIN = Variant("plain", {"max.in.flight": 1}, is_idempotent=False)
"""Without idempotence a retry may write twice, and order is kept by one request at a time only."""
ORDERED_IN_TERM = Variant("plain", {"max.in.flight": 1}, is_idempotent=False, keeps_order=False)
"""When a leader changes, the client sends to the new one before the former has answered. What that
one refuses is stored behind later values. See `tests/chaos/test_leader_change.py`."""


def value_of(number: int) -> bytes:
    """Return the value of a number: 100 to 199 bytes."""
    head = b"%d:" % number
    return head + bytes((number * 31 + i) % 256 for i in range(100 + number % 100 - len(head)))


def number_of(value: bytes) -> int:
    """Return the number of a value; -1 if it is not one of ours, or damaged."""
    digits, _, _ = value.partition(b":")
    number = int(digits) if digits.isdigit() else -1
    return number if number >= 0 and value_of(number) == value else -1


class Load:
    """A producer in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        variant: Variant,
        *,
        partitions: int = 1,
        rate_per_second: int = RATE_PER_SECOND,
        **settings: object,
    ) -> None:
        self.topic = topic
        self.variant = variant
        self.partitions = partitions
        """Value `number` is sent to partition `number % partitions`."""
        self._interval_ns = NS // rate_per_second
        self.acks: list[Ack] = []
        self.failures: dict[int, str] = {}
        self.sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                # A record is never dropped while the servers may come back.
                "message.timeout.ms": 120_000,
                **QUIET,
                **variant.settings,
                **settings,
            }
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; return when everything was answered."""
        self._ends.set()
        self._thread.join(FLUSH_SECONDS_MAX + 5)
        assert not self._thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        due_ns = time.monotonic_ns()
        while not self._ends.is_set():
            now_ns = time.monotonic_ns()
            while due_ns <= now_ns:
                self._send()
                due_ns += self._interval_ns
            self._producer.poll((due_ns - now_ns) / NS)
        self._producer.flush(FLUSH_SECONDS_MAX)

    def _send(self) -> None:
        number = self.sent
        self.sent += 1
        sent_ns = time.monotonic_ns()

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.failures[number] = str(error)
            else:
                self.acks.append(Ack(number, message.offset(), sent_ns, time.monotonic_ns()))

        # The delay of queued values is part of the gap, so none is refused.
        self._producer.produce(
            self.topic,
            value_of(number),
            partition=number % self.partitions,
            on_delivery=delivered,
        )

    def wait_acknowledged(self, more: int, *, seconds_max: float = 30.0) -> None:
        """Wait until `more` further values were acknowledged."""
        target = len(self.acks) + more
        deadline = time.monotonic() + seconds_max
        while len(self.acks) < target:
            assert time.monotonic() < deadline, f"no {more} acknowledgements in {seconds_max} s"
            time.sleep(0.01)

    def longest_gap_ms(self, start_ns: int, end_ns: int) -> float:
        """Return the longest time that overlaps [start, end) in which a partition was not written.

        Written means acknowledged.
        """
        return longest_gap_ms(self.acks, self.partitions, start_ns, end_ns)


def longest_gap_ms(acks: list[Ack], partitions: int, start_ns: int, end_ns: int) -> float:
    """Return the longest time without an acknowledgement that overlaps [start, end).

    A partition, or whatever has the numbers with one remainder, counts by itself.
    """
    gaps = []
    for partition in range(partitions):
        times = sorted(ack.returned_ns for ack in acks if ack.number % partitions == partition)
        gaps += [
            after - before
            for before, after in pairwise(times)
            if after >= start_ns and before < end_ns
        ]
    return max(gaps, default=0) / 1e6


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as read back."""

    offset: int
    value: bytes
    leader_epoch: int


def read_back(bootstrap: str, topic: str, partition: int = 0) -> list[Stored]:
    """Return everything in a partition, read by a new client."""
    deadline = time.monotonic() + READ_SECONDS_MAX
    end = end_offset(bootstrap, topic, partition, deadline)
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Stored] = []
        while not found or found[-1].offset < end - 1:
            assert time.monotonic() < deadline, f"{len(found)} of {end} records came"
            for message in consumer.consume(1_000, timeout=0.5):
                error = message.error()
                assert error is None or error.retriable(), error
                if error is None:
                    epoch = message.leader_epoch()
                    value = message.value() or b""
                    found.append(
                        Stored(message.offset() or 0, value, -1 if epoch is None else epoch)
                    )
        return found
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **QUIET,
        }
    )


def end_offset(bootstrap: str, topic: str, partition: int, deadline: float) -> int:
    """Return the high watermark of a partition, as soon as it has a leader.

    A new client is used for each query: librdkafka remembers that a partition had no leader and
    does not retry.
    """
    while True:
        consumer = _consumer(bootstrap)
        try:
            place = TopicPartition(topic, partition)
            end: int = consumer.get_watermark_offsets(place, timeout=2.0)[1]
        except KafkaException:
            assert time.monotonic() < deadline, f"{topic}-{partition} has no leader"
            time.sleep(0.1)
        else:
            return end
        finally:
            consumer.close()


def audit(acks: list[Ack], stored: list[Stored]) -> None:
    """Check that each of `acks` is there, identical, at its acknowledged offset.

    Used while a load runs: values in flight are not judged.
    """
    by_offset = {record.offset: record.value for record in stored}
    wrong = [ack for ack in acks if by_offset.get(ack.offset) != value_of(ack.number)]
    assert not wrong, f"{len(wrong)} acknowledged values lost or moved, first {wrong[0]}"


def assert_kept(load: Load, stored: list[Stored], partition: int = 0) -> None:
    """Check that every acknowledged value of a partition is stored, identical, at its offset.

    Nothing else is stored except sent values, the order is that of sending as far as the variant
    keeps it, and with idempotence no value occurs twice.
    """
    by_offset = {record.offset: record.value for record in stored}
    assert sorted(by_offset) == list(range(len(stored))), "offsets are not dense"
    acks = [ack for ack in load.acks if ack.number % load.partitions == partition]
    moved = [ack for ack in acks if by_offset.get(ack.offset) != value_of(ack.number)]
    present = {record.value for record in stored}
    lost = [ack for ack in moved if value_of(ack.number) not in present]
    assert not lost, f"{len(lost)} acknowledged values lost, first {lost[0]}"
    assert not moved, f"{len(moved)} values are not at their offset, first {moved[0]}"
    numbers = [number_of(record.value) for record in stored]
    assert min(numbers, default=0) >= 0, "a record is none of those sent"
    assert max(numbers, default=0) < load.sent, "a record was never sent"
    assert {number % load.partitions for number in numbers} <= {partition}, "partitions are mixed"
    firsts = list(dict.fromkeys(numbers))
    if load.variant.keeps_order:
        assert firsts == sorted(firsts), "the order of sending is not kept"
    for epoch, in_order in sent_in_term(acks, stored).items():
        assert in_order == sorted(in_order), f"the order is not kept in term {epoch}"
    if load.variant.is_idempotent:
        assert len(firsts) == len(numbers), "a value is there twice"
    anomalies = find(history(load, stored, partition))
    assert not anomalies, "\n".join(map(str, anomalies[:5]))


def sent_in_term(acks: list[Ack], stored: list[Stored]) -> dict[int, list[int]]:
    """Return the numbers of a partition by the term that they were sent and stored in.

    `acks`: those of the partition.

    They are in the order in which they are stored first. A value is known to be sent in a term if
    an answer of that term had come before.
    """
    epochs = {record.offset: record.leader_epoch for record in stored}
    sent_ns = {ack.number: ack.sent_ns for ack in acks}
    known_ns: dict[int, int] = {}
    for ack in acks:
        if (epoch := epochs.get(ack.offset)) is not None:
            known_ns[epoch] = min(ack.returned_ns, known_ns.get(epoch, ack.returned_ns))
    firsts: dict[int, int] = {}
    for record in stored:
        firsts.setdefault(number_of(record.value), record.leader_epoch)
    found: dict[int, list[int]] = {}
    for number, epoch in firsts.items():
        if epoch in known_ns and sent_ns.get(number, 0) > known_ns[epoch]:
            found.setdefault(epoch, []).append(number)
    return found


def history(load: Load, stored: list[Stored], partition: int = 0) -> list[Op]:
    """Return the client's operations and observations, for the checkers of `vdl check`."""
    key = f"{load.topic}-{partition}"
    pid = 1 if load.variant.is_idempotent else -1
    acked = {ack.number: ack for ack in load.acks}
    end_ns = time.monotonic_ns()
    ops = []
    for number in range(partition, load.sent, load.partitions):
        ack = acked.get(number)
        ops.append(
            Op(
                i=number,
                proc="producer",
                f="send",
                type="info" if ack is None else "ok",
                t0=0 if ack is None else ack.sent_ns,
                t1=end_ns if ack is None else ack.returned_ns,
                pid=pid,
                epoch=0 if load.variant.is_idempotent else -1,
                # librdkafka does not report which values it sent again.
                note=RETRIED,
                sends=[Send(key, None if ack is None else ack.offset, number)],
            )
        )
    ops.sort(key=lambda op: op.t1)
    records = [Record(row.offset, number_of(row.value), row.leader_epoch) for row in stored]
    final = Op(load.sent, "reader", "poll", "ok", end_ns, end_ns + 1, final=True)
    final.polls = [(key, records)]
    return [*ops, final]
