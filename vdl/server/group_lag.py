"""Lag of consumer groups for the metrics: in records, and in seconds by the time of records.

The leader of a coordinator knows what its groups have committed, and reports them; other servers do
not. The ends of partitions are those that the replicas here know. A partition without a replica
here counts in `partitions_elsewhere`, not in a lag.

Everything is bounded. A page examines about `OFFSETS_PER_PAGE` committed offsets and goes on where
it stopped at the next. Only rows with most records behind are kept, so names that clients choose
take no memory beyond those, and many rows with little behind displace none with more. In seconds, a
row is as late as the first unread record of its partitions with most records behind.

Nothing is read from disk, and no read is counted: a scrape must not look like a consumer, or take
the disk from one. So a time is known if the record is in memory, or was at an earlier page. Markers
of transactions and records of aborted ones are not unread records.

Does not depend on members of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop, nlargest
from typing import Final, Protocol

from ids import GroupId, Offset
from segments.api import Buffer
from vdl.records.batch import BatchHeader, read_header
from vdl.server.exposition import Sample
from vdl.state.aborted import AbortedRange
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.offsets import CommittedOffset, Offsets

OFFSETS_PER_PAGE: Final = 20_000
"""Committed offsets examined for one page: about 20 ms in all."""
_STEP_OFFSETS: Final = 500
PARTITIONS_TIMED: Final = 8
"""Partitions of a row whose first unread record is looked up."""
BATCHES_LOOKED_AT: Final = 8
"""Batches after a committed offset in which the first unread record is sought."""
_STEP_TIMES: Final = 20

Row = tuple[str, str]
"""(consumer group, topic)"""
_Place = tuple[GroupId, Offset]


class Stream(Protocol):
    """The replica of a partition here."""

    @property
    def high_watermark(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset: ...
    @property
    def log_start_offset(self) -> Offset: ...
    def in_memory(self, offset: Offset, count_max: int) -> Sequence[Buffer]: ...
    def aborted(self, start: Offset, end: Offset) -> Sequence[AbortedRange]: ...


class Host(Protocol):
    """The server, as far as lag needs it."""

    @property
    def catalog(self) -> Catalog: ...
    def agreed_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FirstUnread:
    """The first record that a group has not committed, in one partition."""

    ms: int
    """Largest timestamp of its batch; -1 if only markers and aborted records follow so far."""
    is_final: bool
    """False: the next page looks again."""


@dataclass(slots=True)
class _Lag:
    """One row."""

    records: int = 0
    partitions: int = 0
    """Partitions with a replica here."""
    elsewhere: int = 0
    behind: list[tuple[int, GroupId, Offset]] = field(default_factory=list)
    """(records behind, partition's group, first unread offset) of those with most: a heap."""

    def add(self, behind: int, group_id: GroupId, offset: Offset) -> None:
        self.partitions += 1
        if behind <= 0:
            return
        self.records += behind
        keep = heappush if len(self.behind) < PARTITIONS_TIMED else heappushpop
        keep(self.behind, (behind, group_id, offset))


_Rows = dict[tuple[GroupId, str], dict[str, _Lag]]
"""Rows by (coordinator, consumer group), then by topic."""


@dataclass(slots=True)
class _Round:
    """Rows found since all groups were listed last."""

    rows: _Rows = field(default_factory=dict)
    """Those with most records behind."""
    kept: int = 0
    count: int = 0
    """All rows, also those not kept."""
    elsewhere: int = 0


@dataclass(slots=True)
class GroupLags:
    """Lag of the groups whose coordinators are led here. `rows_max`: rows shown at most."""

    host: Host
    stream: Callable[[GroupId], Stream | None]
    led: Callable[[], dict[GroupId, Offsets]]
    """Returns the committed offsets of the coordinators led here, by group of the coordinator."""
    rows_max: int
    _before: _Round = field(default_factory=_Round)
    """The last complete round, without the rows of groups that were examined again."""
    _now: _Round = field(default_factory=_Round)
    _work: Iterator[int] | None = None
    """The rest of this round; None: the next page begins one."""
    _shown: list[tuple[Row, _Lag]] = field(default_factory=list)
    _times: dict[_Place, FirstUnread] = field(default_factory=dict)
    """First unread records of the rows shown, as far as known."""

    def look(self) -> Iterator[None]:
        """Examine some groups, in steps."""
        if self.rows_max == 0:
            return
        if self._work is None:
            self._work = self._examine_all()
        work, budget = self._work, OFFSETS_PER_PAGE
        for count in work:
            budget -= count
            yield
            if budget <= 0:
                break
        else:
            if self._work is work:  # else another page has ended it
                self._work = None
                self._before, self._now = self._now, _Round()
        yield
        self._choose()
        yield
        yield from self._time()

    def _examine_all(self) -> Iterator[int]:
        """Examine all groups; yield the count of offsets of each step."""
        for number, offsets in self.led().items():
            for name in offsets.groups():
                if self.led().get(number) is not offsets:
                    break
                yield from self._examine(number, name, offsets)
            yield 1

    def _examine(self, number: GroupId, name: str, offsets: Offsets) -> Iterator[int]:
        """Yield the count of offsets examined in each step, and replace the group's rows."""
        found: dict[str, _Lag] = {}
        count = 1
        for (topic_name, partition), committed in list(offsets.of(name).items()):
            count += 1
            if count > _STEP_OFFSETS:
                yield count
                count = 0
            # Looked up each time: the catalog may change between two steps.
            topic = self.host.catalog.topics.get(topic_name)
            if topic is None or not _is_of(topic, partition, committed):
                continue
            row = found.get(topic_name)
            if row is None:
                row = found[topic_name] = _Lag()
            group_id = topic.partitions[partition]
            stream = self.stream(group_id)
            if stream is None:
                row.elsewhere += 1
                continue
            first = max(committed.offset, stream.log_start_offset)
            row.add(stream.high_watermark - first, group_id, first)
        self._replace((number, name), found)
        yield count

    def _replace(self, key: tuple[GroupId, str], found: dict[str, _Lag]) -> None:
        """Take a group's rows instead of those of the round before."""
        self._before.rows.pop(key, None)
        now = self._now
        now.elsewhere += sum(row.elsewhere for row in found.values())
        known = {topic: row for topic, row in found.items() if row.partitions}
        now.count += len(known)
        if known:
            now.rows[key] = known
            now.kept += len(known)
        if now.kept > 2 * self.rows_max + _STEP_OFFSETS:
            now.rows = _most_behind(now.rows, self.rows_max)
            now.kept = self.rows_max

    def _choose(self) -> None:
        """Choose the rows to be shown."""
        led = self.led()
        rows = {
            key: of_group
            for round_ in (self._before, self._now)
            for key, of_group in round_.rows.items()
            if key[0] in led
        }
        self._before.rows = {key: of for key, of in self._before.rows.items() if key[0] in led}
        self._shown = [
            ((name, topic), row)
            for (_, name), of_group in _most_behind(rows, self.rows_max).items()
            for topic, row in of_group.items()
        ]

    def _time(self) -> Iterator[None]:
        """Find when the first unread records of the rows shown were written, in steps."""
        wanted = {(one[1], one[2]) for _, row in self._shown for one in row.behind}
        self._times = {
            place: found
            for place, found in self._times.items()
            if found.is_final and place in wanted
        }
        for done, place in enumerate(wanted - self._times.keys()):
            if done % _STEP_TIMES == 0:
                yield
            stream = self.stream(place[0])
            found = None if stream is None else first_unread(stream, place[1])
            if found is not None:
                self._times[place] = found

    def samples(self) -> Iterator[Sample]:
        """Yield the rows with most records behind, as of the last `look`."""
        now_ms = self.host.agreed_ms()
        for (name, topic), row in self._shown:
            labels = (("group", name), ("topic", topic))
            yield Sample("lag_records", labels, row.records)
            known = [found for one in row.behind if (found := self._times.get(one[1:]))]
            late = [now_ms - found.ms for found in known if found.ms >= 0]
            if late or len(known) == len(row.behind):
                yield Sample("lag_seconds", labels, max(0, *late, 0) / 1_000)
        count = max(self._before.count, self._now.count)
        yield Sample("lag_rows_left_out", (), max(0, count - len(self._shown)))
        elsewhere = max(self._before.elsewhere, self._now.elsewhere)
        yield Sample("lag_partitions_elsewhere", (), elsewhere)


def _is_of(topic: TopicInfo, partition: int, committed: CommittedOffset) -> bool:
    """Return False if the offset is of an earlier topic of this name, or of no partition."""
    if not 0 <= partition < len(topic.partitions):
        return False
    if committed.partition_group:
        return committed.partition_group == topic.partitions[partition]
    return committed.topic_id == topic.topic_id


def _most_behind(rows: _Rows, count_max: int) -> _Rows:
    """Return the rows with most records behind."""
    every = (
        (row.records, topic, key)
        for key, of_group in rows.items()
        for topic, row in of_group.items()
    )
    found: _Rows = {}
    for _, topic, key in nlargest(count_max, every):
        found.setdefault(key, {})[topic] = rows[key][topic]
    return found


def first_unread(stream: Stream, offset: Offset) -> FirstUnread | None:
    """Return the first unread record from `offset` on; None if it is not known from memory."""
    batches = stream.in_memory(offset, BATCHES_LOOKED_AT)
    for batch in batches:
        header = read_header(batch)
        end = Offset(header.last_offset + 1)
        if not header.is_control and not _is_aborted(stream, header):
            if header.max_timestamp < 0:
                return None
            # Until its transaction has ended, it may be aborted.
            is_final = not header.is_transactional or end <= stream.last_stable_offset
            return FirstUnread(header.max_timestamp, is_final=is_final)
        offset = end
    if batches and offset >= stream.high_watermark:
        return FirstUnread(-1, is_final=False)
    return None


def _is_aborted(stream: Stream, header: BatchHeader) -> bool:
    first, end = Offset(header.base_offset), Offset(header.last_offset + 1)
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= first < one.last_offset
        for one in stream.aborted(first, end)
    )
