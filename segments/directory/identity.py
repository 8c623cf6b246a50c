"""The identity file: the directory's id and server, its logs, and its last starts.

Small, and rewritten as a whole: write, sync, rename, sync the directory. The file is two equal
halves, each padded to whole pages, so that no flipped bit and no unreadable page affects both; one
half alone, without padding, is the old form. Layout of a half, little-endian:

    0  magic        8  "VDLIDNT3"
    8  crc          4  CRC32C over bytes [12, length)
    12 length       4  of the half without padding
    16 directory   16  random
    32 next log id  4
    36 logs         4
    40 record       4  length of the cluster record
    44 flags        4  bit 0: begun: the first start has not made the rest of the directory yet;
                       bit 1: the journal may refer to frames in segments (PLACED)
    48 cluster record, then 40 bytes a log: log id 4, group 4, replica number 4, flags 4 (bit 0:
       lost), first index 8, next offset 8, term before the first index 4, zero 4
    -  server       4  server that owns the directory, 0 while that is not known
    -  boots        4  then 24 bytes each, oldest first: number 8, id 8, end LSN 8 (`boots.py`)
    -  former       4  then 16 bytes each: ids that the directory had before it was retired

The earlier forms, "VDLIDNT1" and "VDLIDNT2", end after the logs; the second implies bit 1 of the
flags. They can still be read. A version that knows only those refuses a directory of the newest
form: it would drop the data by which a copy is distinguished from the original.

The journal's records of a log id that is not listed here are ignored: a deleted log stays deleted.

Does not depend on the contents of the cluster record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from ids import (
    NO_SERVER,
    DirectoryId,
    GroupId,
    Index,
    LogId,
    Offset,
    ReplicaNumber,
    ServerId,
    Term,
)
from segments.api import CorruptRecord
from segments.boots import BOOTS_MAX, Boot
from segments.io import failpoint
from segments.io.fs import FileSystem, read_around

MAGIC = b"VDLIDNT3"
_MAGIC_1 = b"VDLIDNT1"
_MAGIC_PLACES = b"VDLIDNT2"
HEADER = struct.Struct("<8sII16sIIII")
LOG = struct.Struct("<IIIIQQII")
STARTS = struct.Struct("<II")
BOOT = struct.Struct("<QQQ")
FORMER = struct.Struct("<I")
ID_BYTES = 16
_LOST = 1
_BEGUN = 1
_PLACES = 2
_PAGE_BYTES = 4096
_CRC = struct.Struct("<I")


@dataclass(slots=True)
class LogIdentity:
    """One log as it was created; `lost` is set once recovery found that it lost data."""

    log_id: LogId
    group_id: GroupId
    replica_number: ReplicaNumber
    first_index: Index
    next_offset: Offset
    prev_term: Term
    lost: bool = False


@dataclass(slots=True)
class Identity:
    """Contents of the identity file."""

    directory_id: DirectoryId
    cluster_record: bytes = b""
    next_log_id: int = 1
    logs: dict[LogId, LogIdentity] = field(default_factory=dict)
    is_whole: bool = True
    """True once the rest of the directory was created; anything missing then has been lost."""
    has_places: bool = False
    """True if the journal may refer to entries in segments. Never False again."""
    server_id: ServerId = NO_SERVER
    """Server that owns the directory; `NO_SERVER` in an older form, and before it is known."""
    boots: list[Boot] = field(default_factory=list)
    """Last starts, oldest first, including the present one if the disk had space to note it."""
    former_ids: list[DirectoryId] = field(default_factory=list)
    """Ids that the directory had before its data was retired. Its journal may have files of that
    time."""
    is_half_damaged: bool = False
    """True if only one half of the file was good when it was read."""


def encode(identity: Identity) -> bytes:
    """Return the file's bytes."""
    logs = [identity.logs[log_id] for log_id in sorted(identity.logs)]
    body = [identity.cluster_record]
    body += [
        LOG.pack(
            log.log_id, log.group_id, log.replica_number, _LOST if log.lost else 0,
            log.first_index, log.next_offset, log.prev_term, 0,
        )
        for log in logs
    ]  # fmt: skip
    body.append(STARTS.pack(identity.server_id, len(identity.boots)))
    body += [BOOT.pack(boot.number, boot.boot_id, boot.end_lsn) for boot in identity.boots]
    body += [FORMER.pack(len(identity.former_ids)), *identity.former_ids]
    length = HEADER.size + sum(map(len, body))
    flags = (0 if identity.is_whole else _BEGUN) | (_PLACES if identity.has_places else 0)
    head = HEADER.pack(
        MAGIC, 0, length, identity.directory_id,
        identity.next_log_id, len(logs), len(identity.cluster_record), flags,
    )  # fmt: skip
    data = bytearray(b"".join([head, *body]))
    _CRC.pack_into(data, 8, crc32c(memoryview(data)[12:]))
    half = bytes(data) + bytes(-length % _PAGE_BYTES)
    return half + half


def decode(data: bytes) -> Identity:
    """Decode either half. Raises CorruptRecord if neither is good."""
    middle = len(data) // 2
    if len(data) % (2 * _PAGE_BYTES) or not data:
        return _decode_half(data)
    first, second = data[:middle], data[middle:]
    try:
        identity = _decode_half(first)
    except CorruptRecord:
        try:
            identity = _decode_half(second)
        except CorruptRecord:
            return _decode_half(data)
    identity.is_half_damaged = first != second
    return identity


def _decode_half(data: bytes) -> Identity:
    """Decode one half. Raises CorruptRecord."""
    if len(data) < HEADER.size or data[:8] not in (MAGIC, _MAGIC_1, _MAGIC_PLACES):
        raise CorruptRecord("identity", 0, expected=HEADER.size, actual=len(data))
    magic, crc, length, directory_id, next_log_id, count, record_bytes, flags = HEADER.unpack_from(
        data
    )
    end = HEADER.size + record_bytes + count * LOG.size
    server_id, boots, former = NO_SERVER, 0, 0
    expected = former_at = end
    if magic == MAGIC and end + STARTS.size <= len(data):
        server_id, boots = STARTS.unpack_from(data, end)
        former_at = end + STARTS.size + boots * BOOT.size
        if former_at + FORMER.size <= len(data):
            (former,) = FORMER.unpack_from(data, former_at)
        former_at += FORMER.size
        expected = former_at + former * ID_BYTES
    if length > len(data) or length != expected or boots > BOOTS_MAX:
        raise CorruptRecord("identity length", 0, expected=length, actual=len(data))
    actual = crc32c(memoryview(data)[12:length])
    if actual != crc:
        raise CorruptRecord("identity checksum", 0, expected=crc, actual=actual)
    at = HEADER.size + record_bytes
    identity = Identity(
        directory_id, data[HEADER.size : at], next_log_id, is_whole=not flags & _BEGUN,
        has_places=magic == _MAGIC_PLACES or bool(flags & _PLACES), server_id=server_id,
        boots=[Boot(*BOOT.unpack_from(data, end + STARTS.size + n * BOOT.size))
               for n in range(boots)],
        former_ids=[
            DirectoryId(bytes(data[former_at + n * ID_BYTES :][:ID_BYTES])) for n in range(former)
        ],
    )  # fmt: skip
    for n in range(count):
        log_id, group, number, marks, first_index, next_offset, prev_term, _ = LOG.unpack_from(
            data, at + n * LOG.size
        )
        identity.logs[log_id] = LogIdentity(
            log_id, group, number, first_index, next_offset, prev_term, bool(marks & _LOST)
        )
    return identity


def read_identity(fs: FileSystem, directory: str) -> Identity | None:
    """Return the directory's identity, or None if it has none. Raises CorruptRecord."""
    path = f"{directory}/identity"
    if not fs.exists(path):
        return None
    file = fs.open(path)
    try:
        return decode(read_around(file, file.size(), 0)[0])
    finally:
        file.close()


def fresh_path(directory: str) -> str:
    """Return the path at which the next identity file is written."""
    return f"{directory}/identity.new"


def write_identity(fs: FileSystem, directory: str, data: bytes, *, is_made: bool = False) -> None:
    """Replace the file durably.

    Blocks. `is_made`: a file of at least this length exists at `fresh_path` and is overwritten.
    """
    failpoint.hit("identity.before_write")
    fresh = fresh_path(directory)
    if not is_made and fs.exists(fresh):
        fs.unlink(fresh)
    file = fs.open(fresh, create=not is_made)
    try:
        file.pwrite([data], 0)
        if is_made:
            file.truncate(len(data))
        file.sync()
    finally:
        file.close()
    failpoint.hit("identity.written")
    fs.rename(fresh, f"{directory}/identity")
    failpoint.hit("identity.renamed")
    fs.sync_directory(directory)
    failpoint.hit("identity.durable")


def overwrite_identity(fs: FileSystem, directory: str, data: bytes) -> bool:
    """Overwrite the file durably in place, half by half, so that one half is good at any moment.

    For a full disk, which has no space for another file. Blocks. Return False, without a change, if
    the file has another length.
    """
    middle = len(data) // 2
    file = fs.open(f"{directory}/identity")
    try:
        if file.size() != len(data):
            return False
        halves = [0, middle]
        if not _is_good(bytes(read_around(file, len(data), 0)[0])[middle:]):
            halves.reverse()  # the bad half first, while the other one is good
        for start in halves:
            file.pwrite([data[start : start + middle]], start)
            file.sync()
    finally:
        file.close()
    return True


def _is_good(half: bytes) -> bool:
    try:
        _decode_half(half)
    except CorruptRecord:
        return False
    return True
