"""Note of the directory's owner about its peers: one small file, opaque here.

Two slots are written alternately, so that a torn write costs only the newer note. They are created
together and overwritten in place from then on: a note needs no disk space. Slot, 4 KiB,
little-endian:

    0  magic   8  "VDLPEER1"
    8  crc     4  CRC32C over bytes [12, 24 + length)
    12 length  4
    16 number  8  of two good slots the one with the larger number counts
    24 the note

A missing file, or one without a good slot, means that nothing is known of peers.

Does not depend on the contents of the note.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

from crc32c import crc32c

from segments.api import Workers
from segments.io.fs import FileSystem, is_refused, read_around

NOTE_BYTES_MAX = 4096 - 24
_MAGIC = b"VDLPEER1"
_SLOT_BYTES = 4096
_HEAD = struct.Struct("<8sIIQ")
_CRC_AT = 8
_CRC = struct.Struct("<I")


class PeersNote:
    """Note of one directory, written in the background, one write at a time."""

    __slots__ = ("_directory", "_fail", "_fs", "_is_writing", "_next", "_number", "_workers")

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        workers: Workers,
        fail: Callable[[BaseException], None],
    ) -> None:
        """Begin without a note. `fail` receives errors after which the disk is not trusted."""
        self._fs = fs
        self._directory = directory
        self._workers = workers
        self._fail = fail
        self._number = -1
        """Number of the newest note; -1 before it was read."""
        self._is_writing = False
        self._next: bytes | None = None
        """Use: written when the current write has ended. Only the newest counts."""

    def read(self) -> bytes:
        """Return the newest durable note; empty if there is none. Blocks."""
        self._number, note = read_note(self._fs, self._directory)
        return note

    def write(self, note: bytes) -> None:
        """Write the note in the background. It is dropped if there is no disk space."""
        self._next = note
        if not self._is_writing:
            self._begin()

    def _begin(self) -> None:
        note, self._next = self._next, None
        if note is None:
            return
        self._is_writing = True
        self._workers.essential(partial(self._run, note), self._done)

    def _run(self, note: bytes) -> None:
        if self._number < 0:
            self._number, _ = read_note(self._fs, self._directory)
        write_note(self._fs, self._directory, self._number + 1, note)
        self._number += 1

    def _done(self, result: BaseException | None) -> None:
        self._is_writing = False
        if isinstance(result, BaseException) and not is_refused(result):
            self._fail(result)
            return
        self._begin()


def read_note(fs: FileSystem, directory: str) -> tuple[int, bytes]:
    """Return (number, note) of the newest good slot; (0, b"") if there is none. Blocks."""
    path = _path(directory)
    if not fs.exists(path) or fs.is_directory(path):
        return 0, b""
    file = fs.open(path)
    try:
        data, _ = read_around(file, min(file.size(), 2 * _SLOT_BYTES), 0)
    finally:
        file.close()
    return max(_decode(data[:_SLOT_BYTES]), _decode(data[_SLOT_BYTES:]))


def write_note(fs: FileSystem, directory: str, number: int, note: bytes) -> None:
    """Write a note durably over the older slot. Blocks. Raises OSError."""
    assert number > 0, number
    assert len(note) <= NOTE_BYTES_MAX, len(note)
    path = _path(directory)
    is_new = not fs.exists(path)
    file = fs.open(path, create=is_new)
    try:
        if is_new or file.size() < 2 * _SLOT_BYTES:
            file.pwrite([bytes(2 * _SLOT_BYTES)], 0)
        file.pwrite([_encode(number, note)], number % 2 * _SLOT_BYTES)
        file.sync()
    finally:
        file.close()
    if is_new:
        fs.sync_directory(directory)


def _encode(number: int, note: bytes) -> bytes:
    data = bytearray(_HEAD.pack(_MAGIC, 0, len(note), number) + note)
    _CRC.pack_into(data, _CRC_AT, crc32c(memoryview(data)[12:]))
    return bytes(data) + bytes(_SLOT_BYTES - len(data))


def _decode(data: bytes | bytearray | memoryview) -> tuple[int, bytes]:
    if len(data) < _HEAD.size:
        return 0, b""
    magic, crc, length, number = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if magic != _MAGIC or end > len(data) or crc32c(memoryview(data)[12:end]) != crc:
        return 0, b""
    return number, bytes(data[_HEAD.size : end])


def _path(directory: str) -> str:
    return f"{directory}/peers"
