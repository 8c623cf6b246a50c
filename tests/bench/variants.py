"""Servers with a part left out or replaced, to measure the cost of that part.

No setting of a server enables these: `tests.bench.launcher` makes the changes in the process it
starts, before anything is built. The first two answer their clients as usual, but their data is
useless afterwards: it cannot be opened again, and data that left the cache cannot be read.

* `journal_only`: entries reach the journal and nothing else. Left out: writing and syncing segments
  and index segments, in the pool. A checkpoint plans as usual, then takes all of it as written.
* `segments_only`: a batch is written and synced to the segments of its logs, by the flusher's own
  code, one log after the other in the journal's thread, and acknowledged after that; one sync a
  segment, however long the batch; index segments are written and never waited for. Left out: the
  journal's blocks, and with them every durable trace of votes, terms, commit indexes and cuts; a
  cut suffix ends the process. A design without a journal would have to add these.
* `timed`: nothing is left out; the time to open a store is written to the log.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import segments.checkpoint.flusher
import segments.checkpoint.scheduler
import segments.store
from segments.api import SegmentLimits
from segments.checkpoint.flusher import FlushPlan, FlushResult, FlushSpan, run_flush
from segments.journal.writer import Journal, WriterState
from segments.log.log import Span
from segments.log.segment_header import Cursor
from segments.store import DiskStore

OPENED = "store_opened"
"""First word of the line that `timed` writes; `seconds=` and `cpu_seconds=` follow."""


def pretend_flush(plan: FlushPlan) -> FlushResult:
    """Return the result of the plan as if it had been written."""
    return FlushResult(plan.files.log_id, plan, plan.cursor)


class SegmentJournal(Journal):
    """Journal that writes a batch's entries to their segments instead of a block."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._written_to: dict[int, tuple[int, Cursor]] = {}
        """By log id: the last index written, and the position of the next frame."""

    def _write(self) -> None:
        if self.state is WriterState.STOPPED:
            return
        batch = self.queue.take()
        if batch.records:
            batch.sequence = self.current_sequence
        plans = [self._plan(span) for span in _joined(batch.spans)]
        self._become(WriterState.WRITING)

        def job() -> list[FlushResult]:
            return [run_flush(plan) for plan in plans]

        def done(results: list[FlushResult] | BaseException) -> None:
            if isinstance(results, BaseException):
                self._fail(results)
                return
            self._become(WriterState.IDLE)
            for result in results:
                self._written_to[result.log_id] = (result.plan.last, result.cursor)
            self.stats.blocks += 1
            self.stats.bytes += batch.bytes
            if batch.records:
                self.queue.durable_token = batch.token
            if self.queue.is_wanted:
                self._write()
            self._owner.journal_written(batch if batch.records else None)

        self._workers.journal(job, done)

    def _plan(self, span: Span) -> FlushPlan:
        log = span.log
        last, cursor = self._written_to.get(log.id, (span.first - 1, Cursor()))
        assert span.first == last + 1, f"log {log.id} was cut at {span.first}: nothing here can"
        spans = [
            FlushSpan(
                chunk.readonly,
                chunk.entries[start:stop],
                chunk.ends[start:stop],
                chunk.start_of(start),
            )
            for chunk, start, stop in log.tail.spans(span.first, span.last + 1)
        ]
        limits = log.limits or SegmentLimits(self._options.segment_bytes)
        return FlushPlan(
            log.files, log.generation, span.first, span.last, log.offset_after(span.last), 0,
            cursor, spans, limits, span.first, log.id not in self._written_to,
        )  # fmt: skip


def _joined(spans: list[Span]) -> list[Span]:
    """Join the spans of each log; they follow each other."""
    by_log: dict[int, Span] = {}
    for span in spans:
        before = by_log.get(span.log.id)
        if before is None:
            by_log[span.log.id] = Span(span.log, span.first, span.last)
        else:
            assert span.first == before.last + 1, f"log {span.log.id} was cut at {span.first}"
            before.last = span.last
    return [span for span in by_log.values() if span.first <= span.last]


_open = DiskStore.open


def timed_open(*arguments: Any, **named: Any) -> DiskStore:
    """Open the store, and write the time it took to stderr, the server's log."""
    wall, cpu = time.perf_counter(), time.process_time()
    store = _open(*arguments, **named)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{OPENED} seconds={wall:.4f} cpu_seconds={cpu:.4f}", file=sys.stderr, flush=True)
    return store


@dataclass(frozen=True, slots=True)
class Change:
    """Replacement of `owner.name` by `value`."""

    owner: Any
    name: str
    value: Any


_NO_FLUSH = Change(segments.checkpoint.scheduler, "run_flush", pretend_flush)

VARIANTS: dict[str, tuple[Change, ...]] = {
    "as_it_is": (),
    "journal_only": (_NO_FLUSH,),
    "segments_only": (
        _NO_FLUSH,
        Change(segments.store, "Journal", SegmentJournal),
        # A batch is synced once, at its end: nothing else waits for it.
        Change(segments.checkpoint.flusher, "WRITE_BACK_BYTES", 1 << 40),
    ),
    "timed": (Change(DiskStore, "open", staticmethod(timed_open)),),
}
