"""Reads the records of partitions up to their ends, alone or as a member of a group.

An end is reached when a record at or behind it arrives, or when the client reports that it has read
the partition to an offset at or behind the end: the last offsets may be markers of transactions or
compacted, and are never seen.

Memory is bounded by the client's queue (QUEUE_KIB) and one record.

Does not depend on what is done with the records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.output import fail
from vdl.commands.records.partition_ranges import PartitionRange, Place, ends
from vdl.commands.records.record_json import Headers, Received

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

QUEUE_KIB = 32_768
"""Bytes that the client fetches ahead."""
TAKEN_MAX = 256
"""Records taken from the client's queue at a time."""
POLL_SECONDS = 0.25
COMMIT_SECONDS = 5.0
"""Longest time between two commits of a group's offsets while records arrive."""

PROPERTIES: dict[str, object] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "queued.max.messages.kbytes": QUEUE_KIB,
    "allow.auto.create.topics": False,
}


class RecordReader:
    """A consumer and the ranges that it still has to read.

    `received` is called with each record in a range and returns False to stop. `flush` is called
    before offsets are committed and before it waits for records. `is_stopped` is asked while no
    record arrives.
    """

    def __init__(
        self,
        cluster: Cluster,
        consumer: Consumer,
        *,
        received: Callable[[Received], bool],
        flush: Callable[[], None],
        is_stopped: Callable[[], bool],
        stall_seconds: float,
    ) -> None:
        """Create a reader. `stall_seconds`: time without any progress after which it fails."""
        self._cluster = cluster
        self._consumer = consumer
        self._received = received
        self._flush = flush
        self._is_stopped = is_stopped
        self._stall_seconds = stall_seconds
        self._ranges: dict[Place, PartitionRange] = {}
        self._is_assigned = False
        self._follows = False
        self._commits: dict[Place, int] = {}
        """Next offsets of records that are flushed and not yet committed, by place."""
        self._is_member = False
        self._progress_at = time.monotonic()
        self._committed_at = time.monotonic()

    # --- what is read -------------------------------------------------------------------------

    def read_ranges(self, ranges: Iterable[PartitionRange]) -> None:
        """Read ranges, without a group. Raises click.ClickException, OSError of the output."""
        from confluent_kafka import TopicPartition

        self._ranges = {one.place: one for one in ranges if not one.is_empty}
        self._is_assigned = True
        self._follows = any(one.end is None for one in self._ranges.values())
        if self._ranges:
            self._consumer.assign(
                [TopicPartition(*place, one.start) for place, one in self._ranges.items()]
            )
            self._run()

    def read_as_member(self, topics: list[str], *, follow: bool, committed: bool) -> None:
        """Read what the group gives to this member, from the group's offsets, and commit what was
        received. Raises click.ClickException, OSError of the output."""
        self._is_member = True
        self._follows = follow

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            places = [(one.topic, one.partition) for one in partitions]
            found = {} if follow else ends(self._cluster, places, committed=committed)
            for place in places:
                self._ranges[place] = PartitionRange(*place, 0, found.get(place), 0, 0)
            self._is_assigned = True

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            self._commit()
            self._forget(partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            self._forget(partitions)

        self._consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        self._run()

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._ranges.pop((one.topic, one.partition), None)
            self._commits.pop((one.topic, one.partition), None)

    # --- the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_complete():
                messages = self._take()
                for message in messages:
                    if not self._accept(message):
                        return
                self._flush()
                if messages:
                    self._progress_at = time.monotonic()
                    self._commit_if_due()
                elif self._is_stopped():
                    return
                else:
                    self._check_progress()
        except OSError:
            self._commits = {}  # what was received did not reach the output
            raise
        finally:
            # Also after an interrupt and after an error of one partition.
            self._flush()
            self._commit()

    def _is_complete(self) -> bool:
        return self._is_assigned and not self._ranges and not (self._is_member and self._follows)

    def _take(self) -> list[Message]:
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        # Without waiting: only what is in the queue already, whose size is bounded.
        return [first, *self._consumer.consume(TAKEN_MAX, 0)]

    def _accept(self, message: Message) -> bool:
        """Take one message. Return False if enough was received."""
        place = message.topic() or "", message.partition() or 0
        one = self._ranges.get(place)
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                if one is not None and one.end is not None and (message.offset() or 0) >= one.end:
                    self._end(one)
                return True
            if error.retriable() and not error.fatal():
                return True
            where = f"{place[0]}[{place[1]}]: " if place[0] else ""
            fail(f"{where}{error.name().lstrip('_')}: {error.str()}")
        if one is None:
            return True  # of a partition that was read to its end, or revoked
        record = received(message)
        is_behind = one.end is not None and record.offset >= one.end
        if is_behind or (one.stop_ms is not None and record.timestamp_ms >= one.stop_ms):
            self._end(one)
            return True
        goes_on = self._received(record)
        if self._is_member:
            self._commits[place] = record.offset + 1
        if one.end is not None and record.offset + 1 >= one.end:
            self._end(one)
        return goes_on

    def _end(self, one: PartitionRange) -> None:
        """Stop reading a partition."""
        from confluent_kafka import TopicPartition

        del self._ranges[one.place]
        self._consumer.pause([TopicPartition(*one.place)])

    def _check_progress(self) -> None:
        """Raise click.ClickException if records are missing and nothing arrives."""
        waited = time.monotonic() - self._progress_at
        if self._follows or waited < self._stall_seconds:
            return
        places = ", ".join(f"{topic}[{number}]" for topic, number in sorted(self._ranges)[:3])
        fail(f"nothing arrived for {waited:.0f} s; still to be read: {places or 'an assignment'}")

    # --- offsets of a group -------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        """Commit what was received and flushed. Raises click.ClickException, OSError."""
        from confluent_kafka import TopicPartition

        self._committed_at = time.monotonic()
        if not self._commits:
            return
        self._flush()
        offsets = [TopicPartition(*place, offset) for place, offset in self._commits.items()]
        self._commits = {}
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except kafka_exception() as error:
            fail(f"offsets were not committed: {self._cluster.words(error)}")


def received(message: Message) -> Received:
    """Return the fields of a message that is a record."""
    timestamp_type, timestamp_ms = message.timestamp()
    return Received(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp_type,
        timestamp_ms,
        _headers(message),
        message.key(),
        message.value(),
    )


def _headers(message: Message) -> Headers | None:
    """Return the headers; None if the client cannot: a name is no UTF-8. Kafka takes such names."""
    try:
        found: Headers = message.headers() or []  # type: ignore[assignment]  # pairs, as received
    except (SystemError, UnicodeDecodeError):
        return None
    return found
