"""Whether this server's own disk hangs.

A leader whose disk stands still goes on committing, because its followers are a majority without
it, and its links stay alive: nobody would ever depose it, while every command that waits for its
own disk fails. So it has to notice by itself. The same goes for a disk that writes the journal and
hangs over a segment: what it has taken piles up in memory.

A disk that is slow does not hang. Where writes have lately taken long, more is waited for: on disks
that all need seconds for a sync, leaderships would wander for ever. And a write of 100 MiB may take
as long as that at `RATE_MIN`.

Must not know: the disk, who leads what.
"""

from __future__ import annotations

from typing import Final

from vdl.clock import MS

RATE_MIN: Final = 10 << 20
"""Bytes a second: slower, a large write hangs."""
USUAL_TIMES: Final = 3
"""So many times as long as writes have lately taken is waited for at the least."""
PATIENCE_TIMES: Final = 5
"""So many times the patience at the most."""


class DiskWatch:
    """Fed with the tokens that were handed to the journal and those it has made durable, and with
    what is being done to other files."""

    __slots__ = (
        "_owed", "_patience_ns", "_since_ns", "_staged", "_usual_ns", "_work", "_work_since_ns",
        "_writing_bytes",
    )  # fmt: skip

    def __init__(self, patience_ms: int, now_ns: int) -> None:
        self._patience_ns = patience_ms * MS
        self._staged = 0
        self._owed = 0
        """The token that is waited for, since `_since_ns`."""
        self._since_ns = now_ns
        self._usual_ns = 0
        """How long writes have lately taken, a long one for some time after."""
        self._writing_bytes = 0
        """Of the largest write since then."""
        self._work = 0
        """`Store.file_work` as it has been since `_work_since_ns`."""
        self._work_since_ns = now_ns

    def staged(self, token: int) -> None:
        """The journal is to write up to `token` now."""
        self._staged = token

    def is_hung(self, durable: int, now_ns: int, writing_bytes: int) -> bool:
        """Whether something handed over longer ago than the patience is still not durable. A write
        of so many bytes is under way."""
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

    def is_stalled(self, work: int, now_ns: int) -> bool:
        """Whether one step of a checkpoint or a chore has taken longer than the patience."""
        if not work or work != self._work:
            self._work = work
            self._work_since_ns = now_ns
            return False
        return now_ns - self._work_since_ns > self._limit_ns()
