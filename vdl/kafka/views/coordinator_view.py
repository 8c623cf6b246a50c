"""View of a coordinator's state as a log that clients read: a partition of a Kafka internal topic.

Kafka keeps committed offsets and the states of transactional ids in compacted topics, and some
tools read them only there. Here they are the state of the coordinators. Partition p of such a topic
is a view of coordinator p + 1, led by the same server, in Kafka's own record format. It cannot be
written to, grown, altered or deleted.

A view begins when a client first reads it under this leader, at the entry that is applied then:

* Everything that existed before is at that entry, in batches.
* Later changes are at their own entry, in one batch an entry. After a repeated change only the
  later one is found, as after compaction.

So a reader that starts at any offset sees everything that changed since, and perhaps more. A new
leader's view begins at or behind all offsets that any view before it returned: a reader that
continues there reads the whole state once more, and misses nothing. A deleted or expired item has a
tombstone at the entry that removed it, until the view begins again; then it is simply absent.

The offset of a record is `OFFSETS_PER_ENTRY` times the index of its entry in the coordinator's log,
plus its place in the entry: the same entry has the same offset under every leader. Offsets without
a record are covered by the batch before them, or by an empty one, so that a reader always advances.

A view costs nothing until it is read, and then some 300 bytes a record. If its items come and go,
it begins again from time to time, as under a new leader.

Does not depend on the contents of records, on requests, or on how coordinators are placed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from ids import NO_OFFSET, NO_TERM, GroupId, Index, Offset, ServerId, Term
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from vdl.clock import NEVER, Clock
from vdl.errors import ErrorCode
from vdl.kafka.host import Compute
from vdl.kafka.views.change_order import ChangeOrder, Place
from vdl.logstream.group.appends import Appended, Verify
from vdl.logstream.group.long_polls import Wait
from vdl.logstream.group.measures import TopicTraffic
from vdl.logstream.group.offset_for_time import NO_RECORD, TimedOffset
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import SPAN_MAX, BatchHeader, Record, build_sparse_batch
from vdl.state.aborted import AbortedRange
from vdl.state.producers import ActiveProducer

OFFSETS_PER_ENTRY = 1 << 20
"""Offsets reserved for each entry: more than a coordinator's positions (`POSITIONS_MAX`) and groups
together."""

RECORDS_ON_LOOP_MAX = 500
"""Larger reads are built off the loop: a record takes some 5 us."""

RECORDS_PER_READ = 2_000
"""Records after which a read takes no further entry."""

FORGOTTEN_MAX = 10_000
"""A view begins again when more items than this, and than exist, have come and gone."""

Item = TypeVar("Item")
"""Contents of a record, copied from the state."""


class Content(Protocol[Place, Item]):
    """The items of a coordinator that a view shows; each is named by a place."""

    @property
    def count(self) -> int:
        """Number of records."""

    @property
    def bytes(self) -> int:
        """Approximate size of the records."""

    def standing(self) -> Iterator[list[Place]]:
        """Yield all existing items, as batches. From now on `changed` reports changes."""

    def changed(self, result: Any) -> list[Place]:
        """Return the items that the entry with this result changed or removed."""

    def unwatched(self) -> None:
        """Stop tracking changes until the next `standing`."""

    def take(self, places: list[Place]) -> list[Item]:
        """Return the present contents of these places, or their tombstones."""

    def newest_ms(self, places: list[Place]) -> int:
        """Return the time of the latest change of any of them; -1 if none exists."""

    def size_of(self, item: Item) -> int:
        """Return the approximate size of the item's record in a batch."""

    def record(self, item: Item) -> Record | None:
        """Return the item's record; None if Kafka's format has no room for it. May run in any
        thread."""


class CoordinatorView(Generic[Place, Item]):
    """One coordinator's content as a partition: a `vdl.kafka.host.LogStream`, and a `StateObserver`
    of the coordinator."""

    def __init__(
        self,
        content: Content[Place, Item],
        state_group: StateGroup,
        group_id: GroupId,
        clock: Clock,
        gaps: LoopGaps,
        compute: Compute,
    ) -> None:
        """`gaps`: the server's."""
        self.group_id = group_id
        self.traffic = TopicTraffic()
        self._content = content
        self._group = state_group
        self._clock = clock
        self._gaps = gaps
        self._proved = gaps.count
        self._compute = compute
        self._start_index = 0
        """Entry at which everything older is found; 0: the view is not read."""
        self._first: list[tuple[Offset, list[Place]]] = []
        """(offset, places) of the batches at that entry; the offsets ascend."""
        self._order: ChangeOrder[Place] = ChangeOrder()
        """Changes behind that entry."""
        self._waits: list[Wait] = []
        self._waits_max = 0
        """Number of waits above which cancelled ones are removed."""
        self._is_waking = False
        self._is_observing = False
        """True from the first read on: before it, the view costs nothing."""

    # --- StateObserver -----------------------------------------------------------------------
    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None:
        if self._start_index and (changed := self._content.changed(result)):
            self._order.add(index, changed, now_ms)
            if len(self._order) > 2 * self._content.count + FORGOTTEN_MAX:
                self._forget()
        self._wake_soon()

    def on_installed(self, group: StateGroup) -> None:
        self._forget()

    def on_serving(self, group: StateGroup) -> None:
        self._forget()

    def on_stopped_serving(self, group: StateGroup) -> None:
        self._forget()

    def _observe(self) -> None:
        if not self._is_observing:
            self._is_observing = True
            self._group.observers.append(self)

    def _forget(self) -> None:
        """Discard the view; it begins again when it is next read, if it is led here then."""
        self._start_index = 0
        self._first = []
        self._order = ChangeOrder()
        self._content.unwatched()
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waits and not self._is_waking:
            self._is_waking = True
            self._clock.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        waits, self._waits = self._waits, []
        for wait in waits:
            if wait.callback is not None:
                wait.callback()

    # --- leadership --------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        return self._group.is_running and self._group.is_leader

    @property
    def serving(self) -> bool:
        return self._group.serving

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Answer at once: if the coordinator does not serve yet, clients retry."""
        done(self.serving)

    @property
    def is_proved(self) -> bool:
        return self._proved == self._gaps.look()

    def prove(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        gap = self._gaps.count

        def proved(passed: bool) -> None:
            if passed:
                self._proved = max(self._proved, gap)
            done(passed)

        self.read_index(deadline_ns=deadline_ns, done=proved)

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        if self._group.is_running:
            self._group.read_index(deadline_ns=deadline_ns, done=done)
        else:
            done(False)

    @property
    def term(self) -> Term:
        return self._group.term if self._group.is_running else NO_TERM

    @property
    def leader_server(self) -> ServerId:
        return self._group.leader_server

    # --- start and end -------------------------------------------------------------------------
    @property
    def log_start_offset(self) -> Offset:
        return Offset(0)

    @property
    def high_watermark(self) -> Offset:
        if not self._group.is_running:
            return Offset(0)
        return Offset((self._group.group.applied + 1) * OFFSETS_PER_ENTRY)

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        done(self.term)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """Return the end of the log for any known epoch: nothing is ever truncated."""
        return (epoch, self.high_watermark) if 0 <= epoch <= self.term else (-1, NO_OFFSET)

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | StorageError], None]
    ) -> None:
        """Find the first batch with a change of that time or later. The batches at the first entry
        are not ordered by time."""
        self._begin()
        for offset, places in self._first:
            newest = self._content.newest_ms(self._unchanged(places))
            if newest >= timestamp_ms:
                done(TimedOffset(offset, newest, self.term))
                return
        index = self._order.first_at(timestamp_ms)
        for at, places in self._order.since(index) if index >= 0 else ():
            newest = self._content.newest_ms(places)
            if newest >= timestamp_ms:
                done(TimedOffset(Offset(at * OFFSETS_PER_ENTRY), newest, self.term))
                return
        done(NO_RECORD)

    def offset_of_largest_time(self, done: Callable[[TimedOffset | StorageError], None]) -> None:
        self.offset_for_time(self._newest_ms(), done)

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | StorageError], None]
    ) -> None:
        """Report the whole log as one segment."""
        done([(self.log_start_offset, self._newest_ms())])

    def _newest_ms(self) -> int:
        """Return a time (ms) that no change is later than."""
        self._begin()
        content = self._content
        newest = (content.newest_ms(places) for _, places in self._first)
        return max(max(newest, default=-1), self._order.newest_ms)

    def _unchanged(self, places: list[Place]) -> list[Place]:
        """Return those that have not changed behind the view's first entry."""
        return [place for place in places if place not in self._order]

    # --- reading -------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> Offset:
        """The high watermark: changes of open transactions are not shown."""
        return self.high_watermark

    def aborted(self, start: Offset, end: Offset) -> list[AbortedRange]:
        return []

    @property
    def aborted_age(self) -> int:
        return 0

    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices:
        """Return batches from `offset` on. Raises NotInMemory for many records,
        OffsetOutOfRange."""
        taken, end, records = self._take(offset, bytes_max)
        if records > RECORDS_ON_LOOP_MAX:
            raise NotInMemory(Index(offset), Index(end))
        return self._build(taken, offset, end, self.term)

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None:
        """Read as `read` does, but build the records off the loop."""
        try:
            taken, end, _ = self._take(offset, bytes_max)
        except StorageError as error:
            failure = error
            self._clock.call_soon(lambda: done(failure))
            return
        term = self.term

        def built(found: Slices | BaseException) -> None:
            if isinstance(found, BaseException):
                raise found
            done(found)

        self._compute(lambda: self._build(taken, offset, end, term), built)

    def _take(
        self, offset: Offset, bytes_max: int
    ) -> tuple[list[tuple[Offset, list[Item]]], Offset, int]:
        """Return (offset and items of each batch, offset after the last batch, number of
        records)."""
        end = self.high_watermark
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} is beyond {end}")
        self._begin()
        taken: list[tuple[Offset, list[Item]]] = []
        size = records = 0
        for start, places in self._entries(offset):
            items = self._content.take(places)
            if not items:
                continue
            size += sum(self._content.size_of(item) for item in items)
            if taken and (size > bytes_max or records >= RECORDS_PER_READ):
                end = start
                break
            taken.append((start, items))
            records += len(items)
        return taken, end, records

    def _begin(self) -> None:
        """Begin the view at the applied entry, unless it has begun."""
        if self._start_index:
            return
        self._observe()
        self._start_index = self._group.group.applied
        offset = Offset(self._start_index * OFFSETS_PER_ENTRY)
        end = offset + OFFSETS_PER_ENTRY
        for places in self._content.standing():
            if offset + len(places) > end:
                break  # items that have no offset left are shown when they change
            self._first.append((offset, places))
            offset += len(places)

    def _entries(self, offset: Offset) -> Iterator[tuple[Offset, list[Place]]]:
        """Yield (offset, places) of each batch, from the one that holds `offset` on."""
        at = bisect_right(self._first, offset, key=lambda first: first[0])
        for n in range(max(0, at - 1), len(self._first)):
            start, places = self._first[n]
            if start + len(places) > offset:
                yield start, self._unchanged(places)
        for index, places in self._order.since(offset // OFFSETS_PER_ENTRY):
            yield Offset(index * OFFSETS_PER_ENTRY), places

    def _build(
        self,
        taken: list[tuple[Offset, list[Item]]],
        offset: Offset,
        end: Offset,
        term: Term,
    ) -> Slices:
        """Build the batches of the taken items, each up to the next; an empty one if there are
        none. May run in any thread."""
        found = Slices(first_offset=offset, end_offset=offset)
        if offset >= end:
            return found
        taken = taken or [(offset, [])]
        found.first_offset = taken[0][0]
        ends = [start for start, _ in taken[1:]]
        for (start, items), until in zip(taken, [*ends, end], strict=True):
            made = (self._content.record(item) for item in items)
            # A batch spans at most some 2,000 entries. Readers skip the offsets behind it.
            found.end_offset = min(until, start + SPAN_MAX)
            batch = build_sparse_batch(
                [record for record in made if record is not None],
                start,
                found.end_offset,
                leader_epoch=term,
            )
            found.buffers.append(memoryview(batch))
            found.bytes += len(batch)
        return found

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """Call back once when there may be more."""
        self._observe()
        offset = min(offset, stable_offset)
        if len(self._waits) > self._waits_max:
            self._waits = [wait for wait in self._waits if wait.callback is not None]
            self._waits_max = 2 * len(self._waits) + 16
        wait = Wait(offset, NEVER, callback)
        self._waits.append(wait)
        if offset < self.high_watermark:
            self._wake_soon()
        return wait

    # --- unsupported operations ----------------------------------------------------------------
    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
        begins_epoch: bool = False,
    ) -> None:
        """Refuse: clients cannot write here."""
        done(Appended(ErrorCode.INVALID_TOPIC_EXCEPTION))

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Refuse: clients cannot delete here."""
        done(ErrorCode.INVALID_TOPIC_EXCEPTION)

    def producers(self) -> list[ActiveProducer]:
        return []

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        """Report the approximate size of the coordinator's records."""
        done(self._content.bytes)
