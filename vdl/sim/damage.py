"""Flips one bit of what a journal had made durable, or spoils one page of a header.

The block is one that later blocks prove: recovery has to notice, and may not take it for the torn
end of the journal. Whether that costs a replica depends on what lay there and on what segments
hold by now; recovery's own rules say so (`segments.replay`).

Must not know: who may be damaged, and when (`atlas`).
"""

from __future__ import annotations

from random import Random

from segments.block import (
    BLOCK_HEADER_BYTES,
    PAGE_BYTES,
    Block,
    FileHeader,
    block_bytes,
    decode_block,
    decode_file_header,
)
from vdl.sim.disk import Directory, Inode, SimDisk

JOURNAL = ("data", "journal")
UNREADABLE_CHANCE = 0.3


def flip_durable_bit(disk: SimDisk, rng: Random) -> bytes:
    """Flip a bit in some block before the durable mark; the block as it was, empty if there is
    none. No process may be using the disk."""
    blocks = [
        (inode, header, block) for inode, header in _files(disk) for block in _blocks(inode, header)
    ]
    mark = max((block.durable for _, _, block in blocks), default=0)
    proved = [
        (inode, block)
        for inode, header, block in blocks
        if len(block.table) and header.start_lsn + block.position + block.length <= mark
    ]
    if not proved:
        return b""
    inode, block = rng.choice(proved)
    whole = bytes(inode.data[block.position : block.position + block.length])
    at, bit = block.position + rng.randrange(block.length), 1 << rng.randrange(8)
    inode.data[at] ^= bit
    inode.durable[at] ^= bit
    return whole


def spoil_header(disk: SimDisk, rng: Random) -> str:
    """Flip a bit in one page of the identity or of the header of a journal file that was written
    to, or let it be unreadable; what was done, empty if there is no such page. No process may be
    using the disk."""
    pages = [
        (f"header {header.sequence}", inode, at)
        for inode, header in _files(disk)
        for at in range(0, header.bytes, PAGE_BYTES)
    ]
    data = disk.root.entries.get(JOURNAL[0])
    identity = data.entries.get("identity") if isinstance(data, Directory) else None
    if isinstance(identity, Inode):
        pages += [("identity", identity, at) for at in range(0, len(identity.data), PAGE_BYTES)]
    # What nothing leads to any more is no damage.
    disk.bad_pages &= {(inode, at // PAGE_BYTES) for _, inode, at in pages}
    if not pages or disk.bad_pages:
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
        # A header of another sequence than the name's is left from an earlier use of the file.
        if header is not None and name == f"{header.sequence:016x}.journal":
            assert isinstance(node, Inode), name
            found.append((node, header))
    return found


def _blocks(inode: Inode, header: FileHeader) -> list[Block]:
    """The file's good blocks, in order; only those that are on the disk itself."""
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
