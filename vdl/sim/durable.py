"""The durable state of each log on a disk, read from the bytes themselves.

A disk reports every run of bytes when it becomes durable. Journal blocks among them are decoded
here, with the journal's own format and none of its code that writes or recovers. This gives a
second opinion on what a replica may claim to have and on what a recovery must find.

Only the journal counts, and frames in segments that its blocks refer to: such a block has no effect
before its frames are durable, too. Other entries reach segments later, and only after they were in
the journal; nothing that was durable in it is dropped without a record.

Does not depend on files, Raft or callers.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from ids import NO_INDEX, NO_TERM, Index, LogId, Term, indexes
from segments.api import Buffer
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    CLEAR,
    ENTRY,
    ENTRY_RECORD,
    FILE_MAGIC,
    FLUSHED,
    HARD,
    INSTALL,
    OPENING,
    PLACED,
    RECORD_BYTES,
    RESET,
    STATE_RECORD,
    TRIM,
    TRUNCATE,
    decode_block,
    decode_file_header,
    first_block_at,
)
from segments.format.frame import CRC, FRAME_VERSION, frame_length
from segments.log.segment_header import SEGMENT_HEADER_BYTES, SEGMENT_MAGIC

_SALT = Struct("<Q")
"""Salt of the file, after a block's first eight bytes."""
_VERSION_AT = 17
"""Position of the version in a frame's header."""
_FRAMES_MAX = 20_000
"""Number of most recently durable frames that are remembered."""


class DurableLog:
    """One log according to its durable records: entries [first, last] and newest hard state."""

    __slots__ = ("commit", "ever", "files", "first", "flushed", "last", "term", "terms", "vote")

    def __init__(self) -> None:
        self.first = Index(1)
        self.last = NO_INDEX
        self.terms: dict[Index, Term] = {}
        """Term by index, in the current log."""
        self.ever: dict[Index, set[Term]] = {NO_INDEX: {NO_TERM}}
        """Terms that were durable at an index at any time, also for the entry before `first`.

        One write may replace an entry that an earlier one, not yet acknowledged, had made durable.
        """
        self.files: dict[Index, int] = {}
        """By index, the journal file with the newest copy of the entry.

        May include entries that are flushed or cut off.
        """
        self.flushed = NO_INDEX
        """Last entry that segments hold, according to the journal."""
        self.term = NO_TERM
        self.vote = 0
        self.commit = NO_INDEX

    def entry(self, index: Index, term: Term, file: int) -> None:
        """Add an entry. One already held with the same term was only written again."""
        if index <= self.last and self.terms.get(index) != term:
            self.cut(index)
        self.last = max(self.last, index)
        self.terms[index] = term
        self.files[index] = file
        self._note(index, term)

    def cut(self, index: Index) -> None:
        """Remove the suffix from `index` on."""
        for gone in indexes(index, self.last + 1):
            self.terms.pop(gone, None)
        self.last = min(self.last, index - 1)

    def reset(self, first: Index, term_before: Term) -> None:
        """Remove everything; the log continues at `first`, after an entry of `term_before`."""
        self.terms.clear()
        self.files.clear()
        self.first, self.last = first, first - 1
        self.flushed = first - 1
        self._note(first - 1, term_before)

    def trim(self, first: Index, term_before: Term) -> None:
        """Remove the entries below `first`; the last of them has `term_before`."""
        self.first = first
        self._note(first - 1, term_before)

    def only_before(self, file: int) -> list[Index]:
        """Return the entries that only journal files before `file` hold, ascending."""
        begin = max(self.flushed + 1, self.first)
        self.files = {i: f for i, f in self.files.items() if begin <= i <= self.last}
        return sorted(index for index, held in self.files.items() if held < file)

    def _note(self, index: Index, term: Term) -> None:
        known = self.ever.get(index)
        if known is None:
            self.ever[index] = {term}
        else:
            known.add(term)


class DurableLogs:
    """The logs of one disk, by log id.

    `take` must receive every run of bytes that became durable.
    """

    __slots__ = ("_files", "_frames", "_waiting", "blocks", "logs")

    def __init__(self) -> None:
        self.logs: dict[LogId, DurableLog] = {}
        self.blocks = 0
        self._files: dict[int, int] = {}
        """Sequences of journal files by their salts."""
        self._frames: dict[tuple[int, int], None] = {}
        """(length, CRC) of frames that became durable outside the journal, oldest first."""
        self._waiting: tuple[memoryview, int] | None = None
        """Table and file of the newest block, while frames it refers to are not durable."""

    def take(self, image: Buffer) -> None:
        """Apply the journal block in the bytes, if there is one."""
        at, header = 0, None
        if image[:8] == FILE_MAGIC:
            # The first block of a file is written together with the file's header.
            at = first_block_at(bytes(image[:BLOCK_HEADER_BYTES]))
            header = decode_file_header(bytes(image[:at]))
        if image[at : at + 4] != BLOCK_MAGIC:
            self._take_frames(memoryview(image))
            return
        block = decode_block(bytes(image[at:]) if at else bytes(image), 0)
        if block is None:
            return
        self.blocks += 1
        if header is not None:
            self._files[header.salt] = header.sequence
            for mark in header.marks:
                if mark.log_id in self.logs:
                    self.logs[mark.log_id].flushed = mark.flushed_index
        salt: int = _SALT.unpack_from(image, at + 8)[0]
        # An opening block repeats only what is durable already.
        self._waiting = block.table, self._files.get(salt, 0)
        self._settle(is_whole=bool(block.flags & OPENING))

    def _take_frames(self, image: memoryview) -> None:
        """Note the frames in a run of bytes, if it consists of frames."""
        at = SEGMENT_HEADER_BYTES if image[: len(SEGMENT_MAGIC)] == SEGMENT_MAGIC else 0
        while size := frame_length(image, at):
            if at + size > len(image) or image[at + _VERSION_AT] != FRAME_VERSION:
                break
            crc: int = CRC.unpack_from(image, at)[0]
            if crc32c(image[at + CRC.size : at + size]) != crc:
                break  # its rest is not durable yet
            self._frames[size, crc] = None
            at += size
        while len(self._frames) > _FRAMES_MAX:
            del self._frames[next(iter(self._frames))]
        self._settle(is_whole=False)

    def _settle(self, *, is_whole: bool) -> None:
        """Apply the newest block once all frames it refers to are durable."""
        if self._waiting is None:
            return
        table, file = self._waiting
        for at in range(0, 0 if is_whole else len(table), RECORD_BYTES):
            log_id, _, kind, term, index, length, crc = ENTRY_RECORD.unpack_from(table, at)
            if kind != PLACED or (length, crc) in self._frames:
                continue
            log = self.logs.get(log_id)
            if log is None or log.terms.get(index) != term:
                return
        self._waiting = None
        self._apply(table, file)

    def _apply(self, table: memoryview, file: int) -> None:
        logs = self.logs
        for at in range(0, len(table), RECORD_BYTES):
            log_id, _, kind, term, index, _, _ = ENTRY_RECORD.unpack_from(table, at)
            log = logs.get(log_id)
            if log is None:
                log = logs[log_id] = DurableLog()
            if kind in (ENTRY, PLACED):
                log.entry(index, term, file)
            elif kind == HARD:
                log.term, log.vote = term, STATE_RECORD.unpack_from(table, at)[5]
                log.commit = max(log.commit, index)
            elif kind == TRUNCATE:
                log.cut(index)
            elif kind in (RESET, INSTALL):
                log.reset(index, term)
            elif kind in (TRIM, CLEAR):
                log.trim(index, term)
                if kind == CLEAR:
                    log.flushed = index - 1
            elif kind == FLUSHED:
                log.flushed = index

    def forget(self) -> None:
        """Forget everything: the disk is empty again."""
        self.logs.clear()
        self._files.clear()
        self._frames.clear()
        self._waiting = None
