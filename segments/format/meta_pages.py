"""Checks of the pages of an LMDB file, which LMDB itself does not make.

Pages have no checksum. A changed bit in a page of the tree can make LMDB read outside the file,
which ends the process with SIGBUS at every start; one in the list of free pages can make it
overwrite pages in use. So before LMDB opens a file, everything it may follow is followed here,
within bounds: every page has the right number, kind and depth, its items lie within it and in
order, and no page is used twice. If that fails, the items in good pages can still be read, without
LMDB.

Format: mdb.c of LMDB 0.9, `MDB_page` and `MDB_node`, 64 bits, little-endian:

    page number 8, 0 2, flags 2, end of places 2, begin of items 2, places 2 each
    page number 8, 0 2, flags 2, pages 4, value                       (overflow pages)
    of a branch: page 4 + 2 (in place of flags), size of key 2, key
    of a leaf: size of value 4, flags 2, size of key 2, key, value or its overflow page 8
    value in the tree of free pages: count 8, that many page numbers 8 each, descending

Does not depend on keys and values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

from segments.api import CorruptRecord
from segments.format.meta_header import MetaHeader, Tree, check_headers

__all__ = ("check_headers", "check_pages", "good_items", "item_at")  # `segments.io.fs.MetaChecks`
Read = Callable[[int, int], bytes]
"""(length, position) -> bytes, fewer if the file ends or the medium cannot read them."""
Ranked = tuple[int, bytes]
"""Sort key of a key: a number or bytes; the other element is the same for all."""
Rank = Callable[[bytes], Ranked]

_PAGE = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_NUMBER = struct.Struct("<Q")
_BRANCH, _LEAF, _LARGE = 0x01, 0x02, 0x04
_IN_OVERFLOW_PAGES = 0x01
_FIRST_PAGE = 2
_KEY_BYTES_MAX = 511


class _Damaged(Exception):
    """The page violates the format."""


def check_pages(read: Read, file_bytes: int) -> None:
    """Follow all pages. Raises CorruptRecord or StorageError (see `check_headers`)."""
    walk = _Walk(read, check_headers(read, file_bytes), is_strict=True)
    walk.follow(walk.header.items, keep=None)
    walk.follow_free_lists()
    if walk.damaged:
        raise CorruptRecord("page of meta", walk.damaged[0] * walk.header.page_bytes)


def good_items(read: Read, file_bytes: int) -> dict[bytes, bytes]:
    """Return the items in good pages.

    Raises CorruptRecord or StorageError if the headers are bad.
    """
    walk = _Walk(read, check_headers(read, file_bytes), is_strict=False)
    found: dict[bytes, bytes] = {}
    walk.follow(walk.header.items, keep=found)
    return found


def item_at(read: Read, file_bytes: int, key: bytes) -> bytes | None:
    """Return the value of a key, or None, reading only the pages on the way to it.

    If the file is written meanwhile, a page may be a later version. Then it fails a check, or the
    value is a later one, which has its own checksum. Raises CorruptRecord or StorageError (see
    `check_headers`).
    """
    walk = _Walk(read, check_headers(read, file_bytes), is_strict=True)
    return walk.find(key)


class _Walk:
    """One traversal from a header.

    `damaged`: numbers of damaged pages, 0 if sums do not match. If not strict, every readable item
    counts, in any order: keys and values have checksums of their own.
    """

    __slots__ = ("_counts", "_is_strict", "_keep", "_page_bytes", "_read", "_used", "damaged",
                 "header")  # fmt: skip

    def __init__(self, read: Read, header: MetaHeader, *, is_strict: bool) -> None:
        self.header = header
        self.damaged: list[int] = []
        self._read = read
        self._is_strict = is_strict
        self._page_bytes = header.page_bytes
        self._used = bytearray(header.last + 1)
        self._keep: dict[bytes, bytes] | None = None
        self._counts = [0, 0, 0, 0]

    def follow(self, tree: Tree, *, keep: dict[bytes, bytes] | None) -> None:
        """Visit each page of the tree; put items of good ones into `keep`."""
        self._keep = keep
        self._counts = [0, 0, 0, 0]
        if tree.depth:
            rank = _as_number if tree.flags else _as_bytes
            self._subtree(tree.root, tree.depth, rank, None, None)
        said = [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]
        if self._counts != said and not self.damaged:
            self.damaged.append(0)

    def find(self, key: bytes) -> bytes | None:
        """Return the value of an item. Raises CorruptRecord."""
        tree = self.header.items
        number = tree.root
        low: Ranked | None = None
        high: Ranked | None = None
        wanted = _as_bytes(key)
        found: dict[bytes, bytes] = {}
        self._keep = found
        try:
            for _ in range(tree.depth - 1):
                children = self._branch(number, _as_bytes, low, high)
                number, low = children[0]
                for child, least in children[1:]:
                    assert least is not None, child
                    if least > wanted:
                        high = least
                        break
                    number, low = child, least
            if tree.depth:
                self._leaf(number, _as_bytes, low, high)
        except (_Damaged, struct.error) as error:
            raise CorruptRecord("page of meta", number * self._page_bytes) from error
        return found.get(key)

    def follow_free_lists(self) -> None:
        """Check that no free page is in use, or free twice."""
        lists: dict[bytes, bytes] = {}
        self.follow(self.header.free, keep=lists)
        for key, value in lists.items():
            try:
                if _as_number(key)[0] > self.header.transaction:
                    raise _Damaged
                self._take_list(value)
            except (_Damaged, struct.error):
                self.damaged.append(self.header.free.root)

    def _take_list(self, value: bytes) -> None:
        (count,) = _NUMBER.unpack_from(value)
        if count > len(value) // _NUMBER.size - 1:
            raise _Damaged
        after = self.header.last + 1
        for number in struct.unpack_from(f"<{count}Q", value, _NUMBER.size):
            if number >= after:
                raise _Damaged
            self._take(number, 1)
            after = number

    def _subtree(
        self, number: int, depth: int, rank: Rank, low: Ranked | None, high: Ranked | None
    ) -> None:
        """Visit a page and those below it, whose keys are from `low` on and before `high`."""
        try:
            if depth == 1:
                self._leaf(number, rank, low, high)
                return
            children = self._branch(number, rank, low, high)
        except (_Damaged, struct.error):
            self.damaged.append(number)
            return
        for at, (child, first) in enumerate(children):
            end = children[at + 1][1] if at + 1 < len(children) else high
            self._subtree(child, depth - 1, rank, first, end)

    def _branch(
        self, number: int, rank: Rank, low: Ranked | None, high: Ranked | None
    ) -> list[tuple[int, Ranked | None]]:
        """Return (page, minimum of its keys) of each child. The first key has no meaning."""
        page, places = self._page(number, _BRANCH)
        children: list[tuple[int, Ranked | None]] = []
        ranks: list[Ranked] = []
        room = 0
        for place in places:
            number_low, number_middle, number_high, key_bytes = _NODE.unpack_from(page, place)
            room += self._room(place, key_bytes)
            least = low
            if children:
                least = rank(page[place + _NODE.size : place + _NODE.size + key_bytes])
                ranks.append(least)
            children.append((number_low | number_middle << 16 | number_high << 32, least))
        if self._is_strict and len(children) < 2 and rank is _as_bytes:
            raise _Damaged  # allowed in the tree of free pages
        self._check_room(page, room)
        self._check_order(ranks, low, high)
        self._counts[0] += 1
        return children

    def _leaf(self, number: int, rank: Rank, low: Ranked | None, high: Ranked | None) -> None:
        page, places = self._page(number, _LEAF)
        items: list[tuple[bytes, bytes]] = []
        room = 0
        for place in places:
            try:
                key, value, item_room = self._item(page, place)
            except (_Damaged, struct.error):
                if self._is_strict:
                    raise
                continue
            items.append((key, value))
            room += item_room
        self._check_room(page, room)
        self._check_order([rank(key) for key, _ in items], low, high)
        self._counts[1] += 1
        self._counts[3] += len(items)
        if self._keep is not None:
            self._keep.update(items)

    def _item(self, page: bytes, place: int) -> tuple[bytes, bytes, int]:
        """Return (key, value, bytes in the page) of an item of a leaf."""
        size_low, size_high, flags, key_bytes = _NODE.unpack_from(page, place)
        size = size_low | size_high << 16
        begin = place + _NODE.size + key_bytes
        key = page[begin - key_bytes : begin]
        if not 0 < key_bytes <= _KEY_BYTES_MAX or flags & ~_IN_OVERFLOW_PAGES:
            raise _Damaged
        if flags:
            room = self._room(place, key_bytes + _NUMBER.size)
            return key, self._large(_NUMBER.unpack_from(page, begin)[0], size), room
        return key, page[begin : begin + size], self._room(place, key_bytes + size)

    def _page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        """Return the page and the positions of its items."""
        self._take(number, 1)
        page = self._read(self._page_bytes, number * self._page_bytes)
        itself, _, flags, end, begin = _PAGE.unpack_from(page)
        if len(page) < self._page_bytes or itself != number or flags != kind:
            raise _Damaged
        places = struct.unpack_from(f"<{max(end - _PAGE.size, 0) // 2}H", page, _PAGE.size)
        is_right = end <= begin and not end % 2 and places and min(places) >= begin
        if self._is_strict and not (is_right and len(set(places)) == len(places)):
            raise _Damaged
        return page, places

    def _large(self, number: int, size: int) -> bytes:
        """Return a value in overflow pages."""
        start = number * self._page_bytes
        if number > self.header.last:
            raise _Damaged
        head = self._read(_OVERFLOW.size, start)
        itself, _, flags, pages = _OVERFLOW.unpack_from(head)
        if itself != number or flags != _LARGE or pages * self._page_bytes < len(head) + size:
            raise _Damaged
        self._take(number, pages)
        self._counts[2] += pages
        if self._keep is None:
            return b""
        value = self._read(size, start + _OVERFLOW.size)
        if len(value) < size:
            raise _Damaged
        return value

    def _take(self, number: int, count: int) -> None:
        if not _FIRST_PAGE <= number <= number + count - 1 <= self.header.last:
            raise _Damaged
        if any(self._used[number : number + count]):
            raise _Damaged
        self._used[number : number + count] = bytes([1]) * count

    def _room(self, place: int, content_bytes: int) -> int:
        """Return the size of an item, which must end within the page."""
        room = _NODE.size + content_bytes + content_bytes % 2
        if place + room > self._page_bytes:
            raise _Damaged
        return room

    def _check_room(self, page: bytes, room: int) -> None:
        """Check that items are contiguous up to the end of the page."""
        if self._is_strict and room != self._page_bytes - _PAGE.unpack_from(page)[4]:
            raise _Damaged

    def _check_order(self, ranks: list[Ranked], low: Ranked | None, high: Ranked | None) -> None:
        """Check that keys ascend and are within the bounds given by the pages above."""
        is_low = bool(ranks) and low is not None and ranks[0] < low
        is_high = bool(ranks) and high is not None and ranks[-1] >= high
        is_mixed = any(before >= after for before, after in pairwise(ranks))
        if self._is_strict and (is_low or is_high or is_mixed):
            raise _Damaged


def _as_bytes(key: bytes) -> Ranked:
    return 0, key


def _as_number(key: bytes) -> Ranked:
    if len(key) != _NUMBER.size:
        raise _Damaged
    return _NUMBER.unpack(key)[0], b""
