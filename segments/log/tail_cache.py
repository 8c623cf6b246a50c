"""The tail cache: each log's newest entries, laid out as in its segments.

A log's tail is a list of chunks. A chunk is one block of memory with consecutive frames, and the
entries whose payloads are views of it. A flush writes the block as it is, a journal block gathers
from it, and peers and consumers are sent the views. Chunks grow with their log, from 512 bytes to
1 MiB, so that a thousand quiet logs cost little.

A large entry is a chunk by itself: the frame's header, and the payload in the buffer in which it
arrived, not copied. Such a chunk counts in no budget of the cache, because it would evict the data
of all others. It leaves memory as soon as a segment holds it; `large_bytes` is the amount that
waits for that.

Rules: memory that was handed out as a view is never written again, so truncation closes the chunk
and later entries start a new one. Only chunks whose entries are all in segments may be evicted,
oldest first over all logs, and only for memory that would exceed the budget. Cold reads never
enter the cache.

Does not depend on the journal or files.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import attrgetter

from ids import NO_INDEX, Index, Offset
from segments.api import EntryLike
from segments.format.frame import FRAME_BYTES

CHUNK_BYTES_MIN = 512
"""Size of a log's first chunk. Chunks double; most logs of a large set hold little."""
CHUNK_BYTES_MAX = (1 << 20) + (4 << 10)
"""A mebibyte, plus the header of a batch of that size."""
SPARE_CHUNKS_MAX = 8
"""Maximum number of evicted chunks kept for reuse, beyond the budget."""
LARGE_BYTES_MIN = 16 << 20
"""Minimum size of a payload that is not copied."""
ENTRY_OVERHEAD_BYTES = 400
"""Memory of an entry besides its frame: the entry object, its view, its numbers."""

base_offset_of = attrgetter("base_offset")


class Chunk:
    """A block of consecutive frames. Entry n lies in [ends[n - 1], ends[n]).

    Invariant: bytes below `used` never change.
    """

    __slots__ = (
        "capacity",
        "charge",
        "ends",
        "entries",
        "first",
        "memory",
        "payload",
        "used",
        "view",
    )

    def __init__(self, memory: bytearray, first: Index, payload: memoryview | None = None) -> None:
        capacity = len(memory)
        self.payload = payload
        """Payload of a large entry; `memory` is then its frame's header. None for other chunks."""
        self.memory = memory
        self.view: memoryview | None = None
        """`readonly`, once it is made."""
        self.capacity = capacity
        self.charge = capacity
        self.used = 0
        self.first = first
        self.entries: list[EntryLike] = []
        self.ends = array("L")

    @property
    def readonly(self) -> memoryview:
        """View of the whole memory.

        It is made for the first entry with a payload: most logs of a large set hold none, and two
        objects of a view have 300 bytes.
        """
        view = self.view
        if view is None:
            view = self.view = memoryview(self.memory).toreadonly()
        return view

    def part(self, start: int, end: int) -> memoryview:
        """Return a view of the frames [start, end)."""
        whole = self.view
        if whole is None:
            return memoryview(self.memory).toreadonly()[start:end]
        return whole[start:end]

    @property
    def end(self) -> Index:
        """Index after the last entry."""
        return self.first + len(self.entries)

    def slices(self, start: int, end: int) -> list[memoryview]:
        """Return frames [start, end) without copying."""
        if self.payload is None:
            return [self.part(start, end)]
        assert (start, end) == (0, self.used), (start, end, self.used)
        return [self.readonly, self.payload]

    def start_of(self, n: int) -> int:
        """Return the position of the frame of entry number `n` of this chunk."""
        return self.ends[n - 1] if n else 0


class Tail:
    """Chunks of one log, oldest first. Their entries are consecutive, and no chunk is empty.

    Entries up to `flushed_index` are in segments.
    """

    __slots__ = ("cache", "chunks", "firsts", "floor", "flushed_index", "next_bytes")

    def __init__(self, cache: TailCache, flushed_index: Index) -> None:
        self.cache = cache
        self.chunks: list[Chunk] = []
        self.firsts: list[Index] = []
        self.flushed_index = flushed_index
        self.floor = NO_INDEX
        """Use: entries below it are read from segments, even if their chunk is still here.
        Invariant: not above the entry after `flushed_index`."""
        self.next_bytes = CHUNK_BYTES_MIN

    @property
    def first(self) -> Index:
        """Index of the oldest entry that is read from memory; 0 if there is none."""
        return max(self.firsts[0], self.floor) if self.firsts else NO_INDEX

    def grow(self, frame_bytes: int, index: Index) -> Chunk:
        """Append a chunk with space for a frame of `frame_bytes`, beginning with entry `index`."""
        size = self.next_bytes
        while size < frame_bytes and size < CHUNK_BYTES_MAX:
            size = min(size * 2, CHUNK_BYTES_MAX)
        chunk = Chunk(self.cache.memory(max(size, frame_bytes)), index)
        self.cache.bytes += chunk.charge
        self.next_bytes = min(size * 2, CHUNK_BYTES_MAX)
        self.chunks.append(chunk)
        self.firsts.append(index)
        return chunk

    def grow_large(self, payload: memoryview, index: Index) -> Chunk:
        """Append a chunk that holds only the large entry `index`."""
        chunk = Chunk(bytearray(FRAME_BYTES), index, payload)
        chunk.charge = 0
        chunk.used = FRAME_BYTES + len(payload)
        self.cache.holds_large(chunk)
        self.chunks.append(chunk)
        self.firsts.append(index)
        return chunk

    def discard_last(self) -> None:
        """Drop the last chunk, which stayed empty."""
        chunk = self.chunks.pop()
        self.firsts.pop()
        self.cache.bytes -= chunk.charge

    def truncate(self, index: Index) -> int:
        """Remove entries from `index` on; return their frames' bytes."""
        removed = 0
        while self.chunks and self.firsts[-1] >= index:
            chunk = self.chunks.pop()
            self.firsts.pop()
            self.cache.drop(chunk)
            removed += chunk.ends[-1]
        if self.chunks and self.chunks[-1].end > index:
            chunk = self.chunks[-1]
            n = index - chunk.first
            # Not `used`, which does not move back if a chunk is truncated again.
            removed += chunk.ends[-1] - chunk.start_of(n)
            del chunk.entries[n:]
            del chunk.ends[n:]
            # Views of truncated entries may still be on their way to a peer or to the journal.
            chunk.capacity = chunk.used  # the memory after it stays allocated and charged
            if chunk.end - 1 <= self.flushed_index:
                self.cache.may_go(self, chunk)  # no flush will touch the rest of it
        self.next_bytes = CHUNK_BYTES_MIN
        return removed

    def chunk_at(self, index: Index) -> int:
        """Return the number of the chunk that holds `index`."""
        return bisect_right(self.firsts, index) - 1

    def slice(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        """Return entries of [first, end): at least one, then ≤ `bytes_max` of frames."""
        number = self.chunk_at(first)
        chunk = self.chunks[number]
        n = first - chunk.first
        start = chunk.start_of(n)
        found = chunk.entries[n : _stop(chunk, n, end - chunk.first, start + bytes_max)]
        left = bytes_max - (chunk.start_of(n + len(found)) - start)
        while first + len(found) < end and first + len(found) == chunk.end:
            number += 1
            chunk = self.chunks[number]
            if chunk.ends[0] > left:
                break
            stop = _stop(chunk, 0, end - chunk.first, left)
            found += chunk.entries[:stop]
            left -= chunk.start_of(stop)
        return found

    def spans(self, first: Index, end: Index) -> list[tuple[Chunk, int, int]]:
        """Return (chunk, number of first entry, number after last) covering [first, end)."""
        found: list[tuple[Chunk, int, int]] = []
        if first >= end:
            return found
        for number in range(self.chunk_at(first), len(self.chunks)):
            chunk = self.chunks[number]
            if chunk.first >= end:
                break
            start = max(0, first - chunk.first)
            stop = min(len(chunk.entries), end - chunk.first)
            if start < stop:
                found.append((chunk, start, stop))
        return found

    def entry(self, index: Index) -> EntryLike:
        chunk = self.chunks[self.chunk_at(index)]
        return chunk.entries[index - chunk.first]

    def find_offset(self, offset: Offset) -> Index:
        """Return the last index in memory whose base offset is ≤ `offset`; 0 if none."""
        number = bisect_right(self.chunks, offset, key=_chunk_offset) - 1
        if number < 0:
            return NO_INDEX
        chunk = self.chunks[number]
        index = chunk.first + bisect_right(chunk.entries, offset, key=base_offset_of) - 1
        return index if index >= self.floor else NO_INDEX


class TailCache:
    """Budget of all tails. Counts hits, and bytes that no segment holds yet."""

    __slots__ = (
        "_evictable", "_large", "_spare", "bytes", "bytes_max", "evicted", "hits", "large_bytes",
        "large_bytes_min", "misses", "unflushed",
    )  # fmt: skip

    def __init__(self, bytes_max: int, large_bytes_min: int = LARGE_BYTES_MIN) -> None:
        self.bytes_max = bytes_max
        self.large_bytes_min = large_bytes_min
        self.bytes = 0
        self.unflushed = 0
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        self._large: set[Chunk] = set()
        """Large entries that no segment holds yet."""
        self.large_bytes = 0
        """Total bytes of `_large`."""
        self._evictable: OrderedDict[Chunk, Tail] = OrderedDict()
        """Chunks whose entries were all in segments when added, oldest first, and in order within
        each tail. Excludes chunks that their tail has dropped."""
        self._spare: deque[bytearray] = deque()

    def holds_large(self, chunk: Chunk) -> None:
        """Account for a new large entry, which no segment holds yet."""
        self._large.add(chunk)
        self.large_bytes += chunk.used

    def _no_longer_waits(self, chunk: Chunk) -> None:
        """Stop counting a large entry: a segment holds it, or it was removed."""
        if chunk in self._large:
            self._large.remove(chunk)
            self.large_bytes -= chunk.used

    @property
    def crowding(self) -> int:
        """Bytes that no segment holds yet and that take cache space; excludes large entries."""
        return self.unflushed - self.large_bytes

    def memory(self, capacity: int) -> bytearray:
        """Return memory for a chunk.

        If the budget is used up, the oldest flushed chunks are evicted, and their memory is reused
        once no view of it exists any more. A fresh mebibyte costs 256 page faults, ten times the
        cost of copying a batch into it.
        """
        self.evict(capacity)
        if capacity == CHUNK_BYTES_MAX:
            for _ in range(min(4, len(self._spare))):
                memory = self._spare.popleft()
                try:
                    # A bytearray cannot change its length while a view of it exists.
                    memory.pop()
                except BufferError:
                    self._spare.append(memory)
                else:
                    memory.append(0)
                    return memory
        return bytearray(capacity)

    def flushed(self, tail: Tail, flushed_index: Index) -> None:
        """Note that entries up to `flushed_index` are in segments now."""
        already, tail.flushed_index = tail.flushed_index, flushed_index
        for number in range(max(0, tail.chunk_at(already + 1)), len(tail.chunks)):
            chunk = tail.chunks[number]
            if chunk.end - 1 > flushed_index:
                break
            if chunk.end - 1 > already:
                self.may_go(tail, chunk)
        self._let_large_go(tail, flushed_index)

    def _let_large_go(self, tail: Tail, flushed_index: Index) -> None:
        """Drop large entries that a segment holds, and everything before them."""
        chunks = tail.chunks
        for number in range(len(chunks) - 1, -1, -1):
            if chunks[number].payload is not None and chunks[number].end - 1 <= flushed_index:
                for chunk in chunks[: number + 1]:
                    self.drop(chunk)
                del chunks[: number + 1], tail.firsts[: number + 1]
                if not chunks:
                    tail.next_bytes = CHUNK_BYTES_MIN
                break

    def may_go(self, tail: Tail, chunk: Chunk) -> None:
        """Make the chunk evictable: all its entries are in segments.

        From now on its entries' overhead is charged too.
        """
        self._no_longer_waits(chunk)
        charge = len(chunk.memory) + ENTRY_OVERHEAD_BYTES * len(chunk.entries)
        self.bytes += charge - chunk.charge
        chunk.charge = charge
        self._evictable[chunk] = tail
        self._evictable.move_to_end(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Stop accounting for a chunk that its tail has dropped."""
        self.bytes -= chunk.charge
        self._no_longer_waits(chunk)
        self._evictable.pop(chunk, None)

    def evict(self, room: int = 0) -> None:
        """Evict the oldest flushed chunks while `room` more bytes would exceed the budget."""
        limit = self.bytes_max - room
        while self.bytes > limit and self._evictable:
            chunk, tail = self._evictable.popitem(last=False)
            if chunk.end - 1 > tail.flushed_index:
                continue  # it has grown since; the flush of the rest adds it again
            assert tail.chunks[0] is chunk, (tail.firsts[0], chunk.first)
            del tail.chunks[0]
            del tail.firsts[0]
            self.bytes -= chunk.charge
            self.evicted += 1
            if len(chunk.memory) == CHUNK_BYTES_MAX:
                if len(self._spare) == SPARE_CHUNKS_MAX:
                    self._spare.pop()
                self._spare.appendleft(chunk.memory)
            if not tail.chunks:
                tail.next_bytes = CHUNK_BYTES_MIN

    def release(self, tail: Tail) -> None:
        """Drop the whole tail of a log."""
        for chunk in tail.chunks:
            self.drop(chunk)
        tail.chunks.clear()
        tail.firsts.clear()
        tail.next_bytes = CHUNK_BYTES_MIN


def _stop(chunk: Chunk, start: int, end: int, position_max: int) -> int:
    """Return the number of the entry to stop before, at least one after `start`."""
    end = min(end, len(chunk.entries))
    if chunk.ends[end - 1] <= position_max:
        return end
    return max(start + 1, bisect_left(chunk.ends, position_max + 1, start, end))


def _chunk_offset(chunk: Chunk) -> Offset:
    return chunk.entries[0].base_offset
