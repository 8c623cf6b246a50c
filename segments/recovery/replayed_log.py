"""State of one log, as replayed from the journal.

Does not depend on files or blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ids import NO_INDEX, NO_TERM, Index, LogId, NodeId, Offset, Term, indexes
from segments.format.block import (
    CLEAR,
    FLUSHED,
    HARD,
    PLACE,
    RESET,
    TRIM,
    TRUNCATE,
)
from segments.log.segment_header import SEGMENT_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Placed:
    """Position of a placed entry's frame, and the fields of its Idx."""

    segment: int
    position: int
    crc: int
    kind: int
    records: int
    base_offset: Offset
    timestamp: int


@dataclass(slots=True)
class FrameRef:
    """Position in the journal of an entry's frame, or of the record of a placed entry."""

    sequence: int
    position: int
    length: int
    term: Term
    placed: Placed | None = None


@dataclass(slots=True)
class ReplayedLog:
    """Replayed state of one log. Entries up to `flushed_index` are in segments."""

    log_id: LogId
    first_index: Index
    prev_term: Term
    start_offset: Offset
    last_index: Index
    flushed_index: Index
    flushed_offset: Offset
    commit: Index
    term: Term = NO_TERM
    vote: NodeId = NodeId(0)
    is_void: bool = True
    lost: bool = False
    sequence: int = -1
    """Sequence of the next record; -1 as long as none was seen."""
    sequence_hint: int = 0
    """Sequence in the first file's header: that of the first record seen is not above it."""
    suspect: bool = False
    frames: dict[Index, FrameRef] = field(default_factory=dict)
    applied: Index = NO_INDEX
    """Applied index of the last checkpoint before the newest file; meta must not have less."""
    installed: FrameRef | None = None
    """State of the last reset, if one came with it."""
    place: tuple[int, int, int] = (0, 0, 0)
    """(entry, segment, position) of the frame to which the next PLACED refers."""
    misses_places: bool = False
    """True if the position of some placed entry is not known."""
    begun: dict[int, int] = field(default_factory=dict)
    """Segments begun by a PLACE, by their first entry; includes some that are flushed."""
    detail: tuple[int, int, Offset, int] = (0, 0, Offset(0), 0)
    """Kind, records, base offset and timestamp of the next PLACED entry."""

    def apply(self, kind: int, term: Term, index: Index, value: int) -> None:
        """Apply a record without a frame."""
        if kind == HARD:
            self.term, self.vote = term, NodeId(value)
            self.commit = max(self.commit, index)
        elif kind == TRUNCATE:
            self.cut(index)
        elif kind == RESET:
            self.frames.clear()
            self.begun.clear()
            self.installed = None
            self.first_index, self.prev_term, self.start_offset = index, term, Offset(value)
            self.last_index = self.flushed_index = index - 1
            self.flushed_offset = Offset(value)
            self.commit = max(self.commit, index - 1)
            self.is_void = True
        elif kind == FLUSHED:
            if index > self.flushed_index:
                self.flushed_index, self.flushed_offset = index, Offset(value)
            self.last_index = max(self.last_index, index)
            self.is_void = False
        elif kind == TRIM:
            self.first_index, self.prev_term, self.start_offset = index, term, Offset(value)
        elif kind == CLEAR:
            self.first_index, self.prev_term, self.start_offset = index, term, Offset(value)
            self.flushed_index, self.flushed_offset = index - 1, Offset(value)
            self.last_index = max(self.last_index, index - 1)
            self.frames = {n: ref for n, ref in self.frames.items() if n >= index}
            self.begun = {n: segment for n, segment in self.begun.items() if n >= index}
            self.is_void = True
        elif kind == PLACE:
            self.place = index, term, value
            self._begins(index)

    def add_placed(
        self, index: Index, term: Term, value: int, sequence: int, position: int
    ) -> None:
        """Add an entry whose frame is in a segment; `position` is that of its record."""
        follows, segment, place = self.place
        if follows != index:
            # The PLACE was in a file that has been released, or in a damaged block. If no segment
            # is known to hold the entry, the log is incomplete.
            if (held := self.frames.get(index)) is not None and held.term != term:
                self.cut(index)
            self.frames.pop(index, None)
            self.last_index = max(self.last_index, index)
            self.misses_places = True
            return
        length, crc = value & 0xFFFFFFFF, value >> 32
        self._begins(index)
        self.place = index + 1, segment, place + length
        placed = Placed(segment, place, crc, *self.detail)
        self.add(index, FrameRef(sequence, position, length, term, placed))

    def _begins(self, index: Index) -> None:
        """Note if the entry of `place` begins a segment.

        Later entries are left as they are: the block may be the first part of a batch that repeats
        them.
        """
        _, segment, position = self.place
        if position == SEGMENT_HEADER_BYTES:
            self.begun[index] = segment
        else:
            self.begun.pop(index, None)

    def add(self, index: Index, ref: FrameRef) -> None:
        """Add an entry. If one with the same term is held already, it was only written again."""
        if index > self.last_index:
            self.last_index = index
        elif (held := self.frames.get(index)) is not None and held.term != ref.term:
            self.cut(index)
            self.last_index = index
        self.frames[index] = ref

    def cut(self, index: Index) -> None:
        """Remove the entries from `index` on."""
        for gone in indexes(index, self.last_index + 1):
            self.frames.pop(gone, None)
            self.begun.pop(gone, None)
        self.last_index = min(self.last_index, index - 1)

    @property
    def is_whole(self) -> bool:
        """True if every entry that no segment holds is in the journal."""
        return all(n in self.frames for n in indexes(self.flushed_index + 1, self.last_index + 1))
