"""Progress of a job: for each topic its id and, by partition, the next offset.

The same value is Spark's offset of the source, is kept in a sink's commits, and is the start of a
job. As JSON, keys are text: {"flights": {"id": "Xk…", "offsets": {"0": 17, "1": 4}}}.

Also the arithmetic of batches: the size of one (`admit`), its ranges cut for tasks (`cut`), and the
check that one batch continues where another ended (`check_reachable`). All functions are pure.

Does not depend on Kafka clients or Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vdl.pipeline.errors import LogShrank, RowsGone, TopicRecreated

TASK_ROWS_MAX = 500_000
"""Limit on rows of a range that one task reads, unless it required more than TASKS_MAX tasks."""
TASKS_MAX = 10_000
TASK_ROWS_MIN = 10_000
"""Minimum of rows that one task reads, as far as there are as many."""
TASK_RANGES_MAX = 1_000
EQUAL_PART = 10
"""One in this many records of a batch is shared out equally to all partitions."""


@dataclass(frozen=True, slots=True)
class TopicPositions:
    """Positions of one topic. `offsets`: partition → next offset; `topic_id` is "" if unknown."""

    topic_id: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of all topics of a job. Use: compare, `to_json`; never changed in place."""

    topics: Mapping[str, TopicPositions] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.topics)

    def offset(self, topic: str, partition: int) -> int | None:
        found = self.topics.get(topic)
        return None if found is None else found.offsets.get(partition)

    def partitions(self) -> list[tuple[str, int, int]]:
        """Return (topic, partition, next offset), sorted."""
        return [
            (topic, partition, known.offsets[partition])
            for topic, known in sorted(self.topics.items())
            for partition in sorted(known.offsets)
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            topic: {
                "id": known.topic_id,
                "offsets": {str(p): known.offsets[p] for p in sorted(known.offsets)},
            }
            for topic, known in sorted(self.topics.items())
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Positions:
        """Parse positions. Raises ValueError.

        Also reads the official connector's form, which has no ids: {"flights": {"0": 17}}.
        """
        topics: dict[str, TopicPositions] = {}
        try:
            for topic, known in data.items():
                topic_id = str(known["id"]) if "id" in known else ""
                offsets = known.get("offsets", known)
                topics[topic] = TopicPositions(
                    topic_id, {int(p): int(offset) for p, offset in offsets.items()}
                )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not positions: {data!r}") from error
        return Positions(topics)

    def of(self, topics: Iterable[str]) -> Positions:
        """Return the positions of some topics only."""
        return Positions({t: self.topics[t] for t in topics if t in self.topics})

    def goes_on_from(self, known: Positions) -> bool:
        """Return True if every partition in `known` has the same offset; others may be added."""
        return all(self.offset(t, p) == offset for t, p, offset in known.partitions())

    def with_ids_of(self, other: Positions) -> Positions:
        """Return these offsets with the topic ids of `other` where none are known."""
        topics = {
            topic: known
            if known.topic_id or topic not in other.topics
            else replace(known, topic_id=other.topics[topic].topic_id)
            for topic, known in self.topics.items()
        }
        return Positions(topics)

    def over(self, base: Positions) -> Positions:
        """Return these positions, with those of `base` for missing partitions."""
        topics: dict[str, TopicPositions] = {}
        for topic in {**base.topics, **self.topics}:
            mine, other = self.topics.get(topic), base.topics.get(topic)
            first = mine or other
            assert first is not None, topic
            offsets = {**(other.offsets if other else {}), **(mine.offsets if mine else {})}
            topics[topic] = TopicPositions(first.topic_id or (other or first).topic_id, offsets)
        return Positions(topics)


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets [start, end) of one partition. Some of them may hold no record."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


def ranges(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the ranges between two positions, without empty ones.

    A partition that `start` does not know begins at 0: it was created after the job began. Raises
    ValueError if `end` lies before `start`.
    """
    found: list[OffsetRange] = []
    for topic, partition, stop in end.partitions():
        begin = start.offset(topic, partition) or 0
        if stop < begin:
            raise ValueError(f"{topic}/{partition}: [{begin}, {stop}) is not a valid range")
        if stop > begin:
            found.append(OffsetRange(topic, partition, begin, stop))
    return found


def check_same_topics(known: Positions, found: Positions) -> None:
    """Raise TopicRecreated if a topic's id is not the one of the known offsets."""
    for topic, mine in known.topics.items():
        other = found.topics.get(topic)
        if other is None or not mine.topic_id or not other.topic_id:
            continue
        if mine.topic_id != other.topic_id:
            raise TopicRecreated(topic, known=mine.topic_id, found=other.topic_id)


def check_reachable(start: Positions, first: Positions, end: Positions) -> None:
    """Raise RowsGone or LogShrank unless the log still has the records from `start` on."""
    for topic, partition, wanted in start.partitions():
        low, high = first.offset(topic, partition), end.offset(topic, partition)
        if low is not None and wanted < low:
            raise RowsGone(topic, partition, wanted=wanted, first=low)
        if high is not None and wanted > high:
            raise LogShrank(topic, partition, known=wanted, end=high)


def admit(
    start: Positions,
    end: Positions,
    *,
    rows_max: int,
    bytes_max: int = 0,
    row_bytes: Mapping[tuple[str, int], float] | None = None,
) -> Positions:
    """Return the end of a batch from `start`: at most `rows_max` offsets, about `bytes_max` bytes.

    Partitions share it in proportion to their waiting offsets, and the batch has at least one
    offset if any waits. A part of the batch is shared equally (EQUAL_PART), so that a small
    partition does not wait until a large one beside it was read: its rows would be late for every
    window.

    `row_bytes`: bytes per record, by (topic, partition), as far as they are known. A limit of 0
    means none.
    """
    waiting = ranges(start, end)
    rows = sum(r.count for r in waiting)
    size = sum(r.count * (row_bytes or {}).get((r.topic, r.partition), 0.0) for r in waiting)
    share = 1.0
    if rows_max and rows > rows_max:
        share = rows_max / rows
    if bytes_max and size > bytes_max:
        share = min(share, bytes_max / size)
    if share >= 1.0:
        return end
    counts = _shares([r.count for r in waiting], share, turn=sum(r.start for r in waiting))
    taken = {(r.topic, r.partition): n for r, n in zip(waiting, counts, strict=True)}
    topics = {
        topic: TopicPositions(
            known.topic_id,
            {p: (start.offset(topic, p) or 0) + taken.get((topic, p), 0) for p in known.offsets},
        )
        for topic, known in end.topics.items()
    }
    return Positions(topics)


def _shares(counts: Sequence[int], share: float, *, turn: int) -> list[int]:
    """Return the number to take of each: about that share of the total, at least one.

    If there is less than one for each, `turn` selects the first, so that it differs from batch to
    batch.
    """
    budget = max(1, int(sum(counts) * share))
    if budget < len(counts):
        first = turn % len(counts)
        chosen = {(first + n) % len(counts) for n in range(budget)}
        return [int(n in chosen) for n in range(len(counts))]
    least = max(1, budget // EQUAL_PART // len(counts))
    wanted = [max(int(count * share), min(count, least)) for count in counts]
    excess = sum(wanted) - budget
    if excess > 0:
        spare = [max(0, n - least) for n in wanted]
        wanted = [n - -(-excess * m // sum(spare)) for n, m in zip(wanted, spare, strict=True)]
    return wanted


def capped(end: Positions, limit: Positions) -> Positions:
    """Return `end`, limited by `limit`, without partitions that `limit` does not know."""
    topics = {
        topic: TopicPositions(
            known.topic_id,
            {
                p: min(offset, limited)
                for p, offset in known.offsets.items()
                if (limited := limit.offset(topic, p)) is not None
            },
        )
        for topic, known in end.topics.items()
        if topic in limit.topics
    }
    return Positions(topics)


def cut(wanted: Sequence[OffsetRange], *, tasks_min: int = 0) -> list[OffsetRange]:
    """Cut the ranges into pieces for tasks, none larger than TASK_ROWS_MAX.

    Returns at least `tasks_min` pieces if there are that many offsets; the largest ranges are cut
    the most.
    """
    total = sum(r.count for r in wanted)
    piece = max(TASK_ROWS_MAX, -(-total // TASKS_MAX))
    if tasks_min:
        piece = max(1, min(piece, total // tasks_min))
    pieces: list[OffsetRange] = []
    for r in wanted:
        count = -(-r.count // piece)
        edges = [r.start + r.count * n // count for n in range(count + 1)]
        pieces += [
            OffsetRange(r.topic, r.partition, low, high) for low, high in itertools.pairwise(edges)
        ]
    return pieces


def together(pieces: Sequence[OffsetRange], *, tasks_min: int = 0) -> list[list[OffsetRange]]:
    """Group pieces into tasks of up to TASK_ROWS_MIN offsets and TASK_RANGES_MAX pieces.

    There are at least `tasks_min` tasks if there are as many pieces. A task writes a file, and
    costs as much as some thousand records.
    """
    total = sum(r.count for r in pieces)
    rows_max = min(TASK_ROWS_MIN, total // tasks_min) if tasks_min else TASK_ROWS_MIN
    found: list[list[OffsetRange]] = []
    rows, joins = 0, len(pieces) - tasks_min
    for r in pieces:
        fits = bool(found) and rows + r.count <= rows_max and len(found[-1]) < TASK_RANGES_MAX
        if fits and joins > 0:
            found[-1].append(r)
            rows, joins = rows + r.count, joins - 1
        else:
            found.append([r])
            rows = r.count
    return found
