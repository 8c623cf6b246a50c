"""Damage to durable data on a disk: a flipped bit, an unreadable page, or a bad header page.

*Journal.* The block is one that later blocks prove: recovery has to notice the damage, and may not
take it for the torn end of the journal. Whether that costs a replica depends on the block's
contents and on what segments hold by then; recovery's own rules decide it
(`segments.recovery.replay`).

*Placed.* The same for a frame that the block only refers to, while no note of a flush says that a
segment has it.

*Segment.* One entry of a log becomes damaged, and the log's checkpointed state becomes unreliable:
a start has to apply all of its entries again, and meets the damage. The replica loses nothing as
long as another one has the entry.

*Page of a segment.* All entries in it become damaged, while their server runs. A page of an index
loses nothing: it is rebuilt from the segments.

Does not decide which replica may be damaged, and when (`atlas`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from ids import NO_INDEX, GroupId, Index, LogId, indexes
from segments.api import EntriesDamaged, StorageError
from segments.format.block import (
    BLOCK_HEADER_BYTES,
    FLUSHED,
    PAGE_BYTES,
    PLACE,
    PLACED,
    RECORD_BYTES,
    STATE_RECORD,
    Block,
    FileHeader,
    block_bytes,
    decode_block,
    decode_file_header,
)
from segments.format.frame import is_frame
from segments.format.names import log_directory, segment_path
from segments.log.index import place
from segments.log.segment import LogFiles
from vdl.sim.disk import Directory, Inode, MetaStore, SimDisk
from vdl.sim.filesystem import SimFileSystem

JOURNAL = ("data", "journal")
UNREADABLE_CHANCE = 0.3
PLACED_CHANCE = 0.5
"""Chance that a bit flips in a frame that a block says is in a segment, and not in the block."""
INDEX_CHANCE = 0.25
"""Chance that the bad page belongs to an index."""


def flip_durable_bit(disk: SimDisk, rng: Random) -> bytes:
    """Flip a bit in a block before the durable mark, or in a frame placed by it.

    Return the block as it was, empty if there is none. No process may be using the disk.
    """
    found = _proved_block(disk, rng)
    if found is None:
        return b""
    inode, block = found
    whole = bytes(inode.data[block.position : block.position + block.length])
    placed = _placed_frames(disk, block)
    if placed and rng.random() < PLACED_CHANCE:
        inode, start, length = rng.choice(placed)
        at, bit = start + rng.randrange(length), 1 << rng.randrange(8)
        inode.data[at] ^= bit
        inode.durable[at] ^= bit
        return whole
    at, bit = block.position + rng.randrange(block.length), 1 << rng.randrange(8)
    inode.data[at] ^= bit
    inode.durable[at] ^= bit
    return whole


def _placed_frames(disk: SimDisk, block: Block) -> list[tuple[Inode, int, int]]:
    """Return (file, position, length) of the frames that a block says are in segments.

    Frames already covered by a note of a flush are left out.
    """
    flushed: dict[LogId, Index] = {}
    for inode, header in _files(disk):
        for other in _blocks(inode, header):
            for log_id, kind, _, index, _ in _records(other):
                if kind == FLUSHED:
                    flushed[log_id] = max(flushed.get(log_id, NO_INDEX), index)
    places: dict[LogId, tuple[int, int]] = {}
    found: list[tuple[Inode, int, int]] = []
    for log_id, kind, term, index, value in _records(block):
        if kind == PLACE:
            places[log_id] = term, value
        elif kind == PLACED:
            segment, position = places[log_id]
            length, crc = value & 0xFFFFFFFF, value >> 32
            places[log_id] = segment, position + length
            node = _find(disk, segment_path(log_directory("data", log_id), segment))
            if index <= flushed.get(log_id, NO_INDEX) or not isinstance(node, Inode):
                continue
            if is_frame(memoryview(node.durable)[position : position + length], length, crc):
                found.append((node, position, length))
    return found


def _records(block: Block) -> list[tuple[LogId, int, int, Index, int]]:
    """Return (log id, kind, term, index, value) of each record of a block."""
    unpacked = [
        STATE_RECORD.unpack_from(block.table, at) for at in range(0, len(block.table), RECORD_BYTES)
    ]
    return [(log_id, kind & 0xFF, *rest) for log_id, _, kind, *rest in unpacked]


def spoil_block(disk: SimDisk, rng: Random) -> int:
    """Make a page of some block before the durable mark unreadable.

    Return the block's length, 0 if there is none. No process may be using the disk.
    """
    found = _proved_block(disk, rng)
    if found is None:
        return 0
    inode, block = found
    disk.bad_pages.add((inode, (block.position + rng.randrange(block.length)) // PAGE_BYTES))
    return block.length


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A page that became unreadable.

    `entries` are those with bytes in it; empty for a page of an index. If not `told`, the damage
    may cost the replica: see `are_told`.
    """

    what: str
    entries: list[Index]
    told: bool


def spoil_segment(
    disk: SimDisk, files: LogFiles, first: Index, end: Index, rng: Random
) -> Spoiled | None:
    """Make one page unreadable that holds entries of [first, end) in segments, or their Idx.

    Return None if there is none. No flush may be in progress: its writes there would go unnoticed.
    """
    index = Index(rng.randrange(first, end))
    try:
        idx = files.idx(index)
    except StorageError:
        return None
    if rng.random() < INDEX_CHANCE:
        number, position = place(index, files.index_entries)
        path, page = files.index_path(number), position // PAGE_BYTES
    else:
        path = files.segment_path(idx.segment)
        page = (idx.position + rng.randrange(idx.length)) // PAGE_BYTES
    inode = _find(disk, path)
    if not isinstance(inode, Inode) or page * PAGE_BYTES >= len(inode.durable):
        return None
    inside: list[Index] = []
    if path == files.segment_path(idx.segment):
        inside = _entries_in_page(files, idx.segment, page, index, first, end)
        if not inside:
            return None
    disk.bad_pages.add((inode, page))
    is_told = are_told(disk, files, end)
    return Spoiled(f"page {page} of {path} cannot be read any more", inside, is_told)


def are_told(disk: SimDisk, files: LogFiles, end: Index) -> bool:
    """Return True if the places of the entries below `end` survive a power cut.

    That takes all their Idx, or all their frames, from which Idx are rebuilt; trimmed entries
    count, too.
    """
    return _is_index_durable(disk, files, end) or _are_frames_whole(files, end)


def _is_index_durable(disk: SimDisk, files: LogFiles, end: Index) -> bool:
    bad = {inode for inode, _ in disk.bad_pages}
    for number in range((end - 1) // files.index_entries + 1):
        inode = _find(disk, files.index_path(number))
        if not isinstance(inode, Inode):
            continue
        if inode in bad or inode.dirty or len(inode.durable) < len(inode.data):
            return False
    return True


def _are_frames_whole(files: LogFiles, end: Index) -> bool:
    try:
        segments, _ = files.segments(Index(end - 1))
        for segment, following in pairwise([*segments, None]):
            assert segment is not None
            stop = min(end, following.first_index) if following is not None else end
            for _ in files.walk(segment, stop):
                pass
    except StorageError:
        return False
    return True


def _entries_in_page(
    files: LogFiles, segment: int, page: int, index: Index, first: Index, end: Index
) -> list[Index]:
    """Return the entries of [first, end) with a byte in the page, which holds one of `index`.

    Empty if an Idx among them is damaged.
    """

    def lies_in_page(n: Index) -> bool:
        idx = files.idx(n)
        start, stop = idx.position // PAGE_BYTES, (idx.position + idx.length - 1) // PAGE_BYTES
        return idx.segment == segment and start <= page <= stop

    low, high = index, index + 1
    try:
        while low > first and lies_in_page(low - 1):
            low -= 1
        while high < end and lies_in_page(high):
            high += 1
    except StorageError:
        return []
    return list(indexes(low, high))


def _proved_block(disk: SimDisk, rng: Random) -> tuple[Inode, Block] | None:
    """Return a readable block with records before the durable mark."""
    blocks = [
        (inode, header, block) for inode, header in _files(disk) for block in _blocks(inode, header)
    ]
    mark = max((block.durable for _, _, block in blocks), default=0)
    proved = [
        (inode, block)
        for inode, header, block in blocks
        if len(block.table) and header.start_lsn + block.position + block.length <= mark
    ]
    return rng.choice(proved) if proved else None


def spoil_header(disk: SimDisk, rng: Random) -> str:
    """Damage one page of the identity, or of a header of a journal file in use.

    A bit flips or the page becomes unreadable. Return a description, empty if there is no such
    page. No process may be using the disk.
    """
    pages = [
        (f"header {header.sequence}", inode, at)
        for inode, header in _files(disk)
        for at in range(0, header.bytes, PAGE_BYTES)
    ]
    data = disk.root.entries.get(JOURNAL[0])
    identity = data.entries.get("identity") if isinstance(data, Directory) else None
    if isinstance(identity, Inode):
        pages += [("identity", identity, at) for at in range(0, len(identity.data), PAGE_BYTES)]
    # One of two pages that back up each other must be left.
    if not pages or any((inode, at // PAGE_BYTES) in disk.bad_pages for _, inode, at in pages):
        return ""
    name, inode, at = rng.choice(pages)
    if rng.random() < UNREADABLE_CHANCE:
        disk.bad_pages.add((inode, at // PAGE_BYTES))
        return f"page {at} of {name} cannot be read any more"
    position, bit = at + rng.randrange(PAGE_BYTES), 1 << rng.randrange(8)
    if position < min(len(inode.data), len(inode.durable)):
        inode.data[position] ^= bit
        inode.durable[position] ^= bit
    return f"a bit flips in {name} at {position}"


def log_files(disk: SimDisk, log_id: LogId, group_id: GroupId, index_entries: int) -> LogFiles:
    """Return the segment files of one log, as a server of this configuration has them."""
    directory = log_directory("data", log_id)
    return LogFiles(SimFileSystem(disk), directory, log_id, group_id, index_entries)


def open_hole(disk: SimDisk, files: LogFiles, index: Index, rng: Random) -> bool:
    """Flip a bit in the frame of entry `index`, and one in its log's checkpoint.

    Return False if the entry is in no segment. No process may be using the disk.
    """
    try:
        idx = files.idx(index)
    except StorageError:
        return False
    inode = _find(disk, files.segment_path(idx.segment))
    if not isinstance(inode, Inode) or idx.position + idx.length > len(inode.durable):
        return False
    at, bit = idx.position + rng.randrange(idx.length), 1 << rng.randrange(8)
    inode.data[at] ^= bit
    inode.durable[at] ^= bit
    meta = _find(disk, "data/meta")
    key = files.log_id.to_bytes(4, "big") + b"a"
    for image in (meta.items, meta.durable) if isinstance(meta, MetaStore) else ():
        if stored := image.get(key):
            image[key] = bytes([stored[0] ^ 1]) + stored[1:]
    return True


def is_hole(files: LogFiles, index: Index) -> bool:
    """Return True if the entry is in a segment and cannot be read there."""
    try:
        files.entries(index, index + 1, 0)
    except EntriesDamaged:
        return True
    except StorageError:
        return False
    return False


def _find(disk: SimDisk, path: str) -> object:
    """Return the node at a path as its process sees it; None if there is none."""
    node: object = disk.root
    for name in path.split("/"):
        node = node.entries.get(name) if isinstance(node, Directory) else None
    return node


def _files(disk: SimDisk) -> list[tuple[Inode, FileHeader]]:
    directory = disk.root
    for name in JOURNAL:
        node = directory.entries.get(name)
        if not isinstance(node, Directory):
            return []
        directory = node
    found: list[tuple[Inode, FileHeader]] = []
    for name, node in sorted(directory.entries.items()):
        header = decode_file_header(bytes(node.data)) if isinstance(node, Inode) else None
        # A header with another sequence than the name's is left from an earlier use of the file.
        if header is not None and name == f"{header.sequence:016x}.journal":
            assert isinstance(node, Inode), name
            found.append((node, header))
    return found


def _blocks(inode: Inode, header: FileHeader) -> list[Block]:
    """Return the file's good blocks in order; only those on the disk itself."""
    blocks: list[Block] = []
    position = header.bytes
    while position < len(inode.durable):
        head = bytes(inode.durable[position : position + BLOCK_HEADER_BYTES])
        size = block_bytes(head, salt=header.salt, lsn=header.start_lsn + position)
        if not size:
            break
        block = decode_block(bytes(inode.durable[position : position + size]), position)
        if block is None:
            break
        blocks.append(block)
        position += block.padded
    return blocks
