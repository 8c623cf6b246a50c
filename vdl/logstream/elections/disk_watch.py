"""Detection of a hung disk of this server.

A leader with a hung disk continues to commit, because its followers are a majority without it, and
its links stay alive: it would never be deposed, while every command that waits for its own disk
fails. So it has to detect that itself. The same holds for a disk that writes the journal but hangs
on a segment: the data for it accumulates in memory.

A slow disk does not hang. If recent writes took long, the limit is higher: otherwise, if all disks
need seconds for a sync, leaderships would move continually. And a write of 100 MiB may take as long
as it does at `RATE_MIN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vdl.clock import MS

RATE_MIN: Final = 10 << 20
"""Bytes a second: a large write that is slower hangs."""
USUAL_TIMES: Final = 3
"""Minimum limit, as a multiple of the duration of recent writes."""
PATIENCE_TIMES: Final = 5
"""Maximum limit, as a multiple of the patience."""


class DiskWatch:
    """Watch over one disk.

    It receives the tokens handed to the journal, those that are durable, and the work on other
    files.
    """

    __slots__ = (
        "_owed", "_patience_ns", "_since_ns", "_staged", "_usual_ns", "_works", "_writing_bytes",
    )  # fmt: skip

    def __init__(self, patience_ms: int, now_ns: int) -> None:
        self._patience_ns = patience_ms * MS
        self._staged = 0
        self._owed = 0
        """The awaited token, since `_since_ns`."""
        self._since_ns = now_ns
        self._usual_ns = 0
        """Duration of recent writes; a long one counts for some time."""
        self._writing_bytes = 0
        """Bytes of the largest write since then."""
        self._works: dict[int, tuple[int, int]] = {}
        """Each kind of work on other files, as (number, since when it has been that)."""

    def staged(self, token: int) -> None:
        """Note that the journal is to write up to `token` now."""
        self._staged = token

    def is_hung(self, durable: int, now_ns: int, writing_bytes: int) -> bool:
        """Return True if data handed over longer ago than the limit is still not durable.

        `writing_bytes`: size of the write under way.
        """
        if durable >= self._owed:
            took_ns = now_ns - self._since_ns
            self._usual_ns = max(took_ns, self._usual_ns - self._usual_ns // 16)
            self._owed = self._staged
            self._since_ns = now_ns
            self._writing_bytes = writing_bytes
            return False
        self._writing_bytes = max(self._writing_bytes, writing_bytes)
        large_ns = self._writing_bytes * 1_000 * MS // RATE_MIN
        return now_ns - self._since_ns > self._limit_ns() + large_ns

    def _limit_ns(self) -> int:
        usual_ns = min(USUAL_TIMES * self._usual_ns, PATIENCE_TIMES * self._patience_ns)
        return max(self._patience_ns, usual_ns)

    def is_stalled(self, works: Sequence[int], now_ns: int) -> bool:
        """Return True if one step of any work has taken longer than the limit.

        `works`: a number for each kind, which changes with each step; 0 if there is none.
        """
        is_any = False
        for kind, work in enumerate(works):
            known, since_ns = self._works.get(kind, (0, now_ns))
            if not work or work != known:
                self._works[kind] = work, now_ns
            else:
                is_any |= now_ns - since_ns > self._limit_ns()
        return is_any
