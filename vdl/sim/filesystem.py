"""The simulated disk behind the file-system interface that the store is written against.

Each process has its own `SimFileSystem`: its locks end with it. Paths are '/'-separated; relative
ones start at the disk's root, like absolute ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segments.api import Buffer, DirectoryInUse
from segments.io.fs import MetaChecks, MetaUsage
from vdl.sim.disk import Directory, Inode, MetaStore, SimDisk

ENDLESS_BYTES = 1 << 40
"""Size and free space reported for a disk without a limit."""


class SimFile:
    """An open file; it stays usable when its name is removed."""

    __slots__ = ("_disk", "_inode")

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        return self._disk.write(self._inode, buffers, position, durable=durable)

    def pread(self, length: int, position: int) -> bytes:
        return self._disk.read(self._inode, length, position)

    def sync(self) -> None:
        self._disk.sync(self._inode)

    def write_back(self, length: int, position: int) -> None:
        """Do nothing: unsynced data may or may not survive a power cut in any case."""

    def begin_write_back(self, length: int, position: int) -> None:
        """Do nothing, as for `write_back`."""

    def uncache(self, length: int = 0, position: int = 0) -> None:
        """Do nothing: there is no cache."""

    def truncate(self, length: int) -> None:
        self._disk.truncate(self._inode, length)

    def allocate(self, length: int, *, start: int = 0) -> None:
        self._disk.allocate(self._inode, length)

    def size(self) -> int:
        return len(self._inode.data)

    def allocated(self) -> int:
        return min(self._inode.allocated, len(self._inode.data))

    def close(self) -> None:
        """Do nothing: no resource is held."""


class SimMeta:
    """A key-value environment; every commit is one durable transaction."""

    __slots__ = ("_disk", "_store")
    is_damaged = False

    def __init__(self, disk: SimDisk, store: MetaStore) -> None:
        self._disk = disk
        self._store = store

    @property
    def usage(self) -> MetaUsage:
        size = sum(len(key) + len(value) for key, value in self._store.items.items())
        return MetaUsage(size, size, ENDLESS_BYTES)

    def get(self, key: bytes) -> bytes | None:
        return self._store.items.get(key)

    def durable(self, key: bytes) -> bytes | None:
        """Return the value that a power cut would leave."""
        return self._store.durable.get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._store.items.get(key) for key in keys]

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        return sorted(item for item in self._store.items.items() if item[0].startswith(prefix))

    def beginnings(self, length: int) -> list[bytes]:
        return sorted({key[:length] for key in self._store.items})

    def commit(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        self._disk.commit_meta(self._store, list(puts))

    def sync(self) -> None:
        self._disk.sync_meta(self._store)

    def read_medium(self, length: int, position: int) -> int:
        """Return 0: there is no cache, and every page is readable."""
        return 0

    def close(self) -> None:
        """Do nothing: no resource is held."""


class SimLock:
    """Exclusive use of a path by one process."""

    __slots__ = ("_disk", "_on_release", "_path")

    def __init__(self, disk: SimDisk, path: str, on_release: Callable[[], None]) -> None:
        self._disk = disk
        self._path = path
        self._on_release = on_release

    def release(self) -> None:
        self._on_release()
        self._disk.locks.discard(self._path)


class SimFileSystem:
    """`segments.io.fs.FileSystem` on a `SimDisk`.

    `on_release` is called when a lock is released.
    """

    __slots__ = ("_on_release", "disk")

    def __init__(self, disk: SimDisk, on_release: Callable[[], None] | None = None) -> None:
        self.disk = disk
        self._on_release = on_release or _nothing

    def open(self, path: str, *, create: bool = False) -> SimFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if create:
            if node is not None:
                raise FileExistsError(path)
            node = Inode()
            self.disk.change_names([(directory, name, node)])
        elif node is None:
            raise FileNotFoundError(path)
        if not isinstance(node, Inode):
            raise IsADirectoryError(path)
        return SimFile(self.disk, node)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not name or name in directory.entries

    def is_directory(self, path: str) -> bool:
        try:
            self._directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str) -> None:
        """Make the directory and any missing parents; leave existing ones alone."""
        directory = self.disk.root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self.disk.change_names([(directory, name, node)])
            if not isinstance(node, Directory):
                raise NotADirectoryError(path)
            directory = node

    def rename(self, old: str, new: str) -> None:
        source, source_name = self._parent(old)
        target, target_name = self._parent(new)
        node = source.entries.get(source_name)
        if node is None:
            raise FileNotFoundError(old)
        self.disk.change_names([(source, source_name, None), (target, target_name, node)])

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.entries:
            raise FileNotFoundError(path)
        self.disk.remove_name(directory, name)

    def remove_tree(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.entries:
            raise FileNotFoundError(path)
        node = directory.entries[name]
        if isinstance(node, Directory):
            for child in sorted(node.entries):
                self.remove_tree(f"{path}/{child}")
        self.disk.remove_name(directory, name)

    def sync_directory(self, path: str) -> None:
        self.disk.sync_directory(self._directory(path))

    def space(self, path: str) -> tuple[int, int]:
        del path
        room = self.disk.room
        return ENDLESS_BYTES, ENDLESS_BYTES if room is None else room

    def writes_in_place(self, path: str) -> bool:
        del path
        return self.disk.writes_in_place

    def lock(self, path: str) -> SimLock:
        key = "/".join(_parts(path))
        if key in self.disk.locks:
            raise DirectoryInUse(path)
        self.disk.locks.add(key)
        return SimLock(self.disk, key, self._on_release)

    def has_meta(self, path: str) -> bool:
        directory, name = self._parent(path)
        return isinstance(directory.entries.get(name), MetaStore)

    def open_meta(self, path: str, map_bytes: int, checks: MetaChecks | None = None) -> SimMeta:
        """Open or create the environment. `checks` is ignored, because it has no pages."""
        del checks
        assert map_bytes > 0, map_bytes
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            node = MetaStore()
            self.disk.change_names([(directory, name, node)])
        if not isinstance(node, MetaStore):
            raise FileExistsError(path)
        return SimMeta(self.disk, node)

    def _directory(self, path: str) -> Directory:
        directory = self.disk.root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                raise FileNotFoundError(path)
            if not isinstance(node, Directory):
                raise NotADirectoryError(path)
            directory = node
        return directory

    def _parent(self, path: str) -> tuple[Directory, str]:
        """Return the directory that holds the path's last name, and that name ("" for the root)."""
        parts = _parts(path)
        if not parts:
            return self.disk.root, ""
        return self._directory("/".join(parts[:-1])), parts[-1]


def _nothing() -> None:
    """Do nothing: the default of `on_release`."""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]
