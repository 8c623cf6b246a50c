"""A consumer group of unmodified clients that reads, commits, and records deliveries."""

from __future__ import annotations

import threading
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaException

from tests.chaos.harness.load import QUIET, number_of

COMMIT_EVERY_RECORDS = 50


class Members:
    """Consumers of one group, each in a thread of its own, from `start` to `stop`."""

    def __init__(self, bootstrap: str, topic: str, group: str, count: int) -> None:
        self.seen: Counter[int] = Counter()
        """Number of deliveries of each value's number, to any member."""
        self.problems: list[str] = []
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(bootstrap, topic, group), daemon=True)
            for _ in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_seen(self, numbers: set[int], *, seconds_max: float) -> None:
        """Wait until each of `numbers` was delivered to some member."""
        deadline = time.monotonic() + seconds_max
        while missing := numbers - set(self.seen):
            assert time.monotonic() < deadline, f"{len(missing)} not delivered: {min(missing)}..."
            time.sleep(0.05)

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a member does not close"

    def _run(self, bootstrap: str, topic: str, group: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                **QUIET,
            }
        )
        consumer.subscribe([topic])
        uncommitted = 0
        try:
            while not self._ends.is_set():
                for message in consumer.consume(100, timeout=0.1):
                    # An error means that a server is away; the client continues by itself.
                    if message.error() is None:
                        number = number_of(message.value() or b"")
                        if number < 0:
                            self.problems.append(f"damaged record at {message.offset()}")
                        self.seen[number] += 1
                        uncommitted += 1
                if uncommitted >= COMMIT_EVERY_RECORDS:
                    uncommitted = 0
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            # The coordinator is away, or the group rebalances: the next commit covers this one.
            return
