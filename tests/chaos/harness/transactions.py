"""Transactional producers that continue while servers die, and the checks of their results.

Each transaction writes one record, with the transaction's name, to every partition of a topic. Its
producer knows that it committed, that it aborted, or neither: then all of its records are there, or
none.

Does not depend on the faults of servers.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from enum import Enum

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.chaos.harness.load import QUIET

CALL_SECONDS = 30.0
ABORT_SHARE = 0.3
READ_SECONDS_MAX = 60.0


class Fate(Enum):
    """Outcome of a transaction as its producer knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Transactor:
    """One transactional id, used by successive producers in a thread of its own."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        number: int,
        *,
        pause_seconds: float = 0.0,
    ) -> None:
        self.name = f"transactor-{number}"
        self.fates: dict[str, Fate] = {}
        """Outcomes of the transactions that have ended."""
        self.commits: list[tuple[int, int]] = []
        """Committed transactions: monotonic times of the beginning and of the answer."""
        self.aborts: Counter[str] = Counter()
        """Errors after which the transaction was aborted, and begun again."""
        self.fatal: list[str] = []
        """Errors that ended a producer."""
        self._pause_seconds = pause_seconds
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._rng = random.Random(number)
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._count = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()

    def join(self) -> None:
        self._thread.join(3 * CALL_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _run(self) -> None:
        producer: Producer | None = None
        while not self._stops.is_set():
            try:
                producer = producer or self._begin()
                self._transact(producer)
                self._stops.wait(self._pause_seconds)
            except KafkaException as error:
                reason = error.args[0]
                if producer is not None and reason.txn_requires_abort():
                    self.aborts[reason.name()] += 1
                    try:
                        producer.abort_transaction(CALL_SECONDS)
                    except KafkaException:
                        producer = None
                elif producer is None or not reason.retriable():
                    if producer is not None:
                        self.fatal.append(f"{reason.name()}: {reason.str()}")
                    producer = None
                    time.sleep(0.1)

    def _begin(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": 20_000,
                **QUIET,
            }
        )
        producer.init_transactions(CALL_SECONDS)
        return producer

    def _transact(self, producer: Producer) -> None:
        self._count += 1
        name = f"{self.name}/{self._count}"
        began_ns = time.monotonic_ns()
        producer.begin_transaction()
        commits = self._rng.random() >= ABORT_SHARE
        # On any error before the commit is requested, the transaction never commits.
        self.fates[name] = Fate.ABORTED
        for partition in range(self._partitions):
            producer.produce(self._topic, name, partition=partition)
        producer.flush(CALL_SECONDS)
        if not commits:
            producer.abort_transaction(CALL_SECONDS)
            return
        self.fates[name] = Fate.UNKNOWN
        self._commit(producer, name)
        if self.fates[name] is Fate.COMMITTED:
            self.commits.append((began_ns, time.monotonic_ns()))

    def _commit(self, producer: Producer, name: str) -> None:
        for _ in range(5):
            try:
                producer.commit_transaction(CALL_SECONDS)
            except KafkaException as error:
                if error.args[0].retriable():
                    continue
                if error.args[0].txn_requires_abort():
                    self.fates[name] = Fate.ABORTED
                raise
            self.fates[name] = Fate.COMMITTED
            return


def read_committed(bootstrap: str, topic: str, partitions: int) -> dict[int, list[str]]:
    """Return the records of a read-committed consumer by partition, in order.

    They are everything stable, with no open transaction left.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    found: dict[int, list[str]] = defaultdict(list)
    try:
        places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        ends = {
            place.partition: consumer.get_watermark_offsets(place, timeout=CALL_SECONDS)[1]
            for place in places
        }
        consumer.assign(places)
        deadline = time.monotonic() + READ_SECONDS_MAX
        left = {partition for partition, end in ends.items() if end}
        while left:
            assert time.monotonic() < deadline, f"partitions {left} are not stable"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found[message.partition() or 0].append((message.value() or b"").decode())
            elif (message.offset() or 0) >= ends[message.partition() or 0]:
                left.discard(message.partition() or 0)
    finally:
        consumer.close()
    return found


def problems(fates: dict[str, Fate], found: dict[int, list[str]], partitions: int) -> list[str]:
    """Return the violations: aborted, lost or duplicate records, and partial transactions."""
    told: list[str] = []
    counts = [Counter(found[partition]) for partition in range(partitions)]
    for name, fate in fates.items():
        here = [count[name] for count in counts]
        if max(here) > 1:
            told.append(f"{name} ({fate.value}) is there twice: {here}")
        if fate is Fate.COMMITTED and min(here) < 1:
            told.append(f"{name} is committed and lost: {here}")
        if fate is Fate.ABORTED and max(here) > 0:
            told.append(f"{name} is aborted and there: {here}")
        if len(set(here)) > 1:
            told.append(f"{name} ({fate.value}) is torn: {here}")
    unknown = sorted({name for count in counts for name in count} - fates.keys())
    return told + [f"nobody wrote {name}" for name in unknown]
