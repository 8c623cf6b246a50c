"""When idle producers of partitions are forgotten: `producer.id.expiration.ms`.

A producer that went away for good is remembered until it has been idle for that long. Time only
proposes: the leader decides, and the decision is an entry in the partition's log, so all replicas
forget the same producers at the same place.

No wall clock takes part. Each replica marks, on its own monotonic clock, up to which entry it has
applied batches. What it had applied an expiration time ago was written before then, whoever led.
So a clock that is set, or a majority of clocks that are, expire nothing. A monotonic clock may only
be slow (it stands while the machine sleeps), which keeps producers for longer.

Where a partition has many, those that were idle longest are forgotten after `RETRIED_NS` already.
Java's client and librdkafka give up a batch before that, by their own defaults, and do not send it
again to a partition that has forgotten it. So how many producers come and go does not matter.
What is many depends on how many partitions a server has: all of them are stored, and kept in
memory, so together they are bounded (`KEPT_TOGETHER`).

Marks are in memory only: a server that starts reckons anew, so producers go late rather than early.
Marks are apart by a part of the expiration time, which is what a producer may be kept for longer,
besides `producer.id.expiration.check.interval.ms`.

Must not know: sequence numbers, what a command does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from ids import NO_INDEX, GroupId, Index, ServerId
from rpc.hello import Hello
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.spoken_version import members_speak
from vdl.logstream.options import HostOptions
from vdl.state.producers import PRODUCERS_KEPT, Producers

PARTS = 24
"""Marks are this part of the expiration time apart: an hour of a day."""

RETRIED_NS = 600_000 * MS
"""After which a batch is hardly sent again: twice the default of librdkafka's `message.timeout.ms`,
five times that of `delivery.timeout.ms` of Java's client."""

KEPT_TOGETHER = 1 << 20
"""Producers that the partitions of a server remember for as long as `producer.id.expiration.ms`
says: some 400 MB of applied state, and a gigabyte of memory."""

KEPT_MIN = 64
"""Of one partition, however many there are."""

LOOK_S = 60
"""How often a partition is looked at, at least: many producers may come in that time."""

VERSION_MIN = 4
"""Protocol version of servers that can apply the command."""


class ProducerMarks:
    """Up to which entry batches were applied on one replica, and when."""

    __slots__ = ("_expiration_ns", "_marks")

    def __init__(self, expiration_ns: int) -> None:
        self._expiration_ns = expiration_ns
        self._marks: deque[tuple[Index, int]] = deque()
        """(index, monotonic ns), oldest first. Invariant: both rise; at most `PARTS` + 2."""

    def note(self, index: Index | None, now_ns: int) -> None:
        """Batches in entries up to `index` are applied; None: there are none."""
        marks = self._marks
        if index is None:
            marks.clear()
            return
        if marks:
            last_index, last_ns = marks[-1]
            if index <= last_index or now_ns - last_ns < self._expiration_ns // PARTS:
                return
        marks.append((index, now_ns))

    def idle_index(self, now_ns: int) -> Index:
        """The largest index marked so long ago that a producer without a batch behind it has been
        idle for the expiration time; 0 if there is none. No older mark is needed any more."""
        marks = self._marks
        before_ns = now_ns - self._expiration_ns
        while len(marks) > 1 and marks[1][1] <= before_ns:
            marks.popleft()
        assert len(marks) <= PARTS + 2, len(marks)
        return marks[0][0] if marks and marks[0][1] <= before_ns else NO_INDEX


class IdleProducers:
    """Which producers of one replica of a partition were idle for long enough."""

    __slots__ = ("_long", "_short")

    def __init__(self, expiration_ns: int) -> None:
        self._long = ProducerMarks(expiration_ns)
        self._short = ProducerMarks(min(expiration_ns, RETRIED_NS))

    def note(self, producers: Producers, now_ns: int) -> None:
        """What of them is applied now. Use: on every replica."""
        self._long.note(producers.newest_index, now_ns)
        self._short.note(producers.newest_index, now_ns)

    def index(self, producers: Producers, now_ns: int, *, kept: int) -> Index:
        """Those without a batch behind this entry may be forgotten; 0: none. More than `kept` are
        many."""
        long_idle, short_idle = self._long.idle_index(now_ns), self._short.idle_index(now_ns)
        return max(long_idle, min(short_idle, producers.excess_index(kept)))


class PartitionReplica(Protocol):
    """What is asked of a log stream."""

    group: Group

    def expire_producers(self, now_ns: int, *, kept: int, may_append: bool) -> None:
        """See `LogStream.expire_producers`."""


def kept_of_each(partitions: int) -> int:
    """How many producers each of so many partitions keeps."""
    return max(KEPT_MIN, min(PRODUCERS_KEPT, KEPT_TOGETHER // max(partitions, 1)))


class ProducerExpiry:
    """Looks at all partitions of one server. `alive`: the servers linked now, by id."""

    def __init__(
        self,
        streams: Mapping[GroupId, PartitionReplica],
        *,
        alive: Mapping[ServerId, Hello],
        server_id: ServerId,
        options: HostOptions,
    ) -> None:
        self._streams = streams
        self._alive = alive
        self._server_id = server_id
        self._rounds = max(1, min(LOOK_S, options.producer_expiration_check_ms // 1_000))
        """So many looks see every partition once: to see thousands at once would stop the loop."""
        self._round = 0

    def look(self, now_ns: int) -> None:
        """Look at one part of the partitions. Use: once a second."""
        self._round += 1
        kept = kept_of_each(len(self._streams))
        for group_id, stream in self._streams.items():
            if (group_id + self._round) % self._rounds == 0:
                may_append = members_speak(VERSION_MIN, stream.group, self._alive, self._server_id)
                stream.expire_producers(now_ns, kept=kept, may_append=may_append)
