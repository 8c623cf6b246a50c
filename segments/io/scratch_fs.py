"""A file system whose changes stay in memory: a data directory is opened as by a start, unchanged.

Files are read from the disk until they are written; then a copy in memory takes their place. Names
are created, renamed and removed in memory. Only the lock is real: no server may use the directory
meanwhile. The applied state is opened for reading, and what is written to it is dropped.

Does not depend on what is opened.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from segments.api import Buffer, StorageError
from segments.io.fs import LmdbFile, MetaChecks, RealFileSystem, RealLock, open_to_read


class _Directory:
    """A directory that exists in memory only."""


class ScratchFile:
    """A file of a `ScratchFileSystem`, under whatever name."""

    __slots__ = ("_data", "_path")

    def __init__(self, path: str = "") -> None:
        """`path`: of the file on the disk; empty for a new file."""
        self._path = path
        self._data: bytearray | None = None if path else bytearray()
        """Contents, once they differ from those on the disk."""

    def _copy(self) -> bytearray:
        if self._data is None:
            self._data = bytearray(self.pread(self.size(), 0))
        return self._data

    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        del durable
        data, written = self._copy(), b"".join(buffers)
        data.extend(bytes(max(0, position - len(data))))
        data[position : position + len(written)] = written
        return len(written)

    def pread(self, length: int, position: int) -> bytes:
        if self._data is not None:
            return bytes(self._data[position : position + length])
        with closing(open_to_read(self._path)) as file:
            return file.pread(length, position)

    def truncate(self, length: int) -> None:
        data = self._copy()
        del data[length:]
        data.extend(bytes(length - len(data)))

    def allocate(self, length: int, *, start: int = 0) -> None:
        del start
        data = self._copy()
        data.extend(bytes(max(0, length - len(data))))

    def size(self) -> int:
        if self._data is not None:
            return len(self._data)
        with closing(open_to_read(self._path)) as file:
            return file.size()

    def allocated(self) -> int:
        return self.size()

    def sync(self) -> None:
        """Do nothing."""

    def write_back(self, length: int, position: int) -> None:
        """Do nothing."""

    def begin_write_back(self, length: int, position: int) -> None:
        """Do nothing."""

    def uncache(self, length: int = 0, position: int = 0) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: no descriptor is kept."""


_Place = str | ScratchFile | _Directory | None
"""Place that a name stands for: a path on the disk, a file, a new directory, or None."""

_NEW: Final = _Directory()


class ScratchFileSystem:
    """See the module. Implements `segments.io.fs.FileSystem`."""

    def __init__(self) -> None:
        self._real = RealFileSystem()
        self._places: dict[str, _Place] = {}
        """Names that were changed."""

    def place_of(self, path: str) -> _Place:
        """Return what a name stands for."""
        if path in self._places:
            return self._places[path]
        folder, slash, name = path.rpartition("/")
        if not slash or not any(path.startswith(f"{changed}/") for changed in self._places):
            return path if self._real.exists(path) else None
        place = self.place_of(folder)
        if not isinstance(place, str):
            return None
        return f"{place}/{name}" if self._real.exists(f"{place}/{name}") else None

    def open(self, path: str, *, create: bool = False) -> ScratchFile:
        place = self.place_of(path)
        if create:
            if place is not None:
                raise FileExistsError(errno.EEXIST, "exists", path)
            place = self._places[path] = ScratchFile()
        elif isinstance(place, str):
            # It stays the same file when it is renamed.
            place = self._places[path] = ScratchFile(place)
        if not isinstance(place, ScratchFile):
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        return place

    def exists(self, path: str) -> bool:
        return self.place_of(path) is not None

    def is_directory(self, path: str) -> bool:
        place = self.place_of(path)
        return place is _NEW or (isinstance(place, str) and self._real.is_directory(place))

    def list(self, path: str) -> list[str]:
        place = self.place_of(path)
        found = set(self._real.list(_on_disk(place, path)) if place is not _NEW else ())
        for changed, there in self._places.items():
            folder, _, name = changed.rpartition("/")
            if folder == path:
                found.discard(name)
                if there is not None:
                    found.add(name)
        return sorted(found)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self._places[path] = _NEW

    def rename(self, old: str, new: str) -> None:
        place = self.place_of(old)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, "not there", old)
        for changed in [one for one in self._places if one.startswith(f"{old}/")]:
            self._places[new + changed[len(old) :]] = self._places.pop(changed)
        self._places[new] = place
        self._places[old] = None

    def unlink(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "not there", path)
        self._places[path] = None

    def remove_tree(self, path: str) -> None:
        for changed in [one for one in self._places if one.startswith(f"{path}/")]:
            del self._places[changed]
        self._places[path] = None

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def space(self, path: str) -> tuple[int, int]:
        return self._real.space(path)

    def writes_in_place(self, path: str) -> bool:
        return self._real.writes_in_place(path)

    def lock(self, path: str) -> RealLock:
        return self._real.lock(path)

    def has_meta(self, path: str) -> bool:
        return self.exists(f"{path}/data.mdb")

    def open_meta(self, path: str, map_bytes: int, checks: MetaChecks) -> LmdbFile:
        place = self.place_of(path)
        if not isinstance(place, str) or not self.has_meta(path):
            raise StorageError(
                f"the applied state in {path} cannot be read: start the server once, which writes "
                "it again, and stop it"
            )
        return _ReadOnlyMeta(place, map_bytes, checks, is_read_only=True)


class _ReadOnlyMeta(LmdbFile):
    """Applied state that is only read."""

    __slots__ = ()

    def commit(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""


def _on_disk(place: _Place, path: str) -> str:
    if not isinstance(place, str):
        raise FileNotFoundError(errno.ENOENT, "not there", path)
    return place
