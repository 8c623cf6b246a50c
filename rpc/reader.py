"""Frame reader: cuts a received byte stream into frames without copying large ones.

A frame is a 16-byte head and a payload:

     0  length       u32  payload bytes
     4  type         u8
     5  flags        u8   0 a whole frame, 1 a piece and more follow, 2 the last piece
     6  zero         u16
     8  payload_crc  u32  CRC32C of the payload
    12  head_crc     u32  CRC32C of bytes [0, 12), seeded so that zeros fail

The head has a check of its own, so that a damaged length is never used: the reader does not wait
for bytes that will not come. The payload check covers *all* of it, records too. A Kafka batch
carries a CRC, but followers do not recompute it, and commands carry none; at 20 GB/s the check
costs 0.05 CPU-seconds/GB on each side.

A large frame may come in pieces, so that small ones need not wait until all of it has passed. Each
piece is a frame of its own with the type of the whole. Whole frames may come between pieces, but
not pieces of another frame. All but the last have at least `PIECE_BYTES_MIN`. They are received
side by side into one mapping of the largest size, which is cut to the whole at the end: joining
100 MB would hold up the loop for 80 ms.

Bytes are received into 64 KiB chunks; small frames are views into the chunk in which they arrived.
A frame that does not fit in its chunk gets a bytearray of its own, into which the socket then reads
directly. No byte is ever overwritten while it is handed out: a view stays valid for as long as it
is referenced. A small view pins at most one chunk.

Does not depend on frame types, sockets, or time.
"""

from __future__ import annotations

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

from crc32c import crc32c

from rpc.errors import CorruptFrame, FrameTooLarge, MalformedFrame, NoMemory

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview has format "B"."""

HEAD_BYTES = 16
CHUNK_BYTES = 64 << 10

PIECE_BYTES_MIN = 16 << 10
"""Lower bound for pieces except the last: many small ones would cost more than they hold."""

WHOLE, PIECE, LAST_PIECE = range(3)
"""Flags of a frame."""

_HEAD = Struct("<IBBHII")
_HEAD_CHECKED = Struct("<IBBHI")
_HEAD_CRC = Struct("<I")
_HEAD_SEED = 0x56444C31
_CHECKED_BYTES = _HEAD_CHECKED.size

# A frame that does not fit in the rest of its chunk moves: into a buffer of its own if it is at
# least this large, else into the next chunk.
_OWN_BUFFER_BYTES = CHUNK_BYTES // 4

_SPARE_BYTES_MIN = 256 << 10
_SPARE_BYTES_MAX = 2 << 20
_SPARES_MAX = 2
"""Spare buffers for such frames, used again: clearing a new one costs as much as a copy into it."""

_MAPPED_BYTES_MIN = 4 << 20
"""Buffers of larger frames are mapped, so that pages are allocated as bytes arrive."""
_MAPPED = MAP_PRIVATE | MAP_ANONYMOUS
"""Private pages cost two thirds of shared ones, which are the default."""


def frame_head(frame_type: int, length: int, payload_crc: int, flags: int = WHOLE) -> bytes:
    """Return the 16 bytes before a payload."""
    checked = _HEAD_CHECKED.pack(length, frame_type, flags, 0, payload_crc)
    return checked + _HEAD_CRC.pack(crc32c(checked, _HEAD_SEED))


class FrameReader:
    """Frame reader: bytes in through `get_buffer` and `buffer_updated`, frames out of `next_frame`.

    Use: after each `buffer_updated`, call `next_frame` until it returns None or `is_empty`, before
    requesting the next buffer. Invariant: between calls, less than one frame is unread.
    """

    __slots__ = (
        "_chunk", "_crc", "_end", "_flags", "_given", "_length", "_own", "_own_end", "_pieces",
        "_pieces_bytes", "_pieces_type", "_spares", "_start", "_type", "frame_bytes_max",
        "is_empty",
    )  # fmt: skip

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._start = 0  # first unread byte of the chunk
        self._end = 0  # after the last received byte of the chunk
        self._length = -1  # payload length of the frame whose head was read, else -1
        self._type = 0
        self._crc = 0
        self._own: memoryview | None = None  # payload buffer of a frame too large for its chunk
        self._own_end = 0
        self._given: memoryview | None = None  # the part of `_own` that was last handed out
        self._flags = WHOLE
        self._pieces: mmap | None = None  # of a frame whose last piece has not arrived
        self._pieces_bytes = 0
        self._pieces_type = 0
        self._spares: list[bytearray] = []  # oldest first; views of them may exist
        self.is_empty = True
        """True if no byte followed the last frame when it was returned."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next received bytes; never empty."""
        if self._own is not None:
            self._given = self._own[self._own_end :]
            return self._given
        if self._length < 0 and CHUNK_BYTES - self._end < _OWN_BUFFER_BYTES:
            assert self._end - self._start < HEAD_BYTES, (self._start, self._end)
            self._next_chunk()
        return self._chunk[self._end :]

    def buffer_updated(self, received: int) -> None:
        """Report that `received` bytes were written at the start of the last buffer returned."""
        if self._own is not None:
            self._own_end += received
            assert self._own_end <= self._length, (self._own_end, self._length)
        else:
            self._end += received
            assert self._end <= CHUNK_BYTES, self._end

    def next_frame(self) -> tuple[int, memoryview] | None:
        """Return (type, payload), or None until more bytes arrive.

        Raises CorruptFrame, FrameTooLarge, MalformedFrame, NoMemory; the stream cannot be used
        after that.
        """
        while True:
            if self._length < 0:
                start = self._start
                if self._end - start < HEAD_BYTES:
                    return None
                length, frame_type, flags, zero, payload_crc, head_crc = _HEAD.unpack_from(
                    self._chunk, start
                )
                actual = crc32c(self._chunk[start : start + _CHECKED_BYTES], _HEAD_SEED)
                if actual != head_crc:
                    raise CorruptFrame("frame head", expected=head_crc, actual=actual)
                if zero:
                    raise MalformedFrame("frame flags", 5)
                if length > self.frame_bytes_max:
                    raise FrameTooLarge(length, bytes_max=self.frame_bytes_max)
                if flags:
                    self._check_piece(frame_type, flags, length)
                self._start = start + HEAD_BYTES
                self._flags, self._type, self._crc = flags, frame_type, payload_crc
                self._length = length
                if flags:
                    self._begin_piece()
            length = self._length
            if self._own is not None:
                if self._own_end < length:
                    return None
                payload = self._own
                self._own = None
            else:
                start = self._start
                if self._end - start < length:
                    if length > CHUNK_BYTES - start:
                        self._move()
                    return None
                payload = self._chunk[start : start + length]
                self._start = start + length
            self._length = -1
            self.is_empty = self._start == self._end
            actual = crc32c(payload)
            if actual != self._crc:
                raise CorruptFrame("frame payload", expected=self._crc, actual=actual)
            if not self._flags:
                self._given = None  # or it would keep the payload after its receiver
                return self._type, payload
            payload.release()
            if self._flags == LAST_PIECE:
                return self._type, self._joined()

    def _begin_piece(self) -> None:
        """Receive the piece whose head was read behind the pieces before it."""
        length, end = self._length, self._pieces_bytes
        if self._pieces is None:
            try:
                self._pieces = mmap(-1, self.frame_bytes_max, flags=_MAPPED)
            except (MemoryError, OSError):
                raise NoMemory(self.frame_bytes_max) from None
        have = min(self._end - self._start, length)
        with memoryview(self._pieces) as pieces:
            self._own = pieces[end - length : end]
        self._own[:have] = self._chunk[self._start : self._start + have]
        self._own_end = have
        self._start += have

    def _joined(self) -> memoryview:
        """Return the payload that has come in pieces."""
        pieces, size = self._pieces, self._pieces_bytes
        assert pieces is not None
        self._pieces, self._pieces_bytes = None, 0
        if self._given is not None:
            self._given.release()  # its receiver may still hold it, and has no use for it
            self._given = None
        try:
            pieces.resize(size)
        except (BufferError, SystemError):
            # A receiver holds a view of it (TLS), or the system cannot: the rest of the mapping
            # stays, which takes no memory.
            return memoryview(pieces)[:size]
        return memoryview(pieces)

    def _check_piece(self, frame_type: int, flags: int, length: int) -> None:
        """Check the head of a piece. Raises FrameTooLarge, MalformedFrame."""
        if flags > LAST_PIECE:
            raise MalformedFrame("frame flags", 5)
        if self._pieces is not None and frame_type != self._pieces_type:
            raise MalformedFrame("frame piece of another type", 4)
        if flags == PIECE and length < PIECE_BYTES_MIN:
            raise MalformedFrame("frame piece too small", 0)
        if flags == LAST_PIECE and self._pieces is None:
            raise MalformedFrame("frame piece without the other pieces", 5)
        self._pieces_type = frame_type
        self._pieces_bytes += length
        if self._pieces_bytes > self.frame_bytes_max:
            raise FrameTooLarge(self._pieces_bytes, bytes_max=self.frame_bytes_max)

    def _move(self) -> None:
        """Make room for the frame being read, which does not fit where it began."""
        if self._length < _OWN_BUFFER_BYTES:
            self._next_chunk()
            return
        have = self._end - self._start
        try:
            self._own = memoryview(self._memory())[: self._length]
        except (MemoryError, OSError):
            raise NoMemory(self._length) from None
        # The one copy of a large payload: the part that arrived together with its head.
        self._own[:have] = self._chunk[self._start : self._end]
        self._own_end = have
        self._start = self._end

    def _memory(self) -> bytearray | mmap:
        """Return memory for the payload of the frame being read, at least of its length."""
        length = self._length
        if length > _MAPPED_BYTES_MIN:
            return mmap(-1, length, flags=_MAPPED)
        if not _SPARE_BYTES_MIN <= length <= _SPARE_BYTES_MAX:
            return bytearray(length)
        spares = self._spares
        for memory in spares:
            if len(memory) < length:
                continue
            try:
                # A bytearray refuses to change its length while a view of it exists.
                memory.pop()
            except BufferError:
                continue
            memory.append(0)
            return memory
        if len(spares) == _SPARES_MAX:
            spares.pop(0)
        memory = bytearray(-(-length // CHUNK_BYTES) * CHUNK_BYTES)
        spares.append(memory)
        return memory

    def _next_chunk(self) -> None:
        have = self._end - self._start
        chunk = memoryview(bytearray(CHUNK_BYTES))
        chunk[:have] = self._chunk[self._start : self._end]
        self._chunk = chunk
        self._start = 0
        self._end = have
