"""A consumer group of unmodified clients that reads, commits, and records deliveries."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.harness.load import QUIET, number_of

COMMIT_SECONDS = 0.5
CALL_SECONDS = 20.0
CLASSIC: Mapping[str, object] = {"session.timeout.ms": 10_000}
MODERN: Mapping[str, object] = {"group.protocol": "consumer"}
"""KIP-848."""
DAMAGED = -1


def by_number(value: bytes, partition: int) -> Hashable:
    """Identify a value of a `Load`."""
    del partition
    return number_of(value)


def committed(bootstrap: str, group: str, topic: str, partitions: int = 1) -> list[int]:
    """Return the group's committed offsets, queried by a client that is no member."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUIET})
    try:
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        return [place.offset for place in consumer.committed(places, timeout=CALL_SECONDS)]
    finally:
        consumer.close()


class Members:
    """Consumers of one group, each in a thread of its own, from `start` to `stop`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        count: int,
        *,
        settings: Mapping[str, object] = CLASSIC,
        identify: Callable[[bytes, int], Hashable] = by_number,
    ) -> None:
        """Create the members.

        `settings`: those of the clients, with the protocol. `identify`: returns what identifies a
        value and its partition; DAMAGED for a damaged one.
        """
        self.topic, self.group = topic, group
        self.seen: Counter[Hashable] = Counter()
        """Number of deliveries of each identified value, to any member."""
        self.problems: list[str] = []
        self.errors: Counter[str] = Counter()
        """Errors after which a client continued by itself."""
        self.delivered: dict[int, int] = {}
        """By partition: position after the last delivered record."""
        self.committed: dict[int, int] = {}
        """By partition: last acknowledged position."""
        self._identify = identify
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUIET,
            **settings,
        }
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wait_seen(self, wanted: set[Hashable], *, seconds_max: float) -> None:
        """Wait until each of `wanted` was delivered to some member."""
        deadline = time.monotonic() + seconds_max
        while missing := wanted - set(self.seen):
            assert time.monotonic() < deadline, (
                f"{len(missing)} not delivered: {next(iter(missing))}..."
            )
            time.sleep(0.05)

    def wait_committed(self, *, seconds_max: float) -> None:
        """Wait until the positions after all that was delivered are committed.

        A position may be further, after the end of a transaction, which is no record.
        """
        deadline = time.monotonic() + seconds_max
        while any(self.committed.get(at, -1) < end for at, end in dict(self.delivered).items()):
            late = f"committed at {self.committed}, delivered up to {self.delivered}"
            assert time.monotonic() < deadline, late
            time.sleep(0.05)

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a member does not close"

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        positions: dict[int, int] = {}

        def assigned(consumer: Consumer, places: list[TopicPartition]) -> None:
            for place in places:
                positions.pop(place.partition, None)
            self._check_positions(consumer, places)

        consumer.subscribe([self.topic], on_assign=assigned)
        is_committed, due = True, 0.0
        try:
            while not self._ends.is_set():
                for message in consumer.consume(100, timeout=0.1):
                    error = message.error()
                    if error is not None:
                        # A server is away; the client continues by itself.
                        self.errors[error.name()] += 1
                        continue
                    partition, offset = message.partition() or 0, message.offset() or 0
                    if offset < positions.get(partition, 0):
                        self.problems.append(f"{partition} went back to {offset}")
                    positions[partition] = offset + 1
                    self._deliver(message.value() or b"", partition, offset)
                    is_committed = False
                if not is_committed and time.monotonic() > due:
                    is_committed = self._commit(consumer)
                    due = time.monotonic() + COMMIT_SECONDS
        finally:
            consumer.close()

    def _deliver(self, value: bytes, partition: int, offset: int) -> None:
        identity = self._identify(value, partition)
        if identity == DAMAGED:
            self.problems.append(f"damaged record at {offset} of {partition}")
        with self._lock:
            self.seen[identity] += 1
            self.delivered[partition] = max(offset + 1, self.delivered.get(partition, 0))

    def _check_positions(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Check that committed positions of new partitions are not before acknowledged ones."""
        with self._lock:
            known = dict(self.committed)
        try:
            found = consumer.committed(places, timeout=CALL_SECONDS)
        except KafkaException:
            return  # the coordinator is away
        for place in found:
            last = known.get(place.partition)
            if place.error is None and last is not None and place.offset < last:
                text = f"{place.partition} was committed at {last}, is at {place.offset}"
                self.problems.append(text)

    def _commit(self, consumer: Consumer) -> bool:
        """Return False if the positions have to be committed again."""
        try:
            places = consumer.commit(asynchronous=False)
        except KafkaException as error:
            # The coordinator is away, or the group rebalances. Or all partitions went to others.
            return bool(error.args[0].code() == KafkaError._NO_OFFSET)
        with self._lock:
            for place in places:
                if place.error is None and place.offset >= 0:
                    self.committed[place.partition] = max(
                        place.offset, self.committed.get(place.partition, 0)
                    )
        return all(place.error is None for place in places)
