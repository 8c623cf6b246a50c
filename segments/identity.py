"""The identity file: who this directory is, which cluster it belongs to, which logs it holds.

Small, rewritten whole: write, sync, rename, sync the directory. Layout, little-endian:

    0  magic        8  "VDLIDNT1"
    8  crc          4  CRC32C over bytes [12, length)
    12 length       4  of everything
    16 directory   16  random
    32 next log id  4
    36 logs         4
    40 record       4  length of the cluster record
    44 zero         4
    48 cluster record, then 40 bytes a log: log id 4, group 4, replica number 4, flags 4 (bit 0:
       lost), first index 8, next offset 8, term before the first index 4, zero 4

The journal's records of a log id that is not listed here are ignored: a deleted log stays deleted.

Must not know: what the cluster record says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from segments import failpoint
from segments.api import CorruptRecord
from segments.fs import FileSystem

MAGIC = b"VDLIDNT1"
HEADER = struct.Struct("<8sII16sIIII")
LOG = struct.Struct("<IIIIQQII")
_LOST = 1
_CRC = struct.Struct("<I")


@dataclass(slots=True)
class LogIdentity:
    """One log as it was created; `lost` once recovery found it so."""

    log_id: int
    group_id: int
    replica_number: int
    first_index: int
    next_offset: int
    prev_term: int
    lost: bool = False


@dataclass(slots=True)
class Identity:
    """The content of the identity file."""

    directory_id: bytes
    cluster_record: bytes = b""
    next_log_id: int = 1
    logs: dict[int, LogIdentity] = field(default_factory=dict)


def encode(identity: Identity) -> bytes:
    """The file's bytes."""
    logs = [identity.logs[log_id] for log_id in sorted(identity.logs)]
    body = [identity.cluster_record]
    body += [
        LOG.pack(
            log.log_id, log.group_id, log.replica_number, _LOST if log.lost else 0,
            log.first_index, log.next_offset, log.prev_term, 0,
        )
        for log in logs
    ]  # fmt: skip
    length = HEADER.size + sum(map(len, body))
    head = HEADER.pack(
        MAGIC, 0, length, identity.directory_id, identity.next_log_id, len(logs),
        len(identity.cluster_record), 0,
    )  # fmt: skip
    data = bytearray(b"".join([head, *body]))
    _CRC.pack_into(data, 8, crc32c(memoryview(data)[12:]))
    return bytes(data)


def decode(data: bytes) -> Identity:
    """Raises CorruptRecord."""
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise CorruptRecord("identity", 0, expected=HEADER.size, actual=len(data))
    _, crc, length, directory_id, next_log_id, count, record_bytes, _ = HEADER.unpack_from(data)
    if length != len(data) or length != HEADER.size + record_bytes + count * LOG.size:
        raise CorruptRecord("identity length", 0, expected=length, actual=len(data))
    actual = crc32c(memoryview(data)[12:])
    if actual != crc:
        raise CorruptRecord("identity checksum", 0, expected=crc, actual=actual)
    at = HEADER.size + record_bytes
    identity = Identity(directory_id, data[HEADER.size : at], next_log_id)
    for n in range(count):
        log_id, group, number, flags, first_index, next_offset, prev_term, _ = LOG.unpack_from(
            data, at + n * LOG.size
        )
        identity.logs[log_id] = LogIdentity(
            log_id, group, number, first_index, next_offset, prev_term, bool(flags & _LOST)
        )
    return identity


def read_identity(fs: FileSystem, directory: str) -> Identity | None:
    """What the directory says, or None when it has no identity. Raises CorruptRecord."""
    path = f"{directory}/identity"
    if not fs.exists(path):
        return None
    file = fs.open(path)
    try:
        return decode(file.pread(file.size(), 0))
    finally:
        file.close()


def fresh_path(directory: str) -> str:
    """Where the next one is written."""
    return f"{directory}/identity.new"


def write_identity(fs: FileSystem, directory: str, data: bytes, *, is_made: bool = False) -> None:
    """Replace the file durably. Blocks. `is_made`: there is one at `fresh_path` to write over, as
    long as this or longer."""
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
