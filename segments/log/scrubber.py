"""The scrubber: reads data that no client reads, to find damage while other replicas have copies.

It reads the segments of all logs in order, entry by entry through their Idx, and checks every CRC.
A step reads a mebibyte in the pool, limited to a rate in bytes per second. Some time after the last
log it begins again. The newest segment is read as far as it was durable when the pass reached its
log, because some logs never fill one. Damage is added to the log's damaged ranges; the owner
repairs them. Between its steps, other parts of the directory are checked.

Does not depend on the tail or on how damage is repaired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from ids import NO_INDEX, Index, LogId
from segments.api import EntriesDamaged, StorageError, Workers
from segments.io.fs import is_refused
from segments.log.log import DiskLog

STEP_BYTES = 1 << 20
PARTS_EVERY = 4
"""Within a pass, one of this many steps checks other parts while some are left to check."""
PARTS_MS = 3_600_000
"""Interval at which other parts are checked. In an hour the journal of a busy server is replaced by
a new one, while that of an idle server, equally long, would be most of what is read there."""
PAUSE_MS = 10_000
"""Minimum time between two passes."""
LOG_MS = 100
"""Minimum time per log from one pass to the next. Reading a small log still costs a millisecond;
with a thousand of them an idle server would do little else."""
NS_PER_MS = 1_000_000


class Look(Protocol):
    """Check of one part of the directory that belongs to no log."""

    def step(self) -> int:
        """Read on; return the number of bytes. Blocks. Raises OSError; may then be called again."""


class Parts(Protocol):
    """Parts of the directory that are checked besides logs."""

    def begin(self) -> None:
        """Begin a round of all parts. Remaining work of the last round is dropped."""

    def next(self) -> Look | None:
        """Return the part whose step is next; None if the round has ended."""

    def stepped(self) -> None:
        """Note that the part's step has ended."""

    def refused(self) -> None:
        """Note that the part's step was refused; other parts go first."""


class Scrubber:
    """Reads continuously and counts its work. With `bytes_per_second` 0 it does nothing."""

    def __init__(
        self,
        workers: Workers,
        logs: Mapping[LogId, DiskLog],
        parts: Parts,
        bytes_per_second: int,
        now_ns: Callable[[], int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._workers = workers
        self._logs = logs
        self._parts = parts
        self._parts_at_ns = now_ns()
        """Time at which the last round of parts began or could have begun."""
        self._has_begun_parts = False
        self._has_refused = False
        """True if a step of this round was refused; the next round does not wait for it."""
        self._waits_for_pass = False
        """True if no part is checked before the end of this pass, because the last step was refused
        and logs are left to read."""
        self._steps = 0
        self._rate = bytes_per_second
        self._now_ns = now_ns
        self._fail = fail
        self._ids: deque[LogId] = deque()
        """Logs of this pass that are not read yet, sorted once per pass rather than per step."""
        self._log_id = LogId(0)
        self._index = NO_INDEX
        self._end = NO_INDEX
        """End of the present log when the pass reached it."""
        self._pass_bytes = 0
        self._pass_logs = 0
        """Number of logs with segments in this pass."""
        self._pass_began_ns = 0
        self.is_stopped = False
        self.bytes = 0
        self.errors = 0
        self.passes = 0
        self.last_pass_ns = 0
        self.last_pass_bytes = 0
        if bytes_per_second:
            self._wait(PAUSE_MS)

    def _wait(self, delay_ms: int) -> None:
        self._workers.call_later(delay_ms, self._step)

    def _step(self) -> None:
        """Continue after the last step."""
        if self.is_stopped:
            return
        self._steps += 1
        is_between = self.passes > 0 and not self._log_id
        look = None
        if not self._waits_for_pass and (is_between or self._steps % PARTS_EVERY == 0):
            look = self._next_look(is_between=is_between)
        if look is not None:
            self._look(look)
        elif (log := self._next_log()) is not None:
            self._read(log)
        else:
            self._end_pass()

    def _next_look(self, *, is_between: bool) -> Look | None:
        """Return the next step of another part, if one is due.

        Parts are due after the first pass and once an hour, also during a long pass.
        """
        now_ns = self._now_ns()
        look = self._parts.next()
        is_due = now_ns - self._parts_at_ns >= PARTS_MS * NS_PER_MS
        is_first = is_between and not self._has_begun_parts
        if (is_due and self._has_refused) or (look is None and (is_due or is_first)):
            self._parts_at_ns, self._has_begun_parts, self._has_refused = now_ns, True, False
            self._parts.begin()
            look = self._parts.next()
        return look

    def _look(self, look: Look) -> None:
        def done(result: int | BaseException) -> None:
            if self.is_stopped:
                return
            if not isinstance(result, BaseException):
                try:
                    self._parts.stepped()
                except OSError as error:
                    result = error
            if isinstance(result, OSError) and is_refused(result):
                self._parts.refused()
                self._has_refused = self._waits_for_pass = True
                self._wait(PAUSE_MS)
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                self._wait(result * 1000 // self._rate)

        self._workers.pool(look.step, done)

    def _read(self, log: DiskLog) -> None:
        files, segments = log.files, log.segments
        before = log.generation, log.damaged_ranges.repairs
        durable_end = log.flushed_index + 1
        first, end = self._index, min(self._end, durable_end)

        def job() -> tuple[Index, int, list[tuple[Index, Index]]]:
            try:
                return files.healing(
                    segments, durable_end, lambda: files.check(first, end, STEP_BYTES)
                )
            except EntriesDamaged as damage:
                return damage.end, 0, [(damage.first, damage.end)]

        def done(result: tuple[Index, int, list[tuple[Index, Index]]] | BaseException) -> None:
            is_gone = log.deleted or log.generation != before[0]
            if is_gone and isinstance(result, FileNotFoundError | StorageError):
                self._index = end
                self._wait(0)
            elif isinstance(result, OSError) and is_refused(result):
                self._wait(PAUSE_MS)  # no space to rebuild an index, or no descriptor to read
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                self._index, count, bad = result
                after = log.generation, log.damaged_ranges.repairs
                self._note(log, count, bad if after == before and not log.deleted else [])
                self._wait(count * 1000 // self._rate)

        self._workers.pool(job, done)

    def _next_log(self) -> DiskLog | None:
        """Return the log to continue with; set `_index` to its first unread entry."""
        if not self._log_id:
            self._ids.extend(sorted(self._logs))
            self._pass_logs, self._pass_began_ns = 0, self._now_ns()
        while True:
            log = self._logs.get(self._log_id)
            if log is not None:
                self._index = max(self._index, log.first)
                if self._index < min(self._end, log.flushed_index + 1) and not log.is_lost:
                    return log
            if not self._ids:
                return None
            self._log_id, self._index = self._ids.popleft(), NO_INDEX
            log = self._logs.get(self._log_id)
            has_segments = log is not None and len(log.segments) > 0
            self._end = log.flushed_index + 1 if log is not None and has_segments else NO_INDEX
            self._pass_logs += has_segments

    def _note(self, log: DiskLog, count: int, bad: list[tuple[Index, Index]]) -> None:
        self.bytes += count
        self._pass_bytes += count
        for first, end in bad:
            start = max(first, log.first)  # the rest was trimmed meanwhile
            if start < end:
                self.errors += not log.damaged_ranges.covers(start, end)
                log.damaged_ranges.add(start, end)

    def _end_pass(self) -> None:
        self.passes += 1
        self._waits_for_pass = False
        self.last_pass_ns = self._now_ns()
        self.last_pass_bytes, self._pass_bytes = self._pass_bytes, 0
        self._log_id, self._index = LogId(0), NO_INDEX
        took_ms = (self.last_pass_ns - self._pass_began_ns) // NS_PER_MS
        self._wait(max(PAUSE_MS, self._pass_logs * LOG_MS - took_ms))
