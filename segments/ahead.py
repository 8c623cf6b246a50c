"""Read-ahead: what a reader that goes through cold entries will ask for next.

A reader is known by where its last read ended: who asks for exactly that goes on from there. Its
second read brings more than was asked for, in the same `pread`, and the following ones are served
from memory. The windows have a budget of their own, the oldest go first; the tail cache, which
tailing readers share, never holds any of this.

Must not know: files, who reads.
"""

from __future__ import annotations

from collections import OrderedDict

from segments.cold import Found

AHEAD_BYTES = 2 << 20
"""What a read that goes on brings beside what was asked for."""
WINDOWS_BYTES_MAX = 32 << 20
READERS_MAX = 256

Key = tuple[int, int, str, int]
"""(log id, age of the log, "offset" or "index", where the reader goes on)"""


class ReadAhead:
    """Windows by the place where their readers go on; an empty one only says that one does."""

    __slots__ = ("_windows", "bytes", "hits")

    def __init__(self) -> None:
        self._windows: OrderedDict[Key, Found] = OrderedDict()
        self.bytes = 0
        self.hits = 0

    def take(self, key: Key) -> Found | None:
        """The window of a reader that goes on at `key`; None when nobody does."""
        found = self._windows.pop(key, None)
        if found is not None:
            self.bytes -= _size(found)
        return found

    def keep(self, key: Key, found: Found) -> None:
        """A reader will go on at `key`, behind the entries it was given."""
        rest = Found(found.index + found.count, found.entries[found.count :])
        old = self._windows.pop(key, None)
        self.bytes += _size(rest) - (0 if old is None else _size(old))
        self._windows[key] = rest
        while self.bytes > WINDOWS_BYTES_MAX or len(self._windows) > READERS_MAX:
            _, oldest = self._windows.popitem(last=False)
            self.bytes -= _size(oldest)


def _size(found: Found) -> int:
    return sum(len(entry.data) for entry in found.entries)
