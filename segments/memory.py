"""In-memory reference model of the disk engine.

`MemoryStore` implements the storage contract with plain lists and is kept simple enough to be
obviously correct: the contract suite runs the disk engine beside it and compares. It has two
states: the live one, seen by the owner, and a durable image to which the journal job applies the
staged records. `crash()` discards the first and returns a store opened over the second, exactly as
a process killed at that moment would find its disk.

Does not depend on files, formats, threads or time.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVar

from ids import (
    NO_INDEX,
    NO_SERVER,
    NO_TERM,
    DirectoryId,
    GroupId,
    Index,
    LogId,
    NodeId,
    Offset,
    ReplicaNumber,
    ServerId,
    Term,
    indexes,
)
from segments.api import (
    NEVER_AHEAD,
    Buffer,
    Compacted,
    Compaction,
    EntryLike,
    HardState,
    Log,
    MetaBatch,
    OffsetOutOfRange,
    RecordCleaner,
    SegmentLimits,
    SegmentSpan,
    Slices,
    StorageError,
    StoredEntry,
    StoreOptions,
    Unavailable,
    Workers,
)
from segments.boots import Boot, next_boot

T = TypeVar("T")
_base_offset = attrgetter("base_offset")


@dataclass(frozen=True, slots=True)
class Collected:
    """Collected applied state, and the number of resets of its log at that time."""

    batch: MetaBatch
    resets: int


@dataclass(slots=True)
class LogState:
    """One log, as a list of entries.

    The same operations are applied to the live state and the image.
    """

    log_id: LogId
    group_id: GroupId
    replica_number: ReplicaNumber
    first_index: Index
    prev_term: Term
    start_offset: Offset
    hard: HardState = field(default_factory=HardState)
    entries: list[EntryLike] = field(default_factory=list)
    installed: bytes = b""
    resets: int = 0
    limits: SegmentLimits | None = None
    compacted: Compaction = field(default_factory=Compaction)
    lost: bool = False
    """Set in an image by tests that simulate a disk that lost data."""

    @property
    def last_index(self) -> Index:
        return self.first_index + len(self.entries) - 1

    @property
    def next_offset(self) -> Offset:
        if not self.entries:
            return self.start_offset
        return self.entries[-1].base_offset + self.entries[-1].records

    def append(self, entries: Sequence[EntryLike]) -> None:
        del self.entries[entries[0].index - self.first_index :]
        self.entries.extend(entries)

    def reset(self, first_index: Index, prev_term: Term, next_offset: Offset, state: bytes) -> None:
        self.first_index, self.prev_term, self.start_offset = first_index, prev_term, next_offset
        self.entries.clear()
        self.hard.commit = first_index - 1
        self.installed = state
        self.compacted = Compaction()
        self.resets += 1

    def compact(self, compaction: Compaction, left: Mapping[Index, Buffer]) -> None:
        """Replace the payloads of reduced entries by those in `left`, by index."""
        for n, entry in enumerate(self.entries):
            if entry.index in left:
                self.entries[n] = StoredEntry(
                    entry.term, entry.index, entry.kind, left[entry.index], entry.base_offset,
                    entry.records, entry.timestamp,
                )  # fmt: skip
        self.compacted = compaction

    def cover(self, found: Collected) -> None:
        """Clear the installed state if `found`, now in the meta, was made from it."""
        is_later = found.batch.clear and found.batch.applied >= self.first_index - 1
        if found.resets == self.resets and is_later:
            self.installed = b""

    def trim(self, first_index: Index) -> None:
        count = first_index - self.first_index
        if count <= 0:
            return
        last_dropped = self.entries[count - 1]
        self.prev_term = last_dropped.term
        self.start_offset = last_dropped.base_offset + last_dropped.records
        self.first_index = first_index
        del self.entries[:count]


@dataclass(slots=True)
class MemoryImage:
    """Durable state, which survives a crash."""

    directory_id: DirectoryId
    cluster_record: bytes = b""
    next_log_id: int = 1
    logs: dict[LogId, LogState] = field(default_factory=dict)
    meta: dict[LogId, dict[bytes, bytes]] = field(default_factory=dict)
    applied: dict[LogId, Index] = field(default_factory=dict)
    server_id: ServerId = NO_SERVER
    boots: list[Boot] = field(default_factory=list)
    lsn: int = 0
    """Number of records written."""
    peers_note: bytes = b""


class MemoryLog:
    """`Log` over a `LogState`. All entries are in memory, so NotInMemory is never raised."""

    __slots__ = ("_applied", "state")

    def __init__(self, state: LogState, applied: Index) -> None:
        self.state = state
        self._applied = applied

    @property
    def log_id(self) -> LogId:
        return self.state.log_id

    @property
    def group_id(self) -> GroupId:
        return self.state.group_id

    @property
    def replica_number(self) -> ReplicaNumber:
        return self.state.replica_number

    @property
    def first_index(self) -> Index:
        return self.state.first_index

    @property
    def last_index(self) -> Index:
        return self.state.last_index

    @property
    def commit_index(self) -> Index:
        return self.state.hard.commit

    @property
    def hard_state(self) -> HardState:
        hard = self.state.hard
        return HardState(hard.term, hard.vote, hard.commit)

    @property
    def applied_index(self) -> Index:
        return self._applied

    @property
    def log_start_offset(self) -> Offset:
        return self.state.start_offset

    @property
    def next_offset(self) -> Offset:
        return self.state.next_offset

    @property
    def installed_state(self) -> bytes:
        return self.state.installed

    @property
    def lost(self) -> bool:
        return self.state.lost

    @property
    def is_meta_lost(self) -> bool:
        return False

    @property
    def compaction(self) -> Compaction:
        return self.state.compacted

    @property
    def large_bytes(self) -> int:
        return 0

    @property
    def damaged(self) -> Sequence[tuple[Index, Index]]:
        return ()

    def term(self, index: Index) -> Term:
        state = self.state
        if index == state.first_index - 1:
            return state.prev_term
        self._check(index)
        return state.entries[index - state.first_index].term

    def offset_after(self, index: Index) -> Offset:
        state = self.state
        if index == state.first_index - 1:
            return state.start_offset
        self._check(index)
        entry = state.entries[index - state.first_index]
        return entry.base_offset + entry.records

    def entries(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        state = self.state
        if first == end:
            return []
        self._check(first)
        self._check(end - 1)
        found: list[EntryLike] = []
        total = 0
        for entry in state.entries[first - state.first_index : end - state.first_index]:
            total += len(entry.data)  # the disk engine also charges entries without data
            if found and total > bytes_max:
                break
            found.append(entry)
        return found

    def read(self, offset: Offset, end_index: Index, bytes_max: int) -> Slices:
        state = self.state
        end_index = min(end_index, state.hard.commit)
        end_offset = self.offset_after(end_index)
        if not state.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(f"offset {offset} not in [{state.start_offset}, {end_offset}]")
        slices = Slices(first_offset=offset, end_offset=offset)
        if offset == end_offset:
            return slices
        first = self._index_of(offset)
        for index in indexes(first, end_index + 1):
            entry = state.entries[index - state.first_index]
            if not entry.records or not len(entry.data):
                continue
            if slices.buffers and slices.bytes + len(entry.data) > bytes_max:
                break
            if not slices.buffers:
                slices.first_offset = entry.base_offset
            slices.buffers.append(entry.data)
            slices.bytes += len(entry.data)
            slices.end_offset = entry.base_offset + entry.records
        return slices

    def in_memory(self, offset: Offset, end_index: Index, count_max: int) -> list[Buffer]:
        if not self.state.start_offset <= offset < self.state.next_offset:
            return []
        end_index = min(end_index, self.state.hard.commit)
        found: list[Buffer] = []
        for index in indexes(self._index_of(offset), end_index + 1):
            entry = self.state.entries[index - self.state.first_index]
            if len(found) == count_max:
                break
            if entry.records and len(entry.data):
                found.append(entry.data)
        return found

    def _index_of(self, offset: Offset) -> Index:
        state = self.state
        if not state.start_offset <= offset < state.next_offset:
            raise OffsetOutOfRange(
                f"offset {offset} not in [{state.start_offset}, {state.next_offset})"
            )
        at = bisect_right(state.entries, offset, key=_base_offset) - 1
        return state.first_index + at

    def _check(self, index: Index) -> None:
        if index < self.state.first_index:
            raise Compacted(f"index {index} is below {self.state.first_index}")
        if index > self.state.last_index:
            raise Unavailable(f"index {index} is above {self.state.last_index}")


Record = Callable[[MemoryImage], None]
"""A staged change, applied to the durable image by the journal job."""


class MemoryStore:
    """`Store` in memory. `image` is what remains after a crash."""

    def __init__(
        self,
        workers: Workers,
        options: StoreOptions | None = None,
        rng: random.Random | None = None,
        image: MemoryImage | None = None,
    ) -> None:
        self._rng = rng = rng or random.Random(0)
        self.on_durable: Callable[[int], None] = lambda token: None
        self.on_fatal: Callable[[BaseException], None] = lambda error: None
        self.collect_meta: Callable[[Sequence[Log]], list[MetaBatch]] = lambda logs: []
        self.workers = workers
        self._options = options or StoreOptions()
        if image is None:
            image = MemoryImage(DirectoryId(rng.randbytes(16)))
        self.image = image
        image.boots = next_boot(image.boots, end_lsn=image.lsn, boot_id=rng.getrandbits(64))
        self._directory_id, self._boots = image.directory_id, image.boots
        self._durable_lsn = image.lsn
        self._logs: dict[LogId, MemoryLog] = {
            log_id: MemoryLog(
                _live(state, image.applied.get(log_id, NO_INDEX)),
                image.applied.get(log_id, NO_INDEX),
            )
            for log_id, state in image.logs.items()
        }
        self._next_log_id = image.next_log_id
        self._staged: list[Record] = []
        self._token = 0
        self._durable_token = 0
        self._writing = False
        self._wanted = False
        self._idle_armed = False
        self._checkpoint_waiters: list[Callable[[], None]] = []
        self._checkpointing = False
        self._collected: list[Collected] = []
        self._dead = False

    # --- the contract ---------------------------------------------------------------------
    @property
    def directory_id(self) -> DirectoryId:
        return self._directory_id

    @property
    def logs(self) -> dict[LogId, Log]:
        return dict(self._logs)

    @property
    def durable_token(self) -> int:
        return self._durable_token

    @property
    def disk_full(self) -> bool:
        return False

    @property
    def unflushed_bytes(self) -> int:
        return 0  # the model keeps no separate segments

    @property
    def large_bytes(self) -> int:
        return 0

    @property
    def ahead_bytes_min(self) -> int:
        return NEVER_AHEAD

    @property
    def ahead_work(self) -> int:
        return 0

    @property
    def flushable_bytes(self) -> int:
        return 0

    @property
    def writing_bytes(self) -> int:
        return 0

    @property
    def file_work(self) -> int:
        return 0

    @property
    def accepts_appends(self) -> bool:
        return True

    def entry_room(self, *, is_essential: bool) -> int:
        return 1 << 30

    def has_room_for(self, size: int) -> bool:
        return True

    @property
    def server_id(self) -> ServerId:
        return self.image.server_id

    def adopt_server(self, server_id: ServerId) -> None:
        assert self.image.server_id in (NO_SERVER, server_id), self.image.server_id
        self.image.server_id = server_id

    @property
    def boots(self) -> Sequence[Boot]:
        return self._boots

    @property
    def durable_lsn(self) -> int:
        return self._durable_lsn

    def give_up(self, done: Callable[[], None]) -> None:
        for log in self._logs.values():
            log.state.lost = True
        self._directory_id = DirectoryId(self._rng.randbytes(16))
        self._boots = [Boot(1, self._rng.getrandbits(64))]

        def write() -> None:
            self.image.directory_id, self.image.boots = self._directory_id, self._boots
            for state in self.image.logs.values():
                state.lost = True

        self.workers.essential(write, lambda result: done())

    def peers_note(self) -> bytes:
        return self.image.peers_note

    def note_peers(self, note: bytes) -> None:
        def write() -> None:
            self.image.peers_note = note

        self.workers.essential(write, lambda result: None)

    def cluster_record(self) -> bytes:
        return self.image.cluster_record

    def adopt_cluster(self, record: bytes, done: Callable[[], None]) -> None:
        self.image.cluster_record = bytes(record)
        done()

    def note_moved_votes(self) -> bool:
        return True

    def create_log(
        self,
        group_id: GroupId,
        replica_number: ReplicaNumber,
        *,
        first_index: Index = Index(1),
        prev_term: Term = NO_TERM,
        next_offset: Offset = Offset(0),
        on_created: Callable[[Log], None],
    ) -> None:
        log_id = LogId(self._next_log_id)
        self._next_log_id += 1
        image_state = LogState(
            log_id,
            group_id,
            replica_number,
            first_index,
            prev_term,
            next_offset,
            HardState(NO_TERM, NodeId(0), first_index - 1),
        )

        def write() -> None:
            self.image.logs[log_id] = image_state
            self.image.next_log_id = log_id + 1

        def written(result: BaseException | None) -> None:
            if isinstance(result, BaseException) or self._dead:
                return
            log = MemoryLog(
                replace(image_state, hard=replace(image_state.hard), entries=[]), NO_INDEX
            )
            self._logs[log_id] = log
            on_created(log)

        self.workers.pool(write, written)

    def delete_log(self, log_id: LogId) -> None:
        del self._logs[log_id]

        def write() -> None:
            self.image.logs.pop(log_id, None)
            self.image.meta.pop(log_id, None)
            self.image.applied.pop(log_id, None)

        self.workers.pool(write, lambda result: None)

    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        state = self._state(log)
        if not entries:
            return
        first = entries[0].index
        assert state.hard.commit < first <= state.last_index + 1, (state.hard.commit, first)
        stored: list[EntryLike] = []
        for entry in entries:
            data = bytes(entry.data)
            entry.data = memoryview(data)
            stored.append(
                StoredEntry(
                    entry.term,
                    entry.index,
                    entry.kind,
                    data,
                    entry.base_offset,
                    entry.records,
                    entry.timestamp,
                )
            )
        state.append(entries)
        self._stage(state.log_id, lambda durable: durable.append(stored))

    def write_ahead(
        self,
        log: Log,
        data: Buffer,
        *,
        timestamp: int,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self.workers.call_later(0, done)

    def set_hard_state(self, log: Log, state: HardState) -> None:
        live = self._state(log)
        assert state.commit <= live.last_index, (state.commit, live.last_index)
        assert state.commit >= live.hard.commit, (state.commit, live.hard.commit)
        live.hard = HardState(state.term, state.vote, state.commit)

        def write(durable: LogState) -> None:
            durable.hard = HardState(state.term, state.vote, state.commit)

        self._stage(live.log_id, write)

    def reset_log(
        self,
        log: Log,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
        state: Buffer = b"",
    ) -> None:
        live, kept = self._state(log), bytes(state)
        assert first_index > live.hard.commit, (first_index, live.hard.commit)
        live.reset(first_index, prev_term, next_offset, kept)
        self._stage(
            live.log_id, lambda durable: durable.reset(first_index, prev_term, next_offset, kept)
        )

    def trim_log(self, log: Log, *, first_index: Index) -> None:
        state = self._state(log)
        assert first_index <= state.hard.commit + 1, (first_index, state.hard.commit)
        if first_index <= state.first_index:
            return
        assert not state.installed, (
            "entries above an installed state are kept until a checkpoint covers them"
        )
        state.trim(first_index)
        self._stage(state.log_id, lambda durable: durable.trim(first_index))

    def submit(self, *, urgent: bool = True) -> int:
        if not self._staged:
            return self._token
        if urgent:
            self._wanted = True
            self._write()
        elif not self._idle_armed:
            self._idle_armed = True
            self.workers.call_later(self._options.idle_block_ms, self._idle)
        return self._token if not self._staged else self._token + 1

    def read_cold(
        self,
        log: Log,
        offset: Offset,
        end_index: Index,
        bytes_max: int,
        done: Callable[[Slices | StorageError], None],
    ) -> None:
        self._cold(lambda: log.read(offset, end_index, bytes_max), done)

    def entries_cold(
        self,
        log: Log,
        first: Index,
        end: Index,
        bytes_max: int,
        done: Callable[[list[StoredEntry] | StorageError], None],
    ) -> None:
        def find() -> list[StoredEntry]:
            return [
                StoredEntry(e.term, e.index, e.kind, e.data, e.base_offset, e.records, e.timestamp)
                for e in log.entries(first, end, bytes_max)
            ]

        self._cold(find, done)

    def index_of_offset(
        self, log: Log, offset: Offset, done: Callable[[Index | StorageError], None]
    ) -> None:
        assert isinstance(log, MemoryLog), type(log)
        self._cold(lambda: log._index_of(offset), done)

    def index_of_timestamp(
        self,
        log: Log,
        timestamp_ms: int,
        end_index: Index,
        done: Callable[[Index | StorageError], None],
        *,
        first_index: Index = NO_INDEX,
    ) -> None:
        state = self._state(log)

        def find() -> Index:
            for entry in state.entries:
                if entry.index > end_index:
                    break
                if entry.index >= first_index and entry.timestamp >= timestamp_ms:
                    return entry.index
            return end_index + 1

        self._cold(find, done)

    def set_segment_limits(self, log: Log, limits: SegmentLimits) -> None:
        self._state(log).limits = limits

    def expect_reads(self, log: Log, expected: bool) -> None:
        """Do nothing: all entries are in memory."""

    def segment_spans(
        self, log: Log, done: Callable[[list[SegmentSpan] | StorageError], None]
    ) -> None:
        """Split the log where a disk would begin a new segment; the model has no segments."""
        state = self._state(log)
        limits = state.limits or SegmentLimits(self._options.segment_bytes)

        def find() -> list[SegmentSpan]:
            spans: list[SegmentSpan] = []
            end, size, newest, first = state.start_offset, 0, -1, -1
            for entry in state.entries:
                if entry.index > state.hard.commit:
                    break
                is_late = limits.span_ms >= 0 and 0 <= first < entry.timestamp - limits.span_ms
                if size and (size + len(entry.data) > limits.bytes or is_late):
                    spans.append(SegmentSpan(end, size, newest, entry.index - 1))
                    size, newest = 0, -1
                first = first if size else entry.timestamp
                end = entry.base_offset + entry.records
                size += len(entry.data)
                newest = max(newest, entry.timestamp)
            return [*spans, SegmentSpan(end, size, newest, state.hard.commit)]

        self._cold(find, done)

    def written_after(self, since_ns: int) -> int:
        del since_ns
        return 0

    def disk_space(self, done: Callable[[tuple[int, int] | StorageError], None]) -> None:
        self._cold(lambda: (-1, -1), done)

    def compact(
        self,
        log: Log,
        compaction: Compaction,
        make_cleaner: Callable[[], RecordCleaner],
        *,
        pace: Callable[[int], int],
        done: Callable[[bool], None],
    ) -> None:
        """Compact everything at once, the newest entries too: the model has no segments."""
        state = self._state(log)
        assert compaction.upto <= log.applied_index, (compaction, log.applied_index)
        left = _cleaned(state.entries, state.compacted.upto + 1, compaction, make_cleaner())
        state.compact(compaction, left)
        self._stage(state.log_id, lambda durable: durable.compact(compaction, left))
        self.workers.call_later(pace(0), lambda: done(True))

    def repair(
        self,
        log: Log,
        entries: Sequence[EntryLike],
        done: Callable[[StorageError | None], None],
        *,
        compacted_upto: Index = NO_INDEX,
    ) -> None:
        """Do nothing: entries in memory are never damaged."""
        self._cold(lambda: None, done)

    def load_meta(self, log: Log) -> tuple[Index, list[tuple[bytes, bytes]]]:
        items = self.image.meta.get(log.log_id, {})
        return self.image.applied.get(log.log_id, NO_INDEX), sorted(items.items())

    def checkpoint(self, done: Callable[[], None] | None = None) -> None:
        if done is not None:
            self._checkpoint_waiters.append(done)
        if self._checkpointing:
            return
        self._checkpointing = True
        for batch in self.collect_meta(list(self._logs.values())):
            if batch.log_id in self._logs:
                resets = self._logs[batch.log_id].state.resets
                self._collected.append(Collected(batch, resets))
        # State of a log whose reset is not durable yet must wait for it.
        ready = [found for found in self._collected if self._is_reset_durable(found.batch.log_id)]
        self._collected = [found for found in self._collected if found not in ready]

        def write() -> None:
            for found in ready:
                batch = found.batch
                if batch.log_id not in self.image.logs:
                    continue
                items = self.image.meta.setdefault(batch.log_id, {})
                if batch.clear:
                    items.clear()
                for key, value in batch.items:
                    if value is None:
                        items.pop(key, None)
                    else:
                        items[key] = value
                self.image.applied[batch.log_id] = batch.applied
                self.image.logs[batch.log_id].cover(found)

        def written(result: BaseException | None) -> None:
            self._checkpointing = False
            for found in ready:
                log = self._logs.get(found.batch.log_id)
                if log is not None:
                    log._applied = found.batch.applied
                    log.state.cover(found)
            waiters, self._checkpoint_waiters = self._checkpoint_waiters, []
            for waiter in waiters:
                waiter()

        self.workers.pool(write, written)

    def close(self, done: Callable[[], None]) -> None:
        self.submit()
        self.workers.journal(lambda: None, lambda result: done())

    def stats(self) -> dict[str, float]:
        return {"logs": float(len(self._logs)), "durable_token": float(self._durable_token)}

    # --- crash ------------------------------------------------------------------------------
    def crash(self, workers: Workers) -> MemoryStore:
        """Return the store that a restart finds: only what journal and pool jobs have written."""
        self._dead = True
        return MemoryStore(workers, self._options, image=self.image)

    # --- writing ----------------------------------------------------------------------------
    def _state(self, log: Log) -> LogState:
        assert isinstance(log, MemoryLog), type(log)
        assert self._logs.get(log.log_id) is log, log.log_id
        return log.state

    def _is_reset_durable(self, log_id: LogId) -> bool:
        live, image = self._logs.get(log_id), self.image.logs.get(log_id)
        return live is None or image is None or image.resets == live.state.resets

    def _stage(self, log_id: LogId, change: Callable[[LogState], None]) -> None:
        def write(image: MemoryImage) -> None:
            state = image.logs.get(log_id)
            if state is not None:
                change(state)

        self._staged.append(write)

    def _write(self) -> None:
        if self._writing or not self._staged:
            return
        records, self._staged = self._staged, []
        self._writing, self._wanted = True, False
        self._token += 1
        token = self._token

        def write() -> None:
            for record in records:
                record(self.image)
            self.image.lsn += len(records)

        def written(result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                self.on_fatal(result)
                return
            self._writing = False
            self._durable_token = token
            self._durable_lsn = self.image.lsn
            if self._wanted:
                self._write()
            self.on_durable(token)

        self.workers.journal(write, written)

    def _idle(self) -> None:
        self._idle_armed = False
        self._write()

    def _cold(self, find: Callable[[], T], done: Callable[[T | StorageError], None]) -> None:
        def finished(result: T | BaseException) -> None:
            if isinstance(result, BaseException) and not isinstance(result, StorageError):
                raise result
            done(result)

        self.workers.pool(find, finished)


def _cleaned(
    entries: Sequence[EntryLike], keys_from: Index, compaction: Compaction, cleaner: RecordCleaner
) -> dict[Index, Buffer]:
    """Return what remains of the entries that were reduced, by index."""
    shown = [
        StoredEntry(e.term, e.index, e.kind, e.data, e.base_offset, e.records, e.timestamp)
        for e in entries
        if e.index <= compaction.upto
    ]
    left: dict[Index, Buffer] = {}
    while shown:
        end = cleaner.scan(shown, keys_from=keys_from)
        is_last = end > shown[-1].index
        for entry in shown:
            if entry.records and len(entry.data):
                markers_upto = compaction.markers_upto if is_last else NO_INDEX
                data = cleaner.clean(entry, markers_upto=markers_upto)
                if data is not None:
                    left[entry.index] = entry.data = data
        if is_last:
            break
        cleaner.next_pass()
        keys_from = end
    return left


def _live(image: LogState, applied: Index) -> LogState:
    """Return a separate live state, adjusted as `Log.hard_state` requires after `open`."""
    hard = image.hard
    term, vote = hard.term, hard.vote
    last_term = image.entries[-1].term if image.entries else image.prev_term
    if last_term > term:
        term, vote = last_term, NodeId(0)
    commit = max(applied, min(hard.commit, image.last_index))
    return LogState(
        image.log_id,
        image.group_id,
        image.replica_number,
        image.first_index,
        image.prev_term,
        image.start_offset,
        HardState(term, vote, commit),
        list(image.entries),
        image.installed,
        image.resets,
        lost=image.lost,
    )
