"""Room set aside for a full disk: what votes, notes of a checkpoint and deletions need.

The reserve is some small files in a folder of the data directory, the pieces, zeroed and synced. A
piece is taken whole, by a rename, so that nobody else can take its room on the way. Or it is
removed, so that something else finds room. What was taken can be given back in the same way. All
pieces are made again as soon as there is room. Until then the disk counts as full.

Must not know: what the pieces are used for.
"""

from __future__ import annotations

from segments.io.fs import FileSystem, make_durable_directory, unless_refused

RESERVE_PIECES = 8
_ZEROS = bytes(64 << 10)


class Reserve:
    """The pieces `NAME-0` to `NAME-7` of a folder. Everything blocks."""

    __slots__ = ("_folder", "_fs", "_name", "piece_bytes")

    def __init__(self, fs: FileSystem, folder: str, name: str, piece_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._name = name
        self.piece_bytes = piece_bytes

    def fill(self) -> None:
        """Make the pieces that are missing. Raises OSError (ENOSPC)."""
        fs = self._fs
        missing = self._missing()
        if not missing:
            return
        make_durable_directory(fs, self._folder)
        for path in missing:
            self._make(path)
        fs.sync_directory(self._folder)

    def _make(self, path: str) -> None:
        fs = self._fs
        fresh = f"{path}.new"
        if fs.exists(fresh):
            fs.unlink(fresh)  # of a process that died here
        file = fs.open(fresh, create=True)
        try:
            file.allocate(self.piece_bytes)
            for position in range(0, self.piece_bytes, len(_ZEROS)):
                file.pwrite([memoryview(_ZEROS)[: self.piece_bytes - position]], position)
            file.sync()
        except OSError:
            with unless_refused():
                fs.unlink(fresh)  # a full disk must not keep half a piece
            raise
        finally:
            file.close()
        fs.rename(fresh, path)

    def pieces(self) -> int:
        """How many are left."""
        return RESERVE_PIECES - len(self._missing())

    def take(self, path: str) -> bool:
        """Let a piece have the name `path`, durably; False when none is left. Raises OSError: then
        one may have it already, and is to be given back."""
        for piece in self._paths():
            if self._fs.exists(piece):
                self._fs.rename(piece, path)
                self._fs.sync_directory(path.rpartition("/")[0])
                self._fs.sync_directory(self._folder)
                return True
        return False

    def free(self, count: int) -> bool:
        """Give so many pieces back to the file system; False when there are not as many."""
        missing = self._missing()
        left = [path for path in self._paths() if path not in missing]
        if len(left) < count:
            return False
        for path in left[:count]:
            self._fs.unlink(path)
        if count:
            self._fs.sync_directory(self._folder)
        return True

    def give(self, path: str) -> None:
        """Take back a file, if it is a piece and one is missing; else remove it."""
        fs = self._fs
        if not fs.exists(path):
            return
        file = fs.open(path)
        try:
            size = file.size()
        finally:
            file.close()
        missing = self._missing()
        if missing and size == self.piece_bytes:
            make_durable_directory(fs, self._folder)
            fs.rename(path, missing[0])
            fs.sync_directory(self._folder)
        else:
            fs.unlink(path)
        fs.sync_directory(path.rpartition("/")[0])

    def _missing(self) -> list[str]:
        fs = self._fs
        there = set(fs.list(self._folder)) if fs.exists(self._folder) else set()
        return [path for path in self._paths() if path.rpartition("/")[2] not in there]

    def _paths(self) -> list[str]:
        return [f"{self._folder}/{self._name}-{n}" for n in range(RESERVE_PIECES)]
