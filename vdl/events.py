"""The latest rare events of one server, in memory, for `vdl explain`.

`EventLog` (`vdl/log.py`) adds each line of the server's log. Events that are too many for a log, or
that clients can cause, are added without a line (`Log.note`); `NOTED` has all of those. Nothing is
added for a request that is answered as its client expects.

Rules:

* The events are in rings, one for each kind, so that clients cannot push out what a server reports
  of itself. Each ring is bounded in entries and bytes.
* A ring is shared between owners: topics, consumer groups, clients. A full ring drops the oldest
  event of the owner with the most, so that one noisy topic does not push out another.
* Repetitions within `STRETCH_MS` are one event with a count, a first and a last time.
* To add an event takes constant time.
* A text from outside is cut to `TEXT_CHARS_MAX`. Readers must expect any character in it.

Does not depend on what the events mean.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

STRETCH_MS: Final = 60_000
"""Longest pause between repetitions that are counted as one event."""
TEXT_CHARS_MAX: Final = 200
FIELDS_MAX: Final = 12
ENTRIES_MAX: Final = 512
BYTES_MAX: Final = 512 << 10
"""Limits of one ring."""
_EVENT_BYTES = 400
_FIELD_BYTES = 60
"""Estimated memory of an event, and of a field, without their texts."""
_LEFT_OUT = frozenset({"meaning", "traceback"})
"""Fields of log lines that explain their event, or are long."""

Value = str | float | bool | None
"""Value of a field beside an event: a number, a name."""


class Kind(IntEnum):
    """Kind of events; each has a ring of its own."""

    SERVER = 0
    """The server itself: lines of its log that name no partition."""
    PARTITION = 1
    """Leaders and replicas of partitions, the catalog and coordinators. Owner: the topic."""
    REFUSAL = 2
    """Batches of producers that were refused. Owner: the topic."""
    GROUP = 3
    """Consumer groups. Owner: the group."""
    CLIENT = 4
    """Slow requests, throttles, requests for unknown topics. Owner: the client."""


@dataclass(frozen=True, slots=True)
class Noted:
    """Rule for keeping events of one name."""

    kind: Kind
    owner: str
    """Field with the owner's name."""
    same: tuple[str, ...] = ()
    """Fields whose values make an event a repetition of another; none: there are no repetitions."""
    worst: str = ""
    """Field by which one of the repetitions is kept, the largest; empty: the last is kept."""


NOTED: Final[Mapping[str, Noted]] = {
    "disk_hung": Noted(Kind.SERVER, "disk", ("disk",)),
    "elected": Noted(Kind.PARTITION, "partition"),
    "resigned": Noted(Kind.PARTITION, "partition"),
    "leadership_transferred": Noted(Kind.PARTITION, "partition", ("partition", "to", "reason")),
    "isr_shrunk": Noted(Kind.PARTITION, "partition", ("partition", "replica", "reason")),
    "isr_grown": Noted(Kind.PARTITION, "partition", ("partition", "replica")),
    "partition_deleted": Noted(Kind.PARTITION, "partition"),
    "produce_refused": Noted(Kind.REFUSAL, "partition", ("partition", "error")),
    "topic_unknown": Noted(Kind.CLIENT, "client", ("client", "topic")),
    "producer_fenced": Noted(Kind.CLIENT, "client", ("client", "transactional_id")),
    "slow_request": Noted(Kind.CLIENT, "client", ("client", "api"), worst="total_ms"),
    "throttled": Noted(Kind.CLIENT, "client", ("client", "api", "quota"), worst="throttle_ms"),
    "client_disconnected": Noted(Kind.CLIENT, "client", ("client", "reason")),
    "rebalance_began": Noted(Kind.GROUP, "group", ("group", "cause", "member")),
    "rebalance_ended": Noted(Kind.GROUP, "group"),
    "member_timed_out": Noted(Kind.GROUP, "group", ("group", "member", "reason")),
    "member_fenced": Noted(Kind.GROUP, "group", ("group", "instance")),
}
"""Events that are added without a line in the log, and lines that clients cause."""

_SUMMARIES = frozenset({"leads", "leads_no_more", "out_of_sync", "in_sync_again"})
"""Lines that only count events of partitions, which are added one by one."""


@dataclass(slots=True)
class Event:
    """One event, or repetitions of it. Times are ms since 1970 on the server's clock."""

    kind: Kind
    event: str
    level: str
    """Level of its line in the log; empty if it has none."""
    owner: str
    first_ms: int
    last_ms: int
    fields: dict[str, Value]
    count: int = 1
    number: int = 0
    bytes: int = 0
    key: tuple[object, ...] | None = None


class Ring:
    """Events of one kind: see the module."""

    __slots__ = (
        "_by_count", "_by_owner", "_dropped_ms", "_largest", "_others_dropped_ms", "_repeating",
        "bytes", "dropped", "entries", "last_dropped_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self._by_owner: dict[str, OrderedDict[int, Event]] = {}
        """Owner → its events by number, the one that occurred least recently first."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Number of events → owners with as many."""
        self._largest = 0
        """Invariant: the largest key of `_by_count`, 0 if it is empty."""
        self._repeating: dict[tuple[object, ...], Event] = {}
        self._dropped_ms: dict[str, int] = {}
        """Owner that has events → time of the last one that was dropped."""
        self._others_dropped_ms = 0
        self.entries = 0
        self.bytes = 0
        self.dropped = 0
        self.last_dropped_ms = 0
        """Time of the latest event that was dropped, of any owner; 0: none was."""

    def repeats(self, key: tuple[object, ...], now_ms: int) -> Event | None:
        """Return the event that one with this key repeats now, None if there is none."""
        known = self._repeating.get(key)
        if known is None or now_ms - known.last_ms > STRETCH_MS:
            return None
        self._by_owner[known.owner].move_to_end(known.number)
        return known

    def add(self, event: Event) -> None:
        """Add an event, and drop others as long as there is no room for all."""
        held = self._by_owner.get(event.owner)
        if held is None:
            held = self._by_owner[event.owner] = OrderedDict()
        held[event.number] = event
        self._recount(event.owner, len(held) - 1, len(held))
        if event.key is not None:
            self._repeating[event.key] = event
        self.entries += 1
        self.bytes += event.bytes
        while self.entries > ENTRIES_MAX or self.bytes > BYTES_MAX:
            self._drop()

    def resized(self, event: Event, size: int) -> None:
        """Count a new size of an event."""
        self.bytes += size - event.bytes
        event.bytes = size

    def _drop(self) -> None:
        """Drop the oldest event of the owner with the most."""
        owner = next(iter(self._by_count[self._largest]))
        held = self._by_owner[owner]
        _, event = held.popitem(last=False)
        self._recount(owner, len(held) + 1, len(held))
        if event.key is not None and self._repeating.get(event.key) is event:
            del self._repeating[event.key]
        self.entries -= 1
        self.bytes -= event.bytes
        self.dropped += 1
        self.last_dropped_ms = max(self.last_dropped_ms, event.last_ms)
        if held:
            self._dropped_ms[owner] = event.last_ms
        else:
            del self._by_owner[owner]
            self._dropped_ms.pop(owner, None)
            self._others_dropped_ms = max(self._others_dropped_ms, event.last_ms)

    def _recount(self, owner: str, before: int, now: int) -> None:
        """Move an owner to those with as many events. Numbers change by one."""
        if before:
            owners = self._by_count[before]
            del owners[owner]
            if not owners:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[owner] = None
        if now > self._largest or self._largest not in self._by_count:
            self._largest = now

    def dropped_until_ms(self, owner: str) -> int:
        """Return a time after which no event of the owner was dropped; 0: none ever was."""
        if owner in self._by_owner:
            return self._dropped_ms.get(owner, 0)
        return self._others_dropped_ms

    def of(self, owner: str) -> Iterator[Event]:
        """Yield the owner's events."""
        return iter(self._by_owner.get(owner, {}).values())

    def __iter__(self) -> Iterator[Event]:
        """Yield all events."""
        for held in self._by_owner.values():
            yield from held.values()


class Events:
    """The latest rare events of one server: see the module."""

    __slots__ = ("_now_ms", "_number", "rings", "started_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: the wall clock, in ms since 1970."""
        self._now_ms = now_ms
        self._number = 0
        self.started_ms = now_ms()
        """Time of the first event that could be added."""
        self.rings = {kind: Ring() for kind in Kind}

    @property
    def now_ms(self) -> int:
        """The present time, as events have it."""
        return self._now_ms()

    def add(self, event: str, level: str, fields: Mapping[str, Value]) -> None:
        """Add an event; `level` is empty if it has no line in the log."""
        if event in _SUMMARIES:
            return
        noted, now_ms = NOTED.get(event), self._now_ms()
        if noted is None:
            partition = fields.get("partition")
            kind = Kind.SERVER if partition is None else Kind.PARTITION
            owner, key = topic_of(str(partition or "")), None
        else:
            kind, owner = noted.kind, str(fields.get(noted.owner, ""))
            if noted.owner == "partition":
                owner = topic_of(owner)
            values = [_cut(fields.get(name)) for name in noted.same]
            key = (event, *values) if values else None
        owner, ring = owner[:TEXT_CHARS_MAX], self.rings[kind]
        known = None if key is None else ring.repeats(key, now_ms)
        if known is not None and noted is not None:
            known.count += 1
            known.last_ms = now_ms
            if not noted.worst or _number(fields, noted.worst) > _number(known.fields, noted.worst):
                known.fields = _kept(fields)
                ring.resized(known, _size(known.fields))
            return
        self._number += 1
        kept = _kept(fields)
        ring.add(
            Event(
                kind, event, level, owner, now_ms, now_ms, kept,
                number=self._number, bytes=_size(kept), key=key,
            )
        )  # fmt: skip


def topic_of(partition: str) -> str:
    """Return the topic of a partition's name; "catalog" and names without a number stay."""
    topic, _, number = partition.rpartition("-")
    return topic if topic and number.isdecimal() else partition


def _kept(fields: Mapping[str, Value]) -> dict[str, Value]:
    kept = {name: _cut(value) for name, value in fields.items() if name not in _LEFT_OUT}
    while len(kept) > FIELDS_MAX:
        kept.popitem()
    return kept


def _cut(value: Value) -> Value:
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else value


def _size(fields: Mapping[str, Value]) -> int:
    texts = sum(
        len(value) if value.isascii() else 4 * len(value)
        for value in fields.values()
        if isinstance(value, str)
    )
    return _EVENT_BYTES + _FIELD_BYTES * len(fields) + texts


def _number(fields: Mapping[str, Value], name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
