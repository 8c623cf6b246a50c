"""Changes into topics, exactly once: records and the binlog place are in one transaction.

The place is a record of the topic PREFIX.places. A new run fences the previous one by the
transactional id, then reads the last committed place, and continues after it. So a capture that was
killed at any moment, or was wrongly assumed dead, leaves each change once for readers of committed
records.

A new capture first reads the tables' current rows, and then the binlog from its place at that
moment. One that dies in between reads the tables again, and the binlog from the first of the two
places. Rows then go back to older values in the topic until the binlog has caught up, and no row
remains that was deleted meanwhile.

Does not depend on the command line.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from vdl.pipeline.client_secrets import resolved
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.mariadb.binlog import Boundary, MariaDb, Place, Row
from vdl.pipeline.mariadb.settings import Capture

ROWS_MAX = 5000
"""Limit on rows of one producer transaction."""
SECONDS_MAX = 0.2
"""A transaction open for longer ends at the next transaction boundary of MariaDB."""
MOVE_SECONDS = 5.0
"""Interval between writes of the place without changes of these tables."""
REQUEST_SECONDS = 30.0
TRANSACTION_MS = 60_000
ATTEMPTS = 20
"""Limit on consecutive attempts without a commit."""
WAIT_SECONDS = 0.5
RECORDS_BACK = 1000
"""Number of latest records of places that are searched first for the last place."""


@dataclass(slots=True)
class Totals:
    """Totals of a run."""

    rows: int = 0
    commits: int = 0
    restarts: int = 0


class Capturing:
    """One run of a capture. Use: `run`; `stop` from another thread or from a signal handler."""

    def __init__(self, settings: Capture) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self.totals = Totals()

    def stop(self) -> None:
        self._stopping.set()

    def run(self, *, once: bool = False) -> Totals:
        """Run until `stop`; with `once`, up to the current end of the binlog.

        Raises PipelineError.
        """
        make_topics(self._settings)
        failures = 0
        while not self._stopping.is_set():
            commits = self.totals.commits
            try:
                with closing(MariaDb(self._settings)) as source:
                    self._run(source, once=once)
                break
            except (KafkaException, pymysql.err.OperationalError) as error:
                told = error.args[0]
                is_fatal = isinstance(told, KafkaError) and told.fatal()
                failures = 1 if self.totals.commits > commits else failures + 1
                if is_fatal or failures >= ATTEMPTS:
                    raise PipelineError(f"{self._settings.name}: {error}") from error
                self.totals.restarts += 1
                self._stopping.wait(WAIT_SECONDS)
        return self.totals

    def _run(self, source: MariaDb, *, once: bool) -> None:
        writer = Writer(self._settings, self.totals)
        try:
            place = writer.fence()
            if place is None or not place.is_whole:
                place = self._snapshot(source, writer, place)
            if place is not None:
                self._follow(source, writer, place, once=once)
        finally:
            writer.abandon()

    def _snapshot(self, source: MariaDb, writer: Writer, before: Place | None) -> Place | None:
        """Read the tables; return the place to read the binlog from, or None if stopped."""
        first = before
        for one in source.snapshot():
            if self._stopping.is_set():
                return None
            if isinstance(one, Boundary):
                first = first or one.place
                writer.commit(first)
                continue
            writer.add(one)
            if writer.rows >= ROWS_MAX:
                assert first is not None, one
                writer.commit(first)
        assert first is not None
        whole = replace(first, is_whole=True)
        writer.commit(whole)
        return whole

    def _follow(self, source: MariaDb, writer: Writer, place: Place, *, once: bool) -> None:
        for one in source.follow(place, once=once):
            if self._stopping.is_set():
                return
            place = one.place
            if isinstance(one, Row):
                writer.add(one)
                is_due = writer.rows >= ROWS_MAX
            else:
                is_due = writer.is_due(place, is_idle=one.is_idle)
            if is_due:
                writer.commit(place)
        if writer.rows:
            writer.commit(place)


class Writer:
    """Producer side. A place is written together with the records before it, or not at all."""

    def __init__(self, settings: Capture, totals: Totals) -> None:
        self._settings = settings
        self._totals = totals
        self._client = {**resolved(settings.client), "bootstrap.servers": settings.bootstrap}
        self._producer = Producer(
            {
                "log_level": 2,
                **self._client,
                "transactional.id": f"vdl-capture-{settings.name}",
                "transaction.timeout.ms": TRANSACTION_MS,
                # As Java's producers, so that a key goes to the partition that they would choose.
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "compression.type": "lz4",
            }
        )
        self._last: Place | None = None
        self._began = 0.0
        self._committed_at = time.monotonic()
        self.rows = 0
        """Number of records in the open transaction; 0 if none is open."""

    def fence(self) -> Place | None:
        """Fence the previous run and end its transaction.

        Return its place, None for a new capture.
        """
        self._producer.init_transactions(REQUEST_SECONDS)
        self._last = last_place(self._client, self._settings.places)
        return self._last

    def is_due(self, place: Place, *, is_idle: bool) -> bool:
        """Return True if it is time to commit, between two transactions of MariaDB."""
        now = time.monotonic()
        if self.rows:
            return is_idle or now - self._began >= SECONDS_MAX
        return place != self._last and now - self._committed_at >= MOVE_SECONDS

    def add(self, row: Row) -> None:
        topic = self._settings.topic(row.database, row.table)
        if row.change.op == "t":
            self._produce(topic, None, row.change.value(row.source, row.ts_ms))
            return
        for part in row.change.in_parts(row.key):
            key = part.key(row.key)
            self._produce(topic, key, part.value(row.source, row.ts_ms))
            if part.op == "d" and self._settings.tombstones:
                self._produce(topic, key, None)

    def _produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        if not self.rows:
            self._producer.begin_transaction()
            self._began = time.monotonic()
        self.rows += 1
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                self._producer.produce(topic, value, key)
            except BufferError:
                # librdkafka's own queue bounds the records in flight.
                if time.monotonic() > deadline:
                    raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from None
                self._producer.poll(0.1)
                continue
            self._producer.poll(0)
            return

    def commit(self, place: Place) -> None:
        """Commit the transaction with the place.

        Raises KafkaException: the next run finds out if it was committed.
        """
        count = self.rows
        self._produce(self._settings.places, self._settings.name.encode(), place.to_json())
        for _ in range(ATTEMPTS):
            try:
                self._producer.commit_transaction(REQUEST_SECONDS)
                break
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        else:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self.rows, self._last, self._committed_at = 0, place, time.monotonic()
        self._totals.rows += count
        self._totals.commits += 1

    def abandon(self) -> None:
        """Abort the open transaction.

        The next run reads its changes again, and also ends it if that is not possible here.
        """
        if self.rows:
            self._producer.purge()
            try:
                self._producer.abort_transaction(WAIT_SECONDS)
            except KafkaException:
                pass
        self.rows = 0


def last_place(client: dict[str, Any], topic: str) -> Place | None:
    """Return the last committed place. Raises KafkaException, PipelineError."""
    settings = {
        "log_level": 2, **client, "group.id": "vdl-capture", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True,
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), REQUEST_SECONDS)
        back = RECORDS_BACK
        while True:
            start = max(low, high - back)
            places = deque(_records(consumer, TopicPartition(topic, 0, start)), maxlen=1)
            found = places.pop() if places else None
            if found is not None or start == low:
                break
            back *= 2
    try:
        return None if found is None else Place.from_json(found)
    except (ValueError, KeyError) as error:
        raise PipelineError(f"{topic}: is no topic of places: {error}") from error


def _records(consumer: Any, start: TopicPartition) -> Iterator[bytes]:
    consumer.assign([start])
    deadline = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(WAIT_SECONDS)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message.value()
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        elif not error.retriable():
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def make_topics(settings: Capture) -> None:
    """Create missing topics. Raises PipelineError."""
    client = {**resolved(settings.client), "bootstrap.servers": settings.bootstrap}
    admin = AdminClient({"log_level": 2, **client})
    wanted = [
        NewTopic(settings.topic(*table), num_partitions=settings.partitions)
        for table in settings.tables
    ]
    wanted.append(NewTopic(settings.places, 1, config={"cleanup.policy": "compact"}))
    for topic, made in admin.create_topics(wanted, request_timeout=REQUEST_SECONDS).items():
        try:
            made.result(REQUEST_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise PipelineError(f"{topic}: {error.args[0].str()}") from error
