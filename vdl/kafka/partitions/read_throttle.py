"""Throttle of disk reads for consumers that are far behind, while producers are active.

A reader with gigabytes to catch up takes all the disk and CPU it is given. Its next megabyte is not
urgent; an acknowledgement is. So disk reads are throttled while records are produced to this
server, and only then.

At a constant rate a reader would never catch up with faster producers, and a machine with time for
both would stay idle. A read starts as soon as one of two rules allows it:

* Share: all readers together, in the order of their requests, get the capacity that producers
  leave, as `ReadPace` measures it. At least they get the floor, or twice the producers' rate to
  partitions that this server leads if that is more. (What it writes as a follower is read
  elsewhere.)
* Gain: each reader gets twice the producers' rate of its own partition, whatever others take. So
  several readers of one partition all catch up.

A single reader gets the faster of the two, not their sum. The part of its least rate that it could
not use, because its request came late or it had to pause, is made up for later, up to `BURST_NS` of
it. Capacity that producers left is not made up for: that would slow them down.

A read has at most `READ_BYTES_MAX`, so a larger request gets no larger share; and less if there are
more readers than could have a turn within `WAIT_NS_MAX`. No read waits longer than
that: with very many readers the throttle yields, and none starves.

Does not depend on requests or the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ids import GroupId
from vdl.kafka.partitions.ingest_rate import SLOT_NS, IngestRate
from vdl.kafka.partitions.read_pace import PAUSE_NS, ReadPace, own_time

_SECOND_NS = 1_000_000_000
AT_WORK_NS = _SECOND_NS
"""Longest time after a batch for which producers count as active."""
AT_WORK_GAPS = 4
"""Within that time they count as active for this many recent gaps between batches, or while a batch
waits for its acknowledgement: a producer of sixty batches a second that sent none for a tenth has
stopped."""
AT_WORK_NS_MIN = 100_000_000
WAIT_NS_MAX = _SECOND_NS
"""Longest wait of a read, however many there are: clients abandon slow requests."""
REQUEST_WAIT_NS_MAX = 5 * _SECOND_NS
"""Longest wait of all reads of one request together."""
READ_BYTES_MAX = 1 << 20
"""Most bytes of one read while producers are active: the default `max.partition.fetch.bytes` of
Kafka's consumers."""
READ_BYTES_MIN = 64 << 10
"""Reads are not made smaller than this because there are many readers."""
GAIN = 2
"""Multiple of its producers' rate that a reader is fed at least."""
BURST_NS = PAUSE_NS
"""Readers may make up for this much time at their least rate at once, above all after a pause."""
BACKGROUND_BYTES = 128 << 20
"""Bytes per second for background work, which no client waits for."""

Reader = tuple[int, int]
"""(connection, partition's group)"""


@dataclass(slots=True)
class Admission:
    """Permission for a read to start in `wait_ns`, of at most `bytes`."""

    reader: Reader
    wait_ns: int
    bytes: int
    shared_ns: int = 0
    """Time that it takes of the share; 0: none."""
    is_paced: bool = False


class ReadThrottle:
    """Read throttle of one server. Times are of the monotonic clock, in nanoseconds. `agreed_ns`:
    see `ReadPace`."""

    __slots__ = (
        "_by_group", "_came", "_floor", "_free_ns", "_gap_ns", "_ingest", "_last", "_swept_ns",
        "_tenth_end_ns", "pace", "produced_ns", "waiting",
    )  # fmt: skip

    def __init__(
        self, floor_bytes_per_second: int, agreed_ns: Callable[[int], int] = own_time
    ) -> None:
        self._floor = floor_bytes_per_second
        self.pace = ReadPace(agreed_ns)
        self._ingest = IngestRate()
        self._came: dict[int, int] = {}
        """Bytes by group that the rates do not include yet, so that a batch costs one call here."""
        self._tenth_end_ns = 0
        """End of the tenth of a second in which `_came` was counted."""
        self._by_group: dict[int, IngestRate] = {}
        """Rates of groups with recent producers; others are removed."""
        self._free_ns = 0
        """Time at which the share admits its next read: all before are then sent, at its rate."""
        self._last: dict[Reader, tuple[int, int]] = {}
        """Last read of each reader: the time at which it began, or should have begun by the gain
        rule, and its bytes. Swept."""
        self._swept_ns = 0
        self.produced_ns = -AT_WORK_NS
        """Time of a producer's last batch."""
        self._gap_ns = AT_WORK_NS
        """Recent gap between two batches, sampled once in each tenth of a second."""
        self.waiting = 0
        """Batches not acknowledged yet. Use: the caller of `produced` decrements it."""

    def produced(self, group_id: GroupId, count: int, now_ns: int) -> None:
        """Count `count` bytes that a producer wrote to a partition that this server leads."""
        if now_ns >= self._tenth_end_ns:
            self._gap_ns += (min(now_ns - self.produced_ns, AT_WORK_NS) - self._gap_ns) // 4
            self._count()
            self._tenth_end_ns = now_ns - now_ns % SLOT_NS + SLOT_NS
            self.pace.look(now_ns, self._least(now_ns), is_waited_for=self.waiting > 0)
        self.produced_ns = now_ns
        self.waiting += 1
        self._came[group_id] = self._came.get(group_id, 0) + count

    def _count(self) -> None:
        """Add the bytes of this tenth of a second to the rates."""
        at_ns = self._tenth_end_ns - 1
        for group_id, count in self._came.items():
            self._ingest.add(count, at_ns)
            rate = self._by_group.get(group_id)
            if rate is None:
                rate = self._by_group[group_id] = IngestRate()
            rate.add(count, at_ns)
        self._came.clear()
        if at_ns - self._swept_ns >= _SECOND_NS:
            self._sweep(at_ns)

    def _least(self, now_ns: int) -> int:
        """Return the bytes per second that all readers together get at least."""
        return max(self._floor, GAIN * self._ingest.per_second(now_ns))

    def _at_work(self, now_ns: int) -> bool:
        """Return True if producers are active."""
        silent_ns = now_ns - self.produced_ns
        if silent_ns >= AT_WORK_NS:
            return False
        return self.waiting > 0 or silent_ns < max(AT_WORK_NS_MIN, AT_WORK_GAPS * self._gap_ns)

    def ask(self, reader: Reader, bytes_max: int, now_ns: int) -> Admission:
        """Return when a read of `bytes_max` may begin. It counts as sent until `found` or
        `give_back`, one of which must be called; `begin` must be called before `found`."""
        if not self._at_work(now_ns):
            self._free_ns = now_ns
            return Admission(reader, 0, bytes_max)
        self._count()
        least = self._least(now_ns)
        rate = self.pace.look(now_ns, least, is_waited_for=self.waiting > 0)
        readers = max(1, len(self._last))
        turn_bytes = rate * WAIT_NS_MAX // (_SECOND_NS * readers)
        count = min(bytes_max, READ_BYTES_MAX, max(READ_BYTES_MIN, turn_bytes))
        earliest_ns = max(now_ns, self.pace.pause_end_ns)
        start_ns = shared_ns = max(self._free_ns, earliest_ns)
        ingest = self._by_group.get(reader[1])
        gain = GAIN * ingest.per_second(now_ns) if ingest is not None else 0
        due_ns, before = self._last.get(reader, (now_ns, 0))
        if gain:
            due_ns += _duration_ns(before, gain)
            start_ns = min(start_ns, max(earliest_ns, due_ns))
        start_ns = min(start_ns, now_ns + WAIT_NS_MAX)
        admission = Admission(reader, start_ns - now_ns, count, is_paced=True)
        if start_ns == shared_ns:
            admission.shared_ns = _duration_ns(count, rate)
            burst_ns = BURST_NS * least // rate
            self._free_ns = max(self._free_ns, start_ns - burst_ns) + admission.shared_ns
        # A read that the share admitted early counts, but not for long: producers may get faster.
        due_ns = min(max(due_ns, start_ns - BURST_NS), start_ns + BURST_NS)
        self._last[reader] = due_ns, count
        if start_ns > earliest_ns:
            self.pace.short(start_ns)
        return admission

    def background_rate(self, now_ns: int) -> int:
        """Return the bytes per second for background work: the least rate of a reader of all that
        is produced, `BACKGROUND_BYTES` at most."""
        if not self._at_work(now_ns):
            return BACKGROUND_BYTES
        self._count()
        return min(BACKGROUND_BYTES, self._least(now_ns))

    def begin(self, admission: Admission, now_ns: int) -> None:
        """Begin the admitted read; `found` ends it."""
        if admission.is_paced:
            self.pace.reading += 1
            self.pace.fed(now_ns)

    def found(self, admission: Admission, count: int, now_ns: int) -> None:
        """End a read that had begun and found `count` bytes: more than admitted if one batch is
        larger."""
        if not admission.is_paced:
            return
        self.pace.reading -= 1
        self._correct(admission, count)
        self.pace.fed(now_ns)

    def give_back(self, admission: Admission) -> None:
        """Withdraw an admitted read that will not begin."""
        self._correct(admission, 0)

    def _correct(self, admission: Admission, count: int) -> None:
        """Correct the size of an admitted read to `count` bytes."""
        if admission.shared_ns:
            used_ns = admission.shared_ns * count // max(1, admission.bytes)
            self._free_ns += used_ns - admission.shared_ns
        last = self._last.get(admission.reader)
        if last is not None:
            self._last[admission.reader] = last[0], count

    def _sweep(self, now_ns: int) -> None:
        """Remove inactive producers and readers. Use: once a second."""
        self._swept_ns = now_ns
        oldest_ns = now_ns - 2 * WAIT_NS_MAX
        self._last = {reader: last for reader, last in self._last.items() if last[0] > oldest_ns}
        self._by_group = {
            group: rate for group, rate in self._by_group.items() if rate.per_second(now_ns)
        }


def _duration_ns(count: int, bytes_per_second: int) -> int:
    return count * _SECOND_NS // bytes_per_second
