"""Writing a segment anew with copies of its damaged entries, from a replica whose log is compacted
further: such a copy is smaller, and does not fit where the entry lay.

As after a compaction, the new file takes the old one's place when it is whole (`rewriting.py`).

Must not know: where the copies come from, the loop.
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
"""Entries taken between two looks at how many bytes they are."""


def mend(
    files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
) -> SegmentInfo:
    """The segment, whose entries end at `end`, with the copies where entries are damaged; durable
    on return. Blocks. Raises CorruptRecord when a copy does not fit its neighbours, or other damage
    stands between; OSError."""
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
    """As a segment that is compacted, but that entries are read around what is damaged, and nothing
    goes."""

    def __init__(
        self, files: LogFiles, segment: SegmentInfo, end: Index, copies: Mapping[Index, StoredEntry]
    ) -> None:
        super().__init__(files, (segment,), end, segment, end, Compaction(), None)
        self._entries = _in_order(files, segment, end, copies)

    def run(self) -> None:
        """All of it."""
        self._begin()
        while not self.is_done:
            self.step()

    def give_up(self) -> None:
        """Leave the old segment, but where Idx speak of the new one: it is as good, and counts at
        the next start. It is written again before anything else is done to the segment."""
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
    """The segment's entries, copies of the damaged ones among them. Raises CorruptRecord."""
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
    """The next good entry; None at the end, and where no way leads on."""
    try:
        return next(walk, None)
    except EntriesDamaged:
        return None


def _place(
    files: LogFiles, segment: SegmentInfo, index: Index, position: int, base_offset: Offset
) -> int:
    """Where an entry behind damaged ones lies, as its Idx says, or as it is found behind the
    copies, none of which is longer than what it stands for. Raises EntriesDamaged: there is no
    such frame, or another one is like it, in what a client has sent."""
    with contextlib.suppress(IndexDamaged):
        idx = files.idx(index)
        if idx.segment == segment.number:
            return idx.position
    found = files.find(segment, index, base_offset, position)
    if len(found) != 1:
        raise EntriesDamaged(index, index + 1, position)
    return found[0]
