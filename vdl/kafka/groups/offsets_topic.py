"""`__consumer_offsets` as monitors read it: the commits of consumer groups, as a log.

Kafka keeps committed offsets in a compacted topic of this name, and some tools (Burrow) know of
groups only what they read there. Here they are the state of the coordinators. Partition p of this
topic is a view of coordinator p + 1, led by whoever leads that, in Kafka's own record format. It
cannot be written to, grown, altered or deleted.

A view begins when somebody first reads it under this leader, at the entry that is applied then:

* What was committed before stands at that entry, all of it, a batch a group.
* What is committed later stands at its own entry, in one batch an entry. A position that is
  committed again is found at the later one alone, as after compaction.

So whoever reads from an offset on learns of every position that was committed since, and perhaps of
others. A new leader's view begins at or behind all offsets that any view before it gave out: a
reader that goes on there reads what stands once more, and misses nothing. Positions that are
deleted or expire just are not there any more: there are no tombstones, and no records of members.

The offset of a record is `OFFSETS_PER_ENTRY` times the index of its entry in the coordinator's log,
and its place in it: the same entry has the same offset under every leader. Offsets without a record
are covered by the batch before them, or by an empty one, so that a reader always moves on.

A view costs nothing until it is read, and then some 300 bytes a position. Where groups come and go
it begins anew now and then, as under a new leader.

Must not know: requests, who coordinates what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from ids import NO_OFFSET, NO_TERM, GroupId, Index, Offset, ServerId, Term
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from vdl.clock import NEVER, Clock
from vdl.errors import ErrorCode
from vdl.kafka.groups.commit_order import CommitOrder, Place
from vdl.kafka.host import Compute
from vdl.logstream.group.appends import Appended, Verify
from vdl.logstream.group.log_stream import Wait
from vdl.logstream.group.offset_for_time import NO_RECORD, TimedOffset
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.records.batch import SPAN_MAX, BatchHeader, Record, build_sparse_batch
from vdl.state.aborted import AbortedRange
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.commands import OffsetCommit
from vdl.state.coordinator import CommitAnswer, Coordinator, TransactionOffsetsEnded
from vdl.state.offsets import NO_EXPIRY, CommittedOffset
from vdl.state.producers import ActiveProducer

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_TOPIC_ID = bytes.fromhex("5f5f636f6e73756d65725f6f66667365")
"""Topic ids of others are drawn: none is this one."""

OFFSETS_PER_ENTRY = 1 << 20
"""More than positions of one coordinator, which has room for some 70,000."""

RECORDS_ON_LOOP_MAX = 500
"""More records than these are built off the loop: some 5 us each."""

RECORDS_PER_READ = 2_000
"""One read takes no further entry when it has so many."""

FORGOTTEN_MAX = 10_000
"""A view begins anew when more positions than these, and than there are, have come and gone."""

Positioned = tuple[Place, CommittedOffset]
_Taken = tuple[Offset, str, list[Positioned]]
"""Offset, group, and the positions of one batch."""

_NAME_BYTES_MAX = (1 << 15) - 1
"""Kafka's records have 16 bits for the length of a name."""
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_KEY_VERSION = _INT16.pack(1)
_VALUE_HEAD = Struct(">hqi")
_OLD_VALUE_HEAD = Struct(">hq")
_TIME = Struct(">q")


def offsets_topic(catalog: Catalog) -> TopicInfo:
    """The topic as handlers see topics: its groups are the coordinators."""
    groups = [GroupId(n) for n in range(1, 1 + catalog.coordinator_groups)]
    return TopicInfo(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, groups, {"cleanup.policy": "compact"})


class CommitLog:
    """One coordinator's commits as a partition: a `vdl.kafka.context.LogStream`, and a
    `StateObserver` of the coordinator."""

    def __init__(
        self,
        state_group: StateGroup,
        group_id: GroupId,
        clock: Clock,
        gaps: LoopGaps,
        compute: Compute,
    ) -> None:
        """`gaps`: the server's."""
        self.group_id = group_id
        self._group = state_group
        self._clock = clock
        self._gaps = gaps
        self._proved = gaps.count
        self._compute = compute
        self._start_index = 0
        """The entry at which all stands that was committed before; 0: nobody reads."""
        self._first: list[tuple[Offset, str, int]] = []
        """(offset, group, positions) of what stands there; the offsets ascend."""
        self._order = CommitOrder()
        """Of commits behind that entry."""
        self._waits: list[Wait] = []
        self._waits_max = 0
        """With more waits than these it is looked which of them are cancelled."""
        self._is_waking = False
        state_group.observers.append(self)

    # --- StateObserver -----------------------------------------------------------------------
    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None:
        if self._start_index and isinstance(result, CommitAnswer) and result.offsets:
            places = [(offset.topic, offset.partition) for offset in result.offsets]
            self._order.add(index, result.group_id, places, now_ms)
            if len(self._order) > 2 * len(self._machine.offsets) + FORGOTTEN_MAX:
                self._forget()
        elif isinstance(result, TransactionOffsetsEnded) and self._start_index:
            self._transaction_ended(result.committed, now_ms, index)
        self._wake_soon()

    def _transaction_ended(
        self, committed: dict[str, list[OffsetCommit]], now_ms: int, index: int
    ) -> None:
        """An entry has the commits of one group. Of several, which is rare, all is told anew."""
        if len(committed) > 1:
            self._forget()
        for group_id, offsets in committed.items():
            if self._start_index:
                places = [(offset.topic, offset.partition) for offset in offsets]
                self._order.add(index, group_id, places, now_ms)

    def on_installed(self, group: StateGroup) -> None:
        self._forget()

    def on_serving(self, group: StateGroup) -> None:
        self._forget()

    def on_stopped_serving(self, group: StateGroup) -> None:
        self._forget()

    def _forget(self) -> None:
        """The view begins anew when it is read next, if it is led here then."""
        self._start_index = 0
        self._first = []
        self._order = CommitOrder()
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

    # --- who leads ---------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        return self._group.is_running and self._group.is_leader

    @property
    def serving(self) -> bool:
        return self._group.serving

    def when_serving(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """A coordinator that does not serve yet is asked again by its clients."""
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

    # --- where it begins and ends --------------------------------------------------------------
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
        """Nothing is ever truncated: whoever has read in an earlier term is where it should be."""
        return (epoch, self.high_watermark) if 0 <= epoch <= self.term else (-1, NO_OFFSET)

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | StorageError], None]
    ) -> None:
        """The first batch with a commit of that time or later; where all stands that was committed
        before, batches are in no order of time."""
        self._begin()
        for offset, group_id, _ in self._first:
            newest = self._newest(group_id)
            if newest >= timestamp_ms:
                done(TimedOffset(offset, newest, self.term))
                return
        index = self._order.first_at(timestamp_ms)
        for at, group_id, places in self._order.since(index) if index >= 0 else ():
            newest = max((p.committed_ms for _, p in self._positions(group_id, places)), default=-1)
            if newest >= timestamp_ms:
                done(TimedOffset(Offset(at * OFFSETS_PER_ENTRY), newest, self.term))
                return
        done(NO_RECORD)

    def offset_of_largest_time(self, done: Callable[[TimedOffset | StorageError], None]) -> None:
        self.offset_for_time(self._newest_ms(), done)

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | StorageError], None]
    ) -> None:
        """There are no segments here: it is all one."""
        done([(self.log_start_offset, self._newest_ms())])

    def _newest_ms(self) -> int:
        """No commit has a later time (ms)."""
        self._begin()
        newest = max((self._newest(group_id) for _, group_id, _ in self._first), default=-1)
        return max(newest, self._order.newest_ms)

    def _newest(self, group_id: str) -> int:
        """When the group committed last (ms); -1 if nothing is left of it."""
        positions = self._machine.offsets.of(group_id).values()
        return max((position.committed_ms for position in positions), default=-1)

    # --- reading -------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> Offset:
        """Offsets of open transactions are not shown."""
        return self.high_watermark

    def aborted(self, start: Offset, end: Offset) -> list[AbortedRange]:
        return []

    @property
    def aborted_age(self) -> int:
        return 0

    def read(self, offset: Offset, bytes_max: int, *, stable: bool = False) -> Slices:
        """Batches from `offset` on. Raises NotInMemory for many records, OffsetOutOfRange."""
        taken, end, records = self._take(offset, bytes_max)
        if records > RECORDS_ON_LOOP_MAX:
            raise NotInMemory(Index(offset), Index(end))
        return _build(taken, offset, end, self.term)

    def read_cold(
        self,
        offset: Offset,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
        *,
        stable: bool = False,
    ) -> None:
        """As `read`; the records are built where things are computed."""
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

        self._compute(lambda: _build(taken, offset, end, term), built)

    def _take(self, offset: Offset, bytes_max: int) -> tuple[list[_Taken], Offset, int]:
        """(what is to be in each batch, offset after the last, number of records)."""
        end = self.high_watermark
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(f"offset {offset} is beyond {end}")
        self._begin()
        taken: list[_Taken] = []
        size = records = 0
        for start, group_id, places in self._entries(offset):
            positions = self._positions(group_id, places)
            if not positions:
                continue
            size += sum(_record_bytes(group_id, place, p) for place, p in positions)
            if taken and (size > bytes_max or records >= RECORDS_PER_READ):
                end = start
                break
            taken.append((start, group_id, positions))
            records += len(positions)
        return taken, end, records

    def _begin(self) -> None:
        """The first read: all that is committed stands at the entry that is applied now."""
        if self._start_index:
            return
        self._start_index = self._group.group.applied
        offset = Offset(self._start_index * OFFSETS_PER_ENTRY)
        machine = self._machine
        for group_id in machine.group_ids():
            count = len(machine.offsets.of(group_id))
            if count:
                self._first.append((offset, group_id, count))
                offset += count

    def _entries(self, offset: Offset) -> Iterator[tuple[Offset, str, list[Place]]]:
        """(offset, group, positions) of what is a batch, from the one that holds `offset` on."""
        at = bisect_right(self._first, offset, key=lambda first: first[0])
        for n in range(max(0, at - 1), len(self._first)):
            start, group_id, count = self._first[n]
            if start + count > offset:
                # What was committed again has come behind the others, and is found there as well.
                yield start, group_id, list(self._machine.offsets.of(group_id))[:count]
        for index, group_id, places in self._order.since(offset // OFFSETS_PER_ENTRY):
            yield Offset(index * OFFSETS_PER_ENTRY), group_id, places

    def _positions(self, group_id: str, places: list[Place]) -> list[Positioned]:
        """Those of the places that the group still has a position in."""
        positions = self._machine.offsets.of(group_id)
        return [(place, positions[place]) for place in places if place in positions]

    @property
    def _machine(self) -> Coordinator:
        machine = self._group.machine
        assert isinstance(machine, Coordinator), type(machine)
        return machine

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """Call back once when there may be more."""
        offset = min(offset, stable_offset)
        if len(self._waits) > self._waits_max:
            self._waits = [wait for wait in self._waits if wait.callback is not None]
            self._waits_max = 2 * len(self._waits) + 16
        wait = Wait(offset, NEVER, callback)
        self._waits.append(wait)
        if offset < self.high_watermark:
            self._wake_soon()
        return wait

    # --- what is not to be had -----------------------------------------------------------------
    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        *,
        copies_min: int = 1,
        deadline_ns: int,
        done: Callable[[Appended], None],
        verify: Verify | None = None,
    ) -> None:
        """Clients cannot write here."""
        done(Appended(ErrorCode.INVALID_TOPIC_EXCEPTION))

    def delete_records(
        self, offset: Offset, *, deadline_ns: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """Nor delete."""
        done(ErrorCode.INVALID_TOPIC_EXCEPTION)

    def producers(self) -> list[ActiveProducer]:
        return []

    def stored_bytes(self, done: Callable[[int | StorageError], None]) -> None:
        """The coordinator's positions, about."""
        done(self._machine.offsets.bytes)


def _build(taken: list[_Taken], offset: Offset, end: Offset, term: Term) -> Slices:
    """The batches of what was taken, each up to the next; an empty one if there is none."""
    found = Slices(first_offset=offset, end_offset=offset)
    if offset >= end:
        return found
    taken = taken or [(offset, "", [])]
    found.first_offset = taken[0][0]
    ends = [start for start, _, _ in taken[1:]]
    for (start, group_id, positions), until in zip(taken, [*ends, end], strict=True):
        made = (_record(group_id, place, position) for place, position in positions)
        # A batch spans some 2,000 entries at most. Readers pass over what lies behind it.
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


def _record(group_id: str, place: Place, position: CommittedOffset) -> Record | None:
    """Kafka's record of a commit: OffsetCommitKey v1, OffsetCommitValue v3, or v1 of a position
    that expires by itself. None for names that it has no room for."""
    names = group_id.encode(), place[0].encode(), position.metadata.encode()
    if max(map(len, names)) > _NAME_BYTES_MAX:
        return None
    group, topic, metadata = (_INT16.pack(len(name)) + name for name in names)
    key = _KEY_VERSION + group + topic + _INT32.pack(place[1])
    committed = _TIME.pack(position.committed_ms)
    if position.expires_ms == NO_EXPIRY:
        head = _VALUE_HEAD.pack(3, position.offset, position.leader_epoch)
        value = head + metadata + committed
    else:
        head = _OLD_VALUE_HEAD.pack(1, position.offset)
        value = head + metadata + committed + _TIME.pack(position.expires_ms)
    return Record(key, value, timestamp=position.committed_ms)


def _record_bytes(group_id: str, place: Place, position: CommittedOffset) -> int:
    """What a record takes in a batch, about."""
    return 60 + len(group_id) + len(place[0]) + len(position.metadata)
