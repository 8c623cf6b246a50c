"""Read-ahead: data that a sequential reader of cold entries will request next.

A reader is recognised by the end of its last read: a read that begins exactly there is its next.
The second read fetches more than requested in the same `pread`, and later ones are served from
memory. The windows have their own budget, shared by readers: the more there are, the less is read
ahead for each. The oldest windows are dropped first, and so are those whose readers do not return.
The tail cache, which tailing readers share, never holds this data. Readers at the same position
share a window.

Entries are views. A single remaining entry keeps all the memory that was read with it, so a window
is charged with that memory. A small rest of a window is copied.

Does not depend on files or on its readers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from segments.api import StoredEntry
from segments.log.cold_reads import Found
from segments.log.tail_cache import ENTRY_OVERHEAD_BYTES

AHEAD_BYTES = 2 << 20
"""Maximum number of bytes that a continuing read fetches beyond the requested ones."""
WINDOWS_BYTES_MAX = 32 << 20
SHARE = 4
"""A window is at most 1/SHARE of a reader's share of the budget: the next window is read while one
is being consumed, and requested data stays in memory with it."""
READERS_MAX = 256
IDLE_MS = 10_000
"""Windows that no reader takes in this time, or at most twice this, are dropped."""
LITTLE = 4
"""A rest that is less than 1/LITTLE of the memory it keeps is copied."""

Key = tuple[int, int, str, int]
"""(log id, age of the log, "offset" or "index", position at which the reader continues)"""


class ReadAhead:
    """Windows by the position where their readers continue; an empty one only records a reader.

    Readers at the same position share its window, which stays until the last of them took it.
    """

    __slots__ = ("_charges", "_idle", "_readers", "_windows", "bytes", "hits")

    def __init__(self) -> None:
        self._windows: OrderedDict[Key, Found] = OrderedDict()
        self._charges: dict[Key, int] = {}
        self._readers: dict[Key, int] = {}
        self._idle: set[Key] = set()
        """Windows that existed at the last `expire` and were not kept again since."""
        self.bytes = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, key: Key) -> Found | None:
        """Return the window of a reader that continues at `key`; None if there is none."""
        found = self._windows.get(key)
        if found is not None:
            self._readers[key] -= 1
            if self._readers[key] <= 0:
                self._drop(key)
        return found

    def ahead_bytes(self, bytes_max: int) -> int:
        """Return the number of bytes to read ahead for a reader, at most `bytes_max`.

        Return 0 if there are so many readers that the window would be dropped before it is taken.
        """
        share = WINDOWS_BYTES_MAX // (SHARE * max(1, len(self._windows)))
        return min(bytes_max, share) if share >= bytes_max // SHARE else 0

    def __contains__(self, key: Key) -> bool:
        """Return True if there is data for a reader that continues at `key`."""
        found = self._windows.get(key)
        return found is not None and bool(found.entries)

    def keep(self, key: Key, found: Found, *, readers: int = 1) -> None:
        """Keep the entries after those given to a reader, which will continue at `key`.

        `readers` 0 means that no reader has arrived yet, but one is expected.
        """
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
        """Drop windows that no reader took since the last call."""
        for key in sorted(self._idle):
            self._drop(key)
        self._idle = set(self._windows)

    def _drop(self, key: Key) -> None:
        del self._windows[key], self._readers[key]
        self._idle.discard(key)
        self.bytes -= self._charges.pop(key)


def _kept_bytes(entries: Sequence[StoredEntry]) -> int:
    """Return the bytes of memory that the entries keep allocated."""
    whole: dict[int, int] = {}
    for entry in entries:
        data = entry.data
        memory = data.obj if isinstance(data, memoryview) else data
        if id(memory) not in whole:
            whole[id(memory)] = memoryview(memory).nbytes
    return sum(whole.values())


def _copies(entries: Sequence[StoredEntry], size: int) -> list[StoredEntry]:
    """Return the same entries in memory of their own, `size` consecutive bytes."""
    memory = memoryview(b"".join(entry.data for entry in entries))
    assert len(memory) == size, (len(memory), size)
    copies: list[StoredEntry] = []
    start = 0
    for entry in entries:
        end = start + len(entry.data)
        copies.append(replace(entry, data=memory[start:end]))
        start = end
    return copies
