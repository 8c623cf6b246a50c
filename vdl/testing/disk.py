"""A real file system that can be slow, and that notes what a power cut would take.

Every call goes to the operating system, as on a real server. Before a change that is not durable
yet the old state is appended to a log (`vdl/testing/undo.py`), which the process that runs the
servers reads after it has killed this one.

Threads of the store use it at the same time.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from segments.api import Buffer
from segments.io.fs import LmdbFile, MetaChecks, RealFile, RealFileSystem
from vdl.testing.undo import Kind, Undo

LOG_BYTES_MAX = 32 << 20
"""Size of the log at which everything counts as written back, as a system does it in time."""
LOG_BYTES_KEPT = 64 << 10
"""Size below which an unneeded log is not emptied."""


class Unsynced:
    """The log of changes that no sync has covered."""

    def __init__(self, log: Path, trash: Path) -> None:
        """Begin with an empty log. `trash`: folder for removed files, on the same file system."""
        trash.mkdir(parents=True, exist_ok=True)
        self._trash = trash
        self._fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC)
        self.lock = threading.RLock()
        self._number = 0
        self._log_bytes = 0
        self._files: dict[int, int] = {}
        """Number of the last unsynced change by inode."""
        self._names: dict[int, tuple[str, ...]] = {}
        """Directories of each unsynced change of names, by its number."""

    @property
    def next_number(self) -> int:
        """Number of the next change. Every change with a lower one has happened."""
        with self.lock:
            return self._number

    def note(self, kind: Kind, *, file: int = 0, start: int = 0, end: int = 0, old_size: int = 0,
             payload: bytes = b"") -> None:  # fmt: skip
        """Append one record. The caller holds the lock."""
        record = Undo(kind, self._number, file, start, end, old_size, payload).encode()
        os.write(self._fd, record)
        self._number += 1
        self._log_bytes += len(record)

    def change(self, file: int, start: int, end: int, old_size: int, old: bytes) -> None:
        """Note a change of a file that is about to happen."""
        if self._log_bytes > LOG_BYTES_MAX:
            self._forget_all()
        self._files[file] = self._number
        self.note(Kind.CHANGE, file=file, start=start, end=end, old_size=old_size, payload=old)

    def written(self, file: int, start: int, end: int) -> None:
        """Note a durable write that has returned."""
        with self.lock:
            if file in self._files:
                self.note(Kind.DURABLE, file=file, start=start, end=end)

    def synced(self, file: int, below: int) -> None:
        """Note a sync of a file that began before the change with number `below`."""
        with self.lock:
            last = self._files.get(file)
            if last is None:
                return
            self.note(Kind.SYNCED, file=file, start=below)
            if last < below:
                del self._files[file]
                self._shorten()

    def rename(self, kind: Kind, **names: str) -> None:
        """Note a change of names that is about to happen; see `Kind`."""
        paths = [names["path"], *([names["new"]] if "new" in names else [])]
        self._names[self._number] = tuple(path.rpartition("/")[0] for path in paths)
        self.note(kind, payload=json.dumps(names).encode())

    def saved(self) -> str:
        """Return an unused path in the trash."""
        return str(self._trash / str(self._number))

    def directory_synced(self, path: str, below: int) -> None:
        """Note a sync of a directory that began before the change with number `below`."""
        with self.lock:
            done = [n for n, paths in self._names.items() if n < below and path in paths]
            if done:
                self.note(Kind.DIRECTORY_SYNCED, start=below, payload=_path(path))
            for number in done:
                del self._names[number]
                _discard(self._trash / str(number))
            self._shorten()

    def _shorten(self) -> None:
        if not self._files and not self._names and self._log_bytes > LOG_BYTES_KEPT:
            os.ftruncate(self._fd, 0)
            self._log_bytes = 0

    def _forget_all(self) -> None:
        self._files.clear()
        for number in self._names:
            _discard(self._trash / str(number))
        self._names.clear()
        os.ftruncate(self._fd, 0)
        self._log_bytes = 0


def _discard(path: Path) -> None:
    """Remove a file or a folder for good, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _path(path: str) -> bytes:
    return json.dumps({"path": path}).encode()


class Disk:
    """Faults of one server's disk. `delay_seconds`: added to each sync and each durable write."""

    def __init__(self, unsynced: Unsynced) -> None:
        self.unsynced = unsynced
        self.delay_seconds = 0.0

    def wait(self) -> None:
        """Wait as long as a sync is delayed."""
        if self.delay_seconds:
            time.sleep(self.delay_seconds)


class NotedFile(RealFile):
    """A file whose unsynced changes are noted."""

    __slots__ = ("_disk", "_inode")

    def __init__(self, fd: int, disk: Disk) -> None:
        super().__init__(fd)
        self._disk = disk
        self._inode = os.fstat(fd).st_ino

    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        """See `File.pwrite`."""
        end = position + sum(map(len, buffers))
        if durable:
            self._disk.wait()
            written = super().pwrite(buffers, position, durable=True)
            self._disk.unsynced.written(self._inode, position, end)
            return written
        with self._disk.unsynced.lock:
            self._note(position, end)
            return super().pwrite(buffers, position)

    def sync(self) -> None:
        """See `File.sync`."""
        below = self._disk.unsynced.next_number
        self._disk.wait()
        super().sync()
        self._disk.unsynced.synced(self._inode, below)

    def truncate(self, length: int) -> None:
        """See `File.truncate`."""
        with self._disk.unsynced.lock:
            self._note(min(length, self.size()), max(length, self.size()))
            super().truncate(length)

    def allocate(self, length: int, *, start: int = 0) -> None:
        """See `File.allocate`."""
        with self._disk.unsynced.lock:
            size = self.size()
            if length > size:
                self._note(size, length)
            super().allocate(length, start=start)

    def _note(self, start: int, end: int) -> None:
        size = self.size()
        old = self.pread(min(end, size) - start, start) if start < size else b""
        self._disk.unsynced.change(self._inode, start, end, size, old)


class NotedMeta(LmdbFile):
    """A key-value file whose commits take as long as the disk is slow."""

    __slots__ = ("_disk",)

    def __init__(self, path: str, map_bytes: int, checks: MetaChecks, disk: Disk) -> None:
        super().__init__(path, map_bytes, checks)
        self._disk = disk

    def commit(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        """See `MetaFile.commit`."""
        self._disk.wait()
        super().commit(puts)


class NotedFileSystem(RealFileSystem):
    """`segments.io.fs.FileSystem` of a server under test."""

    __slots__ = ("_disk",)

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, *, create: bool = False) -> NotedFile:
        """See `FileSystem.open`."""
        if not create:
            return NotedFile(_descriptor(path, os.O_RDWR), self._disk)
        unsynced = self._disk.unsynced
        with unsynced.lock:
            if not self.exists(path):
                unsynced.rename(Kind.MADE, path=path)
            fd = _descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            file = NotedFile(fd, self._disk)
            # The inode number may be that of a removed file, whose changes are none of this one.
            unsynced.synced(os.fstat(fd).st_ino, unsynced.next_number)
            return file

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        with self._disk.unsynced.lock:
            missing = path
            while missing and not self.exists(missing):
                path_made, missing = missing, missing.rpartition("/")[0]
                self._disk.unsynced.rename(Kind.MADE, path=path_made)
            super().make_directory(path)

    def rename(self, old: str, new: str) -> None:
        """See `FileSystem.rename`."""
        unsynced = self._disk.unsynced
        with unsynced.lock:
            saved = ""
            if self.exists(new) and not self.is_directory(new):
                saved = unsynced.saved()
                os.link(new, saved)
            unsynced.rename(Kind.RENAMED, path=old, new=new, saved=saved)
            super().rename(old, new)

    def unlink(self, path: str) -> None:
        """See `FileSystem.unlink`."""
        self._remove(path)

    def remove_tree(self, path: str) -> None:
        """See `FileSystem.remove_tree`."""
        self._remove(path)

    def _remove(self, path: str) -> None:
        unsynced = self._disk.unsynced
        with unsynced.lock:
            Path(path).lstat()
            saved = unsynced.saved()
            unsynced.rename(Kind.REMOVED, path=path, saved=saved)
            super().rename(path, saved)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        below = self._disk.unsynced.next_number
        self._disk.wait()
        super().sync_directory(path)
        self._disk.unsynced.directory_synced(path, below)

    def open_meta(self, path: str, map_bytes: int, checks: MetaChecks) -> NotedMeta:
        """See `FileSystem.open_meta`."""
        return NotedMeta(path, map_bytes, checks, self._disk)


def _descriptor(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
