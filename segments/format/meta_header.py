"""Checks of the two header pages of an LMDB file, which LMDB itself does not make.

The headers have no checksum, and LMDB relies on their contents. A changed bit can make it request
unlimited memory, grow the file until the disk is full, refuse the file permanently, or fail an
assertion at every start. A header's fields are bounded by the size of its file, so nonsense is
detected before LMDB sees it. An older tree, or another one, is not detected here; `Meta` detects it
by what it remembers.

Format: mdb.c of LMDB 0.9, `MDB_page` and `MDB_meta`, 64 bits, little-endian:

    page number 8, 0 2, flags 2, 0 4, magic 4, version 4, address 8, map size 8,
    list of free pages 48, tree 48, last page 8, transaction 8
    of each of the two trees: page size (of the first only) 4, flags 2, depth 2,
    pages (branch, leaf, overflow) 3 x 8, entries 8, root 8

Does not depend on keys and values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from segments.api import CorruptRecord, StorageError

_HEADER = struct.Struct("<QHHIIIQQ48s48sQQ")
_TREE = struct.Struct("<IHHQQQQQ")
_META_PAGE = 0x08
_INTEGER_KEYS = 0x08
_MAGIC = 0xBEEFC0DE
_VERSION = 1
_DEPTH_MAX = 32
_NO_PAGE = (1 << 64) - 1
_PAGE_BYTES_MAX = 1 << 16


class Tree(NamedTuple):
    """Header's description of one of the two trees: that of items, or that of free pages."""

    page_bytes: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class MetaHeader(NamedTuple):
    """A header page. `last`: number of the last page ever allocated."""

    transaction: int
    page_bytes: int
    last: int
    free: Tree
    items: Tree


def check_headers(read: Callable[[int, int], bytes], file_bytes: int) -> MetaHeader:
    """Check both headers and return the current one.

    `read(length, position)` reads from the file, which has `file_bytes`.

    Raises CorruptRecord, and StorageError for a file of another version of LMDB.
    """
    first = _check_header(read, 0, 0, file_bytes)
    second = _check_header(read, first.page_bytes, 1, file_bytes)
    if second.page_bytes != first.page_bytes:
        raise CorruptRecord(
            "page size of meta", 0, expected=first.page_bytes, actual=second.page_bytes
        )
    if abs(first.transaction - second.transaction) > 1:
        raise CorruptRecord(
            "transactions of meta", 0, expected=first.transaction, actual=second.transaction
        )
    return second if second.transaction > first.transaction else first


def _check_header(
    read: Callable[[int, int], bytes], position: int, number: int, file_bytes: int
) -> MetaHeader:
    """Read and check one header. Raises CorruptRecord or StorageError."""
    packed = read(_HEADER.size, position)
    if len(packed) < _HEADER.size:
        raise CorruptRecord("header of meta", position)
    page, _, flags, _, magic, version, address, _, free, tree, last, transaction = _HEADER.unpack(
        packed
    )
    if page != number or flags != _META_PAGE or magic != _MAGIC or address:
        raise CorruptRecord("header of meta", position)
    if version != _VERSION:
        if (version ^ _VERSION).bit_count() == 1:
            raise CorruptRecord("version of meta", position, expected=_VERSION, actual=version)
        raise StorageError(f"meta is of another version of LMDB, {version}")
    # A transaction writes the header page given by its number's parity; a new file has two zeros.
    if transaction and transaction % 2 != number:
        raise CorruptRecord("transaction of meta", position, actual=transaction)
    free_list, items = Tree(*_TREE.unpack(free)), Tree(*_TREE.unpack(tree))
    page_bytes = free_list.page_bytes
    if page_bytes.bit_count() != 1 or page_bytes > _PAGE_BYTES_MAX or items.page_bytes:
        raise CorruptRecord("page size of meta", position, actual=page_bytes)
    if last < 1 or (last + 1) * page_bytes > file_bytes:
        raise CorruptRecord("last page of meta", position, actual=last)
    if free_list.flags != _INTEGER_KEYS or items.flags:
        raise CorruptRecord("flags of meta", position)
    for found in (free_list, items):
        _check_tree(found, last, position)
    return MetaHeader(transaction, page_bytes, last, free_list, items)


def _check_tree(tree: Tree, last: int, position: int) -> None:
    pages = tree.branch_pages + tree.leaf_pages
    is_empty = tree.root == _NO_PAGE
    if (
        pages + tree.overflow_pages > last - 1
        or tree.depth > min(pages, _DEPTH_MAX)
        or (is_empty and pages + tree.depth + tree.overflow_pages + tree.entries > 0)
        or not (is_empty or (1 < tree.root <= last and tree.depth))
    ):
        raise CorruptRecord("tree of meta", position, actual=tree.root)
