"""Aborted transactions of one partition (KIP-98).

A client that reads committed records receives those whose records it gets, and drops these records.
A transaction is listed from its marker on, until its marker is below the log's start, or until
compaction has removed its records on every replica. The list is part of the partition's replicated
state: it follows from the committed markers and is the same on every replica.

A query is for the offsets [start, end) that are read. Ranges are in the order of their markers, and
one that ended later may have begun earlier. A run holds neighbouring ranges. For each run two
minima are known: the least first offset in it, and the least in it and all later runs. A search
begins at the first run with a marker not below `start`, skips runs in which nothing began before
`end`, and stops where nothing later did. So one long transaction does not make a search read
thousands of short ones.

The number of ranges is not bounded: the list is needed as long as the records may be read. So full
runs are packed into some ten bytes a range, where a data batch and a marker take hundreds in the
log.

The list is stored in blocks, so that a change costs one block. A block is encoded when the next one
begins, so a checkpoint after a million additions only collects encoded blocks.

Does not depend on open transactions, on records, or on the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise, takewhile
from operator import attrgetter
from struct import Struct
from sys import maxsize

import msgspec

from ids import Index, Offset
from vdl.state.empty import NO_ITEMS, NO_KEYS
from vdl.state.table import decode_value, encode_value

BLOCK_ENTRIES = 512
"""Number of entries per stored block.

A block holds the ranges whose markers are in this many entries, from a multiple of it on. So equal
lists have equal bytes, regardless of how they were built.
"""

RUN_RANGES = 512
"""Number of neighbouring ranges that are packed, and skipped, together."""

_KEY = Struct(">cQ")
_KEY_KIND = b"a"


class AbortedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One aborted transaction.

    Its records are those of its producer in [first_offset, last_offset); the marker is at
    `last_offset`, in the entry at `index`.
    """

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    index: Index


_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")
_index = attrgetter("index")


class _Run:
    """Immutable packed run of neighbouring ranges.

    Each column is stored as differences, in the fewest bytes that hold them.
    """

    __slots__ = (
        "_indexes", "_last_offsets", "_least_producer_id", "_lengths", "_producers", "first_index",
        "last_index", "last_offset", "least",
    )  # fmt: skip

    def __init__(self, ranges: list[AbortedRange]) -> None:
        """Pack the ranges, of which there is at least one."""
        self.last_offset = ranges[-1].last_offset
        self.first_index, self.last_index = ranges[0].index, ranges[-1].index
        self.least = min(map(_first_offset, ranges))
        """Least first offset."""
        self._least_producer_id = min(one.producer_id for one in ranges)
        self._producers = _packed([one.producer_id - self._least_producer_id for one in ranges])
        self._lengths = _packed([one.last_offset - one.first_offset for one in ranges])
        self._last_offsets = _differences([one.last_offset for one in ranges])
        self._indexes = _differences([one.index for one in ranges])[1]

    def __len__(self) -> int:
        return len(self._producers)

    def indexes(self) -> Iterator[int]:
        """Yield the indexes of the markers' entries."""
        return accumulate(self._indexes, initial=self.first_index)

    def ranges(self) -> list[AbortedRange]:
        least = self._least_producer_id
        return [
            AbortedRange(least + producer, Offset(last - length), Offset(last), Index(index))
            for producer, length, last, index in zip(
                self._producers, self._lengths, self._ends(), self.indexes(), strict=True
            )
        ]

    def between(self, start: int, end: int) -> list[AbortedRange]:
        """Return the ranges that may have records in [start, end).

        If they are few, the others are not decoded.
        """
        ends, lengths = list(self._ends()), self._lengths
        first = bisect_left(ends, start)
        chosen = [n for n in range(first, len(ends)) if ends[n] - lengths[n] < end]
        if not chosen:
            return []
        if 2 * len(chosen) > len(ends):
            ranges = self.ranges()
            return [ranges[n] for n in chosen]
        least, producers, indexes = self._least_producer_id, self._producers, list(self.indexes())
        return [
            AbortedRange(
                least + producers[n],
                Offset(ends[n] - lengths[n]),
                Offset(ends[n]),
                Index(indexes[n]),
            )
            for n in chosen
        ]

    def _ends(self) -> Iterator[int]:
        """Yield the offsets of the markers."""
        first, differences = self._last_offsets
        return accumulate(differences, initial=first)


def _packed(numbers: list[int]) -> array[int]:
    """Pack non-negative numbers into an array of the smallest sufficient type."""
    largest = max(numbers, default=0)
    code = "B" if largest < 1 << 8 else "H" if largest < 1 << 16 else "I"
    return array(code if largest < 1 << 32 else "Q", numbers)


def _differences(numbers: list[int]) -> tuple[int, array[int]]:
    """Return the first of ascending numbers and the differences between neighbours."""
    return numbers[0], _packed([b - a for a, b in pairwise(numbers)])


class AbortedTransactions:
    """All aborted transactions of one partition; see the module."""

    __slots__ = ("_behind", "_block", "_dirty", "_newest", "_runs", "_stored_block", "_tail", "age")

    def __init__(self) -> None:
        self.age = 0
        """Version of the list, incremented when compaction removes ranges.

        Records read before that still need the removed ranges. Not part of the state.
        """
        self._runs: list[_Run] = NO_ITEMS
        """In the order of their markers."""
        self._behind: list[int] = NO_ITEMS
        """For each run, the least first offset of it and all later ranges."""
        self._tail: list[AbortedRange] = NO_ITEMS
        """Newest ranges, fewer than `RUN_RANGES`."""
        self._dirty: dict[int, bytes | None] = NO_KEYS
        """Changed or removed blocks, in the order in which they first changed.

        The value is the encoded block if a later block has begun, else None.
        """
        self._block = -1
        """Newest block that ever had a range."""
        self._newest: list[AbortedRange] = NO_ITEMS
        """Ranges listed in that block."""
        self._stored_block = -1
        """Newest block taken to be stored so far. All later ones are dirty."""

    def __len__(self) -> int:
        return sum(map(len, self._runs)) + len(self._tail)

    def __bool__(self) -> bool:
        return bool(self._runs or self._tail)

    def __iter__(self) -> Iterator[AbortedRange]:
        """Iterate over all ranges in the order of their markers. They must not change meanwhile."""
        return iter(self.copy())

    def copy(self) -> Iterable[AbortedRange]:
        """Return a copy that any thread may read. The cost is that of copying the list of runs."""
        return _Copy(self._runs.copy(), self._tail.copy())

    def add(self, aborted: AbortedRange) -> None:
        """Add an aborted transaction, whose marker is behind all others."""
        assert self._last_index < aborted.index, (self._last_index, aborted)
        if self._dirty is NO_KEYS:
            self._dirty = {}
        if self._tail is NO_ITEMS:
            self._runs, self._behind, self._tail = [], [], []
        block = aborted.index // BLOCK_ENTRIES
        if block != self._block:
            if self._newest and self._block in self._dirty:
                self._dirty[self._block] = encode_value(self._newest)
            self._block, self._newest = block, []
        self._dirty[block] = None
        self._newest.append(aborted)
        self._tail.append(aborted)
        self._note(aborted.first_offset)
        if len(self._tail) >= RUN_RANGES:
            self._seal()

    @property
    def _last_index(self) -> int:
        if self._tail:
            return self._tail[-1].index
        return self._runs[-1].last_index if self._runs else -1

    def _seal(self) -> None:
        run, self._tail = _Run(self._tail), []
        self._runs.append(run)
        self._behind.append(run.least)

    def _note(self, first_offset: int) -> None:
        """Lower the minima of all runs for a range behind them."""
        behind = self._behind
        position = len(behind) - 1
        while position >= 0 and behind[position] > first_offset:
            behind[position] = first_offset
            position -= 1

    def between(self, start: Offset, end: Offset) -> list[AbortedRange]:
        """Return the ranges that may have records in [start, end)."""
        found: list[AbortedRange] = []
        runs, behind = self._runs, self._behind
        position = bisect_left(runs, start, key=_last_offset)
        while position < len(runs) and behind[position] < end:
            if runs[position].least < end:
                found += runs[position].between(start, end)
            position += 1
        if position == len(runs):
            found += _those_between(self._tail, start, end)
        return found

    def remove_below(self, offset: Offset) -> None:
        """Remove ranges whose markers are below `offset`: all of their records are as well."""
        self._remove(bisect_left(self._runs, offset, key=_last_offset), _last_offset, offset)

    def remove_upto(self, index: Index) -> None:
        """Remove ranges whose markers are in entries up to `index`."""
        first = next(iter(self), None)
        if first is not None and first.index <= index:
            self.age += 1
            self._remove(bisect_right(self._runs, index, key=_last_index), _index, Index(index + 1))

    def _remove(self, count: int, key: attrgetter[int], least: int) -> None:
        """Remove the first `count` runs, and from the rest the ranges with `key` below `least`."""
        for run in self._runs[:count]:
            self._went(run.first_index, run.last_index, run.indexes())
        del self._runs[:count]
        del self._behind[:count]
        ranges = self._runs[0].ranges() if self._runs else self._tail
        gone = bisect_left(ranges, least, key=key)
        if gone:
            self._went(ranges[0].index, ranges[gone - 1].index, map(_index, ranges[:gone]))
            if self._runs:
                # The run's minimum may be below that of the remaining ranges; a search then reads
                # it once too often.
                self._runs[0] = _Run(ranges[gone:])
            else:
                del self._tail[:gone]
        self._newest = [one for one in self._newest if key(one) >= least]

    def _went(self, first_index: int, last_index: int, indexes: Iterable[int]) -> None:
        """Mark the blocks of removed ranges as changed.

        If the blocks span is short, all blocks in it are marked, which avoids reading each index.
        """
        first, last = first_index // BLOCK_ENTRIES, last_index // BLOCK_ENTRIES
        few = last - first < RUN_RANGES
        blocks = range(first, last + 1) if few else (index // BLOCK_ENTRIES for index in indexes)
        if self._dirty is NO_KEYS:
            self._dirty = {}
        self._dirty.update(dict.fromkeys(blocks))

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Return (key, value) of blocks changed since the last call; None for a removed one."""
        if not self._dirty:
            return []
        dirty, self._dirty = self._dirty, NO_KEYS
        self._stored_block = self._block
        first = self._first_block
        return [
            (_key(block), value or (self._stored(block) if block >= first else None))
            for block, value in sorted(dirty.items())
        ]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        stored_block, dirty, first = self._stored_block, self._dirty, self._first_block
        found: list[tuple[bytes, bytes]] = []
        if first <= stored_block:
            blocks = groupby(self, key=lambda one: one.index // BLOCK_ENTRIES)
            found += [
                (_key(block), encode_value(list(ranges)))
                for block, ranges in takewhile(lambda found: found[0] <= stored_block, blocks)
            ]
        for block in sorted(block for block in dirty if block > stored_block and block >= first):
            value = dirty[block] or self._stored(block)
            if value:
                found.append((_key(block), value))
        return found

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything by stored items."""
        self.age += 1
        self._block, self._newest = -1, NO_ITEMS
        self._dirty, self._stored_block = NO_KEYS, -1
        self._runs = self._behind = self._tail = NO_ITEMS
        if not items:
            return
        self._runs, self._tail = [], []
        for _, value in items:
            self._newest = decode_value(value, list[AbortedRange])
            self._tail += self._newest
            while len(self._tail) >= RUN_RANGES:
                run = _Run(self._tail[:RUN_RANGES])
                del self._tail[:RUN_RANGES]
                self._runs.append(run)
        if self._newest:
            self._block = self._newest[0].index // BLOCK_ENTRIES
        behind = accumulate((run.least for run in reversed(self._runs)), min)
        self._behind = list(behind)[::-1]
        for one in self._tail:
            self._note(one.first_offset)
        self._stored_block = self._block

    @property
    def _first_block(self) -> int:
        """Oldest block with a range; if there is none, a number above all blocks."""
        if self._runs:
            return self._runs[0].first_index // BLOCK_ENTRIES
        return self._tail[0].index // BLOCK_ENTRIES if self._tail else maxsize

    def _stored(self, block: int) -> bytes | None:
        if block == self._block:
            return encode_value(self._newest) if self._newest else None
        begin, end = block * BLOCK_ENTRIES, (block + 1) * BLOCK_ENTRIES
        first = bisect_left(self._runs, begin, key=_last_index)
        last = bisect_left(self._runs, end, key=_last_index)
        runs = [run.ranges() for run in self._runs[first : last + 1] if run.first_index < end]
        ranges = [one for one in chain(*runs, self._tail) if begin <= one.index < end]
        return encode_value(ranges) if ranges else None


class _Copy:
    """Copy of the list. See `AbortedTransactions.copy`."""

    def __init__(self, runs: list[_Run], tail: list[AbortedRange]) -> None:
        self._runs, self._tail = runs, tail

    def __iter__(self) -> Iterator[AbortedRange]:
        for run in self._runs:
            yield from run.ranges()
        yield from self._tail


_last_index = attrgetter("last_index")


def _those_between(ranges: list[AbortedRange], start: int, end: int) -> list[AbortedRange]:
    first = bisect_left(ranges, start, key=_last_offset)
    return [one for one in ranges[first:] if one.first_offset < end]


def count_of(items: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the number of a state's items that are blocks of this list; they come first."""
    return bisect_right(items, _KEY_KIND, key=_kind)


def _kind(item: tuple[bytes, bytes]) -> bytes:
    return item[0][:1]


def _key(block: int) -> bytes:
    return _KEY.pack(_KEY_KIND, block)
