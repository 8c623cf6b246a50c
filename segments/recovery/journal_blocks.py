"""Reading of the blocks of one journal file: checking one, and finding the next good one.

Does not depend on which files count or on the meaning of records.
"""

from __future__ import annotations

from ids import DirectoryId
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    ENTRY_RECORD,
    FRAMED,
    NO_DIRECTORY,
    PAGE_BYTES,
    RECORD_BYTES,
    Block,
    FileHeader,
    block_bytes,
    decode_block,
)
from segments.format.frame import is_frame
from segments.io.fs import File, FileSystem, read_around, read_whole

_SCAN_BYTES = 1 << 20


def has_first_block(file: File, header: FileHeader) -> bool:
    """Return True if the first block after the file's header is complete and good."""
    block, data = read_block(file, header, header.bytes, file.size())
    return block is not None and block.chain == header.chain and not bad_frames(block, data)


def directory_of(file: File, header: FileHeader) -> DirectoryId:
    """Return the directory named in the file's first block; `NO_DIRECTORY` if it names none."""
    head, _ = read_around(file, BLOCK_HEADER_BYTES, header.bytes)
    table_end = block_bytes(head, salt=header.salt, lsn=header.start_lsn + header.bytes)
    if not 0 < table_end <= file.size() - header.bytes:
        return NO_DIRECTORY
    block = decode_block(read_around(file, table_end, header.bytes)[0], header.bytes)
    return NO_DIRECTORY if block is None else block.directory


def read_block(
    file: File, header: FileHeader, position: int, size: int
) -> tuple[Block | None, memoryview]:
    """Return (block with a good table, all its bytes) at `position`, or (None, empty)."""
    head, _ = read_around(file, BLOCK_HEADER_BYTES, position)
    table_end = block_bytes(head, salt=header.salt, lsn=header.start_lsn + position)
    if not table_end or table_end > size - position:
        return None, memoryview(b"")
    length = int.from_bytes(head[32:36], "little")
    # Unreadable bytes fail their check like damaged ones.
    data, _ = read_around(file, min(length, size - position), position)
    block = decode_block(data, position)
    return block, memoryview(data)


def bad_frames(block: Block, data: memoryview) -> frozenset[int]:
    """Return the positions in the table of the records whose frames do not match."""
    bad: set[int] = set()
    at = BLOCK_HEADER_BYTES + len(block.table)
    for n in range(0, len(block.table), RECORD_BYTES):
        _, _, kind, _, _, length, crc = ENTRY_RECORD.unpack_from(block.table, n)
        if kind not in FRAMED:
            continue
        if not is_frame(data[at : at + length], length, crc):
            bad.add(n)
        at += length
    return frozenset(bad)


def next_block(
    file: File, header: FileHeader, start: int, stop: int, size: int
) -> tuple[int, Block] | None:
    """Return (position, block) of the first block with a good table in [start, stop).

    Blocks are found by the file's salt.
    """
    salt = header.salt.to_bytes(8, "little")
    for window in range(start, stop, _SCAN_BYTES):
        data, _ = read_around(file, min(_SCAN_BYTES, stop - window), window)
        at = data.find(salt)
        while at >= 0:
            position = window + at - 8
            if position % PAGE_BYTES == 0 and position >= start:
                block, _ = read_block(file, header, position, size)
                if block is not None:
                    return position, block
            at = data.find(salt, at + 1)
    return None


def durable_mark(fs: FileSystem, path: str, known: int) -> int:
    """Return the largest durable LSN in any good block of the file, or `known` if that is larger.

    Blocks left from an earlier use of the file have smaller ones than the journal itself.
    Unreadable places are ignored: they may never have been written to.
    """
    file = fs.open(path)
    try:
        size = file.size()
        for window in range(PAGE_BYTES, size, _SCAN_BYTES):
            data, _ = read_around(file, min(_SCAN_BYTES, size - window), window)
            for at in range(0, len(data), PAGE_BYTES):
                if not data.startswith(BLOCK_MAGIC, at):
                    continue
                head = data[at : at + BLOCK_HEADER_BYTES]
                durable = int.from_bytes(head[24:32], "little")
                if durable <= known:
                    continue
                salt = int.from_bytes(head[8:16], "little")
                lsn = int.from_bytes(head[16:24], "little")
                table_end = block_bytes(head, salt=salt, lsn=lsn)
                position = window + at
                if not 0 < table_end <= size - position:
                    continue
                if decode_block(read_whole(file, table_end, position), position) is not None:
                    known = durable
        return known
    finally:
        file.close()
