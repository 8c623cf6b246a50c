"""The records of batches, decompressed end to end into memory that is used again and again.

Fresh memory for every batch costs more than half of what decompressing it does: the kernel clears
it page by page. So there is one piece of it for a reader, as large as its largest chunk so far, and
whoever wants to keep something takes a copy.

Must not know: what is in a record, Arrow.
"""

from __future__ import annotations

from collections.abc import Callable

import cramjam

from vdl.pipeline.errors import TooLarge, UndecodableBatch

BATCH_BYTES_MAX = 16 << 20
"""What the records of one batch may be when they are decompressed."""
PADDING = bytes(16)
"""Behind the last batch, so that a varint that is cut off reads zeros and not what was there."""
_ROOM_BYTES = 64 << 10
_TIMES_LARGER = 8
"""What records are taken to grow to when they are decompressed, until they turn out to be more."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
_NONE, _SNAPPY = 0, 2


class Inflated:
    """Use: `add` batches, look at `memory[:size]` and the PADDING behind it, `clear`.

    Invariant: `size` + PADDING fit into `memory`, which may be another after each `add`.
    """

    __slots__ = ("memory", "size")

    def __init__(self) -> None:
        self.memory = bytearray(len(PADDING))
        self.size = 0

    def clear(self) -> None:
        self.size = 0

    def add(self, codec: int, data: memoryview) -> int:
        """Bytes that the records of a batch are, BATCH_BYTES_MAX at most. Raises UndecodableBatch,
        and has added nothing then."""
        try:
            if codec == _NONE:
                added = self._copy(data)
            elif codec == _SNAPPY:
                added = self._snappy(data)
            elif codec in _INTO:
                added = self._decompress(_INTO[codec], data)
            else:
                raise UndecodableBatch(f"codec {codec}")
        except cramjam.DecompressionError as error:
            raise TooLarge(f"compressed records: {error}") from error
        self.size += added
        self.memory[self.size : self.size + len(PADDING)] = PADDING
        return added

    def _room(self, least: int, *, behind: int = 0) -> memoryview:
        """What is free from `behind` the last batch on, `least` bytes and no more than a batch may
        have, and the padding besides."""
        start = self.size + behind
        if len(self.memory) - len(PADDING) - start < least:
            # Twice as much, so that what was added before is not copied for each batch.
            size = max(start + least, 2 * len(self.memory))
            memory = bytearray(size + len(PADDING))
            memory[:start] = memoryview(self.memory)[:start]
            self.memory = memory
        stop = min(len(self.memory) - len(PADDING), self.size + BATCH_BYTES_MAX)
        return memoryview(self.memory)[start:stop]

    def _copy(self, data: memoryview) -> int:
        if len(data) > BATCH_BYTES_MAX:
            raise TooLarge("more than a batch may hold")
        self._room(len(data))[: len(data)] = data
        return len(data)

    def _decompress(self, into: Callable[[memoryview, memoryview], int], data: memoryview) -> int:
        guess = min(BATCH_BYTES_MAX, max(_ROOM_BYTES, _TIMES_LARGER * len(data)))
        room = self._room(guess)
        try:
            return into(data, room)
        except cramjam.DecompressionError:
            if len(room) == BATCH_BYTES_MAX:
                raise
        return into(data, self._room(BATCH_BYTES_MAX))

    def _snappy(self, data: memoryview) -> int:
        """Raw, or in blocks behind their lengths, as Java's client writes it."""
        if data[: len(_XERIAL)] != _XERIAL:
            return self._snappy_block(data, 0)
        added, position = 0, _XERIAL_HEADER_BYTES
        while position + 4 <= len(data):
            length = int.from_bytes(data[position : position + 4])
            position += 4
            if length > len(data) - position:
                raise UndecodableBatch("a snappy block is cut off")
            added += self._snappy_block(data[position : position + length], added)
            position += length
        return added

    def _snappy_block(self, data: memoryview, behind: int) -> int:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if size > BATCH_BYTES_MAX - behind:
            raise TooLarge("more than a batch may hold")
        return int(cramjam.snappy.decompress_raw_into(data, self._room(size, behind=behind)))
