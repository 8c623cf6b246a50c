"""The journal's bytes: file headers, blocks and their records. Pure encoding, no files.

A journal file is a header, padded to 4 KiB, and blocks, each at a 4 KiB boundary. The LSN of a byte
is the header's start LSN plus its position in the file; all integers are little-endian.

The file header is 64 bytes, then one mark of 88 bytes for every log of the directory, padded to
whole pages. After it comes one page of parity: the exclusive or of all these pages. Any one page
can be reconstructed from the others; if there is only one, the parity is a second copy. The old
form, "VDLJRNL1", has no parity.

    0  magic        8  "VDLJRNL2"
    8  crc          4  CRC32C over bytes [12, length)
    12 length       4  of header and marks
    16 sequence     8  also the file's name: a header that disagrees is left from an earlier use
    24 salt         8  random, of this file
    32 start LSN    8  end of the previous file: anything it holds beyond was cut off
    40 previous     8  sequence of the file before, 0 for none
    48 chain        4  CRC of the last block before this file
    52 logs         4  number of marks
    56 replaced     8  number of bytes of the journal, up to the start LSN, that this file stands
                       for: the file before counts only up to there, and files between not at all

A file that stands for others is made on a full disk, which has no space for them. Its marks repeat
theirs. Its first block repeats the data for which they are still needed; without that block the
file does not count.

Block header (64 bytes), table (32 bytes a record), then the frames of its records, in order:

    0  magic        4  "VDLB"
    4  crc          4  CRC32C over bytes [8, 64) and the table, seeded with `chain`
    8  salt         8  of the file
    16 LSN          8  its own
    24 durable      8  the LSN up to which the journal was durable when this was written
    32 length       4  of the block without padding
    36 records      4
    40 chain        4  CRC of the block before
    44 flags        4  bit 0: a clean stop follows; bit 1: first block after recovery
    48 directory   16  id of the data directory; zero in blocks of earlier versions

The table has every frame's CRC, which covers the payload: block CRC and frame CRCs together cover
all bytes, and the payload's CRC is computed only once. A block is good if all of them match.

Record (32 bytes): log id 4, sequence 4, kind 1, zero 3, term 4, index 8, and 8 bytes by kind:

    ENTRY      term, index; length of the frame 4, CRC of the frame 4
    HARD       term; index: commit; value: vote
    TRUNCATE   index: the first one removed
    RESET      term: the one before `index`; index: the next one; value: its offset
    FLUSHED    index: the last one that segments hold durably; value: the offset after it
    TRIM       term: the one before `index`; index: the new first one; value: its offset
    CLEAR      as TRIM, and segments hold nothing of the log any more
    INSTALL    as RESET, with a frame: length 4, CRC 4; its base offset is the next offset, its
               timestamp the number of the reset, its payload the state that came with it
    STATE      the frame of an INSTALL again, which changes nothing else
    PLACE      term: a segment; index: of an entry; value: the position of its frame there
    DETAIL     of the following PLACED; term: records; index: base offset; value: timestamp, signed;
               the byte after the kind is the entry's kind
    PLACED     as ENTRY, without a frame: that is at the position in the last PLACE of its log, or
               after the frame of the preceding PLACED

A block with PLACED records counts only if their frames are in their segments. The next block is not
written before they are.

`sequence` counts a log's records, modulo 2^32: after an unreadable block it shows which logs lost
some.

Does not depend on files or on logs as objects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from ids import DirectoryId, Index, LogId, NodeId, Offset, Term

PAGE_BYTES = 4096
FILE_MAGIC = b"VDLJRNL2"
OLD_FILE_MAGIC = b"VDLJRNL1"
BLOCK_MAGIC = b"VDLB"

FILE_HEADER = struct.Struct("<8sIIQQQQIIQ")
MARK = struct.Struct("<IIIIIIQQQQQQQQ")
BLOCK_HEADER = struct.Struct("<4sIQQQIIII16s")
BLOCK_REST = struct.Struct("<QQQIIII16s")
ENTRY_RECORD = struct.Struct("<IIIIQII")
STATE_RECORD = struct.Struct("<IIIIQQ")
DETAIL_RECORD = struct.Struct("<IIBBHIQq")
FILE_HEADER_BYTES = FILE_HEADER.size
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
RECORD_BYTES = ENTRY_RECORD.size
_CRC = struct.Struct("<I")
assert (FILE_HEADER_BYTES, BLOCK_HEADER_BYTES, RECORD_BYTES) == (64, 64, 32)
assert MARK.size == 88, MARK.size

ENTRY = 1
HARD = 2
TRUNCATE = 3
RESET = 4
FLUSHED = 5
TRIM = 6
INSTALL = 7
STATE = 8
PLACE = 9
DETAIL = 10
PLACED = 11
CLEAR = 12
KINDS = frozenset(range(ENTRY, CLEAR + 1))
"""All known kinds. Any other was written by a later version, and a start fails on it."""
FRAMED = frozenset((ENTRY, INSTALL, STATE))
"""Kinds whose record has a frame in the block; the record has its length and CRC."""

SEQUENCE_MASK = (1 << 32) - 1

CLOSING = 1
OPENING = 2

NO_DIRECTORY = DirectoryId(bytes(16))
"""Directory id of blocks that do not name their directory."""

MARK_VOID = 1
"""Mark flag: the log was reset or cleared, and has written no segment since; any files it has are
stale."""
MARK_INSTALLED = 2
"""Mark flag, in a file that stands for others: the installed state of earlier files still
counts."""


@dataclass(slots=True)
class Mark:
    """State of one log in a file header.

    The result of all blocks before the file and of the first one in it, which is part of the same
    write.
    """

    log_id: LogId
    sequence: int
    term: Term
    prev_term: Term
    flags: int
    vote: NodeId
    commit: Index
    applied: Index
    flushed_index: Index
    flushed_offset: Offset
    last_index: Index
    first_index: Index
    start_offset: Offset


@dataclass(slots=True)
class FileHeader:
    """The header of a journal file."""

    sequence: int
    salt: int
    start_lsn: int
    previous: int
    chain: int
    marks: list[Mark] = field(default_factory=list)
    bytes: int = 0
    replaced: int = 0

    @property
    def begin_lsn(self) -> int:
        """LSN up to which the file before counts."""
        return self.start_lsn - self.replaced


@dataclass(slots=True)
class Block:
    """A block's header and table, with its own CRC checked. The reader must check the frames."""

    position: int
    lsn: int
    durable: int
    length: int
    crc: int
    chain: int
    flags: int
    directory: DirectoryId
    """Data directory to which it was written; `NO_DIRECTORY` if unknown."""
    table: memoryview

    @property
    def padded(self) -> int:
        return padded(self.length)


def padded(length: int) -> int:
    """Return `length` rounded up to whole pages."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES


def file_header_bytes(marks: int) -> int:
    """Return the size in a file of a header with `marks` marks, including parity."""
    return padded(FILE_HEADER_BYTES + MARK.size * marks) + PAGE_BYTES


def encode_file_header(header: FileHeader) -> bytes:
    """Return the header with its marks, padded to whole pages, and its parity."""
    length = FILE_HEADER_BYTES + MARK.size * len(header.marks)
    out = bytearray(padded(length))
    FILE_HEADER.pack_into(
        out, 0, FILE_MAGIC, 0, length, header.sequence, header.salt, header.start_lsn,
        header.previous, header.chain, len(header.marks), header.replaced,
    )  # fmt: skip
    for n, mark in enumerate(header.marks):
        MARK.pack_into(
            out, FILE_HEADER_BYTES + n * MARK.size, mark.log_id, mark.sequence, mark.term,
            mark.prev_term, mark.flags, 0, mark.vote, mark.commit, mark.applied,
            mark.flushed_index, mark.flushed_offset, mark.last_index, mark.first_index,
            mark.start_offset,
        )  # fmt: skip
    _CRC.pack_into(out, 8, crc32c(memoryview(out)[12:length]))
    return bytes(out) + _exclusive_or(memoryview(out))


def _exclusive_or(pages: memoryview) -> bytes:
    """Return the exclusive or of all these pages."""
    parity = 0
    for at in range(0, len(pages), PAGE_BYTES):
        parity ^= int.from_bytes(pages[at : at + PAGE_BYTES], "little")
    return parity.to_bytes(PAGE_BYTES, "little")


def header_length(data: bytes) -> int:
    """Return the file header's own length field, unchecked; 0 if these bytes are no header."""
    if len(data) < FILE_HEADER_BYTES or data[:8] not in (FILE_MAGIC, OLD_FILE_MAGIC):
        return 0
    length: int = _CRC.unpack_from(data, 12)[0]
    return length


def first_block_at(data: bytes) -> int:
    """Return the position of a file's first block according to its header, unchecked."""
    return padded(header_length(data)) + (PAGE_BYTES if data[:8] == FILE_MAGIC else 0)


def marks_end(data: bytes, log_ids_end: int) -> int:
    """Return the end of the marks after a header's first page, by their contents.

    Log ids of marks ascend, and are below `log_ids_end`. `len(data)`: the marks may go on beyond
    it.
    """
    first = -(-(PAGE_BYTES - FILE_HEADER_BYTES) // MARK.size)
    log_id = 0
    for at in range(FILE_HEADER_BYTES + first * MARK.size, len(data) - 3, MARK.size):
        before, log_id = log_id, int.from_bytes(data[at : at + 4], "little")
        if not before < log_id < log_ids_end:
            return at
    return len(data)


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header at the start of `data`, or None if it cannot be trusted."""
    length = header_length(data)
    if length < FILE_HEADER_BYTES or length > len(data):
        return None
    _, crc, _, sequence, salt, start_lsn, previous, chain, count, replaced = (
        FILE_HEADER.unpack_from(data)
    )
    if crc32c(memoryview(data)[12:length]) != crc:
        return None
    if FILE_HEADER_BYTES + count * MARK.size != length:
        return None
    header = FileHeader(
        sequence, salt, start_lsn, previous, chain, bytes=first_block_at(data), replaced=replaced
    )
    for n in range(count):
        values = MARK.unpack_from(data, FILE_HEADER_BYTES + n * MARK.size)
        header.marks.append(Mark(*values[:5], *values[6:]))
    return header


def is_parity_good(data: bytes) -> bool:
    """Return True if the parity page matches a header's pages.

    `data` ends where the first block begins. The old form has no parity.
    """
    return data[:8] != FILE_MAGIC or not any(_exclusive_or(memoryview(data)))


def mend_file_header(data: bytes, sequence: int) -> FileHeader | None:
    """Return the header of file `sequence`, with up to one page corrected by parity.

    `data` begins with the header and extends beyond the parity. None if more pages are wrong or
    there was no header.
    """
    view = memoryview(data)
    header = _mend_first_page(view, sequence)
    length = header_length(data)
    end = padded(length)
    if header is not None or length < FILE_HEADER_BYTES or end + PAGE_BYTES > len(data):
        return header
    pages = bytearray(view[:end])
    differs = int.from_bytes(_exclusive_or(view[: end + PAGE_BYTES]), "little")
    for at in range(PAGE_BYTES, end, PAGE_BYTES):
        page = view[at : at + PAGE_BYTES]
        whole = int.from_bytes(page, "little") ^ differs
        pages[at : at + PAGE_BYTES] = whole.to_bytes(PAGE_BYTES, "little")
        header = decode_file_header(bytes(pages))
        if header is not None:
            return header if header.sequence == sequence else None
        pages[at : at + PAGE_BYTES] = page
    return None


def _mend_first_page(view: memoryview, sequence: int) -> FileHeader | None:
    """Reconstruct the first page from all the others. Their number is in it, so each is tried."""
    head = 0
    for at in range(PAGE_BYTES, len(view) - PAGE_BYTES + 1, PAGE_BYTES):
        head ^= int.from_bytes(view[at : at + FILE_HEADER_BYTES], "little")
        told = head.to_bytes(FILE_HEADER_BYTES, "little")
        if told[:8] != FILE_MAGIC or padded(header_length(told)) != at:
            continue
        first = _exclusive_or(view[PAGE_BYTES : at + PAGE_BYTES])
        header = decode_file_header(first + bytes(view[PAGE_BYTES:at]))
        if header is not None and header.sequence == sequence:
            return header
    return None


def encode_block(
    *, salt: int, lsn: int, durable: int, chain: int, flags: int, table: bytes, frames_bytes: int,
    directory: DirectoryId = NO_DIRECTORY,
) -> tuple[bytes, int]:  # fmt: skip
    """Return (header and table, block CRC) of a block whose frames are written after them."""
    out = bytearray(BLOCK_HEADER_BYTES)
    length = BLOCK_HEADER_BYTES + len(table) + frames_bytes
    BLOCK_REST.pack_into(
        out, 8, salt, lsn, durable, length, len(table) // RECORD_BYTES, chain, flags, directory
    )
    crc = crc32c(table, crc32c(memoryview(out)[8:], chain))
    out[:4] = BLOCK_MAGIC
    _CRC.pack_into(out, 4, crc)
    return bytes(out) + table, crc


def block_bytes(header: bytes, *, salt: int, lsn: int) -> int:
    """Return the length of a block's header and table; 0 if `header` begins no block."""
    if len(header) < BLOCK_HEADER_BYTES or header[:4] != BLOCK_MAGIC:
        return 0
    _, _, found_salt, found_lsn, _, length, records, _, _, _ = BLOCK_HEADER.unpack_from(header)
    size: int = BLOCK_HEADER_BYTES + records * RECORD_BYTES
    if found_salt != salt or found_lsn != lsn or size > length:
        return 0
    return size


def decode_block(data: bytes, position: int) -> Block | None:
    """Return the block whose header and table are `data`, or None if its CRC does not match."""
    _, crc, _, lsn, durable, length, records, chain, flags, directory = BLOCK_HEADER.unpack_from(
        data
    )
    end = BLOCK_HEADER_BYTES + records * RECORD_BYTES
    if end > len(data) or crc32c(memoryview(data)[8:end], chain) != crc:
        return None
    table = memoryview(data)[BLOCK_HEADER_BYTES:end]
    return Block(position, lsn, durable, length, crc, chain, flags, DirectoryId(directory), table)
