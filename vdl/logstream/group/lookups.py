"""Look-ups in one partition's log: by time, by leader epoch, by segment.

They may read files, so most of them call back.

Does not depend on appends, readers or retention.
"""

from __future__ import annotations

from collections.abc import Callable

import segments.api as storage
from ids import NO_OFFSET, Index, Offset
from vdl.logstream.group.group import Group
from vdl.logstream.group.offset_for_time import (
    NO_TIME,
    TimedOffset,
    find_offset_for_time,
    find_offset_of_largest_time,
)


class Lookups:
    """Look-ups in the log of one replica of a partition: a base of `LogStream`."""

    __slots__ = ()

    group: Group
    high_watermark: Offset

    @property
    def log_start_offset(self) -> Offset:
        """See `LogStream.log_start_offset`."""
        raise NotImplementedError

    def earliest_epoch(self, done: Callable[[int], None]) -> None:
        """Find the leader epoch of the log's first record (KIP-320).

        The result is the current term if there is no record, and -1 if it is not known now.
        """
        group = self.group
        start = self.log_start_offset
        if start >= self.high_watermark:
            done(group.node.term)
            return

        def found(index: Index | storage.StorageError) -> None:
            known = not isinstance(index, storage.StorageError) and (
                group.log.first_index <= index <= group.log.last_index
            )
            done(group.log.term(index) if known and isinstance(index, int) else -1)

        group.store.index_of_offset(group.log, start, found)

    def stored_bytes(self, done: Callable[[int | storage.StorageError], None]) -> None:
        """Find the number of bytes of committed entries that this replica keeps."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            done(spans if isinstance(spans, storage.StorageError) else sum(s.bytes for s in spans))

        group = self.group
        group.store.segment_spans(group.log, found)

    def segment_starts(
        self, done: Callable[[list[tuple[Offset, int]] | storage.StorageError], None]
    ) -> None:
        """Find the start of each segment, oldest first.

        A start is (first offset of the segment that is not deleted, largest timestamp of all
        records before the segment's end in ms, or -1 if there is none).
        """

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
                return
            starts: list[tuple[Offset, int]] = []
            start, newest_ms = self.log_start_offset, -1
            for span in spans:
                newest_ms = max(newest_ms, span.max_timestamp)
                if span.end_offset > start:
                    starts.append((start, newest_ms))
                    start = span.end_offset
            done(starts)

        group = self.group
        group.store.segment_spans(group.log, found)

    def offset_for_time(
        self, timestamp_ms: int, done: Callable[[TimedOffset | storage.StorageError], None]
    ) -> None:
        """Find the least committed, undeleted offset with a timestamp ≥ `timestamp_ms` (KIP-79)."""
        group = self.group

        def found(answer: TimedOffset | storage.StorageError) -> None:
            if isinstance(answer, TimedOffset) and 0 <= answer.offset < self.log_start_offset:
                # It was deleted during the search. The timestamp of the next one is unknown.
                self.offset_for_time(timestamp_ms, done)
            else:
                done(answer)

        find_offset_for_time(
            group.log,
            group.store,
            timestamp_ms,
            start_offset=self.log_start_offset,
            commit=group.commit,
            done=found,
        )

    def offset_of_largest_time(
        self, done: Callable[[TimedOffset | storage.StorageError], None]
    ) -> None:
        """Find the first committed, undeleted record with the largest timestamp (KIP-734)."""

        def found(spans: list[storage.SegmentSpan] | storage.StorageError) -> None:
            if isinstance(spans, storage.StorageError):
                done(spans)
            else:
                bound_ms = max((span.max_timestamp for span in spans), default=NO_TIME)
                find_offset_of_largest_time(bound_ms, self.offset_for_time, done)

        group = self.group
        group.store.segment_spans(group.log, found)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, Offset]:
        """Return (largest epoch ≤ `epoch` in the log, offset where the next larger one starts).

        (-1, -1) if `epoch` is above all of them (KIP-101, KIP-279). Use: on a leader that serves.

        An epoch whose records are deleted ended at the log's start at the latest. It is returned
        under its own number, as Kafka does. A consumer that read to the end of records deleted
        later is at the right position; an answer without that epoch would make it assume a
        truncation.
        """
        group = self.group
        log = group.log
        term = group.node.term
        if epoch == term:
            return term, self.high_watermark
        if not 0 <= epoch < term:
            return -1, NO_OFFSET
        first, end = log.first_index, group.commit + 1
        while first < end:  # the first index whose term is above `epoch`
            middle = (first + end) // 2
            if log.term(middle) > epoch:
                end = middle
            else:
                first = middle + 1
        last = first - 1
        end_offset = log.offset_after(last)
        # Use the readable start, not that of this replica's files: all replicas give the same
        # answer.
        log_start = self.log_start_offset
        if end_offset <= log_start:
            return epoch, log_start
        return log.term(last), end_offset
