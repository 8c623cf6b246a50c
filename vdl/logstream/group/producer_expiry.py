"""Expiry of idle producers of partitions: `producer.id.expiration.ms`.

A producer is remembered until it has been idle for that long. Time only triggers a proposal: the
leader decides, and the decision is an entry in the partition's log, so all replicas forget the same
producers at the same place.

No wall clock takes part. Each replica notes on its own monotonic clock up to which entry it has
applied batches. Entries applied an expiration time ago were written before then, under any leader.
So clocks that are set, even a majority, expire nothing. A monotonic clock can only be slow (it
stops while the machine sleeps), which keeps producers for longer.

If a partition has many producers, those that were idle longest are forgotten after `RETRIED_NS`
already. Java's client and librdkafka drop a batch before that, by their own defaults, and do not
send it again to a partition that has forgotten it. So any number of producers may come and go. The
bound per partition depends on the number of partitions on the server: all producers are stored and
kept in memory, so their total is bounded (`KEPT_TOGETHER`).

Marks are in memory only: a server starts without any, so producers are forgotten late rather than
early. Marks are a fraction of the expiration time apart, and a producer may be kept longer by that
fraction and by `producer.id.expiration.check.interval.ms`.

Does not depend on sequence numbers, or on what a command does.
"""

from __future__ import annotations

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
"""Marks are this fraction of the expiration time apart: an hour of a day."""

RETRIED_NS = 600_000 * MS
"""Time after which a batch is hardly sent again: twice the default of librdkafka's
`message.timeout.ms`, five times that of `delivery.timeout.ms` of Java's client."""

KEPT_TOGETHER = 1 << 20
"""Producers that the partitions of a server remember for the full `producer.id.expiration.ms`: some
400 MB of applied state, and a gigabyte of memory."""

KEPT_MIN = 64
"""Minimum for one partition, with any number of partitions."""

LOOK_S = 60
"""Maximum interval between checks of a partition: many producers may come in that time."""

VERSION_MIN = 4
"""Protocol version of servers that can apply the command."""


class ProducerMarks:
    """Entries up to which batches were applied on one replica, with times."""

    __slots__ = ("_expiration_ns", "_marks")

    def __init__(self, expiration_ns: int) -> None:
        self._expiration_ns = expiration_ns
        self._marks: list[tuple[Index, int]] = []
        """(index, monotonic ns), oldest first. Invariant: both rise; at most `PARTS` + 2."""

    def note(self, index: Index | None, now_ns: int) -> None:
        """Note that batches in entries up to `index` are applied; None: there are none."""
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
        """Return the largest index that was marked an expiration time ago; 0 if there is none.

        A producer without a batch after it has been idle for that time. Drops older marks, which
        are not needed any more.
        """
        marks = self._marks
        before_ns = now_ns - self._expiration_ns
        while len(marks) > 1 and marks[1][1] <= before_ns:
            del marks[0]
        assert len(marks) <= PARTS + 2, len(marks)
        return marks[0][0] if marks and marks[0][1] <= before_ns else NO_INDEX


class IdleProducers:
    """Index below which producers of one replica of a partition count as idle."""

    __slots__ = ("_long", "_short")

    def __init__(self, expiration_ns: int) -> None:
        self._long = ProducerMarks(expiration_ns)
        self._short = ProducerMarks(min(expiration_ns, RETRIED_NS))

    def note(self, producers: Producers, now_ns: int) -> None:
        """Note which batches are applied now. Use: on every replica."""
        self._long.note(producers.newest_index, now_ns)
        self._short.note(producers.newest_index, now_ns)

    def index(self, producers: Producers, now_ns: int, *, kept: int) -> Index:
        """Return the entry such that producers without a batch after it may be forgotten; 0: none.

        The shorter time applies to those in excess of `kept`.
        """
        long_idle, short_idle = self._long.idle_index(now_ns), self._short.idle_index(now_ns)
        return max(long_idle, min(short_idle, producers.excess_index(kept)))


class PartitionReplica(Protocol):
    """The log stream of a partition, as used here."""

    group: Group

    def expire_producers(self, now_ns: int, *, kept: int, may_append: bool) -> None:
        """See `LogStream.expire_producers`."""


def kept_of_each(partitions: int) -> int:
    """Return how many producers each partition keeps, on a server with `partitions` of them."""
    return max(KEPT_MIN, min(PRODUCERS_KEPT, KEPT_TOGETHER // max(partitions, 1)))


class ProducerExpiry:
    """Expiry for all partitions of one server. `alive`: the servers linked now, by id."""

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
        """Number of checks that cover every partition once: checking thousands at once would block
        the loop."""
        self._round = 0

    def look(self, now_ns: int) -> None:
        """Check one part of the partitions. Use: once a second."""
        self._round += 1
        kept = kept_of_each(len(self._streams))
        for group_id, stream in self._streams.items():
            if (group_id + self._round) % self._rounds == 0:
                may_append = members_speak(VERSION_MIN, stream.group, self._alive, self._server_id)
                stream.expire_producers(now_ns, kept=kept, may_append=may_append)
