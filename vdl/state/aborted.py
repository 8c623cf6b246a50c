"""The aborted transactions of one partition: who reads committed records is told of those whose
records it gets, and drops these (KIP-98).

A transaction is listed from its marker on, until its marker lies below the log's start, or until
compaction has removed its records on every replica. The list is part of the partition's replicated
state: it is made of the committed markers, and the same on every replica.

A question is for the offsets [start, end) that are read. Ranges are in the order of their markers,
and one that ended later may have begun earlier. So each knows the least first offset of all behind
it: a search begins at the first marker that is not below `start`, and ends where nothing further
began before `end`. One that was open for long makes it go on behind thousands that were not: so
neighbours are passed over together of which none began before `end`.

It is stored in blocks, so that a change costs a block.

Must not know: what is open, records, the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby
from operator import attrgetter
from struct import Struct

import msgspec

from ids import Index, Offset
from vdl.state.table import decode_value, encode_value

BLOCK_ENTRIES = 512
"""Ranges are stored together whose markers are in so many entries, from a multiple of it on. So
equal lists are equal bytes, however they came about."""

RUN_RANGES = 256
"""So many neighbours are passed over together."""

_KEY = Struct(">cQ")
_KEY_KIND = b"a"


class AbortedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One aborted transaction: its records lie in [first_offset, last_offset) and are those of its
    producer there; the marker is at `last_offset`, in the entry at `index`."""

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    index: Index


_last_offset = attrgetter("last_offset")
_index = attrgetter("index")


class AbortedTransactions:
    """See the module."""

    __slots__ = ("_cut", "_dirty", "_least", "_ranges", "_run_least", "age")

    def __init__(self) -> None:
        self.age = 0
        """Grows when any are forgotten whose records are gone, but in copies that were read before
        they went. Not part of the state."""
        self._ranges: list[AbortedRange] = []
        """In the order of their markers."""
        self._least: list[int] = []
        """Of each range, the least first offset of it and all behind it."""
        self._run_least: list[int] = []
        """Of each `RUN_RANGES` ranges, the least first offset. Of the first some may be gone."""
        self._cut = 0
        """How many those are."""
        self._dirty: set[int] = set()
        """Blocks that changed or went."""

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def ranges(self) -> list[AbortedRange]:
        """All, in the order of their markers; not to be changed."""
        return self._ranges

    def add(self, aborted: AbortedRange) -> None:
        """A transaction has ended with an abort. Its marker is behind all others."""
        ranges, least = self._ranges, self._least
        assert not ranges or ranges[-1].index < aborted.index, (ranges[-1], aborted)
        self._count_in_run(len(ranges), aborted)
        ranges.append(aborted)
        least.append(aborted.first_offset)
        position = len(least) - 2
        while position >= 0 and least[position] > aborted.first_offset:
            least[position] = aborted.first_offset
            position -= 1
        self._dirty.add(aborted.index // BLOCK_ENTRIES)

    def _count_in_run(self, position: int, aborted: AbortedRange) -> None:
        run, runs = (self._cut + position) // RUN_RANGES, self._run_least
        if run == len(runs):
            runs.append(aborted.first_offset)
        elif aborted.first_offset < runs[run]:
            runs[run] = aborted.first_offset

    def _count_runs(self) -> None:
        self._run_least, self._cut = [], 0
        for position, aborted in enumerate(self._ranges):
            self._count_in_run(position, aborted)

    def between(self, start: Offset, end: Offset) -> list[AbortedRange]:
        """Those that may have records in [start, end)."""
        found: list[AbortedRange] = []
        ranges, least, runs = self._ranges, self._least, self._run_least
        position = bisect_left(ranges, start, key=_last_offset)
        while position < len(ranges) and least[position] < end:
            run = (self._cut + position) // RUN_RANGES
            run_end = (run + 1) * RUN_RANGES - self._cut
            if runs[run] < end:
                found += [one for one in ranges[position:run_end] if one.first_offset < end]
            position = run_end
        return found

    def remove_below(self, offset: Offset) -> None:
        """Forget those whose markers are below `offset`: all of their records are."""
        self._remove(bisect_left(self._ranges, offset, key=_last_offset))

    def remove_upto(self, index: Index) -> None:
        """Forget those whose markers are in entries up to `index`."""
        count = bisect_right(self._ranges, index, key=_index)
        if count:
            self.age += 1
            self._remove(count)

    def _remove(self, count: int) -> None:
        """Forget the first `count`."""
        self._dirty.update(one.index // BLOCK_ENTRIES for one in self._ranges[:count])
        del self._ranges[:count]
        del self._least[:count]
        gone, self._cut = divmod(self._cut + count, RUN_RANGES)
        del self._run_least[:gone]

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) of every block that changed since the last call, None where it went."""
        if not self._dirty:
            return []
        dirty, self._dirty = self._dirty, set()
        return [(_key(block), self._stored(block)) for block in sorted(dirty)]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
        blocks = groupby(self._ranges, key=lambda one: one.index // BLOCK_ENTRIES)
        return [(_key(block), encode_value(list(ranges))) for block, ranges in blocks]

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything by what `items` gave."""
        self._ranges = [
            aborted for _, value in items for aborted in decode_value(value, list[AbortedRange])
        ]
        self._dirty = set()
        self.age += 1
        least: list[int] = []
        for aborted in reversed(self._ranges):
            least.append(min(aborted.first_offset, least[-1]) if least else aborted.first_offset)
        self._least = least[::-1]
        self._count_runs()

    def _stored(self, block: int) -> bytes | None:
        ranges = self._ranges
        begin = bisect_left(ranges, block * BLOCK_ENTRIES, key=_index)
        end = bisect_left(ranges, (block + 1) * BLOCK_ENTRIES, key=_index)
        return encode_value(ranges[begin:end]) if begin < end else None


def is_key(key: bytes) -> bool:
    """Whether an item is one of these."""
    return key[:1] == _KEY_KIND


def _key(block: int) -> bytes:
    return _KEY.pack(_KEY_KIND, block)
