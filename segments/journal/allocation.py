"""Allocation of the next journal files, as seen by the loop.

One file is prepared ahead of its use, from a released one if possible. On a full disk the next file
is made from the reserve, as large as the waiting data. The reserve is refilled as soon as there is
space.

`begin` returns a job for a thread, and `made` takes its result; the journal's writer runs it.

Does not depend on what is written to the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial

from segments.format.block import PAGE_BYTES
from segments.journal.files import (
    SMALL_BLOCK_BYTES,
    JournalFile,
    JournalFiles,
    Prepared,
    piece_bytes_for,
)
from segments.journal.split import block_bytes
from segments.log.log import Batch

PREPARED_FILES_MAX = 2
PIECES_KEPT = 2
"""Pieces of the reserve kept for votes and notes, and for the small blocks of an election."""


class Room(Enum):
    """Disk space, as found by the last preparation."""

    UNKNOWN = auto()
    """Not checked yet by this process."""
    WHOLE = auto()
    """The next file is prepared, and the reserve is complete."""
    FULL = auto()
    """A file or a piece of the reserve was refused."""


class Allocation:
    """Prepared files, material for the next ones, and the reserve."""

    __slots__ = (
        "files", "is_preparing", "next_sequence", "pieces_left", "prepared", "returned", "reuse",
        "room",
    )  # fmt: skip

    def __init__(self, files: JournalFiles) -> None:
        self.files = files
        self.prepared: deque[JournalFile] = deque()
        """Use: the first of them is the next file.
        Invariant: ascending by sequence; their names and zeros are durable, and they contain no
        block."""
        self.next_sequence = 1
        """Use: sequence of the next file that is made.
        Invariant: above the sequence of every file that was ever in the directory."""
        self.reuse = ""
        """Use: path of a released file that becomes the next one.
        Invariant: its contents are no longer needed, and the chain does not include it."""
        self.returned: list[str] = []
        """Use: paths of files that go back to the reserve or are removed.
        Invariant: as `reuse`."""
        self.pieces_left = 0
        self.room = Room.UNKNOWN
        self.is_preparing = False
        """Invariant: one job at a time, because files are used in the order of their sequences."""

    @property
    def has_next(self) -> bool:
        """True if a file is ready for data that the current one has no space for."""
        return bool(self.prepared) and self.room is not Room.FULL

    def take_sequence(self) -> int:
        sequence = self.next_sequence
        self.next_sequence += 1
        return sequence

    def covers(self, logs: int) -> bool:
        """Return True if the reserve covers the votes of that many logs on a full disk.

        If not, it must grow, and counts as incomplete until then.
        """
        wanted = piece_bytes_for(logs, self.files.file_bytes)
        reserve = self.files.reserve
        if wanted > reserve.piece_bytes:
            reserve.wanted_bytes = max(reserve.wanted_bytes, wanted)
            if self.room is Room.WHOLE:
                self.room = Room.UNKNOWN
            return False
        self._drop_smaller(wanted)
        return True

    def _drop_smaller(self, wanted: int) -> None:
        """Give back pieces that became the next file before the reserve grew.

        A header with marks of all logs may not fit in them. Not done if they may be the only files.
        """
        smaller = [file for file in self.prepared if file.is_piece and file.capacity < wanted]
        if smaller and self.has_next and len(smaller) < len(self.prepared):
            self.prepared = deque(file for file in self.prepared if file not in smaller)
            for file in smaller:
                file.file.close()
                self.returned.append(file.path)

    def open(self, spare: Sequence[tuple[int, str]]) -> None:
        """Adopt the files that an earlier run prepared and never used: (sequence, path).

        Those of another size were made from the reserve for a block that was never written. Blocks.
        Raises OSError.
        """
        for sequence, path in spare:
            file = self.files.adopt(sequence, path)
            if file is None:
                self.files.reserve.give(path)
            else:
                self.prepared.append(file)

    def take_back(self, paths: Sequence[str]) -> None:
        """Give files to the reserve that recovery found not to count.

        Blocks. Must not be called before this process's first block is durable, because they may be
        the only proof. Raises OSError.
        """
        for path in paths:
            self.files.reserve.give(path)
        self.pieces_left = self.files.reserve.pieces()

    def begin(self, pieces_wanted: int) -> Callable[[], Prepared] | None:
        """Return a job that prepares the next file and completes the reserve.

        Return None if there is nothing to do or a job is in progress. A released file needs no
        zeros, so it is prepared even if there is a next file already. `pieces_wanted` is the size
        that the file must have if made from the reserve; 0: it is not.
        """
        has_next = any(not file.is_piece for file in self.prepared) and not self.reuse
        is_done = has_next and self.room is Room.WHOLE and not self.returned
        if self.is_preparing or is_done:
            return None
        self.is_preparing = True
        reuse, self.reuse = self.reuse, ""
        returned, self.returned = self.returned, []
        sequence = 0 if has_next else self.take_sequence()
        return partial(self.files.ready, sequence, reuse, returned, pieces_wanted)

    def made(self, made: Prepared) -> None:
        """Take the result of the job.

        A released file that it could not use is not put into `reuse` here.
        """
        self.returned += made.returned
        self.room = Room.FULL if made.is_full else Room.WHOLE
        if made.pieces is not None:
            self.pieces_left = made.pieces
        if made.file is not None:
            self.prepared.append(made.file)

    def pieces_wanted(self, waiting: Batch | None, header_bytes: int) -> int:
        """Return the bytes of the reserve to use for the batch that waits for a file.

        Return 0 if there is none or too little is left. More than a few entries leave the last
        pieces to votes and notes.
        """
        if waiting is None or self.prepared or not self.pieces_left:
            return 0
        wanted = header_bytes + block_bytes(waiting)
        is_large = waiting.entries and block_bytes(waiting) > SMALL_BLOCK_BYTES
        kept = PIECES_KEPT if is_large else 0
        return wanted if self.files.pieces_for(wanted) + kept <= self.pieces_left else 0

    def carry_room(self, header_bytes: int) -> int:
        """Return the bytes that a file on a full disk can take in its first block."""
        sizes = [file.capacity for file in self.prepared][:1]
        size = min(self.files.reserve.piece_bytes, self.files.file_bytes, *sizes)
        return size - 2 * PAGE_BYTES - header_bytes

    def next_room(self, header_bytes: int, *, pieces_kept: int) -> int | None:
        """Return the bytes that the next file can take in its first block.

        It is a prepared file, or a piece of the reserve if more than `pieces_kept` are left. None
        if there is no such file.
        """
        if self.prepared:
            return min(file.capacity for file in self.prepared) - header_bytes
        if self.pieces_left > pieces_kept:
            return self.files.reserve.piece_bytes - header_bytes
        return None

    def close(self) -> None:
        for prepared in self.prepared:
            prepared.file.close()
