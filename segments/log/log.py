"""In-memory state of one log of the disk engine: its tail and the location of its data in files.

All code here runs on the loop; `store` decides what is written and when. Staging appends frames to
the tail and records to the batch that becomes the next journal block.

Does not depend on threads or on how flushes and recovery work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
from crc32c import crc32c

from ids import NO_INDEX, NO_TERM, GroupId, Index, LogId, NodeId, Offset, ReplicaNumber, Term
from segments.api import (
    NOT_COMPACTED,
    Buffer,
    Compacted,
    Compaction,
    CorruptRecord,
    EntryLike,
    HardState,
    NotInMemory,
    OffsetOutOfRange,
    ReadRefused,
    SegmentLimits,
    Slices,
    StoredEntry,
    Unavailable,
)
from segments.format.block import (
    CLEAR,
    DETAIL,
    DETAIL_RECORD,
    ENTRY,
    ENTRY_RECORD,
    HARD,
    INSTALL,
    MARK_INSTALLED,
    MARK_VOID,
    PLACE,
    PLACED,
    RECORD_BYTES,
    RESET,
    SEQUENCE_MASK,
    STATE,
    STATE_RECORD,
    TRUNCATE,
    Mark,
)
from segments.format.frame import CRC, FRAME_BYTES, FRAME_VERSION, HEADER_REST, frame_header
from segments.format.names import sequence_of
from segments.io.fs import is_passing
from segments.log.damaged_ranges import DamagedRanges
from segments.log.largest_timestamps import UNKNOWN, LargestTimestamps
from segments.log.placement import ROUNDS_OF_LARGE, Layout, Payload, Placement
from segments.log.segment import LogFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES, Cursor, Sealed, SegmentInfo
from segments.log.tail_cache import Chunk, Tail, TailCache
from segments.log.terms import TermRuns

_first_index = attrgetter("first_index")


def _sequence(segment: SegmentInfo) -> int:
    return sequence_of(segment.number)


def large_payload(data: Buffer) -> memoryview:
    """Return a view of a large payload, or a copy if the view would pin a much larger buffer."""
    view = memoryview(data)
    if 2 * len(view) < memoryview(view.obj).nbytes:
        view = memoryview(bytes(view))
    return view.toreadonly()


LOOKS_MAX = 1024
"""Maximum number of segments from earlier runs that one job of a look-up by time reads: other jobs
share the thread."""


class Span(msgspec.Struct):
    """Entries [first, last] of a log that a batch carries."""

    log: DiskLog
    first: Index
    last: Index


class Run(msgspec.Struct):
    """Entries [first, last] of one log that journal file `sequence` holds durably."""

    sequence: int
    first: Index
    last: Index


@dataclass(frozen=True, slots=True)
class Install:
    """A reset and the state installed with it. `number` distinguishes the log's resets."""

    number: int
    first_index: Index
    prev_term: Term
    next_offset: Offset
    state: bytes


class Batch:
    """Everything staged since the last block: records and the frames they refer to."""

    __slots__ = (
        "before", "buffers", "bytes", "entries", "hard", "installs", "last_chunk", "last_start",
        "marks", "needs_proof", "payloads", "placed", "records", "rewound", "sequence", "spans",
        "stands_for", "token",
    )  # fmt: skip

    def __init__(self, token: int) -> None:
        self.token = token
        self.records: list[bytes] = []
        """Use: the block's table.
        Invariant: the records of one log are in the order of their sequences, without a gap."""
        self.buffers: list[memoryview] = []
        """Use: the block's frames.
        Invariant: concatenated they are the frames of `records`, in order; `bytes` long."""
        self.bytes = 0
        self.entries = 0
        self.spans: list[Span] = []
        """Use: entries to be noted as journaled once the batch is durable."""
        self.installs: list[tuple[DiskLog, int]] = []
        """Use: resets to be noted once the batch is durable: (log, its generation)."""
        self.hard: dict[LogId, tuple[int, int]] = {}
        """Use: by log id, the position in `records` of its newest hard state, and that record's
        sequence. A newer hard state replaces it as long as no other record of the log follows
        it."""
        self.before: dict[LogId, Mark] = {}
        """Use: source of the header of a journal file that takes only a part of the batch.
        Invariant: by log id, the state before the batch of every log that was staged into it."""
        self.marks: list[Mark] | None = None
        """Use: the marks of the file that begins with this batch; None: not known to begin one.
        Invariant: the state of all logs after this batch, without any later batch."""
        self.needs_proof = False
        """Use: a following block must prove this one durable.
        Invariant: False only as long as nothing but commit indexes moved."""
        self.sequence = 0
        """Use: the journal file in which the batch begins; 0: none yet."""
        self.stands_for = 0
        """Use: the oldest of the journal files that the file beginning with this batch replaces; 0:
        it replaces none."""
        self.payloads: list[Payload] = []
        """Use: written beside the batch's first block, which counts only with them."""
        self.placed: list[tuple[DiskLog, int, Index]] = []
        """Use: to be noted once the batch is durable: (log, its generation, last entry placed)."""
        self.rewound: list[DiskLog] = []
        """Use: logs for which the batch truncates placed entries."""
        self.last_chunk: Chunk | None = None
        self.last_start = 0

    def add_run(self, chunk: Chunk, start: int, end: int) -> None:
        """Add frames [start, end) of `chunk`; extend the previous run if they are adjacent."""
        view = chunk.view
        if self.last_chunk is chunk and self.last_start + len(self.buffers[-1]) == start:
            self.buffers[-1] = chunk.part(self.last_start, end)
        else:
            self.buffers.append(chunk.part(start, end) if view is None else view[start:end])
            self.last_chunk = chunk
            self.last_start = start
        self.bytes += end - start

    def add_large(self, chunk: Chunk) -> None:
        """Add the frame of a large entry, which consists of several buffers."""
        self.buffers += chunk.slices(0, chunk.used)
        self.last_chunk = None
        self.bytes += chunk.used

    def add_frame(self, parts: Sequence[bytes]) -> None:
        """Add a frame that lies in no chunk."""
        for part in parts:
            self.buffers.append(memoryview(part))
            self.bytes += len(part)
        self.last_chunk = None

    def note_placed(self) -> None:
        """Record that the whole batch is durable, in the journal files from `sequence` on."""
        for span in self.spans:
            span.log.note_journaled(self.sequence, span.first, span.last)
        for log, generation in self.installs:
            log.note_installed(self.sequence, generation)
        for log, generation, last in self.placed:
            if log.generation == generation:
                log.placement.note_durable(last)
        for log in self.rewound:
            if log.placement.rewind_token == self.token:
                log.placement.rewind_token = 0


class DiskLog:
    """`segments.api.Log` on disk.

    Invariant: first_index - 1 ≤ commit ≤ last_index, and flushed_index ≤ commit.
    """

    __slots__ = (
        "applied",
        "compacted",
        "cursor",
        "damaged_ranges",
        "deleted",
        "files",
        "first",
        "flush_blocked",
        "flushed_index",
        "flushed_offset",
        "generation",
        "group",
        "hard",
        "has_scrap",
        "id",
        "install",
        "install_sequence",
        "is_lost",
        "is_meta_lost",
        "is_read",
        "is_void",
        "is_written_off",
        "last",
        "limits",
        "maxima",
        "number",
        "offset",
        "placement",
        "reset_token",
        "rewritten",
        "roll_above",
        "runs",
        "segments",
        "sequence",
        "start_offset",
        "tail",
        "terms",
        "unflushed",
    )  # fmt: skip

    def __init__(
        self,
        files: LogFiles,
        replica_number: ReplicaNumber,
        cache: TailCache,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
    ) -> None:
        self.id = files.log_id
        self.group = files.group_id
        self.number = replica_number
        self.files = files
        self.hard = HardState(NO_TERM, NodeId(0), first_index - 1)
        """Hard state as last staged, durable or not.
        Invariant: neither term nor commit index ever decreases."""
        self.first = first_index
        self.last = first_index - 1
        self.offset = next_offset
        """Offset after the last entry."""
        self.start_offset = next_offset
        """Offset of the first entry."""
        self.flushed_index = first_index - 1
        """Use: entries above it are needed from the journal.
        Invariant: segments hold every entry from `first` to here durably."""
        self.flushed_offset = next_offset
        """Offset after `flushed_index`."""
        self.applied = NO_INDEX
        """Use: written in marks; retention trims up to it.
        Invariant: meta holds the state up to here durably; 0 while that state is lost."""
        self.terms = TermRuns(first_index - 1, prev_term)
        self.tail = Tail(cache, first_index - 1)
        self.segments: tuple[SegmentInfo, ...] = ()
        """Segments, oldest first, numbered without a gap. Replaced and never modified: a job keeps
        the tuple it was created with."""
        self.maxima = LargestTimestamps()
        """Largest timestamps of all segments but the newest."""
        self.cursor = Cursor()
        """Position of the frame after `flushed_index`."""
        self.placement = Placement(first_index - 1, first_index - 1)
        """Entries written to segments before they are flushed."""
        self.is_meta_lost = False
        self.is_read = True
        """True if data written to segments should stay in the page cache."""
        self.limits: SegmentLimits | None = None
        """Limits of a segment, if they differ from the store's options."""
        self.sequence = 0
        """Use: sequence of the next record.
        Invariant: never reused or skipped, so that a missing record shows as a gap."""
        self.runs: list[Run] = []
        """Use: the journal files that hold entries which no segment holds; these must be kept.
        Invariant: ascending and disjoint; only entries that are durable in the journal."""
        self.unflushed = 0
        """Bytes of the tail after `flushed_index`."""
        self.install: Install | None = None
        """Use: the state of the last reset; its journal file must be kept.
        Invariant: kept until a checkpoint made from it is in the meta, or another reset follows."""
        self.install_sequence = 0
        """Use: the journal file that holds the installed state. Until a reset is durable it is
        still the file of the previous state. 0: none is needed."""
        self.reset_token = 0
        """Use: state collected after a reset goes to the meta once this token is durable."""
        self.damaged_ranges = DamagedRanges()
        self.rewritten = False
        """The tail was rewritten at the journal's head, so a flush is due regardless of its
        size."""
        self.flush_blocked = False
        """Use: flushes wait until the files dropped by a reset or a trim are gone."""
        self.generation = 0
        """Number of resets and trims of all files. Use: a job that began before one of them changes
        nothing after it."""
        self.is_void = True
        """True if nothing was flushed since the log was created, reset or cleared."""
        self.is_lost = False
        """Invariant: once True never False again. Such a log never votes, acknowledges or
        serves."""
        self.is_written_off = False
        """Use: journal files with data of other logs must be kept.
        Invariant: True only if the identity on disk says that the log is lost."""
        self.deleted = False
        self.has_scrap = True
        """True if leftover bytes of a flush may lie after the cursor; they do not count."""
        self.compacted = NOT_COMPACTED
        """Invariant: equals the durable note in the log's directory."""
        self.roll_above = NO_INDEX
        """A new segment begins after this entry, or as soon as allowed, because the newest segment
        is never compacted."""

    # --- the contract ------------------------------------------------------------------------
    @property
    def log_id(self) -> LogId:
        return self.id

    @property
    def group_id(self) -> GroupId:
        return self.group

    @property
    def replica_number(self) -> ReplicaNumber:
        return self.number

    @property
    def first_index(self) -> Index:
        return self.first

    @property
    def last_index(self) -> Index:
        return self.last

    @property
    def commit_index(self) -> Index:
        return self.hard.commit

    @property
    def hard_state(self) -> HardState:
        return HardState(self.hard.term, self.hard.vote, self.hard.commit)

    @property
    def applied_index(self) -> Index:
        return self.applied

    @property
    def log_start_offset(self) -> Offset:
        return self.start_offset

    @property
    def next_offset(self) -> Offset:
        return self.offset

    @property
    def installed_state(self) -> bytes:
        return b"" if self.install is None else self.install.state

    @property
    def lost(self) -> bool:
        return self.is_lost

    @property
    def compaction(self) -> Compaction:
        return self.compacted

    @property
    def large_bytes(self) -> int:
        # Large entries that a segment holds are no longer in the tail.
        return sum([chunk.used for chunk in self.tail.chunks if chunk.payload is not None])

    @property
    def damaged(self) -> Sequence[tuple[Index, Index]]:
        return self.damaged_ranges.ranges

    def term(self, index: Index) -> Term:
        if self.first - 1 <= index <= self.last:
            return self.terms.term(index)
        raise self._outside(index)

    def offset_after(self, index: Index) -> Offset:
        if index == self.last:
            return self.offset
        if index == self.first - 1:
            return self.start_offset
        if index == self.flushed_index:
            return self.flushed_offset
        self._check(index)
        if 0 < self.tail.first <= index + 1:
            return self.tail.entry(index + 1).base_offset
        ends_run_at = self.terms.offset_at(index + 1)
        if ends_run_at >= 0:
            return ends_run_at
        # Rebuilding a damaged Idx means reading a segment, too much work for the loop: the error
        # goes to the caller. So does a lack of descriptors, which is no fault of the disk.
        try:
            idx = self.files.idx(index)
        except OSError as error:
            if not is_passing(error):
                raise
            raise ReadRefused(str(error)) from error
        return idx.base_offset + idx.records

    def entries(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        if first == end:
            return []
        self._check(first)
        self._check(end - 1)
        tail = self.tail
        if not tail.first or first < tail.first:
            tail.cache.misses += 1
            raise NotInMemory(first, min(end, tail.first or end))
        tail.cache.hits += 1
        return tail.slice(first, end, bytes_max)

    def read(self, offset: Offset, end_index: Index, bytes_max: int) -> Slices:
        end_index = min(end_index, self.hard.commit)
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is below {self.start_offset}")
        try:
            end_offset = self.offset_after(end_index)
        except (CorruptRecord, ReadRefused):
            # The Idx of the last entry is unreadable: a read from disk finds or rebuilds it.
            raise NotInMemory(self.first, end_index + 1) from None
        if offset > end_offset:
            raise OffsetOutOfRange(f"offset {offset} not in [{self.start_offset}, {end_offset}]")
        slices = Slices(first_offset=offset, end_offset=offset)
        if offset == end_offset:
            return slices
        tail = self.tail
        index = tail.find_offset(offset)
        if not index:
            tail.cache.misses += 1
            raise NotInMemory(self.first, tail.first or self.last + 1)
        tail.cache.hits += 1
        buffers = slices.buffers
        total = 0
        for chunk, start, stop in tail.spans(index, end_index + 1):
            for entry in chunk.entries[start:stop]:
                size = len(entry.data)
                if not entry.records or not size:
                    continue  # a command, or compacted away
                if total + size > bytes_max and buffers:
                    slices.bytes = total
                    return slices
                if not buffers:
                    slices.first_offset = entry.base_offset
                buffers.append(entry.data)
                total += size
                slices.end_offset = entry.base_offset + entry.records
        slices.bytes = total
        return slices

    def in_memory(self, offset: Offset, end_index: Index, count_max: int) -> list[Buffer]:
        index = self.tail.find_offset(offset) if offset >= self.start_offset else NO_INDEX
        found: list[Buffer] = []
        if not index:
            return found
        end = min(end_index + 1, self.hard.commit + 1, index + LOOKS_MAX)
        for chunk, start, stop in self.tail.spans(index, Index(end)):
            for entry in chunk.entries[start:stop]:
                if len(found) == count_max:
                    return found
                if entry.records and len(entry.data) and entry.base_offset + entry.records > offset:
                    found.append(entry.data)
        return found

    # --- staging -----------------------------------------------------------------------------
    def stage(
        self,
        entries: Sequence[EntryLike],
        batch: Batch,
        *,
        place_bytes_min: int = 0,
        limits: SegmentLimits | None = None,
    ) -> None:
        """Copy the entries into the tail and their records into `batch`.

        Appends of at least `place_bytes_min` bytes (0: none) are placed if possible. This is the
        engine's hottest loop: one copy, one CRC and two packs per entry.
        """
        self.touch(batch)
        first = entries[0].index
        if first <= self.last:
            self.truncate(first, batch)
        if place_bytes_min and (layout := self._layout(entries, place_bytes_min, limits)):
            self._stage_placed(entries, batch, layout)
        else:
            self._stage(entries, batch)
        if self.placement.ahead is not None:
            self._forget_ahead()

    def write_ahead(self, data: Buffer, timestamp: int, limits: SegmentLimits) -> Payload | None:
        """Begin to write the payload of the next entry to its place; return what is to be written.

        None if there is no room for it, or another one is being written.
        """
        self.placement.rounds_kept = ROUNDS_OF_LARGE
        view = large_payload(data)
        if self.placement.is_writing_ahead or view.obj is not memoryview(data).obj:
            return None
        term = self.terms.terms[-1]
        entry = StoredEntry(term, self.last + 1, 0, data, self.offset, 0, timestamp)
        layout = self._layout([entry], 1, limits)
        if layout is None:
            return None
        return self.placement.write_ahead(
            data, view, layout, self.segments[-1], self.files, is_read=self.is_read
        )

    def has_places_for(self, size: int, limits: SegmentLimits) -> bool:
        """Return True if an entry of `size` bytes fits in a segment."""
        limits = self.limits or limits
        return SEGMENT_HEADER_BYTES + FRAME_BYTES + size <= limits.bytes

    def _view_of(self, data: Buffer) -> memoryview:
        """Return the view of a large payload that the tail holds."""
        ahead = self.placement.ahead
        return ahead.view if ahead is not None and ahead.data is data else large_payload(data)

    def _forget_ahead(self) -> None:
        """Forget a payload that was written ahead, so that its memory is freed.

        One that is still being written stays: no other bytes may be written to its place.
        """
        if not self.placement.is_writing_ahead:
            self.placement.ahead = None

    def _layout(
        self, entries: Sequence[EntryLike], bytes_min: int, limits: SegmentLimits | None
    ) -> Layout | None:
        """Return the layout by which the entries are placed; None: they are not placed."""
        size = longest = 0
        for entry in entries:  # without a call: this runs for each append
            length = len(entry.data)
            size += length
            longest = max(longest, length)
        if size < bytes_min:
            return None
        limits = self.limits or limits
        assert limits is not None, "the log has limits of a segment"
        if not self.has_places_for(longest, limits):
            return None  # larger than any space that will be allocated
        placement = self.placement
        placement.is_wanted = True
        placement.wishes += 1
        if not placement.rooms or placement.rewind_token or self.has_scrap:
            return None
        if placement.is_writing_ahead:
            return None
        newest = placement.begun[-1] if placement.begun else self.segments[-1]
        is_due = newest.first_index <= self.roll_above
        roll_at = max(placement.index, self.roll_above) + 1 if is_due else 0
        return placement.lay_out(self.tail, limits, entries, roll_at)

    def _stage_placed(self, entries: Sequence[EntryLike], batch: Batch, layout: Layout) -> None:
        """Stage entries whose frames are written directly to segments."""
        placement, first, sequence = self.placement, entries[0].index, self.sequence
        self._stage(entries, Batch(batch.token))
        self.sequence = sequence
        payloads = placement.place(
            layout, self.tail, self.files, self.last, self.segments[-1], is_read=self.is_read
        )
        batch.payloads += placement.without_ahead(payloads)
        batch.placed.append((self, self.generation, self.last))
        if placement.begun:
            # The records that gave the start of these segments may be truncated, and their file
            # replaced.
            self._stage_places_before(layout.runs[0][0], batch)
        for begins, segment, position in layout.runs:
            if begins < first:  # entries that go along; the others follow with their places
                self.stage_state(batch, PLACE, segment, begins, position)
        self._stage_places(first, self.last, batch)
        batch.spans.append(Span(self, first, self.last))
        batch.entries += len(entries)
        batch.needs_proof = True

    def _stage_places_before(self, first: Index, batch: Batch) -> None:
        """Stage records that give the positions of unflushed entries before `first`.

        These were placed along with other entries, and are still in older files than the block that
        said so.
        """
        begins = [self.flushed_index + 1, *(info.first_index for info in self.placement.begun)]
        for index in [n for n in begins if n < first]:
            segment, position = self.placement.place_of(index, self.cursor, self.tail)
            self.stage_state(batch, PLACE, segment, index, position)

    def _stage_places(self, first: Index, last: Index, batch: Batch) -> None:
        """Stage records that give the positions of the frames of entries [first, last]."""
        segment, position = self.placement.place_of(first, self.cursor, self.tail)
        begun = {info.first_index: info.number for info in self.placement.begun}
        log_id, sequence, mask = self.id, self.sequence, SEQUENCE_MASK
        records = batch.records
        records.append(STATE_RECORD.pack(log_id, sequence & mask, PLACE, segment, first, position))
        sequence += 1
        for chunk, start, stop in self.tail.spans(first, last + 1):
            at = chunk.start_of(start)
            for n in range(start, stop):
                entry, end = chunk.entries[n], chunk.ends[n]
                if entry.index in begun and entry.index != first:
                    records.append(
                        STATE_RECORD.pack(
                            log_id, sequence & mask, PLACE, begun[entry.index], entry.index,
                            SEGMENT_HEADER_BYTES,
                        )
                    )  # fmt: skip
                    sequence += 1
                records.append(
                    DETAIL_RECORD.pack(
                        log_id, sequence & mask, DETAIL, entry.kind, 0, entry.records,
                        entry.base_offset, entry.timestamp,
                    )
                )  # fmt: skip
                crc: int = CRC.unpack_from(chunk.memory, at)[0]
                records.append(
                    ENTRY_RECORD.pack(
                        log_id, (sequence + 1) & mask, PLACED, entry.term, entry.index, end - at,
                        crc,
                    )
                )  # fmt: skip
                sequence += 2
                at = end
        self.sequence = sequence

    def _stage(self, entries: Sequence[EntryLike], batch: Batch) -> None:
        """Stage entries whose frames go to the journal."""
        index = first = entries[0].index
        tail = self.tail
        chunk = tail.chunks[-1] if tail.chunks else tail.grow(0, first)
        buffer, capacity = memoryview(chunk.memory), chunk.capacity
        large_bytes_min = tail.cache.large_bytes_min
        run_start = used = chunk.used
        held, ends = chunk.entries, chunk.ends
        log_id, group, sequence, mask = self.id, self.group, self.sequence, SEQUENCE_MASK
        records = batch.records
        term = self.terms.terms[-1]
        total = 0
        for entry in entries:
            assert entry.index == index, (entry.index, index)
            data = entry.data
            length = len(data)
            start = used
            body = start + FRAME_BYTES
            used = body + length
            if used > capacity or length >= large_bytes_min:
                if start > run_start:
                    batch.add_run(chunk, run_start, start)
                    chunk.used = start
                    total += start - run_start
                if not held:
                    tail.discard_last()
                if length >= large_bytes_min:
                    chunk = tail.grow_large(self._view_of(data), index)
                    capacity = 0  # the chunk takes nothing else
                else:
                    chunk = tail.grow(FRAME_BYTES + length, index)
                    capacity = chunk.capacity
                buffer = memoryview(chunk.memory)
                held, ends = chunk.entries, chunk.ends
                run_start = start = 0
                body = FRAME_BYTES
                used = FRAME_BYTES + length
            if chunk.payload is None:
                buffer[body:used] = data
            if entry.term != term:
                term = entry.term
                self.terms.add(index, term, entry.base_offset)
            HEADER_REST.pack_into(
                buffer, start + 4, length, group, term, entry.kind, FRAME_VERSION, 0,
                entry.records, index, entry.base_offset, entry.timestamp,
            )  # fmt: skip
            if chunk.payload is None:
                crc = crc32c(buffer[start + 4 : used])
                # A view has 200 bytes, and the newest entry of most logs is a new leader's.
                entry.data = (chunk.view or chunk.readonly)[body:used] if length else b""
            else:
                crc = self.placement.crc_of(chunk.payload, crc32c(buffer[4:]))
                entry.data = chunk.payload
                batch.add_large(chunk)
                total += used
                run_start = used
            CRC.pack_into(buffer, start, crc)
            held.append(entry)
            ends.append(used)
            records.append(
                ENTRY_RECORD.pack(log_id, sequence & mask, ENTRY, term, index, used - start, crc)
            )
            sequence += 1
            index += 1
        if used > run_start:
            batch.add_run(chunk, run_start, used)
        chunk.used = used
        total += used - run_start
        self.sequence = sequence
        self.unflushed += total
        tail.cache.unflushed += total
        self.last = index - 1
        last = entries[-1]
        self.offset = last.base_offset + last.records
        batch.spans.append(Span(self, first, index - 1))
        batch.entries += len(entries)
        batch.needs_proof = True

    def touch(self, batch: Batch) -> None:
        """Keep the log's state before the batch changes it.

        Needed for the header of a file that takes only a part of the batch.
        """
        if self.id not in batch.before:
            batch.before[self.id] = self.mark()

    def truncate(self, index: Index, batch: Batch) -> None:
        """Remove the entries from `index` on."""
        assert index > self.hard.commit, (index, self.hard.commit)
        assert index > self.flushed_index, (index, self.flushed_index)
        assert index >= self.first, (index, self.first)
        self.touch(batch)
        self.offset = self.offset_after(index - 1)
        if index <= self.placement.index:
            self.placement.rewind(index, self.cursor, self.tail, batch.token)
            self.has_scrap = True
            batch.rewound.append(self)
        removed = self.tail.truncate(index)
        self.unflushed -= removed
        self.tail.cache.unflushed -= removed
        self.terms.truncate(index)
        self.last = index - 1
        self.stage_state(batch, TRUNCATE, 0, index, 0)

    def restage(self, sequence: int, batch: Batch, *, with_tail: bool) -> None:
        """Stage again everything for which journal file `sequence` is needed, so that it may go."""
        if self.install is not None and self.install_sequence == sequence:
            self._stage_install(STATE, self.install, batch)
        if with_tail and self.oldest_run() == sequence and self.last > self.flushed_index:
            self._restage_entries(self.flushed_index + 1, batch)
            self.rewritten = True

    def carried_bytes(self, sequence: int) -> int:
        """Return the number of bytes that `carry_over` stages."""
        size = 0
        if self.install is not None and self.install_sequence >= sequence:
            size += RECORD_BYTES + FRAME_BYTES + len(self.install.state)
        first = self._first_from(sequence)
        placed = self.placement.index
        if 0 < first <= placed:
            size += (2 + len(self.placement.begun) + 2 * (placed + 1 - first)) * RECORD_BYTES
            first = placed + 1
        if first and first <= self.last:
            for chunk, start, stop in self.tail.spans(first, self.last + 1):
                size += chunk.ends[stop - 1] - chunk.start_of(start) + (stop - start) * RECORD_BYTES
        return size

    def carry_over(self, sequence: int, batch: Batch) -> None:
        """Stage again everything for which the journal files from `sequence` on are needed."""
        if self.install is not None and self.install_sequence >= sequence:
            self._stage_install(STATE, self.install, batch)
        first = self._first_from(sequence)
        if first and first <= self.last:
            self._restage_entries(first, batch)

    def _first_from(self, sequence: int) -> Index:
        """Return the first entry not in a segment or a journal file before `sequence`; 0: none."""
        for run in self.runs:
            if run.sequence >= sequence and run.last > self.flushed_index:
                return max(run.first, self.flushed_index + 1)
        return NO_INDEX

    def _restage_entries(self, first: Index, batch: Batch) -> None:
        """Stage everything from `first` on again.

        The frames are those in the tail: nothing is copied and no CRC is computed. Placed entries
        get only their records.
        """
        self.touch(batch)
        batch.spans.append(Span(self, first, self.last))
        batch.needs_proof = True
        if first <= self.placement.index:
            self._stage_places_before(first, batch)
            self._stage_places(first, self.placement.index, batch)
            first = self.placement.index + 1
        index = first
        for chunk, start, stop in self.tail.spans(first, self.last + 1):
            position = chunk.start_of(start)
            if chunk.payload is None:
                batch.add_run(chunk, position, chunk.ends[stop - 1])
            else:
                batch.add_large(chunk)
            for n in range(start, stop):
                end = chunk.ends[n]
                crc: int = CRC.unpack_from(chunk.memory, position)[0]
                record = ENTRY_RECORD.pack(
                    self.id,
                    self.sequence & SEQUENCE_MASK,
                    ENTRY,
                    chunk.entries[n].term,
                    index,
                    end - position,
                    crc,
                )
                batch.records.append(record)
                self.sequence += 1
                index += 1
                position = end
        assert index == self.last + 1, (index, self.last)

    def stage_hard(self, state: HardState, batch: Batch) -> None:
        """Stage term, vote and commit index.

        A second change replaces the first as long as no other record of this log was staged
        between: a commit index must never become durable before the truncation or the entries that
        it presumes, even if a batch is written in parts.
        """
        hard = self.hard
        assert state.commit <= self.last, (state.commit, self.last)
        assert state.commit >= hard.commit, (state.commit, hard.commit)
        assert state.term >= hard.term, (state.term, hard.term)
        is_vote = state.term != hard.term or state.vote != hard.vote
        if not is_vote and state.commit == hard.commit:
            return
        self.touch(batch)
        if is_vote:
            hard.term = state.term
            hard.vote = state.vote
            batch.needs_proof = True
        hard.commit = state.commit
        place, sequence = batch.hard.get(self.id, (-1, -2))
        if sequence != self.sequence - 1:
            place, sequence = len(batch.records), self.sequence
            batch.hard[self.id] = (place, sequence)
            batch.records.append(b"")
            self.sequence += 1
        batch.records[place] = STATE_RECORD.pack(
            self.id, sequence & SEQUENCE_MASK, HARD, hard.term, hard.commit, hard.vote
        )

    def stage_state(self, batch: Batch, kind: int, term: int, index: int, value: int) -> None:
        """Stage a record without a frame."""
        assert self.id in batch.before, self.id
        batch.records.append(
            STATE_RECORD.pack(self.id, self.sequence & SEQUENCE_MASK, kind, term, index, value)
        )
        self.sequence += 1
        batch.needs_proof = True

    def _stage_install(self, kind: int, install: Install, batch: Batch) -> None:
        """Stage a record with the state of a reset."""
        self.touch(batch)
        header = frame_header(
            install.state, group_id=self.group, term=install.prev_term, index=install.first_index,
            base_offset=install.next_offset, timestamp=install.number,
        )  # fmt: skip
        batch.add_frame([header, install.state])
        length = FRAME_BYTES + len(install.state)
        crc: int = CRC.unpack_from(header)[0]
        batch.records.append(
            ENTRY_RECORD.pack(
                self.id,
                self.sequence & SEQUENCE_MASK,
                kind,
                install.prev_term,
                install.first_index,
                length,
                crc,
            )
        )
        self.sequence += 1
        batch.needs_proof = True
        batch.installs.append((self, self.generation))

    def reset(
        self, first_index: Index, prev_term: Term, next_offset: Offset, state: bytes, batch: Batch
    ) -> None:
        """Drop every entry and continue at `first_index`.

        Flushes wait for `allow_flush`, because the existing files belong to the dropped entries.
        """
        self.touch(batch)
        tail = self.tail
        tail.cache.unflushed -= self.unflushed
        self.unflushed = 0
        tail.cache.release(tail)
        self.first = first_index
        self.last = first_index - 1
        self.offset = self.start_offset = next_offset
        self.hard.commit = first_index - 1
        self.flushed_index = tail.flushed_index = first_index - 1
        self.flushed_offset = next_offset
        self.terms = TermRuns(first_index - 1, prev_term)
        self._forget_files(first_index - 1)
        self.damaged_ranges.clear()
        self.flush_blocked = True
        self.reset_token = batch.token
        if state:
            self.install = Install(self.sequence, first_index, prev_term, next_offset, state)
            self._stage_install(INSTALL, self.install, batch)
        else:
            self.install = None
            self.stage_state(batch, RESET, prev_term, first_index, next_offset)
            batch.installs.append((self, self.generation))
        batch.spans.append(Span(self, first_index, first_index - 1))

    def allow_flush(self, generation: int) -> None:
        """Allow flushes again: the files of earlier generations are gone."""
        if generation == self.generation:
            self.flush_blocked = False

    def trims_all_files(self, first_index: Index) -> bool:
        """Return True if a trim to `first_index` empties all segments.

        No entry from `first_index` on may lie in a segment, and some entry before it must lie in a
        segment or only in the journal.
        """
        placement = self.placement
        is_placed = placement.index >= first_index or placement.rewind_token
        least = self.flushed_index + (1 if self.segments else 2)
        return first_index >= least and not (is_placed or self.is_lost)

    def clear(self, first_index: Index, batch: Batch) -> None:
        """Drop the entries below `first_index` and continue without segments.

        The dropped entries include all that segments hold. Flushes wait for `allow_flush`: files
        may remain, also of a flush in progress.
        """
        self.touch(batch)
        self.trim(first_index)
        tail, flushed_index = self.tail, first_index - 1
        size = sum(
            chunk.ends[stop - 1] - chunk.start_of(start)
            for chunk, start, stop in tail.spans(self.flushed_index + 1, first_index)
        )
        self.unflushed -= size
        tail.cache.unflushed -= size
        tail.cache.flushed(tail, flushed_index)
        self.flushed_index, self.flushed_offset = flushed_index, self.start_offset
        self._forget_files(flushed_index)
        self.flush_blocked = True
        self.stage_state(batch, CLEAR, self.terms.terms[0], first_index, self.start_offset)

    def _forget_files(self, flushed_index: Index) -> None:
        """Forget the segments: their files belong to dropped entries."""
        self.segments = ()
        self.maxima = LargestTimestamps()
        self.cursor = Cursor()
        self.placement = Placement(flushed_index, flushed_index)
        self.compacted = NOT_COMPACTED
        self.roll_above = NO_INDEX
        self.generation += 1
        self.is_void = True

    def trim(self, first_index: Index) -> None:
        """Drop entries below `first_index`; their memory is freed with its chunk."""
        self.start_offset = self.offset_after(first_index - 1)
        self.terms.trim(first_index - 1)
        self.damaged_ranges.trim(first_index)
        self.first = first_index

    @property
    def flush_last(self) -> Index:
        """Last entry that a flush takes: committed, and before any payload not yet durable.

        If all such entries are trimmed, `flushed_index`: a flush ends at an entry of the log, or
        right before its first.
        """
        placement = self.placement
        commit = self.hard.commit
        if placement.is_settled:
            return commit
        last = min(commit, placement.durable)
        return last if last >= self.first - 1 else self.flushed_index

    # --- segments ------------------------------------------------------------------------------
    def recovered(self, segments: Sequence[SegmentInfo]) -> None:
        """Set the segments that recovery found."""
        self.segments = tuple(segments)
        self.maxima = LargestTimestamps([UNKNOWN] * (len(segments) - 1))

    def add_segments(self, opened: Sequence[SegmentInfo], sealed: Sequence[Sealed]) -> None:
        """Add the segments that a flush began, and note those it sealed, one before each."""
        if opened:
            self.segments = (*self.segments, *opened)
            while len(self.maxima) < len(self.segments) - 1:
                self.maxima.append(UNKNOWN)
        self.note_sealed(sealed)

    def drop_segments(self, first_index: Index) -> Sequence[SegmentInfo]:
        """Remove and return the segments whose entries are all below `first_index`."""
        count = max(bisect_right(self.segments, first_index, key=_first_index) - 1, 0)
        gone, self.segments = self.segments[:count], self.segments[count:]
        self.maxima.drop(count)
        return gone

    def note_sealed(self, found: Sequence[Sealed]) -> None:
        """Note what was learned of sealed segments; some may be gone or rewritten."""
        for sealed in found:
            place = bisect_right(self.segments, sequence_of(sealed.number), key=_sequence) - 1
            if place >= 0 and self.segments[place].number == sealed.number:
                self.segments[place].sealed = sealed
                self.maxima[place] = sealed.max_timestamp

    def roll_at(self, first: Index) -> Index:
        """Return the entry at which a flush from `first` on must begin a segment; 0: none."""
        if not self.segments or self.segments[-1].first_index > self.roll_above:
            return NO_INDEX
        return max(first, self.roll_above + 1)

    def replace_segments(self, old: Sequence[SegmentInfo], new: SegmentInfo, end: Index) -> bool:
        """Replace a sealed segment by its rewritten form, or several by one joined segment.

        Their entries end at `end`. Return False if some are gone. After a rewrite that removed
        data, earlier reads of the segment and cached entries no longer match its contents, so
        neither is used any more.
        """
        known = self.segments
        place = bisect_right(known, old[0].first_index, key=_first_index) - 1
        if place < 0 or known[place : place + len(old)] != tuple(old):
            return False
        assert place + len(old) < len(known), "the newest segment is never removed alone"
        assert end <= self.flushed_index + 1, (end, self.flushed_index)
        assert new.sealed is not None, new.number
        self.segments = (*known[:place], new, *known[place + len(old) :])
        self.maxima.join(place, len(old))
        self.note_sealed([new.sealed])
        self.damaged_ranges.repairs += 1
        if len(old) == 1:
            self.tail.floor = max(self.tail.floor, end)
        return True

    def note_timestamp(self, index: Index, timestamp: int) -> None:
        """Account for the timestamp of an entry that was damaged.

        Its segment's largest timestamp may have been determined without it.
        """
        if index < self.segments[0].first_index:
            return
        place = bisect_right(self.segments, index, key=_first_index) - 1
        if place == len(self.segments) - 1:
            self.cursor.max_timestamp = max(self.cursor.max_timestamp, timestamp)
            return
        sealed = self.segments[place].sealed
        if sealed is not None and sealed.max_timestamp < timestamp:
            self.note_sealed([sealed._replace(max_timestamp=timestamp)])

    def places_of_time(self, timestamp: int, first: Index, end: Index) -> tuple[list[int], Index]:
        """Return (positions of segments, index after all of them) for a search by time.

        The segments may hold the first of entries [first, end) whose timestamp is ≥ `timestamp`;
        the list ends with the first segment known to.
        """
        segments, maxima = self.segments, self.maxima
        places: list[int] = []
        place = max(bisect_right(segments, first, key=_first_index) - 1, 0)
        while (place := maxima.first(place, timestamp)) < len(maxima):
            begins = segments[place].first_index
            if begins >= end:
                return places, end
            places.append(place)
            is_known = maxima[place] != UNKNOWN and begins >= first
            place += 1
            if is_known or len(places) == LOOKS_MAX:
                return places, min(end, segments[place].first_index)
        if segments[place].first_index < end and self.cursor.max_timestamp >= timestamp:
            places.append(place)
        return places, end

    # --- position in the journal ---------------------------------------------------------------
    def note_journaled(self, sequence: int, first: Index, last: Index) -> None:
        """Record that entries [first, last] are durable in journal file `sequence`.

        Older entries of the log from `first` on no longer count.
        """
        runs = self.runs
        while runs and runs[-1].first >= first:
            runs.pop()
        if runs and runs[-1].last >= first:
            runs[-1].last = first - 1
        if last < first:
            return
        if runs and runs[-1].sequence == sequence:
            runs[-1].last = last
        else:
            runs.append(Run(sequence, first, last))

    def note_installed(self, sequence: int, generation: int) -> None:
        """Record that a reset, or its state staged again, is durable in journal file `sequence`.

        Only now it replaces the state of an earlier reset.
        """
        is_empty = self.install is None and generation == self.generation
        self.install_sequence = 0 if is_empty else sequence

    def note_covered(self) -> None:
        """Forget the installed state: a checkpoint has the state that the owner built from it."""
        self.install = None
        self.install_sequence = 0

    def oldest_needed(self) -> int:
        """Return the sequence of the oldest journal file that the log needs; 0: none.

        It has an entry that no segment holds, or an installed state that no checkpoint covers.
        """
        run, install = self.oldest_run(), self.install_sequence
        return min(run, install) if run and install else run or install

    def oldest_run(self) -> int:
        """Return the sequence of the oldest journal file with an unflushed entry; 0: none."""
        self.runs = [run for run in self.runs if run.last > self.flushed_index]
        return min((run.sequence for run in self.runs), default=0)

    def mark(self) -> Mark:
        """Return this log's mark for the header of a new journal file."""
        hard = self.hard
        return Mark(
            self.id, self.sequence & SEQUENCE_MASK, hard.term, self.terms.terms[0],
            MARK_VOID if self.is_void else 0, hard.vote, hard.commit, self.applied,
            self.flushed_index, self.flushed_offset, self.last, self.first, self.start_offset,
        )  # fmt: skip

    def mark_before(self, sequence: int) -> Mark:
        """Return this log's mark for a journal file that replaces those from `sequence` on.

        It is the present state, with the last entry that segments and earlier files hold.
        """
        mark = self.mark()
        before = [run.last for run in self.runs if run.sequence < sequence]
        first = self._first_from(sequence)
        mark.last_index = max(
            self.flushed_index, first - 1 if first else max(before, default=NO_INDEX)
        )
        if self.install is not None and 0 < self.install_sequence < sequence:
            mark.flags |= MARK_INSTALLED
        return mark

    def _check(self, index: Index) -> None:
        if not self.first <= index <= self.last:
            raise self._outside(index)

    def _outside(self, index: Index) -> Compacted | Unavailable:
        if index < self.first:
            return Compacted(f"index {index} is below {self.first}")
        return Unavailable(f"index {index} is above {self.last}")
