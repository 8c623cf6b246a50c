"""Reusable memory for the decompressed records of batches, end to end.

Fresh memory for every batch costs more than half of its decompression, since the kernel clears it
page by page. So a reader has one piece of memory, as large as its largest chunk so far. Callers
copy what they want to keep.

Does not depend on the contents of records, or on Arrow.
"""

from __future__ import annotations

from collections.abc import Callable

import cramjam

from vdl.pipeline.errors import TooLarge, UndecodableBatch

BATCH_BYTES_MAX = 16 << 20
"""Limit on the decompressed records of one batch."""
PADDING = bytes(16)
"""Bytes after the last batch, so that a truncated varint reads zeros and not older data."""
_ROOM_BYTES = 64 << 10
_TIMES_LARGER = 8
"""First estimate of the growth of records when they are decompressed."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
_NONE, _SNAPPY = 0, 2


class Inflated:
    """Buffer of decompressed records.

    Use: `add` batches, look at `memory[:size]` and the PADDING after it, `clear`.

    Invariant: `size` + PADDING fit into `memory`, which may be another after each `add`.
    """

    __slots__ = ("memory", "size")

    def __init__(self) -> None:
        self.memory = bytearray(len(PADDING))
        self.size = 0

    def clear(self) -> None:
        self.size = 0

    def add(self, codec: int, data: memoryview) -> int:
        """Append the records of a batch; return their bytes, BATCH_BYTES_MAX at most.

        Raises UndecodableBatch, and has then added nothing.
        """
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
        """Return free memory from `behind` bytes after the last batch on, and reserve the padding.

        It has at least `least` bytes, and no more than a batch may have.
        """
        start = self.size + behind
        if len(self.memory) - len(PADDING) - start < least:
            # At least doubled, so that earlier batches are not copied for each new one.
            size = max(start + least, 2 * len(self.memory))
            memory = bytearray(size + len(PADDING))
            memory[:start] = memoryview(self.memory)[:start]
            self.memory = memory
        stop = min(len(self.memory) - len(PADDING), self.size + BATCH_BYTES_MAX)
        return memoryview(self.memory)[start:stop]

    def _copy(self, data: memoryview) -> int:
        if len(data) > BATCH_BYTES_MAX:
            raise TooLarge("larger than a batch may be")
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
        """Decompress raw Snappy, or blocks with their lengths, as written by Java's client."""
        if data[: len(_XERIAL)] != _XERIAL:
            return self._snappy_block(data, 0)
        added, position = 0, _XERIAL_HEADER_BYTES
        while position + 4 <= len(data):
            length = int.from_bytes(data[position : position + 4])
            position += 4
            if length > len(data) - position:
                raise UndecodableBatch("a snappy block is truncated")
            added += self._snappy_block(data[position : position + length], added)
            position += length
        return added

    def _snappy_block(self, data: memoryview, behind: int) -> int:
        size = int(cramjam.snappy.decompress_raw_len(data))
        if size > BATCH_BYTES_MAX - behind:
            raise TooLarge("larger than a batch may be")
        return int(cramjam.snappy.decompress_raw_into(data, self._room(size, behind=behind)))
