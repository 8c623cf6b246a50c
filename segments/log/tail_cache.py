"""The tail cache: each log's newest entries, as the byte image of its segments.

A log's tail is a list of chunks. A chunk is one run of memory with frames end to end, and the
entries whose payloads are views of it: a flush writes the run as it lies, a journal block gathers
from it, a peer and a consumer are sent the views. Chunks grow from 4 KiB to 1 MiB as their log
does, so that a thousand quiet logs cost little.

A large entry is a chunk by itself: a frame's header, and beside it the payload where it came in,
which is not copied. Such a chunk counts in no budget of the cache, for it would push out what all
others have; it leaves memory as soon as a segment holds it, and `large_bytes` says how much waits
for that.

Rules: memory that was handed out as a view is never written again: truncation closes the chunk
and what follows starts a new one. Only chunks whose entries are all in segments may go, oldest
first over all logs, and only for memory that would be above the budget. Cold reads never enter.

Must not know: the journal, files.
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

CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = (1 << 20) + (4 << 10)
"""A mebibyte, and room for the header of a batch that is one."""
SPARE_CHUNKS_MAX = 8
"""Evicted and not used again yet: beyond the budget."""
LARGE_BYTES_MIN = 16 << 20
"""A payload of so many bytes is not copied."""
ENTRY_OVERHEAD_BYTES = 400
"""What an entry costs beside its frame: the entry, its view, its numbers."""

base_offset_of = attrgetter("base_offset")


class Chunk:
    """Frames end to end. Entry n lies in [ends[n - 1], ends[n]).

    Invariant: bytes below `used` never change.
    """

    __slots__ = (
        "buffer",
        "capacity",
        "charge",
        "ends",
        "entries",
        "first",
        "memory",
        "payload",
        "readonly",
        "used",
    )

    def __init__(self, memory: bytearray, first: Index, payload: memoryview | None = None) -> None:
        capacity = len(memory)
        self.payload = payload
        """Of a large entry: `memory` is its frame's header."""
        self.memory = memory
        self.buffer = memoryview(memory)
        self.readonly = self.buffer.toreadonly()
        self.capacity = capacity
        self.charge = capacity
        self.used = 0
        self.first = first
        self.entries: list[EntryLike] = []
        self.ends = array("L")

    @property
    def end(self) -> Index:
        """Index after the last entry."""
        return self.first + len(self.entries)

    def slices(self, start: int, end: int) -> list[memoryview]:
        """Frames [start, end), as they lie."""
        if self.payload is None:
            return [self.readonly[start:end]]
        assert (start, end) == (0, self.used), (start, end, self.used)
        return [self.readonly, self.payload]

    def start_of(self, n: int) -> int:
        """Position of the frame of entry number `n` of this chunk."""
        return self.ends[n - 1] if n else 0


class Tail:
    """The chunks of one log, oldest first, their entries consecutive, none without entries.

    Entries up to `flushed_index` are in segments.
    """

    __slots__ = ("cache", "chunks", "firsts", "floor", "flushed_index", "next_bytes")

    def __init__(self, cache: TailCache, flushed_index: Index) -> None:
        self.cache = cache
        self.chunks: list[Chunk] = []
        self.firsts: list[Index] = []
        self.flushed_index = flushed_index
        self.floor = NO_INDEX
        """Use: entries below it are read from segments, though their chunk may still be here.
        Invariant: not above the entry after `flushed_index`."""
        self.next_bytes = CHUNK_BYTES_MIN

    @property
    def first(self) -> Index:
        """Index of the oldest entry that is read from memory; 0 when there is none."""
        return max(self.firsts[0], self.floor) if self.firsts else NO_INDEX

    def grow(self, frame_bytes: int, index: Index) -> Chunk:
        """A new last chunk with room for a frame of `frame_bytes`, beginning with `index`."""
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
        """A new last chunk that is the entry `index`, and nothing else."""
        chunk = Chunk(bytearray(FRAME_BYTES), index, payload)
        chunk.charge = 0
        chunk.used = FRAME_BYTES + len(payload)
        self.cache.holds_large(chunk)
        self.chunks.append(chunk)
        self.firsts.append(index)
        return chunk

    def discard_last(self) -> None:
        """Drop a last chunk that stayed empty."""
        chunk = self.chunks.pop()
        self.firsts.pop()
        self.cache.bytes -= chunk.charge

    def truncate(self, index: Index) -> int:
        """Forget entries from `index` on; returns their frames' bytes."""
        removed = 0
        while self.chunks and self.firsts[-1] >= index:
            chunk = self.chunks.pop()
            self.firsts.pop()
            self.cache.drop(chunk)
            removed += chunk.ends[-1]
        if self.chunks and self.chunks[-1].end > index:
            chunk = self.chunks[-1]
            n = index - chunk.first
            # Not `used`, which stays where it was when a chunk is cut once more.
            removed += chunk.ends[-1] - chunk.start_of(n)
            del chunk.entries[n:]
            del chunk.ends[n:]
            # Views of what was cut may still be on their way to a peer or to the journal.
            chunk.capacity = chunk.used  # the memory behind it stays: it is still charged for
            if chunk.end - 1 <= self.flushed_index:
                self.cache.may_go(self, chunk)  # what is left of it no flush will touch
        self.next_bytes = CHUNK_BYTES_MIN
        return removed

    def chunk_at(self, index: Index) -> int:
        """Number of the chunk that holds `index`."""
        return bisect_right(self.firsts, index) - 1

    def slice(self, first: Index, end: Index, bytes_max: int) -> Sequence[EntryLike]:
        """Entries [first, end), at least one, then ≤ `bytes_max` of frames."""
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
        """(chunk, number of the first entry, number after the last) that make up [first, end)."""
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
        """Index of the last entry in memory whose base offset is ≤ `offset`; 0 when none is."""
        number = bisect_right(self.chunks, offset, key=_chunk_offset) - 1
        if number < 0:
            return NO_INDEX
        chunk = self.chunks[number]
        index = chunk.first + bisect_right(chunk.entries, offset, key=base_offset_of) - 1
        return index if index >= self.floor else NO_INDEX


class TailCache:
    """The budget of all tails. Counts hits and what no segment holds yet."""

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
        """Of them all."""
        self._evictable: OrderedDict[Chunk, Tail] = OrderedDict()
        """Chunks whose entries were all in segments when they came here, oldest first; of each tail
        in order. None that its tail has dropped."""
        self._spare: deque[bytearray] = deque()

    def holds_large(self, chunk: Chunk) -> None:
        """There is another large entry, which no segment holds yet."""
        self._large.add(chunk)
        self.large_bytes += chunk.used

    def _no_longer_waits(self, chunk: Chunk) -> None:
        """A segment holds it, or it is gone."""
        if chunk in self._large:
            self._large.remove(chunk)
            self.large_bytes -= chunk.used

    @property
    def crowding(self) -> int:
        """Bytes that no segment holds yet and that are in others' way: large entries are not."""
        return self.unflushed - self.large_bytes

    def memory(self, capacity: int) -> bytearray:
        """Memory for a chunk. When the budget is used up, the oldest chunks that segments hold go
        for it, and theirs is used again, once nobody holds a view of it any more.

        A fresh mebibyte costs 256 page faults, ten times what copying a batch into it does.
        """
        self.evict(capacity)
        if capacity == CHUNK_BYTES_MAX:
            for _ in range(min(4, len(self._spare))):
                memory = self._spare.popleft()
                try:
                    # A bytearray refuses to change its length while a view of it exists.
                    memory.pop()
                except BufferError:
                    self._spare.append(memory)
                else:
                    memory.append(0)
                    return memory
        return bytearray(capacity)

    def flushed(self, tail: Tail, flushed_index: Index) -> None:
        """Entries up to `flushed_index` are in segments now."""
        already, tail.flushed_index = tail.flushed_index, flushed_index
        for number in range(max(0, tail.chunk_at(already + 1)), len(tail.chunks)):
            chunk = tail.chunks[number]
            if chunk.end - 1 > flushed_index:
                break
            if chunk.end - 1 > already:
                self.may_go(tail, chunk)
        self._let_large_go(tail, flushed_index)

    def _let_large_go(self, tail: Tail, flushed_index: Index) -> None:
        """Let the large entries go that a segment holds, and what lies before them."""
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
        """All entries of the chunk are in segments; from now on they are charged for, too."""
        self._no_longer_waits(chunk)
        charge = len(chunk.memory) + ENTRY_OVERHEAD_BYTES * len(chunk.entries)
        self.bytes += charge - chunk.charge
        chunk.charge = charge
        self._evictable[chunk] = tail
        self._evictable.move_to_end(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Its tail has no more of it; neither has the cache."""
        self.bytes -= chunk.charge
        self._no_longer_waits(chunk)
        self._evictable.pop(chunk, None)

    def evict(self, room: int = 0) -> None:
        """Let the oldest flushed chunks go while `room` more bytes are above the budget."""
        limit = self.bytes_max - room
        while self.bytes > limit and self._evictable:
            chunk, tail = self._evictable.popitem(last=False)
            if chunk.end - 1 > tail.flushed_index:
                continue  # has grown since; the flush of the rest will bring it here again
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
        """A log drops its whole tail."""
        for chunk in tail.chunks:
            self.drop(chunk)
        tail.chunks.clear()
        tail.firsts.clear()
        tail.next_bytes = CHUNK_BYTES_MIN


def _stop(chunk: Chunk, start: int, end: int, position_max: int) -> int:
    """Number of the entry to stop before: at least one from `start`, then by position."""
    end = min(end, len(chunk.entries))
    if chunk.ends[end - 1] <= position_max:
        return end
    return max(start + 1, bisect_left(chunk.ends, position_max + 1, start, end))


def _chunk_offset(chunk: Chunk) -> Offset:
    return chunk.entries[0].base_offset
