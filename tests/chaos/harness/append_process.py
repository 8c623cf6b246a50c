"""Process that appends to lists by transactions, or reads them, and records its operations.

A list is a partition. A transaction appends one to four values to lists, perhaps with a position of
a group, and commits or aborts. Each operation is a line of a history (`vdl/check/history.py`),
written in one call, so that a killed process leaves complete lines. A transaction that is to commit
has a line before the commit is requested, and another one once its outcome is known.

    append_process append BOOTSTRAP TOPIC PARTITIONS FILE NUMBER FIRST COUNT
    append_process read   BOOTSTRAP TOPIC PARTITIONS FILE NUMBER

NUMBER identifies the process and makes its values unique. COUNT producers have transactional ids
from FIRST on, which an earlier process may have used: then that one is fenced. The process ends
when its standard input ends, after completing what it began.

Does not depend on the faults of servers or of the process.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.chaos.harness.load import QUIET
from vdl.check.history import Mark, Op, Record, Send, encode

CALL_SECONDS = 20.0
TRANSACTION_MS = 10_000
ABORT_SHARE = 0.1
POSITION_SHARE = 0.05
SENDS_MAX = 4
LISTS = (1, 1, 1, 2, 2, 3)
"""Number of lists that a transaction appends to, drawn from these."""
COMMIT_TRIES = 5
READ_BACK_EVERY = 20
"""Number of transactions after which a producer fetches the position that it committed last."""
OPS_PER_PROCESS = 1_000_000_000
OPS_PER_THREAD = 2_000_000
"""Size of the range of operation numbers, which neither producers nor processes exceed."""
VALUES_PER_OP = 10
POLLS_PER_CONSUMER = 200
STEPS_BACK_MAX = 2_000
GROUP, PLACES = "places", "places"
"""Group that has positions, and its topic, with one partition for each producer."""
IMPATIENT = {"socket.timeout.ms": 3_000, **QUIET}
"""A paused server keeps its connections open."""


class Lines:
    """Output file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *ops: Op) -> None:
        os.write(self._file, b"".join(encode(op) + b"\n" for op in ops))


def now_ns() -> int:
    """Return the time of a clock common to all processes of the machine."""
    return time.monotonic_ns()


class Appender:
    """One transactional id, in a thread of its own."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, lines: Lines, number: int, thread: int
    ) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._lines = lines
        self.name = f"appender-{thread}"
        self._proc = f"{self.name}.{number}"
        self._place = thread
        self._first = number * OPS_PER_PROCESS + thread * OPS_PER_THREAD
        self._count = 0
        self._rng = random.Random(self._first)
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                **IMPATIENT,
            }
        )

    def run(self, ends: threading.Event) -> None:
        """Run until `ends` is set; a producer that cannot continue is replaced."""
        producer: Producer | None = None
        while not ends.is_set():
            try:
                producer = producer or self._begin()
                self._transact(producer)
                if self._count % READ_BACK_EVERY == 3:
                    self._read_position()
            except KafkaException as error:
                reason = error.args[0]
                if producer is not None and reason.txn_requires_abort():
                    try:
                        producer.abort_transaction(CALL_SECONDS)
                    except KafkaException:
                        producer = None
                else:
                    producer = None
                    ends.wait(0.1)
            except SystemError:
                # Raised by confluent-kafka for acknowledgements that it serves while it raises.
                producer = None
        self._reader.close()

    def _begin(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 0,
                **IMPATIENT,
            }
        )
        producer.init_transactions(CALL_SECONDS)
        return producer

    def _transact(self, producer: Producer) -> None:
        self._count += 1
        op = self._op("txn", 2 * self._count)
        at = self._op("commit", 2 * self._count + 1)
        at.group = GROUP
        if self._rng.random() < POSITION_SHARE:
            at.marks = [Mark(f"{PLACES}-{self._place}", at.i)]
        # On any error before the commit is requested, the transaction never commits.
        op.type = at.type = "fail"
        try:
            producer.begin_transaction()
            self._fill(producer, op, at)
            if self._rng.random() < ABORT_SHARE:
                producer.abort_transaction(CALL_SECONDS)
                return
            left = producer.flush(CALL_SECONDS)
            if left:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            op.type = at.type = "info"
            op.end = at.t0 = now_ns()
            self._write(op, at)
            self._commit(producer, op, at)
        finally:
            self._write(op, at)

    def _op(self, what: str, number: int) -> Op:
        began = now_ns()
        return Op(self._first + number, self._proc, what, "info", began, began)

    def _fill(self, producer: Producer, op: Op, at: Op) -> None:
        lists = self._rng.choices(range(self._partitions), k=self._rng.choice(LISTS))
        for number in range(self._rng.randint(len(lists), SENDS_MAX)):
            partition = self._rng.choice(lists)
            send = Send(f"{self._topic}-{partition}", None, op.i * VALUES_PER_OP + number)
            op.sends.append(send)
            producer.produce(
                self._topic,
                b"%d" % send.value,
                partition=partition,
                on_delivery=partial(_delivered, send),
            )
        for mark in at.marks:
            producer.send_offsets_to_transaction(
                [TopicPartition(PLACES, self._place, mark.offset)],
                self._reader.consumer_group_metadata(),
                CALL_SECONDS,
            )

    def _commit(self, producer: Producer, op: Op, at: Op) -> None:
        for _ in range(COMMIT_TRIES):
            try:
                producer.commit_transaction(CALL_SECONDS)
            except KafkaException as error:
                if error.args[0].retriable():
                    continue
                if error.args[0].txn_requires_abort():
                    op.type = at.type = "fail"
                raise
            op.type = at.type = "ok"
            return

    def _write(self, op: Op, at: Op) -> None:
        op.t1 = at.t1 = now_ns()
        self._lines.write(op, *([at] if at.marks else []))

    def _read_position(self) -> None:
        self._count += 1
        op = self._op("committed", 2 * self._count)
        op.group = GROUP
        (found,) = self._reader.committed(
            [TopicPartition(PLACES, self._place)], timeout=CALL_SECONDS
        )
        op.type, op.t1 = "ok", now_ns()
        op.marks = [Mark(f"{PLACES}-{self._place}", max(-1, found.offset))]
        self._lines.write(op)


def _delivered(send: Send, error: KafkaError | None, message: Any) -> None:
    if error is None:
        send.offset = message.offset()


class Reader:
    """Reader of the committed records of all lists, by successive consumers.

    Each goes back a little and continues from there.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, lines: Lines, number: int
    ) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._positions = dict.fromkeys(range(partitions), 0)
        self._lines = lines
        self._proc = f"reader.{number}"
        self._next = number * OPS_PER_PROCESS
        self._rng = random.Random(number)

    def run(self, ends: threading.Event) -> None:
        while not ends.is_set():
            self._consume(ends)

    def _op(self, what: str) -> Op:
        self._next += 1
        began = now_ns()
        return Op(self._next, self._proc, what, "ok", began, began)

    def _consume(self, ends: threading.Event) -> None:
        consumer = committed_consumer(self._bootstrap)
        for partition, offset in self._positions.items():
            back = self._rng.randrange(STEPS_BACK_MAX)
            self._positions[partition] = max(0, offset - back)
        op = self._op("seek")
        op.marks = [Mark(f"{self._topic}-{one}", at) for one, at in self._positions.items()]
        self._lines.write(op)
        consumer.assign([TopicPartition(self._topic, *at) for at in self._positions.items()])
        for _ in range(POLLS_PER_CONSUMER):
            if ends.is_set():
                break
            op = self._op("poll")
            op.iso = "rc"
            found = consumer.consume(1_000, timeout=0.2)
            op.t1 = now_ns()
            op.polls = polls(self._topic, found)
            for name, records in op.polls:
                self._positions[int(name.rpartition("-")[2])] = records[-1].offset + 1
            if op.polls:
                self._lines.write(op)
        consumer.close()


def committed_consumer(bootstrap: str, **settings: object) -> Consumer:
    """Return a new consumer.

    On an out-of-range offset it goes back to the beginning, which is detected.
    """
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **IMPATIENT,
            **settings,
        }
    )


def polls(topic: str, messages: list[Any]) -> list[tuple[str, list[Record]]]:
    """Return the received records by list, in the form used by an operation."""
    found: dict[str, list[Record]] = {}
    for message in messages:
        if message.error() is None:
            epoch = message.leader_epoch()
            found.setdefault(f"{topic}-{message.partition()}", []).append(
                Record(message.offset(), int(message.value()), -1 if epoch is None else epoch)
            )
    return list(found.items())


def main(arguments: list[str]) -> None:
    """Run the process; see the module."""
    role, bootstrap, topic, partitions, path, number, *rest = arguments
    lines = Lines(Path(path))
    ends = threading.Event()
    place = bootstrap, topic, int(partitions), lines, int(number)
    if role == "append":
        first, count = map(int, rest)
        assert (first + count) * OPS_PER_THREAD <= OPS_PER_PROCESS, rest
        workers = [Appender(*place, first + one).run for one in range(count)]
    else:
        workers = [Reader(*place).run]
    threads = [threading.Thread(target=worker, args=(ends,)) for worker in workers]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ends.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
