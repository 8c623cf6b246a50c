"""Journal files before use: prepared ahead, zeroed, under durable names.

A file is zero-filled and synced before its first block, so that a block changes no metadata. A
released file becomes the next one, which saves the zeros. On a full disk a file is made from the
reserve.

Does not depend on blocks or on which files are in use.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from segments.api import StoreOptions
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    PAGE_BYTES,
    RECORD_BYTES,
    file_header_bytes,
    padded,
)
from segments.io import failpoint
from segments.io.fs import (
    File,
    FileSystem,
    free_bytes,
    is_refused,
    read_around,
    unless_refused,
)
from segments.io.reserve import Reserve

_ZEROS = bytes(1 << 20)
PIECE_BYTES_MIN = 64 << 10
SMALL_BLOCK_BYTES = 16 << 10
_LOGS_MIN = 256
WRITE_BACK_BYTES = 4 << 20
"""Write-back step for zeros: the final sync must not write a whole file while blocks wait."""


@dataclass(slots=True)
class JournalFile:
    """A journal file in use or prepared.

    Start LSN and salt are set at its first block. `is_piece`: made from the reserve.
    """

    sequence: int
    path: str
    file: File
    capacity: int
    start_lsn: int = 0
    salt: int = 0
    position: int = 0
    is_piece: bool = False


@dataclass(slots=True)
class Prepared:
    """Result of a preparation.

    `is_full`: a file or the reserve was refused for lack of space; `pieces`: number of pieces left
    in the reserve, None if unknown.
    """

    file: JournalFile | None = None
    is_full: bool = False
    pieces: int | None = None
    reuse: str = ""
    returned: Sequence[str] = ()
    """`reuse` and `returned` are files that could not become the next one or go back."""


class JournalFiles:
    """Future files of one journal directory, and the reserve. All methods block."""

    __slots__ = ("_directory", "_fs", "file_bytes", "first_file_bytes", "reserve")

    def __init__(self, fs: FileSystem, directory: str, options: StoreOptions) -> None:
        self._fs = fs
        self._directory = directory
        self.file_bytes = options.journal_file_bytes
        self.first_file_bytes = min(options.journal_first_file_bytes, options.journal_file_bytes)
        folder = f"{directory.rpartition('/')[0]}/reserve"
        piece_bytes = piece_bytes_for(0, options.journal_file_bytes)
        self.reserve = Reserve(fs, folder, "journal", piece_bytes)

    def adopt(self, sequence: int, path: str) -> JournalFile | None:
        """Adopt a prepared file of full size from an earlier run; None if it has another size."""
        file = self._fs.open(path)
        if file.size() == self.file_bytes:
            return JournalFile(sequence, path, file, self.file_bytes)
        file.close()
        return None

    def make_room(self, unproved: tuple[str, int, int], scrap: Sequence[str]) -> None:
        """Free pieces of the reserve before the journal is opened, if it is used up.

        Each of a series of failed starts has left a file. The unproved part of the newest file
        (path, start, end) is written again in place. Once that is durable, the files before it can
        go. Raises OSError.
        """
        path, start, end = unproved
        if self.reserve.pieces() or not path:
            return
        self.sync_names()
        file = self._fs.open(path)
        unproved_bytes, _ = read_around(file, end - start, start)
        file.pwrite([unproved_bytes], start, durable=True)
        file.close()
        for other in scrap:
            if other != path:
                self.reserve.give(other)

    def cover(self, logs: int) -> None:
        """Size the reserve for that many logs, before the journal is opened.

        Accounts for the pieces that an earlier run left. Raises OSError.
        """
        self.reserve.wanted_bytes = piece_bytes_for(logs, self.file_bytes)
        self.reserve.measure(piece_bytes_for(0, self.file_bytes))

    def sync_names(self) -> None:
        """Make names durable that the previous process had changed, possibly without a sync.

        Raises OSError.
        """
        self._fs.sync_directory(self._directory)

    def ready(self, sequence: int, reuse: str, returned: Sequence[str], wanted: int) -> Prepared:
        """Prepare a file, unless `sequence` is 0, and complete the reserve.

        `returned` go back to the reserve. If necessary, the file is made from the reserve with at
        least `wanted` bytes, unless that is 0.
        """
        made = Prepared(is_full=True, reuse=reuse, returned=returned)
        reserve, path = self.reserve, ""
        with unless_refused():
            path = self._new_path(sequence) if sequence else ""
            while made.returned:
                reserve.give(made.returned[0])
                made.returned = made.returned[1:]
            if sequence:
                self._make_next(made, sequence)
            reserve.fill()
            made.is_full = False
        with unless_refused():
            if made.file is None and path and wanted and not self._fs.exists(path):
                made.returned = [*made.returned, path]  # in case it has taken a piece by then
                made.file = self.make_from_reserve(sequence, wanted)
                made.returned = made.returned[:-1]
        with unless_refused():
            made.pieces = reserve.pieces()
        return made

    def _make_next(self, made: Prepared, sequence: int) -> None:
        """Make the next file, from `made.reuse` if that is of full size.

        Raises OSError; a file that could not be used is then in `made.reuse`, under its present
        name.
        """
        fs, size = self._fs, self.file_bytes
        if made.reuse and not fs.exists(made.reuse):
            made.reuse = ""  # removed meanwhile
        if made.reuse:
            path = self._new_path(sequence)
            file = fs.open(made.reuse)
            try:
                if file.size() == size:
                    fs.rename(made.reuse, path)
                    made.reuse = path
                    failpoint.hit("journal.recycled")
                    fs.sync_directory(self._directory)
                    file.uncache()
                    made.reuse = ""
                    made.file = JournalFile(sequence, path, file, size)
                    return
            finally:
                if made.file is None:
                    file.close()
            fs.unlink(made.reuse)
            made.reuse = ""
        made.file = self.make(sequence, size)

    def make_from_reserve(self, sequence: int, wanted: int) -> JournalFile | None:
        """Make a file of at least `wanted` bytes from the reserve; None if it has too little.

        If other users take the space beyond one piece, the file is shorter.
        """
        reserve = self.reserve
        count = self.pieces_for(wanted)
        path = self._new_path(sequence)
        if reserve.pieces() < count or not reserve.take(path):
            return None
        size = reserve.piece_bytes
        file = self._fs.open(path)
        if count > 1:
            try:
                reserve.free(count - 1)
                file.allocate(count * size)
                file.sync()
                size *= count
            except OSError as error:
                if not is_refused(error):
                    raise
        return JournalFile(sequence, path, file, size, is_piece=True)

    def pieces_for(self, wanted: int) -> int:
        """Return the number of pieces of the reserve for `wanted` bytes."""
        return -(-wanted // self.reserve.piece_bytes)

    def free_bytes(self) -> int:
        """Return the free bytes of the disk; 0 if unknown."""
        return free_bytes(self._fs, self._directory)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files that are no longer needed, durably.

        Raises OSError; must be called again then.
        """
        failpoint.hit("journal.before_release")
        for path in paths:
            if self._fs.exists(path):
                self._fs.unlink(path)
        failpoint.hit("journal.released")
        self._fs.sync_directory(self._directory)

    def make(self, sequence: int, size: int) -> JournalFile:
        """Make a file of `size` zeroed bytes under its own durable name. Blocks. Raises OSError."""
        fs = self._fs
        path = self._new_path(sequence)
        fresh = f"{path}.new"
        if fs.exists(fresh):
            fs.unlink(fresh)  # left by a process that died here
        named = fresh
        file = fs.open(fresh, create=True)
        try:
            failpoint.hit("journal.file_created")
            file.allocate(size)  # a full disk shows before a second is spent on zeros
            for position in range(0, size, len(_ZEROS)):
                file.pwrite([memoryview(_ZEROS)[: size - position]], position)
                end = min(position + len(_ZEROS), size)
                if end % WRITE_BACK_BYTES == 0:
                    file.write_back(WRITE_BACK_BYTES, end - WRITE_BACK_BYTES)
            file.sync()
            # Zeros were written in large folios, which the system would mark dirty as a whole per
            # block.
            file.uncache()
            failpoint.hit("journal.file_filled")
            fs.rename(fresh, path)
            named = path
            failpoint.hit("journal.file_named")
            fs.sync_directory(self._directory)
        except OSError:
            file.close()
            with unless_refused():
                fs.unlink(named)  # a full disk must not keep half a file
            raise
        return JournalFile(sequence, path, file, size)

    def _new_path(self, sequence: int) -> str:
        """Return the path of the next file.

        Nothing may exist there: a rename would silently replace it, and it may be another process's
        journal. Raises FileExistsError.
        """
        path = file_path(self._directory, sequence)
        if self._fs.exists(path):
            raise FileExistsError(errno.EEXIST, "journal file exists already", path)
        return path


def piece_bytes_for(logs: int, file_bytes: int) -> int:
    """Return the size of a piece of the reserve for that many logs.

    A piece is a small journal file with space for the header's marks, a vote of each log, and some
    small blocks. The size grows in large steps, because each change makes all pieces anew.
    """
    covered = max(_LOGS_MIN, 1 << max(logs - 1, 0).bit_length())
    votes = padded(BLOCK_HEADER_BYTES + RECORD_BYTES * covered)
    needed = file_header_bytes(covered) + votes + 2 * PAGE_BYTES + SMALL_BLOCK_BYTES
    size = max(PIECE_BYTES_MIN, file_bytes // 64)
    return max(size - size % PAGE_BYTES, needed)


def file_path(directory: str, sequence: int) -> str:
    """Return the path of a journal file."""
    return f"{directory}/{sequence:016x}.journal"
