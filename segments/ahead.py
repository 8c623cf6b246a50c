"""Read-ahead: what a reader that goes through cold entries will ask for next.

A reader is known by where its last read ended: who asks for exactly that goes on from there. Its
second read brings more than was asked for, in the same `pread`, and the following ones are served
from memory. The windows have a budget of their own, the oldest go first; the tail cache, which
tailing readers share, never holds any of this.

Entries are views, and one that is left keeps all that was read with it: a window is charged with
that, and what is left of it moves to memory of its own when it has become little.

Must not know: files, who reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from segments.api import StoredEntry
from segments.cache import ENTRY_OVERHEAD_BYTES
from segments.cold import Found

AHEAD_BYTES = 2 << 20
"""What a read that goes on brings beside what was asked for."""
WINDOWS_BYTES_MAX = 32 << 20
READERS_MAX = 256
LITTLE = 4
"""What is less than such a part of the memory that it keeps is copied."""

Key = tuple[int, int, str, int]
"""(log id, age of the log, "offset" or "index", where the reader goes on)"""


class ReadAhead:
    """Windows by the place where their readers go on; an empty one only says that one does."""

    __slots__ = ("_charges", "_windows", "bytes", "hits")

    def __init__(self) -> None:
        self._windows: OrderedDict[Key, Found] = OrderedDict()
        self._charges: dict[Key, int] = {}
        self.bytes = 0
        self.hits = 0

    def take(self, key: Key) -> Found | None:
        """The window of a reader that goes on at `key`; None when nobody does."""
        found = self._windows.pop(key, None)
        if found is not None:
            self.bytes -= self._charges.pop(key)
        return found

    def keep(self, key: Key, found: Found) -> None:
        """A reader will go on at `key`, behind the entries it was given."""
        self.take(key)
        entries = found.entries[found.count :]
        kept = _kept_bytes(entries)
        size = sum(len(entry.data) for entry in entries)
        if size < kept // LITTLE:
            entries, kept = _copies(entries, size), size
        charge = kept + ENTRY_OVERHEAD_BYTES * len(entries)
        self._windows[key] = Found(found.index + found.count, entries)
        self._charges[key] = charge
        self.bytes += charge
        while self.bytes > WINDOWS_BYTES_MAX or len(self._windows) > READERS_MAX:
            self.take(next(iter(self._windows)))


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
