"""Anomalies of a log that clients must never observe.

Each check searches for evidence instead of comparing with a model. With unique values and explicit
offsets, a key for which all checks find nothing behaved as one linearizable, append-only log, and
every check runs in O(N log N) for any length of history. Names are those of Jepsen's Kafka workload
where it has one.

`Evidence` indexes a history once; a check is a function from evidence to findings, listed in
`CHECKS`. An operation of unknown outcome (`info`) *must have committed* as soon as one of its
values was read.

Does not depend on the source of the history.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from vdl.check.findings import Anomaly, anomaly
from vdl.check.history import EARLIEST, LATEST, Op, Record, Send

STALE_READ_BOUND_NS = 5_000_000_000
"""Time after its acknowledgement, or the last heal, for which a record may stay invisible."""

RETRIED = "retried"
"""Note on a send that was tried more than once.

Without idempotence (`pid` -1) the value may be there twice; with it, a server other than the one
that appended it may have acknowledged it.
"""


class Key:
    """All evidence of a history for one key."""

    __slots__ = (
        "final", "first_index", "index_of", "last_index", "log", "offsets", "polled", "reads",
        "sends", "writer",
    )  # fmt: skip

    def __init__(self) -> None:
        self.log: dict[int, dict[int, int]] = {}  # offset -> value -> op that shows it
        self.offsets: list[int] = []
        self.index_of: dict[int, int] = {}
        self.first_index: dict[int, int] = {}
        self.last_index: dict[int, int] = {}
        self.sends: list[tuple[Op, Send]] = []
        self.writer: dict[int, Op] = {}
        self.reads: list[tuple[Op, Record]] = []
        self.polled: dict[int, int] = {}  # value -> first op that read it
        self.final: dict[int, tuple[Op, Record]] = {}

    def holds(self, offset: int, value: int, op: Op) -> None:
        """Record that `op` showed `value` at `offset`."""
        self.log.setdefault(offset, {}).setdefault(value, op.i)

    def index(self) -> None:
        """Build the dense indexes of the used offsets, and of each value's places."""
        self.offsets = sorted(self.log)
        self.index_of = {offset: i for i, offset in enumerate(self.offsets)}
        for i, offset in enumerate(self.offsets):
            for value in self.log[offset]:
                self.first_index.setdefault(value, i)
                self.last_index[value] = i


class Evidence:
    """An indexed history. `ops` are in order of return."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = sorted(ops, key=lambda op: (op.t1, op.i))
        self.keys: dict[str, Key] = defaultdict(Key)
        for op in self.ops:
            for send in op.sends:
                key = self.keys[send.key]
                key.sends.append((op, send))
                key.writer.setdefault(send.value, op)
                if op.ok and send.offset is not None:
                    key.holds(send.offset, send.value, op)
            # Records seen by a poll of unknown outcome count as read.
            for name, records in op.polls:
                key = self.keys[name]
                for record in records:
                    key.reads.append((op, record))
                    key.holds(record.offset, record.value, op)
                    key.polled.setdefault(record.value, op.i)
                    if op.final:
                        key.final[record.offset] = (op, record)
        for key in self.keys.values():
            key.index()

    def by_key(self) -> Iterator[tuple[str, Key]]:
        """Yield (name, evidence) of each key, by name."""
        for name in sorted(self.keys):
            yield name, self.keys[name]


def must_commit(op: Op, key: Key) -> bool:
    """Return True if the operation must have committed; see the module."""
    return op.ok or (op.type == "info" and any(send.value in key.polled for send in op.sends))


def inconsistent_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Find offsets that held two values."""
    for name, key in evidence.by_key():
        for offset, values in sorted(key.log.items()):
            if len(values) > 1:
                ops, held = sorted(values.values()), ", ".join(map(str, sorted(values)))
                yield anomaly("inconsistent-offsets", name, ops, offset=offset, values=held)


def duplicates(evidence: Evidence) -> Iterator[Anomaly]:
    """Find values at two offsets whose writer sent them once or was idempotent."""
    for name, key in evidence.by_key():
        for value, first in sorted(key.first_index.items()):
            last = key.last_index[value]
            writer = key.writer.get(value)
            if first == last or (writer and writer.pid < 0 and writer.note == RETRIED):
                continue
            places = key.offsets[first], key.offsets[last]
            ops = [key.log[offset][value] for offset in places]
            yield anomaly("duplicate", name, ops, value=value, first=places[0], last=places[1])


def lost_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """Find committed values that readers passed without seeing them."""
    for name, key in evidence.by_key():
        read = [key.first_index[value] for value in key.polled]
        bound = max(read, default=-1)
        for value, last in sorted(key.last_index.items()):
            writer = key.writer.get(value)
            if last > bound or value in key.polled or writer is None:
                continue
            if must_commit(writer, key):
                offset = key.offsets[last]
                yield anomaly("lost-write", name, [writer.i], value=value, offset=offset)


def unseen(evidence: Evidence) -> Iterator[Anomaly]:
    """Find acknowledged values missing from the read of everything after the run."""
    finals = {name for op in evidence.ops if op.final for name, _ in op.polls}
    for name, key in evidence.by_key():
        if name not in finals:
            continue
        start = min(key.final, default=0)
        values = {record.value for _, record in key.final.values()}
        for op, send in key.sends:
            trimmed = send.offset is not None and bool(values) and send.offset < start
            if op.ok and send.value not in values and not trimmed:
                yield anomaly("unseen", name, [op.i], value=send.value, offset=send.offset)


def phantoms(evidence: Evidence) -> Iterator[Anomaly]:
    """Find values that were read but never written, or whose write had provably failed."""
    for name, key in evidence.by_key():
        for value, op in sorted(key.polled.items()):
            writer = key.writer.get(value)
            if writer is None:
                yield anomaly("phantom", name, [op], value=value)
            elif writer.type == "fail":
                yield anomaly("aborted-read", name, [writer.i, op], value=value)


def sends_in_order(evidence: Evidence) -> Iterator[Anomaly]:
    """Find later writes of a process at lower offsets than its earlier ones."""
    last: dict[tuple[str, str], tuple[Op, Send]] = {}
    for op in sorted(evidence.ops, key=lambda op: op.i):
        if not op.ok or (op.pid < 0 and op.note == RETRIED):
            continue
        for send in op.sends:
            if send.offset is None:
                continue
            place = (op.proc, send.key)
            previous = last.get(place)
            if previous is not None and (previous[1].offset or 0) >= send.offset:
                before, sent = previous
                kind = "int-nonmonotonic-send" if before is op else "nonmonotonic-send"
                ops = [before.i, op.i]
                at, last_at = send.offset, sent.offset
                yield anomaly(kind, send.key, ops, offset=at, before=last_at, proc=op.proc)
            last[place] = (op, send)


def polls_in_order(evidence: Evidence) -> Iterator[Anomaly]:
    """Find consumers that skipped records or went back without a seek or an assignment."""
    last: dict[str, dict[str, tuple[int, Op]]] = defaultdict(dict)
    for op in evidence.ops:
        at = last[op.proc]
        if op.f == "assign":
            for name in [name for name in at if name not in op.keys]:
                del at[name]
        elif op.f in {"rebalance", "revoke"}:
            at.clear()
        elif op.f == "seek":
            for mark in op.marks:
                at.pop(mark.key, None)
        elif op.f == "poll" and op.ok:
            for name, records in op.polls:
                yield from _walk(name, evidence.keys[name], op, records, at)


def _walk(
    name: str, key: Key, op: Op, records: list[Record], at: dict[str, tuple[int, Op]]
) -> Iterator[Anomaly]:
    for record in records:
        index = key.index_of[record.offset]
        if name in at:
            before, previous = at[name]
            step = index - before
            if step != 1:
                kind = "poll-skip" if step > 1 else "nonmonotonic-poll"
                kind = f"int-{kind}" if previous is op else kind
                ops, last = [previous.i, op.i], key.offsets[before]
                yield anomaly(kind, name, ops, offset=record.offset, before=last, proc=op.proc)
        at[name] = (index, op)


def realtime_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Find writes with an offset known to be used before the write began."""
    for name, key in evidence.by_key():
        acked = [(op.t1, s.offset, op.i) for op, s in key.sends if op.ok and s.offset is not None]
        known = sorted(acked + [(op.t1, record.offset, op.i) for op, record in key.reads])
        highest, witness, i = -1, -1, 0
        for op, send in sorted(key.sends, key=lambda pair: pair[0].t0):
            while i < len(known) and known[i][0] < op.t0:
                if known[i][1] > highest:
                    _, highest, witness = known[i]
                i += 1
            if op.ok and send.offset is not None and send.offset <= highest:
                ops = [witness, op.i]
                yield anomaly("realtime-offset", name, ops, offset=send.offset, known=highest)


def stale_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """Find polls that returned nothing long after a record was acknowledged at their position."""
    acked: dict[str, tuple[list[int], list[int]]] = {}
    for name, key in evidence.by_key():
        pairs = sorted((s.offset, op.t1) for op, s in key.sends if op.ok and s.offset is not None)
        earliest = [t1 for _, t1 in pairs]
        for i in range(len(earliest) - 2, -1, -1):
            earliest[i] = min(earliest[i], earliest[i + 1])
        acked[name] = ([offset for offset, _ in pairs], earliest)
    position: dict[tuple[str, str], int] = {}
    calm_since, faulty = 0, False
    for op in evidence.ops:
        if op.f == "fault":
            faulty = op.note == "begin"
            calm_since = op.t1
        elif op.f in {"assign", "rebalance", "revoke"}:
            for place in [place for place in position if place[0] == op.proc]:
                del position[place]
        elif op.f == "seek":
            position.update({(op.proc, mark.key): mark.offset for mark in op.marks})
        elif op.f == "poll" and op.ok:
            for name, records in op.polls:
                place = (op.proc, name)
                if records:
                    position[place] = records[-1].offset + 1
                elif place in position and not faulty and op.t0 >= calm_since:
                    offsets, earliest = acked[name]
                    i = bisect_left(offsets, position[place])
                    since = max(calm_since, earliest[i]) if i < len(offsets) else op.t0
                    if op.t0 - since > STALE_READ_BOUND_NS:
                        at, late_s = position[place], (op.t0 - since) / 1e9
                        yield anomaly("stale-read", name, [op.i], offset=at, late_s=late_s)


def truncated_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """Find records that were read, but are missing between those that still exist."""
    for name, key in evidence.by_key():
        if not key.final:
            continue
        start = min(key.final)
        for op, record in key.reads:
            if record.offset >= start and record.offset not in key.final:
                at, value = record.offset, record.value
                yield anomaly("truncated-read", name, [op.i], offset=at, value=value)


def high_watermarks(evidence: Evidence) -> Iterator[Anomaly]:
    """Find high watermarks that fell within one leader epoch."""
    served: dict[tuple[str, int], list[tuple[Op, int]]] = defaultdict(list)
    for op in evidence.ops:
        for name, (epoch, high_watermark) in op.hw.items():
            if op.ok and epoch >= 0:
                served[name, epoch].append((op, high_watermark))
    for (name, epoch), by_return in sorted(served.items()):
        highest, witness, i = -1, -1, 0
        for op, high_watermark in sorted(by_return, key=lambda pair: pair[0].t0):
            while i < len(by_return) and by_return[i][0].t1 < op.t0:
                if by_return[i][1] > highest:
                    highest, witness = by_return[i][1], by_return[i][0].i
                i += 1
            if high_watermark < highest:
                ops, told = [witness, op.i], high_watermark
                yield anomaly("hw-regress", name, ops, offset=told, known=highest, epoch=epoch)


def leader_epochs(evidence: Evidence) -> Iterator[Anomaly]:
    """Find leader epochs that fall along the log, and epochs in which two servers acknowledged."""
    for name, key in evidence.by_key():
        final = [key.final[offset] for offset in sorted(key.final)]
        told = [(op, record) for op, record in final if record.leader_epoch >= 0]
        for (op, record), (_, after) in pairwise(told):
            if after.leader_epoch < record.leader_epoch:
                epoch, at = record.leader_epoch, after.offset
                yield anomaly(
                    "epoch-regress", name, [op.i], after=after.leader_epoch, offset=at, epoch=epoch
                )
        leader: dict[int, Op] = {}
        for op, send in key.sends:
            if not op.ok or not op.node or op.note == RETRIED or send.offset not in key.final:
                continue
            epoch = key.final[send.offset][1].leader_epoch
            other = leader.setdefault(epoch, op)
            if epoch >= 0 and other.node != op.node:
                ops = [other.i, op.i]
                yield anomaly("two-leaders", name, ops, node=other.node, other=op.node, epoch=epoch)


def listed_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    """Find ListOffsets results below an acknowledged offset, or not the first match."""
    lists = [op for op in evidence.ops if op.f == "list_offsets" and op.ok]
    by_key: dict[str, list[tuple[Op, int, int]]] = defaultdict(list)
    for op in lists:
        for mark in op.marks:
            by_key[mark.key].append((op, mark.timestamp, mark.offset))
    for name, asked in sorted(by_key.items()):
        key = evidence.keys[name]
        acked = sorted(
            (op.t1, s.offset, op.i) for op, s in key.sends if op.ok and s.offset is not None
        )
        returned = [t1 for t1, _, _ in acked]
        highest = [-1]
        for _, offset, _ in acked:
            highest.append(max(highest[-1], offset))
        by_time = _TimeIndex(key)
        for op, timestamp, offset in asked:
            if timestamp == LATEST:
                known = highest[bisect_left(returned, op.t0)]
                if offset <= known:
                    kind = "list-offsets: latest"
                    yield anomaly(kind, name, [op.i], offset=offset, known=known)
            elif timestamp == EARLIEST:
                if key.final and offset > min(key.final):
                    kind, first = "list-offsets: earliest", min(key.final)
                    yield anomaly(kind, name, [op.i], offset=offset, first=first)
            elif timestamp >= 0:
                yield from by_time.check(name, op, timestamp, offset)


class _TimeIndex:
    """Least offset at or above a given timestamp, among the records of the final read."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.offsets = sorted(o for o, (_, r) in key.final.items() if r.timestamp >= 0)
        self.largest: list[int] = []
        for offset in self.offsets:
            timestamp = key.final[offset][1].timestamp
            self.largest.append(max(timestamp, self.largest[-1]) if self.largest else timestamp)

    def check(self, name: str, op: Op, timestamp: int, offset: int) -> Iterator[Anomaly]:
        i = bisect_left(self.largest, timestamp)
        if i < len(self.offsets) and (offset < 0 or self.offsets[i] < offset):
            least = self.offsets[i]
            writer = self.key.writer.get(self.key.final[least][1].value)
            if writer is not None and writer.ok and writer.t1 < op.t0:
                ops, asked = [writer.i, op.i], timestamp
                yield anomaly(
                    "list-offsets: least", name, ops, offset=offset, timestamp=asked, least=least
                )
        found = self.key.final.get(offset)
        if found is not None and 0 <= found[1].timestamp < timestamp:
            later, asked, at = "list-offsets: later", timestamp, found[1].timestamp
            yield anomaly(later, name, [op.i], offset=offset, timestamp=asked, found=at)


CHECKS: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    unseen,
    phantoms,
    sends_in_order,
    polls_in_order,
    realtime_offsets,
    stale_reads,
    truncated_reads,
    high_watermarks,
    leader_epochs,
    listed_offsets,
)
