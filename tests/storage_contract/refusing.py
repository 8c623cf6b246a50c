"""File system that refuses calls: the n-th one, or all matching ones from there on until `calm`.

A call is identified by its place: the function called, and the lines of the engine that led to it.
A run can be recorded once and repeated for each of its places.
"""

import errno
import sys
from pathlib import Path

from segments.io.fs import SyncFailed
from vdl.sim.filesystem import SimFile, SimFileSystem, SimMeta

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
NO_MEMORY = (errno.ENOMEM,)
NO_ROOM = (errno.ENOSPC,)

CODES = {
    # Error codes that the system may return for each call when the disk itself is sound.
    "open": (*NO_DESCRIPTOR, *NO_MEMORY),
    "create": (*NO_DESCRIPTOR, *NO_MEMORY, *NO_ROOM),
    "exists": NO_MEMORY,
    "is_directory": NO_MEMORY,
    "list": (*NO_DESCRIPTOR, *NO_MEMORY),
    "make_directory": (*NO_MEMORY, *NO_ROOM),
    "rename": (*NO_MEMORY, *NO_ROOM),
    "unlink": (*NO_MEMORY, *NO_ROOM),
    "remove_tree": (*NO_DESCRIPTOR, *NO_MEMORY, *NO_ROOM),
    "sync_directory": (*NO_DESCRIPTOR, *NO_MEMORY),
    "space": NO_MEMORY,
    "has_meta": NO_MEMORY,
    "open_meta": (*NO_DESCRIPTOR, *NO_MEMORY, *NO_ROOM),
    "lock": (*NO_DESCRIPTOR, *NO_MEMORY),
    "pwrite": (*NO_MEMORY, *NO_ROOM),
    "pread": NO_MEMORY,
    "truncate": (*NO_MEMORY, *NO_ROOM),
    "allocate": (*NO_MEMORY, *NO_ROOM),
    "size": NO_MEMORY,
    "allocated": NO_MEMORY,
    "meta.get": NO_MEMORY,
    "meta.scan": NO_MEMORY,
    "meta.beginnings": NO_MEMORY,
    "meta.commit": (*NO_MEMORY, *NO_ROOM),
}
FAILS = (*CODES, "sync", "write_back", "begin_write_back", "durable pwrite", "meta.sync")
"""Calls that may fail for good.

Those that are not in `CODES` fail in this way only: a failed sync is never retried, whatever the
error.
"""
SYNCS = ("sync", "write_back", "begin_write_back", "durable pwrite", "meta.sync")
_HERE = str(Path(__file__).parent)
_ENGINE = "/segments/"


class Faults:
    """Counts calls and refuses some of them."""

    def __init__(self):
        self.count = 0
        self.places = {}
        """(call, lines of the engine) -> (number of the first such call, True if in a start)."""
        self.is_start = False
        self._at = 0
        self._code = 0
        self._lasts = False
        self.refused = 0

    def arm(self, at, code, *, lasts):
        """Refuse call number `at`.

        With `lasts`, also refuse every later call of the same kind until `calm`.
        """
        self._at, self._code, self._lasts = at, code, lasts

    def calm(self):
        self._at = 0

    def calm_once_refused(self):
        if self.refused:
            self.calm()

    def passed(self, name):
        """Count a call that is about to be made. Raises OSError if it is to be refused."""
        self.count += 1
        if not self._at:
            if not self.refused:
                self.places.setdefault((name, _lines()), (self.count, self.is_start))
            return
        is_due = self.count == self._at
        if self._lasts and self.count > self._at:
            is_due = self._code in CODES.get(name, ())
        if not is_due:
            return
        self.refused += 1
        error = OSError(self._code, "refused by the test")
        raise SyncFailed(error) if name in SYNCS else error


def _lines():
    frame, lines = sys._getframe(2), []
    while frame is not None:
        path = frame.f_code.co_filename
        if _ENGINE in path and _HERE not in path:
            lines.append((path.rpartition(_ENGINE)[2], frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


class RefusingFile(SimFile):
    __slots__ = ("_faults",)

    def __init__(self, disk, inode, faults):
        super().__init__(disk, inode)
        self._faults = faults

    def pwrite(self, buffers, position, *, durable=False):
        self._faults.passed("durable pwrite" if durable else "pwrite")
        return super().pwrite(buffers, position, durable=durable)

    def write_back(self, length, position):
        self._faults.passed("write_back")

    def begin_write_back(self, length, position):
        self._faults.passed("begin_write_back")

    def allocate(self, length, *, start=0):
        self._faults.passed("allocate")
        super().allocate(length, start=start)


class RefusingMeta(SimMeta):
    __slots__ = ("_faults",)

    def __init__(self, disk, store, faults):
        super().__init__(disk, store)
        self._faults = faults

    def get(self, key):
        self._faults.passed("meta.get")
        return super().get(key)

    def get_all(self, keys):
        self._faults.passed("meta.get")
        return super().get_all(keys)


class RefusingFileSystem(SimFileSystem):
    __slots__ = ("faults",)

    def __init__(self, disk, faults):
        super().__init__(disk)
        self.faults = faults

    def open(self, path, *, create=False):
        self.faults.passed("create" if create else "open")
        return RefusingFile(self.disk, super().open(path, create=create)._inode, self.faults)

    def open_meta(self, path, map_bytes, checks=None):
        self.faults.passed("open_meta")
        made = super().open_meta(path, map_bytes, checks)
        return RefusingMeta(self.disk, made._store, self.faults)


def _watch(cls, base, name, called):
    real = getattr(base, name)

    def call(self, *arguments):
        faults = self.faults if cls is RefusingFileSystem else self._faults
        faults.passed(called)
        return real(self, *arguments)

    setattr(cls, name, call)


for _name in (
    "exists", "is_directory", "list", "make_directory", "rename", "unlink", "remove_tree",
    "sync_directory", "space", "has_meta", "lock",
):  # fmt: skip
    _watch(RefusingFileSystem, SimFileSystem, _name, _name)
for _name in ("pread", "sync", "truncate", "size", "allocated"):
    _watch(RefusingFile, SimFile, _name, _name)
for _name in ("scan", "beginnings", "commit", "sync"):
    _watch(RefusingMeta, SimMeta, _name, f"meta.{_name}")
