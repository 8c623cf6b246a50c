"""Joining small segments: what compaction leaves of old ones may be next to nothing each.

Segments that lie side by side become one, up to the size that a segment of the log may have. Which
ones is a function of their sizes alone, so replicas with the same segments join the same. Each
entry keeps all it has: only the file changes that it lies in.

* As in a merge of runs, a segment waits until what follows it has grown to half of its size. So an
  entry is written again a few times as its log grows, and a log has few small segments, not none.
* Many entries of which nothing is left are passed over by readers as long as their segment has
  nothing else (`LogFiles.skip_emptied`). Such segments are joined with each other only, unless they
  are small.

The new segment has the number of the oldest, written once more, and its header says up to which one
it reaches (`through`). A crash leaves the old ones whole, or the new one beside them: then that one
counts. As with one that is rewritten, it was synced before it got its name, Idx name the file that
they speak of, and the old files go when nobody reads them any more.

Must not know: records, the loop.
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
"""Of a segment of which nothing is left that is joined with others: what a reader has to look at
for nothing."""
SEGMENTS_MAX = 4_096
"""So many become one: that bounds what is held open for a removal."""


class Size(NamedTuple):
    """What a segment comes to, and how many entries it has."""

    bytes: int
    entries: int

    @property
    def is_long_and_empty(self) -> bool:
        """Nothing is left of its many entries."""
        payload = self.bytes - SEGMENT_HEADER_BYTES - FRAME_BYTES * self.entries
        return payload <= 0 and self.bytes > EMPTIED_BYTES_MAX


class Group(NamedTuple):
    """Segments [start, end) of those that were asked about."""

    start: int
    end: int


def groups(sizes: Sequence[Size], bytes_max: int) -> list[Group]:
    """Which neighbours are to be joined: two at least, oldest first."""
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
    """(segments to be joined, index behind their last entry), newest first, of those whose entries
    all lie below `end`; `segments` are the log's, whose entries end at `stop`. Blocks. Raises
    CorruptRecord."""
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
    """As one segment that is compacted, but that all of several goes into it, and stays."""

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
