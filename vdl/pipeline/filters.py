"""Filters of a query that become fewer offsets to read.

Of the comparisons of one column that Spark offers, those on `partition` and `offset` are done here
in full and need not be done again. `timestamp` from below becomes the offset of that time: every
record before it is older, but not every one behind it is younger, so Spark filters again. From
above a time cuts nothing, because records need not be in the order of their times.

Must not know: Spark's classes, which are told apart by name: this is tested without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from vdl.pipeline.positions import OffsetRange

_INFINITY = 1 << 63


@dataclass(slots=True)
class Pushed:
    """What a query wants, at most. Offsets are [first, end)."""

    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    offset_first: int = 0
    offset_end: int = _INFINITY
    time_first_ms: int | None = None
    taken: list[str] = field(default_factory=list)
    """The comparisons that were understood, in words."""

    def cut(self, wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what the query does not want."""
        kept: list[OffsetRange] = []
        for r in wanted:
            if self.partitions is not None and r.partition not in self.partitions:
                continue
            if self.topics is not None and r.topic not in self.topics:
                continue
            start, end = max(r.start, self.offset_first), min(r.end, self.offset_end)
            if start < end:
                kept.append(OffsetRange(r.topic, r.partition, start, end))
        return kept


def push(filters: Iterable[Any]) -> tuple[Pushed, list[Any]]:
    """(what is done here, the filters that Spark still has to do)."""
    pushed = Pushed()
    return pushed, [one for one in filters if not _take(pushed, one)]


def _take(pushed: Pushed, one: Any) -> bool:
    """Note the comparison; whether it is done with."""
    kind = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return False
    column = path[0].lower()
    if kind == "IsNotNull":
        # These three never are null, so nothing is left to do.
        return column in {"partition", "offset", "topic"}
    value = getattr(one, "value", None)
    if value is None:
        return False
    if column in {"partition", "topic"} and kind in {"EqualTo", "In"}:
        return _take_names(pushed, column, value if kind == "In" else (value,))
    if column == "offset" and isinstance(value, int):
        return _take_offset(pushed, kind, value)
    if column == "timestamp" and isinstance(value, datetime):
        _take_time(pushed, kind, value)
    return False


def _take_names(pushed: Pushed, column: str, values: Iterable[Any]) -> bool:
    # NULL equals nothing, and these columns never are NULL.
    values = [value for value in values if value is not None]
    if column == "partition":
        numbers = frozenset(int(value) for value in values)
        pushed.partitions = numbers if pushed.partitions is None else pushed.partitions & numbers
        pushed.taken.append(f"partition in {sorted(numbers)}")
    else:
        names = frozenset(str(value) for value in values)
        pushed.topics = names if pushed.topics is None else pushed.topics & names
        pushed.taken.append(f"topic in {sorted(names)}")
    return True


def _take_offset(pushed: Pushed, kind: str, value: int) -> bool:
    first, end = {
        "EqualTo": (value, value + 1),
        "GreaterThan": (value + 1, _INFINITY),
        "GreaterThanOrEqual": (value, _INFINITY),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind, (-1, -1))
    if first < 0 and end < 0:
        return False
    pushed.offset_first = max(pushed.offset_first, first)
    pushed.offset_end = min(pushed.offset_end, end)
    pushed.taken.append(f"offset in [{first}, {end})")
    return True


def _take_time(pushed: Pushed, kind: str, value: datetime) -> None:
    if kind not in {"EqualTo", "GreaterThan", "GreaterThanOrEqual"}:
        return
    when = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    # Rounded down: Kafka's times are whole milliseconds.
    millis = int(when.timestamp() * 1_000_000) // 1000
    if pushed.time_first_ms is None or millis > pushed.time_first_ms:
        pushed.time_first_ms = millis
        pushed.taken.append(f"timestamp from {millis} ms on")
