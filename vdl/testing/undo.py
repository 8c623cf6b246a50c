"""Changes of one server's disk that no sync has covered, and how a power cut takes them back.

The server's file system (`vdl/testing/disk.py`) appends a record here before each change and after
each sync. The log outlives the killed process. `take_back` then reads it and restores what the
disk would hold: bytes and lengths as of the last sync of the file, names as of the last sync of
their directory.

Everything unsynced is lost, which is one legal outcome of a real power cut and the strictest one.
A durable write that had not returned may stay, in whole or in part. The key-value file syncs each
of its transactions by itself; one that was in progress stays as far as it got.

A record is a header, and after it either the old bytes of a file or, for names, JSON.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_HEAD = Struct("<BQQQQQI")


class Kind(IntEnum):
    """Kinds of records."""

    CHANGE = 1
    """Bytes [start, end) of a file are about to change. Follows: those of them that it has."""
    DURABLE = 2
    """Bytes [start, end) of a file, written durably, are on disk."""
    SYNCED = 3
    """Changes of a file with numbers below `start` are on disk."""
    MADE = 4
    """A name is about to be made: {"path"}."""
    RENAMED = 5
    """A name is about to change: {"path", "new", "saved"}; `saved` has the replaced file."""
    REMOVED = 6
    """A name is about to be moved to the trash: {"path", "saved"}."""
    DIRECTORY_SYNCED = 7
    """Changes of names in a directory with numbers below `start` are on disk: {"path"}."""


class Undo(NamedTuple):
    """One record. `number` orders the records of a log, also across its truncations."""

    kind: Kind
    number: int
    file: int = 0
    """Inode number."""
    start: int = 0
    end: int = 0
    old_size: int = 0
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the record as it stands in the log."""
        head = (self.kind, self.number, self.file, self.start, self.end, self.old_size)
        return _HEAD.pack(*head, len(self.payload)) + self.payload

    @property
    def names(self) -> dict[str, str]:
        """The paths of a record about names."""
        found: dict[str, str] = json.loads(self.payload)
        return found


def decode(data: bytes) -> Iterator[Undo]:
    """Yield the records of a log. The last one is ignored if the process died within it: what it
    announces had not begun."""
    position = 0
    while position + _HEAD.size <= len(data):
        kind, number, file, start, end, old_size, length = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        if position + length > len(data):
            return
        payload = data[position : position + length]
        yield Undo(Kind(kind), number, file, start, end, old_size, payload)
        position += length


@dataclass(slots=True)
class _File:
    """Durable state of a file, as far as the records read so far, newest first, give it away."""

    kept: list[tuple[int, int]] = field(default_factory=list)
    """Ranges written durably after the changes that are taken back."""
    synced_below: int = 0
    restored: list[tuple[int, bytes]] = field(default_factory=list)
    """(position, old bytes), newest change first."""
    size: int | None = None

    def change(self, record: Undo) -> None:
        if record.number < self.synced_below:
            return
        # Durable bytes stay, and with them the length that they need.
        self.size = max(record.old_size, max((end for _, end in self.kept), default=0))
        self.restored += outside(record.start, record.payload, self.kept)
        hole = max(record.start, record.old_size)
        if hole < min(record.end, self.size):
            # Bytes behind the old end, before a durable write: they had never been written.
            self.restored += outside(hole, bytes(min(record.end, self.size) - hole), self.kept)


def outside(start: int, data: bytes, kept: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    """Return the parts (position, bytes) of `data` at `start` that lie in none of the ranges."""
    parts = [(start, data)] if data else []
    for first, end in kept:
        left: list[tuple[int, bytes]] = []
        for position, part in parts:
            stop = position + len(part)
            if end <= position or stop <= first:
                left.append((position, part))
                continue
            if position < first:
                left.append((position, part[: first - position]))
            if end < stop:
                left.append((end, part[end - position :]))
        parts = left
    return parts


def take_back(log: Path, data: Path) -> int:
    """Restore the data directory to what is on its disk after a power cut; return the number of
    changes that were lost. No process may be using it. The log is empty afterwards."""
    if not log.exists():
        return 0
    records = list(decode(log.read_bytes()))
    lost = _take_back_names([record for record in records if record.kind >= Kind.MADE])
    files: dict[int, _File] = defaultdict(_File)
    for record in reversed(records):
        file = files[record.file]
        if record.kind is Kind.SYNCED:
            file.synced_below = max(file.synced_below, record.start)
        elif record.kind is Kind.DURABLE and record.number >= file.synced_below:
            file.kept.append((record.start, record.end))
        elif record.kind is Kind.CHANGE:
            lost += record.number >= file.synced_below
            file.change(record)
    for path in sorted(data.rglob("*")):
        inode = path.lstat().st_ino
        if inode in files and path.is_file():
            _restore(path, files[inode])
    log.write_bytes(b"")
    return lost


def _restore(path: Path, file: _File) -> None:
    if file.size is None:
        return
    with path.open("r+b") as opened:
        opened.truncate(file.size)
        for position, old in file.restored:
            opened.seek(position)
            opened.write(old[: max(0, file.size - position)])


def _take_back_names(records: list[Undo]) -> int:
    synced: dict[str, int] = {}
    lost = 0
    for record in reversed(records):
        names = record.names
        if record.kind is Kind.DIRECTORY_SYNCED:
            synced.setdefault(names["path"], record.start)
            continue
        paths = [names["path"], *([names["new"]] if "new" in names else [])]
        if any(record.number < synced.get(str(Path(path).parent), 0) for path in paths):
            continue
        lost += 1
        _take_back_name(record.kind, names)
    return lost


def _take_back_name(kind: Kind, names: dict[str, str]) -> None:
    path = Path(names["path"])
    if kind is Kind.MADE:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return
    saved = names.get("saved", "")
    if kind is Kind.RENAMED:
        new = Path(names["new"])
        if path.exists() or not new.exists():
            return  # the process died before it happened
        new.rename(path)
        if saved and Path(saved).exists():
            Path(saved).rename(new)
    elif Path(saved).exists() and not path.exists():
        Path(saved).rename(path)
