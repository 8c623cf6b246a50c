"""Reads the records of partitions up to their ends, alone or as a member of a group.

An end is reached when a record at or behind it arrives, or when the client reports that it has read
the partition to an offset at or behind the end: the last offsets may be markers of transactions or
compacted, and are never seen.

Memory is bounded by the client's queue (QUEUE_KIB) and one record.

Does not depend on what is done with the records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception
from vdl.commands.interrupts import Interrupts
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
SPARE_SECONDS = 3.0
"""Time without an assignment after which a member asks whether the group has one for it."""
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
    before offsets are committed and before it waits for records; after an interrupt
    `flush_at_once`, which does not wait and returns False if something is left. `is_stopped` is
    asked while no record arrives.

    Invariant: an offset is committed only if a flush that came after its record was complete.
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
        is_left_out: Callable[[Consumer], bool] = lambda _: False,
        flush_at_once: Callable[[], bool] = lambda: True,
        interrupts: Interrupts | None = None,
    ) -> None:
        """Create a reader. `stall_seconds`: time without any progress after which it fails.
        `is_left_out`: True if the group has no partition for a member."""
        self._cluster = cluster
        self._consumer = consumer
        self._received = received
        self._flush = flush
        self._is_stopped = is_stopped
        self._stall_seconds = stall_seconds
        self._is_left_out = is_left_out
        self._ranges: dict[Place, PartitionRange] = {}
        self._flush_at_once = flush_at_once
        self._interrupts = interrupts or Interrupts()
        self._is_assigned = False
        self._has_joined = False
        """True once the group has given partitions to this member."""
        self._assigned: set[Place] = set()
        """Partitions that the group has given to this member."""
        self._ends: dict[Place, int] = {}
        """End of each partition, as it was when the group gave it first."""
        self._follows = False
        self._received_to: dict[Place, int] = {}
        """Next offsets of records that were received, and may not be flushed yet, by place."""
        self._commits: dict[Place, int] = {}
        """Next offsets of records that are flushed and not yet committed, by place."""
        self._is_member = False
        self._progress_at = time.monotonic()
        self._committed_at = time.monotonic()
        self._asked_at = time.monotonic()

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

        # An interrupt in a callback would be lost in the client, so it is held until poll returns.
        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            with self._interrupts.held():
                self._take_over(partitions, committed=committed)

        def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            with self._interrupts.held():
                try:
                    self._commit()
                except KeyboardInterrupt:
                    self._interrupts.postpone()
                finally:
                    self._forget(partitions)

        def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            del consumer
            with self._interrupts.held():
                self._forget(partitions)

        self._consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)
        self._run()

    def _take_over(self, partitions: list[TopicPartition], *, committed: bool) -> None:
        """Read partitions that the group gives to this member, maybe again."""
        places = [(one.topic, one.partition) for one in partitions]
        if not self._follows:
            new = [place for place in places if place not in self._ends]
            self._ends |= ends(self._cluster, new, committed=committed)
        for place in places:
            self._ranges[place] = PartitionRange(*place, 0, self._ends.get(place), 0, 0)
        self._assigned.update(places)
        self._is_assigned = self._has_joined = True
        self._progress_at = time.monotonic()

    def _forget(self, partitions: list[TopicPartition]) -> None:
        """Read partitions no longer, because the group takes them."""
        from confluent_kafka import TopicPartition

        places = [(one.topic, one.partition) for one in partitions]
        # The client keeps a pause for the next time that it has the partition.
        paused = self._assigned.intersection(places).difference(self._ranges)
        if paused:
            with contextlib.suppress(kafka_exception()):
                self._consumer.resume([TopicPartition(*place) for place in paused])
        for place in places:
            for found in (self._ranges, self._received_to, self._commits):
                found.pop(place, None)
        self._assigned.difference_update(places)
        # In most rebalances every member loses all, and then waits for what it is given.
        self._is_assigned = bool(self._assigned)

    # --- the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                self._read_all()
            except (click.ClickException, kafka_exception()):
                self._flush_all()  # an error of one partition
                raise
            self._flush_all()
        except OSError:
            self._drop()
            raise
        except KeyboardInterrupt:
            self._settle()
            raise
        finally:
            self._commit_flushed()

    def _read_all(self) -> None:
        while not self._is_complete():
            messages = self._take()
            self._interrupts.check()
            for message in messages:
                if not self._accept(message):
                    return
            self._flush_all()
            if messages:
                self._progress_at = time.monotonic()
                self._commit_if_due()
            elif self._is_stopped():
                return
            else:
                self._check_progress()

    def _flush_all(self) -> None:
        """Flush what was received. Raises OSError, KeyboardInterrupt."""
        self._flush()
        self._note_flushed()

    def _note_flushed(self) -> None:
        self._commits |= self._received_to
        self._received_to.clear()

    def _settle(self) -> None:
        """After an interrupt: write what there is room for. If that is not all, what was received
        since the last flush is not committed."""
        try:
            if self._flush_at_once():
                self._note_flushed()
        except OSError:
            pass  # nothing more can be written; the interrupt is what the caller learns of
        finally:
            self._received_to.clear()

    def _drop(self) -> None:
        """Commit nothing more: what was received did not reach the output."""
        self._commits.clear()
        self._received_to.clear()

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
        self._cluster.outage.end()
        record = received(message)
        is_behind = one.end is not None and record.offset >= one.end
        if is_behind or (one.stop_ms is not None and record.timestamp_ms >= one.stop_ms):
            self._end(one)
            return True
        goes_on = self._received(record)
        if self._is_member:
            self._received_to[place] = record.offset + 1
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
        if self._is_member and not self._has_joined:
            self._look_for_assignment()
        # A member without partitions gets some when another one leaves.
        is_spare = self._has_joined and not self._is_assigned
        if self._follows or is_spare or waited < self._stall_seconds:
            return
        places = ", ".join(f"{topic}[{number}]" for topic, number in sorted(self._ranges)[:3])
        fail(f"nothing arrived for {waited:.0f} s; still to be read: {places or 'an assignment'}")

    def _look_for_assignment(self) -> None:
        """Note that the group has no partition for this member. In the protocol of KIP-848 the
        client calls nothing for an empty assignment."""
        if time.monotonic() - self._asked_at < SPARE_SECONDS:
            return
        self._asked_at = time.monotonic()
        if self._is_left_out(self._consumer):
            self._is_assigned = self._has_joined = True

    # --- offsets of a group -------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        """Flush what was received, and commit it. Raises click.ClickException, OSError,
        KeyboardInterrupt."""
        if self._received_to:
            self._flush_all()
        self._commit_flushed()

    def _commit_flushed(self) -> None:
        """Commit what was flushed. Raises click.ClickException."""
        from confluent_kafka import TopicPartition

        self._committed_at = time.monotonic()
        if not self._commits:
            return
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
