"""Rewriting of a segment with smaller copies of its damaged entries.

The copies come from a replica whose log is compacted further: such a copy does not fit in the
entry's old position. As in a compaction, the new file replaces the old one when it is complete
(`rewriting.py`).

Does not depend on how the copies are obtained, or on the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import islice

from ids import Index, Offset, indexes
from segments.api import Compaction, CorruptRecord, EntriesDamaged, StoredEntry
from segments.compaction.rewriting import STEP_BYTES, Rewriting, RewritingState, bytes_of
from segments.format.frame import FRAME_BYTES
from segments.io.fs import is_refused
from segments.log.index import IndexDamaged
from segments.log.segment import LogFiles
from segments.log.segment_header import SEGMENT_HEADER_BYTES, SegmentInfo

_AT_ONCE = 64
"""Entries taken between two checks of their total size."""


def mend(
    files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
) -> SegmentInfo:
    """Rewrite the segment with the copies in place of damaged entries; durable on return.

    The segment's entries end at `end`. Blocks. Raises CorruptRecord if a copy does not fit its
    neighbours, or if other damage lies between them. Raises OSError.
    """
    mending = _Mending(files, segment, end, copies)
    try:
        mending.run()
    except OSError as error:
        if is_refused(error):
            mending.give_up()
        raise
    except CorruptRecord:
        mending.abandon()
        raise
    return mending.new


class _Mending(Rewriting):
    """Rewriting that reads around damaged entries and removes no data."""

    def __init__(
        self, files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
    ) -> None:
        super().__init__(files, (segment,), end, segment, end, Compaction(), None)
        self._entries = _in_order(files, segment, end, copies)

    def run(self) -> None:
        """Do all steps."""
        self._begin()
        while not self.is_done:
            self.step()

    def give_up(self) -> None:
        """Return to the old segment, unless Idx already point to the new one.

        The new one is equally valid and counts at the next start; any later work on the segment
        writes it again first.
        """
        if self.state is not RewritingState.INDEXING:
            self.abandon()

    def _read(self) -> list[StoredEntry]:
        found: list[StoredEntry] = []
        while bytes_of(found) < STEP_BYTES and (part := list(islice(self._entries, _AT_ONCE))):
            found += part
        return found


def _in_order(
    files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
) -> Iterator[StoredEntry]:
    """Yield the segment's entries, with copies in place of damaged ones. Raises CorruptRecord."""
    offset = segment.base_offset
    for entry in _around_damage(files, segment, end, copies):
        if entry.base_offset != offset:
            raise CorruptRecord(
                "base offset of a copy", entry.index, expected=offset, actual=entry.base_offset
            )
        offset = entry.base_offset + entry.records
        yield entry


def _around_damage(
    files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
) -> Iterator[StoredEntry]:
    index, position = segment.first_index, SEGMENT_HEADER_BYTES
    while index < end:
        walk = files.walk(segment, end, index=index, position=position, damaged=[])
        while (found := _next(walk)) is not None:
            entry, at, length = found
            for passed_over in indexes(index, entry.index):
                if passed_over not in copies:
                    raise EntriesDamaged(passed_over, passed_over + 1, position)
                yield copies[passed_over]
            yield entry
            index, position = entry.index + 1, at + length
        if index < end and index not in copies:
            raise EntriesDamaged(index, index + 1, position)
        offset = segment.base_offset
        while index < end and index in copies:
            copy = copies[index]
            yield copy
            offset = copy.base_offset + copy.records
            position += FRAME_BYTES + len(copy.data)
            index += 1
        if index < end:
            position = _place(files, segment, index, position, offset)


def _next(
    walk: Iterator[tuple[StoredEntry, int, int]],
) -> tuple[StoredEntry, int, int] | None:
    """Return the next good entry; None at the end, or if the walk cannot continue."""
    try:
        return next(walk, None)
    except EntriesDamaged:
        return None


def _place(
    files: LogFiles, segment: SegmentInfo, index: Index, position: int, base_offset: Offset
) -> int:
    """Return the position of an entry after damaged ones.

    Taken from its Idx, or found by a search after the copies, none of which is longer than its
    original. Raises EntriesDamaged if no such frame exists, or if a client's payload contains
    another like it.
    """
    with contextlib.suppress(IndexDamaged):
        idx = files.idx(index)
        if idx.segment == segment.number:
            return idx.position
    found = files.find(segment, index, base_offset, position)
    if len(found) != 1:
        raise EntriesDamaged(index, index + 1, position)
    return found[0]
