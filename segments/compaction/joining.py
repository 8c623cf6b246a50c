"""Joining of small segments: compaction may leave very little of old ones.

Adjacent segments become one, up to the maximum size of the log's segments. The choice is a function
of their sizes alone, so replicas with the same segments join the same. Entries do not change; they
only move to another file.

* As in a merge of runs, a segment waits until the segment after it has grown to half of its size.
  So an entry is rewritten only a few times as its log grows, and a log has few small segments, not
  none.
* Readers skip many entries without data as long as their segment contains no others
  (`LogFiles.skip_emptied`). Such segments are joined only with each other, unless they are small.

The new segment has the number of the oldest one in its next rewriting, and its header names the
last one (`through`). A crash leaves the old ones, or the new one beside them: then the new one
counts. As in a rewriting, it was synced before it was renamed, Idx name their file, and the old
files are removed when they are no longer read.

Does not depend on records or the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ids import Index
from segments.api import Compaction
from segments.compaction.rewriting import Rewriting
from segments.format.frame import FRAME_BYTES
from segments.io import failpoint
from segments.log.index_files import IndexReader
from segments.log.segment import LogFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES, SegmentInfo

EMPTIED_BYTES_MAX = 1 << 20
"""Maximum size of a segment without data that is joined with segments that have data: readers must
read it to no use."""
SEGMENTS_MAX = 4_096
"""Maximum number of segments joined into one. Bounds what one removal holds."""


class Size(NamedTuple):
    """Size of a segment and its number of entries."""

    bytes: int
    entries: int

    @property
    def is_long_and_empty(self) -> bool:
        """True if the segment has many entries and no data is left of any."""
        payload = self.bytes - SEGMENT_HEADER_BYTES - FRAME_BYTES * self.entries
        return payload <= 0 and self.bytes > EMPTIED_BYTES_MAX


class Group(NamedTuple):
    """Segments [start, end) of the given list."""

    start: int
    end: int


def groups(sizes: Sequence[Size], bytes_max: int) -> list[Group]:
    """Return the groups of neighbours to be joined, at least two each, oldest first."""
    runs: list[tuple[Group, int, bool]] = []
    for n, size in enumerate(sizes):
        runs.append((Group(n, n + 1), size.bytes, size.is_long_and_empty))
        while len(runs) > 1:
            (older, older_bytes, is_empty), (newer, newer_bytes, newer_is_empty) = runs[-2:]
            joined = older_bytes + newer_bytes - SEGMENT_HEADER_BYTES
            is_due = older_bytes <= 2 * newer_bytes and joined <= bytes_max
            if not is_due or is_empty != newer_is_empty or newer.end - older.start > SEGMENTS_MAX:
                break
            runs[-2:] = [(Group(older.start, newer.end), joined, is_empty)]
    return [run for run, _, _ in runs if run.end - run.start > 1]


def find(
    files: LogFiles, segments: Sequence[SegmentInfo], stop: Index, end: Index, bytes_max: int
) -> list[tuple[tuple[SegmentInfo, ...], Index]]:
    """Return (segments to be joined, index after their last entry), newest first.

    Considers those whose entries all lie below `end`. `segments` are the log's, whose entries end
    at `stop`. Blocks. Raises CorruptRecord.
    """
    ends = [segment.first_index for segment in segments[1:] if segment.first_index <= end]

    def look() -> list[Size]:
        with IndexReader(files) as reader:
            return [
                Size(
                    (segment.sealed or reader.sealed(segment, following)).bytes,
                    following - segment.first_index,
                )
                for segment, following in zip(segments, ends, strict=False)
            ]

    found = groups(files.healing(segments, stop, look), bytes_max)
    return [(tuple(segments[start:after]), ends[after - 1]) for start, after in reversed(found)]


class Joining(Rewriting):
    """Rewriting of several segments into one, without removing data."""

    def __init__(
        self,
        files: LogFiles,
        segments: Sequence[SegmentInfo],
        stop: Index,
        joined: tuple[SegmentInfo, ...],
        end: Index,
    ) -> None:
        super().__init__(files, segments, stop, joined[0], end, Compaction(), None)
        self._joined = joined
        self.new.through = joined[-1].last_sequence

    @property
    def replaces(self) -> tuple[SegmentInfo, ...]:
        return self._joined

    def _look(self) -> int:
        self._begin()
        failpoint.hit("compact.join_begun")
        return 0

    def _name(self) -> None:
        failpoint.hit("compact.join_written")
        super()._name()
        failpoint.hit("compact.join_named")

    def _write_index(self) -> int:
        read = super()._write_index()
        failpoint.hit("compact.join_indexing")
        if self.is_done:
            failpoint.hit("compact.join_indexed")
        return read
