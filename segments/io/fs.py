"""The file system as the store sees it, and the operating system's.

All of the engine's disk access goes through `FileSystem`, so that a simulated disk can replace it.
Only the kernel's own writes of the journal's blocks to a real file bypass it (`ring.py`). Errors
are `OSError`, as the system reports them; the caller decides that a full disk is a temporary state
and a failed sync is final.

Rules: a write either wrote everything or raised; `durable=True` returns only when the bytes, and
the length of the file, have reached the disk. Creating, renaming and removing names is durable
after `sync_directory`.

Does not depend on the contents of files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import lmdb

from segments.api import Buffer, CorruptRecord, DirectoryInUse

IOV_MAX = 1024
DISK_FULL_RETRY_MS = 1000
"""Interval at which a full disk is retried."""
_PAGE_BYTES = 4096
"""Unit in which the system reads and writes; writing a part of a page reads it first."""
UNCACHE_BYTES = 8 << 20
"""Bytes dropped from the page cache at a time: each time the system may have to query all
processors for the pages they still hold."""
_BLOCK_BYTES = 512
"""Unit of `st_blocks`, independent of the file system's block size."""
_IN_PLACE = frozenset(("ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs", "overlay"))
"""Types of file systems that overwrite bytes in place."""


class SyncFailed(OSError):
    """A sync failed, for any reason.

    The system has marked the pages clean: another sync would succeed without the data being on
    disk. This includes a lack of space (a thin volume): a write that had been accepted is lost,
    which differs from a refused write.
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(errno.EIO, f"sync failed: {cause}")


def failed_sync(code: int) -> SyncFailed:
    """Return the failure of a durable write that ended with this error of the system."""
    return SyncFailed(OSError(code, os.strerror(code)))


def is_disk_full(error: BaseException) -> bool:
    """Return True if the error is a full disk, a state that ends.

    The disk can still be trusted: no data was written, or all of it will be written again.
    """
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


_PASSING = frozenset(
    (
        errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EINTR, errno.EAGAIN,
    )
)  # fmt: skip


def is_passing(error: BaseException) -> bool:
    """Return True if the system lacked a descriptor or memory.

    Nothing is wrong with the disk, and a later attempt may succeed. A failed sync is never such an
    error.
    """
    is_failed_sync = isinstance(error, SyncFailed)
    return isinstance(error, OSError) and error.errno in _PASSING and not is_failed_sync


def is_refused(error: BaseException) -> bool:
    """Return True if the background work can be retried as a whole.

    Until then the disk counts as full.
    """
    return is_disk_full(error) or is_passing(error)


@contextmanager
def unless_refused() -> Iterator[None]:
    """Ignore refusals in cleanup after an error.

    The cleanup is repeated before the next attempt. Its refusal must not replace the error: a
    failed sync would become a full disk.
    """
    try:
        yield
    except OSError as error:
        if not is_refused(error):
            raise


def is_unreadable(error: BaseException) -> bool:
    """Return True if the medium cannot read these bytes, which is damage like a bad CRC.

    False for a failed sync.
    """
    is_failed_sync = isinstance(error, SyncFailed)
    return isinstance(error, OSError) and error.errno == errno.EIO and not is_failed_sync


class File(Protocol):
    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        """Write the buffers consecutively at `position`: all of them, or raise.

        A durable write is for space that the file has; one that fails is a failed sync.
        """

    def pread(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""

    def sync(self) -> None:
        """Call fdatasync. Raises SyncFailed."""

    def write_back(self, length: int, position: int) -> None:
        """Write these bytes to the medium now, so that a later sync has less to do.

        This makes nothing durable: neither the file's length nor the location of its blocks. Raises
        SyncFailed.
        """

    def begin_write_back(self, length: int, position: int) -> None:
        """Begin the same without waiting for the medium. Raises SyncFailed."""

    def uncache(self, length: int = 0, position: int = 0) -> None:
        """Drop `length` bytes (0: to the end) from the page cache, as far as they are on disk.

        A hint: raises nothing.
        """

    def truncate(self, length: int) -> None: ...
    def allocate(self, length: int, *, start: int = 0) -> None:
        """Allocate space for the bytes [start, length), or raise ENOSPC.

        The file may be longer afterwards; its contents do not change. No one else may write from
        `start` on meanwhile: if the file system cannot allocate, the C library reads a byte of each
        block and writes it back.
        """

    def size(self) -> int: ...
    def allocated(self) -> int:
        """Return the approximate bytes of disk that the file uses: a sparse part may use none."""

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class MetaUsage(NamedTuple):
    """Sizes of a key-value file, in bytes.

    Pages with items; all pages ever allocated, including free ones for later use; and the mapped
    size.
    """

    used_bytes: int
    file_bytes: int
    map_bytes: int


class MetaFile(Protocol):
    """A small ordered key-value file whose commits are durable transactions.

    Reading damaged pages raises CorruptRecord, or returns wrong data that the reader must detect.
    """

    @property
    def is_damaged(self) -> bool:
        """True if pages were invalid when the file was opened.

        Reads then return the contents of the other pages, and `commit` raises CorruptRecord.
        """

    @property
    def usage(self) -> MetaUsage:
        """Sizes after the last commit by this process, or at the opening."""

    def get(self, key: bytes) -> bytes | None: ...
    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, read in one transaction."""

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return the items whose key starts with `prefix`, in key order."""

    def beginnings(self, length: int) -> list[bytes]:
        """Return the distinct prefixes of `length` bytes of all keys, ascending.

        Costs one look-up for each, regardless of the number of keys.
        """

    def commit(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        """Commit one durable transaction; None deletes.

        The file grows as long as the disk has space.
        """

    def sync(self) -> None:
        """Make all readable data durable. Raises SyncFailed."""

    def read_medium(self, length: int, position: int) -> int:
        """Read these bytes from the medium; return their number. Raises OSError.

        Bytes that the system keeps in memory are not read from the medium.
        """

    def close(self) -> None: ...


Read = Callable[[int, int], bytes]
"""(length, position) -> bytes, fewer if the file ends or the medium cannot read them."""


class MetaChecks(Protocol):
    """Checks of a key-value file's pages before its library follows them.

    The file system only knows when to check; `segments.format.meta_pages` implements this.
    """

    def check_headers(self, read: Read, file_bytes: int, /) -> object:
        """Check the headers.

        Raises CorruptRecord, and StorageError for a file of another version.
        """

    def check_pages(self, read: Read, file_bytes: int, /) -> None:
        """Check all pages. Raises as `check_headers`."""

    def good_items(self, read: Read, file_bytes: int, /) -> dict[bytes, bytes]:
        """Return the items in good pages. Raises as `check_headers`."""


class FileSystem(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file. With `create=True` it must not exist; otherwise it must."""

    def exists(self, path: str) -> bool:
        """Return False only if there is no such name.

        If it cannot be looked up, OSError is raised; otherwise an existing directory could be taken
        for a new one.
        """

    def is_directory(self, path: str) -> bool:
        """Return True if the name is a directory. Raises as `exists`."""

    def list(self, path: str) -> list[str]:
        """Return the names in the directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents; an existing one is left alone."""

    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def space(self, path: str) -> tuple[int, int]:
        """Return (total bytes, writable bytes) of the file system that contains `path`."""

    def writes_in_place(self, path: str) -> bool:
        """Return True if overwriting bytes of a file in that directory needs no space.

        Copy-on-write file systems write elsewhere first. False also if this is unknown.
        """

    def lock(self, path: str) -> Lock:
        """Acquire exclusive use of `path`. Raises DirectoryInUse."""

    def has_meta(self, path: str) -> bool:
        """Return True if `open_meta` would find an existing file. Raises as `exists`."""

    def open_meta(self, path: str, map_bytes: int, checks: MetaChecks) -> MetaFile:
        """Open or create a key-value file.

        `map_bytes` are mapped at first, and more as the data grows. Raises CorruptRecord if the
        file is unusable.
        """


def _find_sync_file_range() -> Any:
    """Return the C library's `sync_file_range(2)`, which Python does not offer, or None."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find_sync_file_range()
_WRITE = 2
_WAIT_WRITE_WAIT = 1 | _WRITE | 4


class RealFile:
    """File on a descriptor of the operating system."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def descriptor(self) -> int:
        """Descriptor of the operating system; -1 once it is closed."""
        return self._fd

    def pwrite(self, buffers: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        if not durable:
            return self._pwrite(buffers, position, 0)
        try:
            return self._pwrite(buffers, position, os.RWF_DSYNC)
        except OSError as error:
            raise SyncFailed(error) from error

    def _pwrite(self, buffers: Sequence[Buffer], position: int, flags: int) -> int:
        if len(buffers) > IOV_MAX:
            # Joining groups of small buffers costs less than a second synchronous write.
            step = -(-len(buffers) // IOV_MAX)
            buffers = [b"".join(buffers[i : i + step]) for i in range(0, len(buffers), step)]
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position, flags)
        if written != total:
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwritev(self._fd, [rest[written:]], position + written, flags)
        return total

    def pread(self, length: int, position: int) -> bytes:
        found = os.pread(self._fd, length, position)
        if len(found) == length:
            return found
        parts = [found]
        have = len(found)
        while have < length and parts[-1]:
            parts.append(os.pread(self._fd, length - have, position + have))
            have += len(parts[-1])
        return b"".join(parts)

    def sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SyncFailed(error) from error

    def write_back(self, length: int, position: int) -> None:
        if not self._write_back(length, position, _WAIT_WRITE_WAIT):
            self.sync()

    def begin_write_back(self, length: int, position: int) -> None:
        self._write_back(length, position, _WRITE)  # if unsupported, the sync writes everything

    def _write_back(self, length: int, position: int, flags: int) -> bool:
        """Call `sync_file_range`.

        Return False if the C library, or a sandbox's kernel, does not offer it. Raises SyncFailed.
        """
        if _sync_file_range is None:
            return False
        if _sync_file_range(self._fd, position, length, flags) != 0:
            code = ctypes.get_errno()
            if code == errno.ENOSYS:
                return False
            # The error is reported only once: the following sync would not see it.
            raise SyncFailed(OSError(code, os.strerror(code)))
        return True

    def uncache(self, length: int = 0, position: int = 0) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def allocate(self, length: int, *, start: int = 0) -> None:
        os.posix_fallocate(self._fd, start, length - start)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocated(self) -> int:
        return os.fstat(self._fd).st_blocks * _BLOCK_BYTES

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _stat(path: str, *, follow_symlinks: bool = True) -> os.stat_result | None:
    """Return the status of a name; None if it does not exist.

    Raises OSError where `os.path.exists` returns False.
    """
    try:
        return os.stat(path, follow_symlinks=follow_symlinks)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        raise SyncFailed(error) from error
    finally:
        os.close(fd)


def _type_of_mount(path: str) -> str:
    """Return the type of the directory's file system, as named by the system; empty if unknown.

    Found by mount, not by device: a subvolume has a device that no mount has.
    """
    try:
        fd = os.open(path, _DIRECTORY)
        try:
            with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8") as told:
                ids = [line.split()[1] for line in told if line.startswith("mnt_id:")]
        finally:
            os.close(fd)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                mount, _, rest = line.partition(" - ")
                if mount.split()[0] in ids:
                    return rest.split()[0]
    except (OSError, IndexError):
        pass
    return ""


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_DIRECTORY_LOCKS = (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of file systems that lock only files, such as NFS."""


class RealLock:
    """A set of flocks; they end with the process."""

    __slots__ = ("_fds",)

    def __init__(self) -> None:
        self._fds: list[int] = []

    def take(self, fd: int, path: str) -> None:
        """Take one more lock. Raises DirectoryInUse or OSError."""
        self._fds.append(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUse(path) from None

    def release(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


_LMDB_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.BadValsizeError,
    lmdb.InvalidError,
    lmdb.MapResizedError,
    lmdb.VersionMismatchError,
)
"""Exceptions of LMDB for invalid pages."""


_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0)


@contextmanager
def _reading() -> Iterator[None]:
    """Translate LMDB's errors of a read: invalid pages are damage, like a bad CRC."""
    try:
        yield
    except _LMDB_DAMAGE as error:
        raise CorruptRecord("meta page", 0) from error
    except lmdb.MemoryError as error:
        raise OSError(errno.ENOMEM, str(error)) from error


@contextmanager
def _writing() -> Iterator[None]:
    """Translate LMDB's errors of a writing transaction.

    Its space was allocated before, so other errors are a failed sync.
    """
    try:
        yield
    except lmdb.DiskError as error:
        raise SyncFailed(OSError(errno.ENOSPC, str(error))) from error
    except (*_LMDB_DAMAGE, lmdb.PageFullError) as error:
        raise CorruptRecord("meta page", 0) from error
    except lmdb.Error as error:
        raise SyncFailed(OSError(errno.EIO, str(error))) from error


def _refusal_in(error: lmdb.Error) -> OSError:
    """Return the system's error in LMDB's failure to open its files; LMDB gives only the text."""
    codes = [code for code in (*_PASSING, errno.ENOSPC) if os.strerror(code) in str(error)]
    return OSError(codes[0] if codes else errno.EIO, str(error))


_HEADER_TRIES = 8
"""Number of times headers are read again while transactions end."""


class LmdbFile:
    """An LMDB environment.

    Never `writemap` (a stray pointer would write to the file), always synced.

    A commit writes pages, syncs them, and then writes and syncs the page that names them. LMDB
    reports a lack of space in any of these with the same error. Space for all pages that a
    transaction can add is therefore allocated before, which may be refused. After that there is no
    full disk: a commit that fails is a failed sync.

    LMDB maps a part of the address space, and a file that outgrows it is full, even for deletions,
    which take pages first. So the map is doubled before a transaction that may need more of it. No
    thread may read meanwhile: readers hold a lock.

    LMDB does not check the file's headers, so they are checked each time before LMDB uses them. All
    pages are checked when the file is opened; one that changes later can still end the process. The
    good part of a damaged file is read without LMDB.
    """

    __slots__ = (
        "_checks", "_commits", "_data", "_environment", "_fd", "_good", "_largest", "_map_bytes",
        "_mapped", "_reserved", "_usage",
    )  # fmt: skip

    def __init__(
        self, path: str, map_bytes: int, checks: MetaChecks, *, is_read_only: bool = False
    ) -> None:
        self._checks = checks
        self._mapped = threading.Lock()
        """Invariant: held by readers, and while the map is changed."""
        self._reserved = 0
        self._largest = 0
        """Maximum number of bytes that a transaction of this process may have added."""
        self._commits = 0
        """Number of beginnings and ends of commits: odd during a commit."""
        self._good: dict[bytes, bytes] | None = None
        """Items used in place of the environment if the file is damaged."""
        self._data = data = f"{path}/data.mdb"
        found = _stat(data)
        if found is not None and found.st_size:
            fd = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._good = _good_if_damaged(fd, checks)
            finally:
                os.close(fd)
        try:
            self._environment = lmdb.open(
                path, map_size=map_bytes, readahead=False, mode=0o600,
                readonly=is_read_only, lock=not is_read_only,
            )  # fmt: skip
        except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as error:
            raise CorruptRecord("meta file", 0) from error
        except lmdb.Error as error:
            raise _refusal_in(error) from error
        self._map_bytes: int = self._environment.info()["map_size"]
        """Never less than the file needs, even if less was requested."""
        if not is_read_only:
            # LMDB syncs its file, but not the directories that contain it.
            _sync_directory(path)
            _sync_directory(path.rpartition("/")[0] or ".")
        self._fd = os.open(data, (os.O_RDONLY if is_read_only else os.O_RDWR) | os.O_CLOEXEC)
        self._usage = MetaUsage(0, 0, self._map_bytes)
        self._note_usage()

    @property
    def usage(self) -> MetaUsage:
        return self._usage

    def _note_usage(self) -> None:
        if self._good is None:
            found, last = self._environment.stat(), self._environment.info()["last_pgno"]
            pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
            page_bytes = found["psize"]
            self._usage = MetaUsage(
                pages * page_bytes, (last + 1) * page_bytes, self._map_bytes
            )  # fmt: skip

    @property
    def is_damaged(self) -> bool:
        return self._good is not None

    def get(self, key: bytes) -> bytes | None:
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._good is not None:
            return [self._good.get(key) for key in keys]
        with _reading(), self._mapped, self._begin() as transaction:
            return [transaction.get(key) for key in keys]

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        if self._good is not None:
            return sorted(item for item in self._good.items() if item[0].startswith(prefix))
        found: list[tuple[bytes, bytes]] = []
        with (
            _reading(), self._mapped, self._begin() as transaction, transaction.cursor() as cursor
        ):  # fmt: skip
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        break
                    found.append((bytes(key), bytes(value)))
        return found

    def beginnings(self, length: int) -> list[bytes]:
        if self._good is not None:
            return sorted({key[:length] for key in self._good})
        found: list[bytes] = []
        with (
            _reading(), self._mapped, self._begin() as transaction, transaction.cursor() as cursor
        ):  # fmt: skip
            is_there = cursor.first()
            while is_there:
                found.append(bytes(cursor.key())[:length])
                following = int.from_bytes(found[-1].ljust(length, b"\0"), "big") + 1
                if following >> 8 * length:
                    break
                is_there = cursor.set_range(following.to_bytes(length, "big"))
        return found

    def commit(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        if self._good is not None:
            raise CorruptRecord("meta page", 0)
        self._reserve(puts)
        with _writing():
            transaction = self._put(puts)
            self._commits += 1
            try:
                transaction.commit()
            except lmdb.MemoryError as error:  # it may have written a part
                raise SyncFailed(OSError(errno.ENOMEM, str(error))) from error
            finally:
                self._commits += 1
        self._note_usage()

    def _put(self, puts: list[tuple[bytes, bytes | None]]) -> lmdb.Transaction[bytes]:
        """Return a transaction that is not committed.

        Raises OSError if LMDB lacked memory, or its map was too small after all; the transaction is
        then void.
        """
        try:
            transaction = self._begin(write=True)
            try:
                for key, value in puts:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
            except BaseException:
                transaction.abort()
                raise
        except lmdb.MemoryError as error:
            raise OSError(errno.ENOMEM, str(error)) from error
        except lmdb.MapFullError as error:
            self._map(2 * self._map_bytes)
            raise OSError(errno.ENOSPC, "meta was full") from error
        return transaction

    def _begin(self, *, write: bool = False) -> lmdb.Transaction[bytes]:
        self._check_headers()
        return self._environment.begin(write=write)

    def _check_headers(self) -> None:
        """Check the headers.

        Raises CorruptRecord or StorageError. If transactions of another thread end between the
        reads of the two headers, these contradict each other without damage.
        """
        for _ in range(_HEADER_TRIES):
            commits = self._commits
            try:
                self._look_at_headers()
            except CorruptRecord:
                if commits == self._commits and not commits % 2:
                    raise
            else:
                return
        self._look_at_headers()

    def _look_at_headers(self) -> None:
        fd = self._fd
        self._checks.check_headers(
            lambda length, position: os.pread(fd, length, position), os.fstat(fd).st_size
        )

    def _reserve(self, puts: list[tuple[bytes, bytes | None]]) -> None:
        """Provide space on the disk and in the map for the pages that `puts` can add to the file.

        Raises OSError if refused.
        """
        self._check_headers()
        found = self._environment.stat()
        page_bytes: int = found["psize"]
        used = (self._environment.info()["last_pgno"] + 1) * page_bytes
        sizes = [len(key) + len(value or b"") for key, value in puts]
        need = page_bytes * _pages_added(found, sizes)
        end = used + need
        largest = max(self._largest, need)
        if end > self._reserved:
            self._allocate(end, largest)
        if end > self._map_bytes:
            self._map(max(end, 2 * self._map_bytes))
        self._largest = largest

    def _allocate(self, end: int, largest: int) -> None:
        """Allocate disk space up to `end`, and for one more transaction as large as the largest.

        On a full disk, deletions are written here first. Raises OSError if refused.
        """
        found = os.fstatvfs(self._fd)
        # A file system may keep a part of a refused request, so never request too much.
        most = os.fstat(self._fd).st_blocks * 512 + found.f_bavail * found.f_frsize
        for wanted in (end + largest, end):
            if wanted > max(end, most):
                continue
            try:
                os.posix_fallocate(self._fd, 0, wanted)
            except OSError as error:
                if wanted == end or not is_disk_full(error):
                    raise
            else:
                self._reserved = wanted
                return

    def _map(self, map_bytes: int) -> None:
        """Map at least `map_bytes`.

        Raises OSError if the address space lacks room, SyncFailed if LMDB has lost its map.
        """
        map_bytes -= map_bytes % -mmap.PAGESIZE
        # LMDB releases its map before it requests the larger one, so test first that it is
        # available.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        mmap.mmap(-1, map_bytes, flags=flags, prot=mmap.PROT_READ).close()
        with self._mapped:
            try:
                self._environment.set_mapsize(map_bytes)
            except lmdb.Error as error:
                raise SyncFailed(OSError(errno.ENOMEM, str(error))) from error
        self._map_bytes = map_bytes

    def sync(self) -> None:
        try:
            self._environment.sync(True)
        except lmdb.Error as error:
            raise SyncFailed(OSError(errno.EIO, str(error))) from error

    def read_medium(self, length: int, position: int) -> int:
        try:  # with its own descriptor: another thread may close the file meanwhile
            fd = os.open(self._data, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0
        file = RealFile(fd)
        file.uncache(length, position)
        return len(file.pread(length, position))

    def close(self) -> None:
        self._environment.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _good_if_damaged(fd: int, checks: MetaChecks) -> dict[bytes, bytes] | None:
    """Return the good items of a damaged file, None for a whole one.

    Raises CorruptRecord if nothing is readable, and StorageError.
    """
    file_bytes = os.fstat(fd).st_size

    def read(length: int, position: int) -> bytes:
        try:
            return os.pread(fd, length, position)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return b""

    try:
        checks.check_pages(read, file_bytes)
    except CorruptRecord:
        return checks.good_items(read, file_bytes)
    return None


def _pages_added(tree: Mapping[str, Any], sizes: Sequence[int]) -> int:
    """Return the maximum number of pages that a transaction can add to an environment.

    `sizes` are those of the items put. LMDB never writes to a page in use: each page on the way to
    an item is copied once, at most all existing pages. Items larger than a third of a page have
    pages of their own. Each of the others either splits a full leaf, or shares a page with at least
    two more; a split adds an item to the page above, which may split in turn, and the tree may grow
    by a level. Released pages are listed, eight bytes each, in a tree of the same kind.
    """
    page_bytes, depth = int(tree["psize"]), int(tree["depth"])
    leaf_pages, overflow_pages = int(tree["leaf_pages"]), int(tree["overflow_pages"])
    third = page_bytes // 3
    pages = int(tree["branch_pages"]) + leaf_pages
    large = sum(-(-(size + 64) // page_bytes) for size in sizes if size + 64 > third)
    small_bytes = sum(min(size + 64, third) for size in sizes)
    splits = min(len(sizes), leaf_pages) + 3 * small_bytes // page_bytes + 1
    copied = min(pages, len(sizes) * depth)
    given_up = copied + splits + overflow_pages + large
    lists = 8 + 4 * (8 * given_up // page_bytes + 1)
    return copied + large + 2 * splits + depth + 1 + lists


def open_to_read(path: str) -> RealFile:
    """Open a file that is not written."""
    return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def read_around(file: File, length: int, position: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return (result of `pread`, ranges [start, end) that the medium cannot read).

    The latter are zeros without meaning. The unit is a page.
    """
    try:
        return file.pread(length, position), []
    except OSError as error:
        if not is_unreadable(error):
            raise
    parts: list[bytes] = []
    bad: list[tuple[int, int]] = []
    end = min(position + length, file.size())
    while position < end:
        stop = min(position - position % _PAGE_BYTES + _PAGE_BYTES, end)
        try:
            parts.append(file.pread(stop - position, position))
        except OSError as error:
            if not is_unreadable(error):
                raise
            parts.append(bytes(stop - position))
            bad.append((position, stop))
        if len(parts[-1]) < stop - position:  # truncated meanwhile
            break
        position = stop
    return b"".join(parts), bad


def read_whole(file: File, length: int, position: int) -> bytes:
    """Return the result of `pread`; nothing if the medium cannot read all of it."""
    data, bad = read_around(file, length, position)
    return b"" if bad else data


def uncache_steps(file: File, start: int, end: int) -> None:
    """Drop data that was written to [start, end) and synced from the page cache.

    Drops whole units of `UNCACHE_BYTES`. The page in which more will be written soon stays.
    """
    start -= start % UNCACHE_BYTES
    end -= end % UNCACHE_BYTES
    if end > start:
        file.uncache(end - start, start)


def uncache_around(file: File, length: int, position: int) -> None:
    """Make the next read come from the medium, with all pages it touches.

    Data that is not written back yet stays in memory.
    """
    start = position - position % _PAGE_BYTES
    end = position + length
    file.uncache(end - end % -_PAGE_BYTES - start, start)


def write_over(file: File, data: Buffer, position: int) -> bool:
    """Write where the medium may be unreadable. Return True if there was such a page.

    There only a whole page can be written, padded with zeros. The rest of an unreadable page, which
    was lost, becomes zeros, and the file may end with its last page.
    """
    try:
        file.pwrite([data], position)
        return False
    except OSError as error:
        if not is_unreadable(error):
            raise
    view = memoryview(data)
    end = position + len(view)
    start = position - position % _PAGE_BYTES
    _, bad = read_around(file, end - end % -_PAGE_BYTES - start, start)
    bad_pages = {page for page, _ in bad}
    for page in range(start, end, _PAGE_BYTES):
        first, stop = max(page, position), min(page + _PAGE_BYTES, end)
        part: Buffer = view[first - position : stop - position]
        if page in bad_pages:
            part = bytes(first - page) + bytes(part) + bytes(page + _PAGE_BYTES - stop)
            first = page
        file.pwrite([part], first)
    return True


def cut_off(file: File, length: int) -> None:
    """Truncate within a page that the medium may be unable to read, as in `write_over`."""
    try:
        file.truncate(length)
    except OSError as error:
        if not is_unreadable(error):
            raise
        write_over(file, b"\0", length)
        file.truncate(length)


def free_bytes(fs: FileSystem, path: str) -> int:
    """Return the bytes that the disk can still take; 0 if unknown."""
    with suppress(OSError):
        return fs.space(path)[1]
    return 0


def make_durable_directory(fs: FileSystem, path: str) -> None:
    """Create a directory and its missing parents so that a power cut does not undo it.

    A new name is durable only when its parent directory has been synced.
    """
    missing = []
    while path and not fs.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    for name in reversed(missing):
        fs.make_directory(name)
        parent, slash, _ = name.rpartition("/")
        fs.sync_directory(parent or slash or ".")


def sync_names_above(fs: FileSystem, path: str) -> None:
    """Make the existence of `path` durable: its creator may have died before.

    Parents that this user may not open were not created by the store.
    """
    while path:
        parent, slash, _ = path.rpartition("/")
        try:
            fs.sync_directory(parent or slash or ".")
        except PermissionError:
            return
        path = parent


class RealFileSystem:
    """The operating system's files, accessible only to the user that runs the server."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return RealFile(os.open(path, flags, 0o600))

    def exists(self, path: str) -> bool:
        return _stat(path, follow_symlinks=False) is not None

    def is_directory(self, path: str) -> bool:
        found = _stat(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        _sync_directory(path)

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def writes_in_place(self, path: str) -> bool:
        return _type_of_mount(path) in _IN_PLACE

    def lock(self, path: str) -> RealLock:
        lock = RealLock()
        try:
            lock.take(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), path)
            # An operator may remove a lock file as a leftover, and the next one would be another
            # file. The directory stays the same.
            directory = os.open(os.path.dirname(path) or ".", _DIRECTORY)
            try:
                lock.take(directory, path)
            except OSError as error:
                if error.errno not in _NO_DIRECTORY_LOCKS:
                    raise
        except BaseException:
            lock.release()
            raise
        return lock

    def has_meta(self, path: str) -> bool:
        return _stat(f"{path}/data.mdb") is not None

    def open_meta(self, path: str, map_bytes: int, checks: MetaChecks) -> LmdbFile:
        return LmdbFile(path, map_bytes, checks)
