"""Throttle of disk reads for consumers that are far behind, while producers are active.

A reader with gigabytes to catch up takes all the disk and CPU it is given. Its next megabyte is not
urgent; an acknowledgement is. So disk reads are throttled while records are produced here, and are
not otherwise.

A constant rate would leave a reader behind for ever when producers are faster. So the rate follows
the last second of what producers wrote to partitions that this server leads. (What it writes as a
follower is read elsewhere.) A read starts as soon as one of two rules allows it:

* Share: all readers together get the floor, or twice the producers' rate if that is more, in the
  order in which they ask. Up to `AMPLE_BYTES` a second they get six times the producers' rate:
  producers that write so much send large batches, and the floor protects the others.
* Gain: each reader gets twice the producers' rate of its own partition, whatever others take. So
  several readers of one partition all catch up.

A single reader gets the faster of the two, not their sum. A read has at most `READ_BYTES_MAX`, so a
larger request gets no larger share. No read waits longer than `WAIT_NS_MAX`: with very many readers
the throttle yields, and none starves.

Must not know: requests, the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdl.kafka.ingest_rate import SLOT_NS, IngestRate

_SECOND_NS = 1_000_000_000
AT_WORK_NS = _SECOND_NS
"""Producers count as active for this long after a batch."""
WAIT_NS_MAX = _SECOND_NS
"""The longest wait of a read, however many there are: clients abandon slow requests."""
REQUEST_WAIT_NS_MAX = 5 * _SECOND_NS
"""The longest wait of all reads of one request together."""
READ_BYTES_MAX = 1 << 20
"""Of one read while producers are active: what Kafka's consumers ask for of a partition."""
GAIN = 2
"""How many times as fast as its producers a reader is fed at least."""
AMPLE_GAIN = 6
AMPLE_BYTES = 128 << 20
"""A second: readers get `AMPLE_GAIN` times what producers write up to here, `GAIN` times beyond."""

Reader = tuple[int, int]
"""(connection, partition's group)"""


@dataclass(slots=True)
class Admission:
    """A read may start in `wait_ns`, of `bytes` at most."""

    reader: Reader
    wait_ns: int
    bytes: int
    shared_ns: int = 0
    """What it took of the share, as time; 0: nothing."""
    is_paced: bool = False


class ReadThrottle:
    """The pace of one server. Times are of the monotonic clock, in nanoseconds."""

    __slots__ = (
        "_by_group", "_came", "_floor", "_free_ns", "_ingest", "_last", "_swept_ns",
        "_tenth_end_ns", "produced_ns",
    )  # fmt: skip

    def __init__(self, floor_bytes_per_second: int) -> None:
        self._floor = floor_bytes_per_second
        self._ingest = IngestRate()
        self._came: dict[int, int] = {}
        """Bytes by group that the rates do not include yet: a batch costs one call here."""
        self._tenth_end_ns = 0
        """The end of the tenth of a second in which they came."""
        self._by_group: dict[int, IngestRate] = {}
        """Rates of groups with recent producers; others are removed."""
        self._free_ns = 0
        """When the share admits its next read: all before are then sent, at its rate."""
        self._last: dict[Reader, tuple[int, int]] = {}
        """When each reader's last read began, and of how many bytes; swept."""
        self._swept_ns = 0
        self.produced_ns = -AT_WORK_NS
        """When a producer's last batch came."""

    def produced(self, group_id: int, count: int, now_ns: int) -> None:
        """A producer wrote `count` bytes to a partition that this server leads."""
        self.produced_ns = now_ns
        if now_ns >= self._tenth_end_ns:
            self._count()
            self._tenth_end_ns = now_ns - now_ns % SLOT_NS + SLOT_NS
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
        self._sweep(at_ns)

    def ask(self, reader: Reader, bytes_max: int, now_ns: int) -> Admission:
        """When a read of `bytes_max` may begin. It counts as sent until `found` or `give_back`."""
        if now_ns - self.produced_ns >= AT_WORK_NS:
            self._free_ns = min(self._free_ns, now_ns)
            return Admission(reader, 0, bytes_max)
        self._count()
        count = min(bytes_max, READ_BYTES_MAX)
        pace = self._share(now_ns)
        rate = self._by_group.get(reader[1])
        gain = GAIN * rate.per_second(now_ns) if rate is not None else 0
        began_ns, before = self._last.get(reader, (now_ns, 0))
        shared_ns = max(self._free_ns, began_ns + _duration_ns(before, pace), now_ns)
        start_ns = shared_ns
        if gain:
            start_ns = min(start_ns, max(now_ns, began_ns + _duration_ns(before, gain)))
        start_ns = min(start_ns, now_ns + WAIT_NS_MAX)
        admission = Admission(reader, start_ns - now_ns, count, is_paced=True)
        if start_ns == shared_ns:
            admission.shared_ns = _duration_ns(count, pace)
            self._free_ns = max(self._free_ns, start_ns) + admission.shared_ns
        self._last[reader] = start_ns, count
        return admission

    def background_rate(self, now_ns: int) -> int:
        """Bytes a second for work that nobody waits for: as readers get while producers are active,
        and no more than `AMPLE_BYTES` otherwise."""
        if now_ns - self.produced_ns >= AT_WORK_NS:
            return AMPLE_BYTES
        self._count()
        return self._share(now_ns)

    def found(self, admission: Admission, count: int) -> None:
        """The admitted read found `count` bytes: more than admitted if one batch is larger."""
        if not admission.is_paced:
            return
        if admission.shared_ns:
            used_ns = admission.shared_ns * count // max(1, admission.bytes)
            self._free_ns += used_ns - admission.shared_ns
        last = self._last.get(admission.reader)
        if last is not None:
            self._last[admission.reader] = last[0], count

    def give_back(self, admission: Admission) -> None:
        """The admitted read will not take place."""
        self.found(admission, 0)

    def _share(self, now_ns: int) -> int:
        """Bytes a second for all readers together."""
        ingest = self._ingest.per_second(now_ns)
        return max(self._floor, GAIN * ingest, min(AMPLE_GAIN * ingest, AMPLE_BYTES))

    def _sweep(self, now_ns: int) -> None:
        """Remove producers and readers that are not active any more, once a second."""
        if now_ns - self._swept_ns < _SECOND_NS:
            return
        self._swept_ns = now_ns
        oldest_ns = now_ns - WAIT_NS_MAX
        self._last = {reader: last for reader, last in self._last.items() if last[0] > oldest_ns}
        self._by_group = {
            group: rate for group, rate in self._by_group.items() if rate.per_second(now_ns)
        }


def _duration_ns(count: int, bytes_per_second: int) -> int:
    return count * _SECOND_NS // bytes_per_second
