"""Read-ahead: what a reader that goes through cold entries will ask for next.

A reader is known by where its last read ended: a read that begins exactly there is its next. The
second read brings more than was asked for, in the same `pread`, and the following ones are served
from memory. The windows have a budget of their own, which readers share: the more there are, the
less is read ahead for each. The oldest are dropped first, and so are those whose readers stay away.
The tail cache, which tailing readers share, never holds any of this. Readers at one place share a
window.

Entries are views. One that is left keeps all the memory that was read with it, so a window is
charged with that. What is left of a window is copied when it has become little.

Must not know: files, who reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from segments.api import StoredEntry
from segments.log.cold_reads import Found
from segments.log.tail_cache import ENTRY_OVERHEAD_BYTES

AHEAD_BYTES = 2 << 20
"""What a read that goes on brings beside what was asked for, at most."""
WINDOWS_BYTES_MAX = 32 << 20
SHARE = 4
"""A window is at most such a part of a reader's part of the budget: while one is taken the next is
read, and what was asked for stays with it."""
READERS_MAX = 256
IDLE_MS = 10_000
"""What nobody comes for in this time, or in twice this, goes."""
LITTLE = 4
"""What is less than such a part of the memory that it keeps is copied."""

Key = tuple[int, int, str, int]
"""(log id, age of the log, "offset" or "index", where the reader goes on)"""


class ReadAhead:
    """Windows by the place where their readers go on; an empty one only says that one does.

    Readers that are at one place share its window, and it stays until the last of them took it.
    """

    __slots__ = ("_charges", "_idle", "_readers", "_windows", "bytes", "hits")

    def __init__(self) -> None:
        self._windows: OrderedDict[Key, Found] = OrderedDict()
        self._charges: dict[Key, int] = {}
        self._readers: dict[Key, int] = {}
        self._idle: set[Key] = set()
        """Those there were at the last `expire`, and not kept again since."""
        self.bytes = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, key: Key) -> Found | None:
        """The window of a reader that goes on at `key`; None when nobody does."""
        found = self._windows.get(key)
        if found is not None:
            self._readers[key] -= 1
            if self._readers[key] <= 0:
                self._drop(key)
        return found

    def ahead_bytes(self, bytes_max: int) -> int:
        """What to read ahead for a reader, at most `bytes_max`; 0 where there are so many that it
        would be dropped before it is taken."""
        share = WINDOWS_BYTES_MAX // (SHARE * max(1, len(self._windows)))
        return min(bytes_max, share) if share >= bytes_max // SHARE else 0

    def __contains__(self, key: Key) -> bool:
        """Whether a reader that goes on at `key` finds anything."""
        found = self._windows.get(key)
        return found is not None and bool(found.entries)

    def keep(self, key: Key, found: Found, *, readers: int = 1) -> None:
        """A reader will go on at `key`, behind the entries it was given. `readers` 0: none has come
        so far yet, but one will."""
        entries = found.entries[found.count :]
        old = self._windows.get(key)
        if old is not None and len(old.entries) >= len(entries):
            self._readers[key] += readers
            self._windows.move_to_end(key)
            self._idle.discard(key)
            return
        readers += self._readers.get(key, 0)
        if old is not None:
            self._drop(key)
        kept = _kept_bytes(entries)
        size = sum(len(entry.data) for entry in entries)
        if size < kept // LITTLE:
            entries, kept = _copies(entries, size), size
        charge = kept + ENTRY_OVERHEAD_BYTES * len(entries)
        self._windows[key] = Found(found.index + found.count, entries)
        self._charges[key] = charge
        self._readers[key] = readers
        self.bytes += charge
        while self.bytes > WINDOWS_BYTES_MAX or len(self._windows) > READERS_MAX:
            self._drop(next(iter(self._windows)))

    def expire(self) -> None:
        """Drop what nobody came for since the last call: its readers have gone."""
        for key in sorted(self._idle):
            self._drop(key)
        self._idle = set(self._windows)

    def _drop(self, key: Key) -> None:
        del self._windows[key], self._readers[key]
        self._idle.discard(key)
        self.bytes -= self._charges.pop(key)


def _kept_bytes(entries: Sequence[StoredEntry]) -> int:
    """Bytes of memory that cannot go as long as the entries are here."""
    whole: dict[int, int] = {}
    for entry in entries:
        data = entry.data
        memory = data.obj if isinstance(data, memoryview) else data
        if id(memory) not in whole:
            whole[id(memory)] = memoryview(memory).nbytes
    return sum(whole.values())


def _copies(entries: Sequence[StoredEntry], size: int) -> list[StoredEntry]:
    """The same entries in memory of their own, `size` bytes end to end."""
    memory = memoryview(b"".join(entry.data for entry in entries))
    assert len(memory) == size, (len(memory), size)
    copies: list[StoredEntry] = []
    start = 0
    for entry in entries:
        end = start + len(entry.data)
        copies.append(replace(entry, data=memory[start:end]))
        start = end
    return copies
