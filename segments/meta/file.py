"""Meta: the applied state of the state machines, as of the last checkpoint.

Keys and values in a `MetaFile` (log ids big-endian, so that order is key order; the rest little):

    0 4, "v"               version of all this, 1: 4, CRC32C 4
    log id 4, "a"          applied index 8, number of items 8, digest 8, CRC32C 4
    log id 4, "r"          the reset whose state is in here: first index 8, number 8, CRC32C 4
    log id 4, "k", key     CRC32C 4 over the rest, length of the key 2, the key again, the value

A bit flip in a B-tree page can return another key's value, or hide a key. Therefore a value
contains its key, and the log's record has the number of its items and the sum of their CRCs. A flip
in the page that names the tree's root can show an older tree, or another consistent one. Therefore
the last contents of each log's record are remembered and must be found again. Inconsistent state is
refused as a whole: the state then comes from a snapshot or from the log, never from a default.

All methods block and run in the pool, one job at a time, except `load` at start.

Does not depend on the meaning of keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from crc32c import crc32c

from ids import NO_INDEX, Index, LogId
from segments.api import CorruptRecord, MetaBatch, ReadRefused, StorageError
from segments.format import meta_pages
from segments.io import failpoint
from segments.io.fs import (
    FileSystem,
    MetaFile,
    MetaUsage,
    is_passing,
    is_unreadable,
    unless_refused,
)

FORGOTTEN_KEYS = 256
"""Number of deletions after which a transaction is written."""
_APPLIED = struct.Struct("<QQQI")
_ITEM = struct.Struct("<IH")
_LOG = struct.Struct(">I")
_MASK = (1 << 64) - 1
_VERSION_KEY = bytes(4) + b"v"
_VERSION = struct.pack("<II", 1, crc32c(struct.pack("<I", 1)))


class Reset(Protocol):
    """Identification of one reset of a log."""

    @property
    def first_index(self) -> Index: ...
    @property
    def number(self) -> int: ...


_NOTHING: Mapping[LogId, Reset] = MappingProxyType({})


class Meta:
    """Checkpointed state of all logs."""

    __slots__ = (
        "_file", "_fs", "_is_suspect", "_known", "_map_bytes", "_outdated", "_path", "salvaged",
    )  # fmt: skip

    def __init__(self, fs: FileSystem, path: str, map_bytes: int) -> None:
        """Open the file at `path`, or create one; a file that cannot be opened is put aside."""
        self._fs = fs
        self._path = path
        self._map_bytes = map_bytes
        self._outdated: set[LogId] = set()
        self._known: dict[LogId, tuple[Index, int, int]] = {}
        """(applied, count, digest) by log, as last read at start or committed."""
        self._is_suspect = False
        """True if a part of the file cannot be read: the next commit begins a new file."""
        self.salvaged = 0
        fresh = f"{path}.new"
        if fs.exists(fresh) and fs.exists(path):
            fs.remove_tree(fresh)  # left by a salvage that a crash cut short
        elif fs.exists(fresh):
            fs.rename(fresh, path)
        try:
            self._file = self._open(path)
        except CorruptRecord:
            # One of the two names exists at any time: a start that finds neither must not continue.
            made = self._open(fresh)
            made.sync()
            made.close()
            self._put_aside()
            fs.rename(fresh, path)
            fs.sync_directory(path.rpartition("/")[0])
            self._file = self._open(path)
        # The data read may be in the page cache only, if the process before died while writing it.
        # The journal will treat it as durable.
        self._file.sync()
        self._check_version()

    def _open(self, path: str) -> MetaFile:
        """Open a file. Raises CorruptRecord."""
        return self._fs.open_meta(path, self._map_bytes, meta_pages)

    def _check_version(self) -> None:
        """Check the format version. Raises StorageError for data of a later version."""
        try:
            found = self._file.get(_VERSION_KEY) or _VERSION
        except CorruptRecord:
            return  # `check` will find it
        is_whole = found[4:] == struct.pack("<I", crc32c(found[:4]))
        if found != _VERSION and is_whole:
            raise StorageError(f"meta has version {int.from_bytes(found[:4], 'little')}, not 1")

    def check(self, log_ids: Iterable[LogId]) -> None:
        """Read everything once.

        If anything is damaged, or a page that no key uses, move the good state to a new file.
        Blocks.
        """
        for log_id in log_ids:
            try:
                self._load(log_id)
                self._known[log_id] = self._read_applied(log_id)
            except CorruptRecord:
                self._outdated.add(log_id)
        if self._outdated or self._file.is_damaged:
            self._salvage()

    def expect(self, log_id: LogId, applied: Index) -> None:
        """Check that a checkpoint up to `applied`, which the journal records, is here.

        If not, a page was lost: the log's state cannot be loaded until all of it is written again.
        """
        if applied > self.applied(log_id):
            self._outdated.add(log_id)

    @property
    def outdated(self) -> frozenset[LogId]:
        """Logs of which nothing is stored until all of it is written again."""
        return frozenset(self._outdated)

    def suspect(self) -> None:
        """Begin a new file at the next commit, regardless of what it writes."""
        self._is_suspect = True

    def read_medium(self, length: int, position: int) -> int:
        """Read a part of the file from the medium and discard it; return the number of bytes.

        It is less than `length` at the end. Raises OSError: EIO if the medium cannot read it.
        """
        return self._file.read_medium(length, position)

    @property
    def usage(self) -> MetaUsage:
        return self._file.usage

    def applied(self, log_id: LogId) -> Index:
        """Return the applied index of the last checkpoint; 0 if there is none or it is damaged."""
        try:
            return self._read_applied(log_id)[0]
        except CorruptRecord:
            return NO_INDEX

    def load(self, log_id: LogId) -> tuple[Index, list[tuple[bytes, bytes]]]:
        """Return (applied index, items in key order). Raises CorruptRecord or ReadRefused."""
        try:
            return self._load(log_id)
        except OSError as error:
            if is_passing(error):
                raise ReadRefused(str(error)) from error
            if is_unreadable(error):
                raise CorruptRecord("meta of log", log_id) from error
            raise

    def _load(self, log_id: LogId) -> tuple[Index, list[tuple[bytes, bytes]]]:
        """Load a log's state. Raises CorruptRecord or OSError."""
        if log_id in self._outdated:
            raise CorruptRecord("meta of log is missing", log_id)
        applied, count, digest = self._read_applied(log_id)
        prefix = _LOG.pack(log_id) + b"k"
        items: list[tuple[bytes, bytes]] = []
        found = 0
        for stored_key, stored in self._file.scan(prefix):
            key = stored_key[len(prefix) :]
            items.append((key, _open_item(key, stored)))
            found += _weight(stored)
        if len(items) != count or found & _MASK != digest:
            raise CorruptRecord("meta of log", log_id, expected=count, actual=len(items))
        return applied, items

    def covers(self, log_id: LogId, reset: Reset) -> bool:
        """Return True if the stored state was made from that of `reset`, or later."""
        try:
            stored = self._file.get(_LOG.pack(log_id) + b"r")
        except CorruptRecord:
            return False
        return stored == _seal_reset(log_id, reset)

    def commit(
        self, batches: Sequence[MetaBatch], covered: Mapping[LogId, Reset] = _NOTHING
    ) -> None:
        """Write batches, and by log id the resets they cover, in one durable transaction."""
        if self._is_suspect:
            self._is_suspect = False  # before the salvage: the new file may be damaged as well
            try:
                self._salvage()
            except OSError:
                self._is_suspect = True
                raise
        if not batches:
            return
        try:
            self._commit(batches, covered)
        except CorruptRecord:
            # A damaged page that was not read before, of LMDB's own lists, or damaged since.
            self._salvage()
            self._commit(batches, covered)

    def _commit(self, batches: Sequence[MetaBatch], covered: Mapping[LogId, Reset]) -> None:
        puts: list[tuple[bytes, bytes | None]] = []
        known: dict[LogId, tuple[Index, int, int]] = {}
        wanted = [b for b in batches if b.clear or b.log_id not in self._outdated]
        stored = self._read(wanted)
        for batch in wanted:
            known[batch.log_id] = self._add(batch, stored, puts)
        for log_id, reset in covered.items():
            puts.append((_LOG.pack(log_id) + b"r", _seal_reset(log_id, reset)))
        puts.append((_VERSION_KEY, _VERSION))
        failpoint.hit("meta.before_commit")
        self._file.commit(puts)
        self._known |= known
        self._outdated -= {batch.log_id for batch in batches if batch.clear}
        failpoint.hit("meta.committed")

    def _salvage(self) -> None:
        """Begin a new file with the logs whose state is good; other state must be written anew."""
        kept: list[tuple[bytes, bytes | None]] = []
        try:
            # This checks all pages: reading a damaged one may end the process.
            self._file.close()
            self._file = self._open(self._path)
        except CorruptRecord:
            self._outdated |= self._known.keys()
            self._known.clear()
        else:
            for log_id in sorted({*self._log_ids(), *self._known}):
                stored = self._salvageable(log_id)
                if stored:
                    kept += stored
                else:
                    self._outdated.add(log_id)
        fresh = f"{self._path}.new"
        if self._fs.exists(fresh):
            self._fs.remove_tree(fresh)
        file = self._open(fresh)
        try:
            file.commit(kept)
        except OSError:
            file.close()
            with unless_refused():
                self._fs.remove_tree(fresh)  # frees what a full disk had given
            raise
        file.close()
        self._file.close()
        self._put_aside()
        self._fs.rename(fresh, self._path)
        self._fs.sync_directory(self._path.rpartition("/")[0])
        self._file = self._open(self._path)
        self.salvaged += 1

    def _log_ids(self) -> list[LogId]:
        """Return the logs with stored data, as far as it can be read."""
        try:
            keys = [key for key, _ in self._file.scan(b"") if len(key) >= _LOG.size]
            return sorted({_LOG.unpack_from(key)[0] for key in keys})
        except CorruptRecord:
            return []

    def _salvageable(self, log_id: LogId) -> list[tuple[bytes, bytes]]:
        try:
            self._load(log_id)
            self._recall(log_id, self._read_applied(log_id))
            return self._file.scan(_LOG.pack(log_id))
        except CorruptRecord:
            self._known.pop(log_id, None)
            return []

    def _put_aside(self) -> None:
        aside = f"{self._path}.damaged"
        if self._fs.exists(aside):
            self._fs.remove_tree(aside)
        self._fs.rename(self._path, aside)

    def stored(self) -> list[LogId]:
        """Return the logs with stored data, ascending. Raises CorruptRecord."""
        found = [begin for begin in self._file.beginnings(_LOG.size) if len(begin) == _LOG.size]
        return [LogId(log_id) for begin in found for log_id in _LOG.unpack(begin) if log_id]

    def forget(self, log_ids: Sequence[LogId]) -> None:
        """Delete all data of these logs: many logs in one transaction, none split over two."""
        gone: list[tuple[bytes, bytes | None]] = []
        for log_id in log_ids:
            self._known.pop(log_id, None)
            gone += [(key, None) for key, _ in self._file.scan(_LOG.pack(log_id))]
            if gone and (len(gone) >= FORGOTTEN_KEYS or log_id == log_ids[-1]):
                try:
                    self._file.commit(gone)
                except CorruptRecord:  # as in `commit`
                    self._salvage()
                    self._file.commit(gone)
                gone = []

    def close(self) -> None:
        self._file.close()

    def _recall(self, log_id: LogId, found: tuple[Index, int, int]) -> None:
        """Check that the log's record is the remembered one. Raises CorruptRecord."""
        known = self._known.get(log_id, found)
        if found != known:
            raise CorruptRecord("meta has gone back", log_id, expected=known[0], actual=found[0])

    def _read(self, batches: Sequence[MetaBatch]) -> dict[bytes, bytes | None]:
        """Return the stored values of all keys that the batches change.

        Excludes batches that clear. Reads all at once: a transaction per log would cost three times
        as much.
        """
        keys: list[bytes] = []
        for batch in batches:
            if not batch.clear:
                keys.append(_applied_key(batch.log_id))
                prefix = _LOG.pack(batch.log_id) + b"k"
                keys += [prefix + key for key, _ in batch.items]
        return dict(zip(keys, self._file.get_all(keys), strict=True))

    def _add(
        self,
        batch: MetaBatch,
        stored: Mapping[bytes, bytes | None],
        puts: list[tuple[bytes, bytes | None]],
    ) -> tuple[Index, int, int]:
        """Add the changes of a batch to `puts`; return the log's new record.

        Raises CorruptRecord.
        """
        log_key = _LOG.pack(batch.log_id)
        prefix = log_key + b"k"
        current: dict[bytes, bytes | None] = {}
        if batch.clear:
            count = digest = 0
            for stored_key, _ in self._file.scan(prefix):
                current[stored_key] = None
                puts.append((stored_key, None))
        else:
            found = _open_applied(batch.log_id, stored[log_key + b"a"])
            self._recall(batch.log_id, found)
            _, count, digest = found
        for key, value in batch.items:
            stored_key = prefix + key
            old = current[stored_key] if stored_key in current else stored.get(stored_key)
            if old is not None:
                count -= 1
                digest -= _weight(old)
            sealed = None if value is None else _seal_item(key, value)
            if sealed is not None:
                count += 1
                digest += _weight(sealed)
            current[stored_key] = sealed
            puts.append((stored_key, sealed))
        packed = struct.pack("<QQQ", batch.applied, count, digest & _MASK)
        puts.append((log_key + b"a", packed + struct.pack("<I", crc32c(packed, batch.log_id))))
        return batch.applied, count, digest & _MASK

    def _read_applied(self, log_id: LogId) -> tuple[Index, int, int]:
        return _open_applied(log_id, self._file.get(_applied_key(log_id)))


def _applied_key(log_id: LogId) -> bytes:
    return _LOG.pack(log_id) + b"a"


def _open_applied(log_id: LogId, stored: bytes | None) -> tuple[Index, int, int]:
    """Return (applied index, number of items, digest). Raises CorruptRecord."""
    if stored is None:
        return NO_INDEX, 0, 0
    if len(stored) != _APPLIED.size:
        raise CorruptRecord("applied", log_id, expected=_APPLIED.size, actual=len(stored))
    applied, count, digest, crc = _APPLIED.unpack(stored)
    actual = crc32c(stored[:24], log_id)
    if actual != crc:
        raise CorruptRecord("applied", log_id, expected=crc, actual=actual)
    return applied, count, digest


def _seal_reset(log_id: LogId, reset: Reset) -> bytes:
    packed = struct.pack("<QQ", reset.first_index, reset.number)
    return packed + struct.pack("<I", crc32c(packed, log_id))


def _seal_item(key: bytes, value: bytes) -> bytes:
    rest = struct.pack("<H", len(key)) + key + value
    return struct.pack("<I", crc32c(rest)) + rest


def _open_item(key: bytes, stored: bytes) -> bytes:
    """Return the value in `stored`. Raises CorruptRecord."""
    if len(stored) < _ITEM.size:
        raise CorruptRecord("meta value", 0, expected=_ITEM.size, actual=len(stored))
    crc, length = _ITEM.unpack_from(stored)
    actual = crc32c(stored[4:])
    end = _ITEM.size + length
    if actual != crc or stored[_ITEM.size : end] != key:
        raise CorruptRecord("meta value", 0, expected=crc, actual=actual)
    return stored[end:]


def _weight(stored: bytes) -> int:
    """Return an item's contribution to its log's digest: its CRC, spread over 64 bits."""
    return int.from_bytes(stored[:4], "little") * 0x9E3779B97F4A7C15
