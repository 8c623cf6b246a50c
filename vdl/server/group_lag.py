"""Lag of consumer groups for the metrics: in records, and in seconds by the time of records.

The leader of a coordinator knows what its groups have committed, and reports them; other servers do
not. The ends of partitions are those that the replicas here know. A partition without a replica
here counts in `partitions_elsewhere`, not in a lag.

Everything is bounded. A page examines at most `OFFSETS_PER_PAGE` committed offsets and goes on with
the others at the next; the rows with most records behind are shown. In seconds, a row is as late as
the first unread record of its partitions with most records behind. Its batch is read once for each
committed offset: from memory, or from disk, a few for each page.

Does not depend on members of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import Final, Protocol

from ids import GroupId, Offset
from segments.api import NotInMemory, Slices, StorageError
from vdl.records.batch import max_timestamp_of
from vdl.server.exposition import Sample
from vdl.state.catalog import Catalog
from vdl.state.offsets import Offsets

OFFSETS_PER_PAGE: Final = 20_000
"""Committed offsets examined for one page: about 20 ms in all."""
_STEP_OFFSETS: Final = 500
PARTITIONS_TIMED: Final = 8
"""Partitions of a row whose first unread record is read."""
READS_PER_PAGE: Final = 32
"""Reads from disk for one page."""
ROWS_KEPT_MAX: Final = 100_000

Row = tuple[str, str]
"""(consumer group, topic)"""


class Stream(Protocol):
    """The replica of a partition here."""

    @property
    def high_watermark(self) -> Offset: ...
    @property
    def log_start_offset(self) -> Offset: ...
    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices: ...
    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None: ...


class Host(Protocol):
    """The server, as far as lag needs it."""

    @property
    def catalog(self) -> Catalog: ...
    def agreed_ms(self) -> int: ...


@dataclass(slots=True)
class _Lag:
    """One row."""

    records: int = 0
    elsewhere: int = 0
    """Partitions without a replica here."""
    behind: list[tuple[int, GroupId, Offset]] = field(default_factory=list)
    """(records behind, partition's group, committed offset) of those with most behind."""


@dataclass(slots=True)
class GroupLags:
    """Lag of the groups whose coordinators are led here. `rows_max`: rows shown at most."""

    host: Host
    stream: Callable[[GroupId], Stream | None]
    led: Callable[[], dict[GroupId, Offsets]]
    """Returns the committed offsets of the coordinators led here, by group of the coordinator."""
    rows_max: int
    _left: list[tuple[GroupId, str]] = field(default_factory=list)
    """(coordinator, consumer group) still to be examined in this round."""
    _rows: dict[GroupId, dict[Row, _Lag]] = field(default_factory=dict)
    """Rows as last examined, by coordinator."""
    _times: dict[tuple[GroupId, Offset], int] = field(default_factory=dict)
    """Timestamps (ms) of the first unread records of the rows shown; -1: being read, or none."""
    _under_way: int = 0
    """Reads from disk under way."""

    def look(self) -> Iterator[None]:
        """Examine some groups, in steps."""
        led = self.led()
        for coordinator in self._rows.keys() - led.keys():
            del self._rows[coordinator]
        if not self._left:
            self._left = [
                (number, name) for number, offsets in led.items() for name in offsets.groups()
            ]
            self._forget_gone(led)
        budget = OFFSETS_PER_PAGE
        while self._left and budget > 0:
            number, name = self._left.pop()
            if number in led:
                for count in self._examine(number, name, led[number]):
                    budget -= count
                    yield
        yield
        self._time()

    def _forget_gone(self, led: dict[GroupId, Offsets]) -> None:
        """Remove rows of groups without offsets, before a new round."""
        for number, rows in self._rows.items():
            known = set(led[number].groups())
            for row in [row for row in rows if row[0] not in known]:
                del rows[row]

    def _examine(self, number: GroupId, name: str, offsets: Offsets) -> Iterator[int]:
        """Yield the count of offsets examined in each step, and replace the group's rows."""
        topics, stream_of = self.host.catalog.topics, self.stream
        found: dict[Row, _Lag] = {}
        count = 0
        for (topic_name, partition), committed in list(offsets.of(name).items()):
            count += 1
            if count == _STEP_OFFSETS:
                yield count
                count = 0
            topic = topics.get(topic_name)
            if topic is None or partition >= len(topic.partitions):
                continue
            row = found.get((name, topic_name))
            if row is None:
                row = found[name, topic_name] = _Lag()
            group_id = topic.partitions[partition]
            stream = stream_of(group_id)
            if stream is None:
                row.elsewhere += 1
                continue
            behind = stream.high_watermark - committed.offset
            if behind > 0:
                row.records += behind
                row.behind.append((behind, group_id, committed.offset))
        for row in found.values():
            row.behind = nlargest(PARTITIONS_TIMED, row.behind)
        rows = self._rows.setdefault(number, {})
        for key in [key for key in rows if key[0] == name and key not in found]:
            del rows[key]
        if sum(map(len, self._rows.values())) < ROWS_KEPT_MAX:
            rows.update(found)
        yield count

    def _shown(self) -> list[tuple[Row, _Lag]]:
        """Return the rows with most records behind."""
        every = (item for rows in self._rows.values() for item in rows.items())
        return nlargest(self.rows_max, every, key=lambda item: (item[1].records, item[0]))

    def _time(self) -> None:
        """Find when the first unread records of the rows shown were written."""
        wanted = {(one[1], one[2]) for _, row in self._shown() for one in row.behind}
        self._times = {place: ms for place, ms in self._times.items() if place in wanted}
        reads = READS_PER_PAGE - self._under_way
        for place in sorted(wanted - self._times.keys()):
            stream = self.stream(place[0])
            if stream is None:
                continue
            offset = max(place[1], stream.log_start_offset)
            try:
                self._found(place, stream.read(offset, 1))
            except NotInMemory:
                if reads > 0:
                    reads -= 1
                    self._under_way += 1
                    self._times[place] = -1
                    stream.read_cold(offset, 1, partial(self._read, place))
            except StorageError:
                continue

    def _read(self, place: tuple[GroupId, Offset], found: Slices | StorageError) -> None:
        self._under_way -= 1
        if place not in self._times:
            return  # no row shows it any more
        if isinstance(found, StorageError):
            del self._times[place]  # the next page tries again
        else:
            self._found(place, found)

    def _found(self, place: tuple[GroupId, Offset], found: Slices) -> None:
        if found.buffers:
            self._times[place] = max_timestamp_of(found.buffers[0])

    def samples(self) -> Iterator[Sample]:
        """Yield the rows with most records behind."""
        shown, now_ms = self._shown(), self.host.agreed_ms()
        for (name, topic), row in shown:
            labels = (("group", name), ("topic", topic))
            yield Sample("lag_records", labels, row.records)
            times = [self._times.get(one[1:], -1) for one in row.behind]
            known = [ms for ms in times if ms >= 0]
            if known or not row.behind:
                late_ms = max(0, now_ms - min(known)) if known else 0
                yield Sample("lag_seconds", labels, late_ms / 1_000)
        rows = [row for one in self._rows.values() for row in one.values()]
        yield Sample("lag_rows_left_out", (), len(rows) - len(shown))
        yield Sample("lag_partitions_elsewhere", (), sum(row.elsewhere for row in rows))
