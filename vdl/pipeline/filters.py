"""Pushdown of query filters: fewer offsets to read.

Of the single-column comparisons that Spark offers, those on `partition` and `offset` are applied
here completely. A lower bound on `timestamp` becomes the offset of that time: every record before
it is older, but not every one after it is younger, so Spark filters again. An upper bound on a time
cuts nothing, because records need not be in the order of their times.

Does not depend on Spark's classes, which are distinguished by name, so tests need no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vdl.pipeline.positions import OffsetRange

_INFINITY = 1 << 63


@dataclass(slots=True)
class Pushed:
    """Upper bound of the records that a query needs. Offsets are [first, end)."""

    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    offset_first: int = 0
    offset_end: int = _INFINITY
    time_first_ms: int | None = None

    def cut(self, wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without the parts that the query does not need."""
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
    """Return (what is applied here, the filters that Spark still has to apply)."""
    pushed = Pushed()
    return pushed, [one for one in filters if not _take(pushed, one)]


def _take(pushed: Pushed, one: Any) -> bool:
    """Record the comparison; return True if Spark need not apply it."""
    kind = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1:
        return False
    column = path[0].lower()
    if kind == "IsNotNull":
        # These three are never null, so nothing is left to do.
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
    # NULL equals nothing, and these columns are never NULL.
    values = [value for value in values if value is not None]
    if column == "partition":
        numbers = frozenset(int(value) for value in values)
        pushed.partitions = numbers if pushed.partitions is None else pushed.partitions & numbers
    else:
        names = frozenset(str(value) for value in values)
        pushed.topics = names if pushed.topics is None else pushed.topics & names
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
    return True


def _take_time(pushed: Pushed, kind: str, value: datetime) -> None:
    if kind not in {"EqualTo", "GreaterThan", "GreaterThanOrEqual"}:
        return
    when = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    # Rounded down: Kafka's times are whole milliseconds.
    millis = int(when.timestamp() * 1_000_000) // 1000
    if pushed.time_first_ms is None or millis > pushed.time_first_ms:
        pushed.time_first_ms = millis
