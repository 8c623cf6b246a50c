"""Disk space reserved for a full disk: for votes, notes of a checkpoint and deletions.

The reserve consists of small files in a folder of the data directory, the pieces, zeroed and
synced. A piece is taken whole, by a rename, so that no other user can take its space on the way; or
it is removed, so that another file finds space. Taken pieces can be given back in the same way. All
pieces are made again as soon as there is space. Until then the disk counts as full.

The pieces can be enlarged, one after the other. Only the size of the smallest can be relied on.

Does not depend on the use of the pieces.
"""

from __future__ import annotations

from segments.io.fs import FileSystem, make_durable_directory, unless_refused

RESERVE_PIECES = 8
_ZEROS = bytes(64 << 10)


class Reserve:
    """The pieces `NAME-0` to `NAME-7` of a folder. All methods block."""

    __slots__ = ("_folder", "_fs", "_known", "_name", "piece_bytes", "wanted_bytes")

    def __init__(self, fs: FileSystem, folder: str, name: str, piece_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._name = name
        self.piece_bytes = piece_bytes
        """Minimum size of the existing pieces."""
        self.wanted_bytes = piece_bytes
        """Size to which the pieces are to be enlarged."""
        self._known: dict[str, int] = {}
        """Sizes of the pieces that existed at the last check. Cached, because a piece never changes
        its size, and each journal file needs them several times."""

    def fill(self) -> None:
        """Make the missing pieces, then replace those that are to be larger.

        Raises OSError (ENOSPC); existing pieces are kept then.
        """
        wanted = self.wanted_bytes
        self._make_all(self._smaller(self.piece_bytes), self.piece_bytes)
        self._make_all(self._smaller(wanted), wanted)
        self.piece_bytes = max(self.piece_bytes, wanted)

    def _make_all(self, paths: list[str], size: int) -> None:
        if not paths:
            return
        make_durable_directory(self._fs, self._folder)
        for path in paths:
            self._make(path, size)
        self._fs.sync_directory(self._folder)

    def measure(self, least: int) -> None:
        """Set `piece_bytes` to the smallest piece that an earlier run left.

        Pieces smaller than `least` are ignored.
        """
        sizes = [size for size in self._sizes().values() if size >= least]
        self.piece_bytes = min([self.wanted_bytes, *sizes])

    def _make(self, path: str, size: int) -> None:
        fs = self._fs
        fresh = f"{path}.new"
        if fs.exists(fresh):
            fs.unlink(fresh)  # left by a process that died here
        file = fs.open(fresh, create=True)
        try:
            file.allocate(size)
            for position in range(0, size, len(_ZEROS)):
                file.pwrite([memoryview(_ZEROS)[: size - position]], position)
            file.sync()
        except OSError:
            with unless_refused():
                fs.unlink(fresh)  # a full disk must not keep half a piece
            raise
        finally:
            file.close()
        self._known.pop(path, None)
        fs.rename(fresh, path)

    def pieces(self) -> int:
        """Return the number of pieces left."""
        return RESERVE_PIECES - len(self._smaller(self.piece_bytes))

    def take(self, path: str) -> bool:
        """Rename a piece to `path`, durably; return False if none is left.

        If OSError is raised, a piece may have that name already and must be given back.
        """
        missing = self._smaller(self.piece_bytes)
        for piece in self._paths():
            if piece not in missing:
                self._fs.rename(piece, path)
                self._fs.sync_directory(path.rpartition("/")[0])
                self._fs.sync_directory(self._folder)
                return True
        return False

    def free(self, count: int) -> bool:
        """Release `count` pieces to the file system; return False if there are fewer."""
        missing = self._smaller(self.piece_bytes)
        left = [path for path in self._paths() if path not in missing]
        if len(left) < count:
            return False
        for path in left[:count]:
            self._fs.unlink(path)
        if count:
            self._fs.sync_directory(self._folder)
        return True

    def give(self, path: str) -> None:
        """Take a file back as a piece if one is missing and it has the size; else remove it."""
        fs = self._fs
        if not fs.exists(path):
            return
        size = self._size(path)
        missing = self._smaller(self.piece_bytes)
        if missing and self.piece_bytes <= size < 2 * self.piece_bytes:
            make_durable_directory(fs, self._folder)
            self._known.pop(missing[0], None)
            fs.rename(path, missing[0])
            fs.sync_directory(self._folder)
        else:
            fs.unlink(path)
        fs.sync_directory(path.rpartition("/")[0])

    def _smaller(self, size: int) -> list[str]:
        """Return the paths of pieces that are missing or smaller than `size`."""
        sizes = self._sizes()
        return [path for path in self._paths() if sizes.get(path, -1) < size]

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of the existing pieces."""
        fs, known = self._fs, self._known
        there = set(fs.list(self._folder)) if fs.exists(self._folder) else set()
        sizes: dict[str, int] = {}
        for path in self._paths():
            if path.rpartition("/")[2] in there:
                sizes[path] = known[path] if path in known else self._size(path)
        self._known = sizes
        return sizes

    def _size(self, path: str) -> int:
        file = self._fs.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _paths(self) -> list[str]:
        return [f"{self._folder}/{self._name}-{n}" for n in range(RESERVE_PIECES)]
