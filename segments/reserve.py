"""Room set aside for a full disk: what votes and the notes of a checkpoint need.

When no journal file can be made, small ones are made from the reserve, a piece at a time: the
reserve is cut by as much as the new file takes. It is filled up again as soon as there is room, and
until then the disk counts as full.

Must not know: what the pieces are used for.
"""

from __future__ import annotations

from segments.fs import FileSystem

RESERVE_PIECES = 8


class Reserve:
    """The file `reserve` of a data directory. Everything blocks."""

    __slots__ = ("_fs", "_path", "piece_bytes")

    def __init__(self, fs: FileSystem, path: str, piece_bytes: int) -> None:
        self._fs = fs
        self._path = path
        self.piece_bytes = piece_bytes

    def fill(self) -> None:
        """Make or lengthen the file to all its pieces. Raises OSError (ENOSPC)."""
        file = self._fs.open(self._path, create=not self._fs.exists(self._path))
        try:
            length = self.piece_bytes * RESERVE_PIECES
            if file.size() < length:
                file.allocate(length)
                file.sync()
        finally:
            file.close()

    def pieces(self) -> int:
        """How many are left."""
        if not self._fs.exists(self._path):
            return 0
        file = self._fs.open(self._path)
        try:
            return file.size() // self.piece_bytes
        finally:
            file.close()

    def take(self) -> bool:
        """Give one piece back to the file system; False when none is left."""
        left = self.pieces() - 1
        if left < 0:
            return False
        file = self._fs.open(self._path)
        try:
            file.truncate(left * self.piece_bytes)
            file.sync()
        finally:
            file.close()
        return True
