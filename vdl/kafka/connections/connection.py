"""The reading half of a Kafka connection, without the socket: bytes in, requests out.

In the shape of h11. The owner of the socket asks `get_buffer` where to put bytes, reports them with
`buffer_updated`, and takes whole requests with `next_request` until it returns None. That is
asyncio's `BufferedProtocol`; a simulated network works the same way. `FrameReader` alone (frames
without a header) serves the other end of a connection.

Rules of memory:

* A byte of a buffer is written once. Buffers are never rewound or reused, so a view stays valid as
  long as it is referenced, and is never returned.
* A view keeps its whole buffer alive: a chunk of at most `CHUNK_BYTES_MAX`, shared with the small
  frames that came with it, or the frame's own. Keep a request's body until its answer at most; copy
  what lives longer.
* A frame too large for a chunk gets its own buffer and is received in place. The buffer grows with
  what has arrived, never with what was announced: to `GROWTH` times as much.
* A frame above `MAPPED_BYTES_MIN` is mapped whole once `MAPPED_AFTER` bytes have arrived. The
  system provides pages as they are written, so memory follows what has arrived, nothing is copied
  again, and all of it is returned at once.
* A connection with nothing under way holds no buffer.

An impossible length or an unreadable header is a `WireError`, and every further call raises it
again: nobody knows where the next frame begins. Which keys and versions exist is the caller's
decision.

Must not know: sockets, the event loop, handlers, the order of answers.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct

from vdl.kafka.wire.header import decode_request_header
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError

REQUEST_BYTES_MAX = 100 << 20
"""Kafka's `socket.request.max.bytes`."""
OTHER_BYTES_MAX = 16 << 20
"""Of a request that is no Produce: Fetch of 400,000 partitions. What others hold is decoded into
many times as much."""
CHUNK_BYTES_MIN = 4 << 10
CHUNK_BYTES_MAX = 64 << 10
GROWTH = 4
MAPPED_BYTES_MIN = 4 << 20
MAPPED_AFTER = 1 << 20
READ_BYTES_MAX = 256 << 10
"""Most that one read may bring of a frame that is or will be mapped; so much ahead `memory`
counts."""

SASL_AUTHENTICATE = 36
BARE_TOKEN = -1
"""The version of a SaslAuthenticate that is nothing but its token (KIP-43)."""

_LENGTH = Struct(">i")
_LENGTH_AND_KEY = Struct(">ih")
_PRODUCE = 0
_NOTHING = memoryview(bytearray())


class BadFrameLength(WireError):
    """A frame of negative length, or above what this connection may send."""

    def __init__(self, length: int, bytes_max: int) -> None:
        super().__init__(length, bytes_max)
        self.length = length
        self.bytes_max = bytes_max


class FrameReader:
    """Cuts a stream of `[int32 length | frame]` into frames.

    Invariant: `[start, end)` of the buffer has arrived and is not consumed; at most the last frame
    in it is incomplete. Bytes before `start` belong to frames that were given out.
    """

    __slots__ = (
        "_chunk_bytes",
        "_end",
        "_is_mapped",
        "_is_own",
        "_start",
        "_view",
        "bytes_max",
        "needed",
    )

    def __init__(self, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        """Largest frame. May be changed at any time: less before a client has authenticated."""
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self.needed = _LENGTH.size
        """Bytes from `start` until the next frame is whole, as far as is known. To be read."""
        self._is_own = False
        """Whether the buffer is one large frame's, and will not go beyond the frame's end."""
        self._is_mapped = False
        """Whether it is that, and takes no memory beyond what has arrived."""
        self._chunk_bytes = CHUNK_BYTES_MIN

    @property
    def mid_frame(self) -> bool:
        """Whether a frame has begun to arrive and is not whole."""
        return self._end > self._start

    @property
    def memory(self) -> int:
        """Bytes that the frame which is arriving will hold after one more read; 0 between frames.
        What was read with it before its beginning is not counted: a chunk at most."""
        if self._end == self._start:
            return 0
        if self._needs_room:
            size, is_mapped = self._next_size()
            arrived = self._end - self._start
        else:
            size, is_mapped, arrived = len(self._view), self._is_mapped, self._end
        return min(size, arrived + READ_BYTES_MAX) if is_mapped else size

    @property
    def arrived(self) -> int:
        """Bytes of the frame which is arriving that are here; 0 between frames."""
        return self._end - self._start

    @property
    def held(self) -> int:
        """Bytes that the frame which is arriving takes now."""
        return min(len(self._view), self._end) if self._is_mapped else len(self._view)

    @property
    def _needs_room(self) -> bool:
        room = len(self._view)
        return self._end == room or (self._start > 0 and self._start + self.needed > room)

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go; never empty. `size_hint` is asyncio's, and is not needed."""
        del size_hint
        room = len(self._view)
        if self._end == room or (self._start and self._start + self.needed > room):
            self._make_room()
        if self._is_own and self.needed > MAPPED_BYTES_MIN:
            return self._view[self._end : self._end + READ_BYTES_MAX]
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were put into what `get_buffer` gave last."""
        self._end += count
        assert self._end <= len(self._view), (self._end, len(self._view))
        if self._end == len(self._view) and not self._is_own:
            self._chunk_bytes = min(self._chunk_bytes * 2, CHUNK_BYTES_MAX)

    def next_frame(self) -> memoryview | None:
        """The next whole frame, without its length, writable; None until more arrives.

        Raises BadFrameLength.
        """
        whole = self.whole_frame()
        if whole is None:
            return None
        frame, end = whole
        self.consume(end)
        return frame

    def whole_frame(self) -> tuple[memoryview, int] | None:
        """The next frame and the position after it; it stays unconsumed."""
        start = self._start
        arrived = self._end - start
        if arrived < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._view, start)
        if not 0 <= length <= self.bytes_max:
            raise BadFrameLength(length, self.bytes_max)
        needed = self.needed = _LENGTH.size + length
        if arrived < needed:
            return None
        return self._view[start + _LENGTH.size : start + needed], start + needed

    def begins_with(self) -> int | None:
        """The first two bytes of the frame that is arriving, as a number; None before it has so
        many."""
        if self._end - self._start < _LENGTH_AND_KEY.size:
            return None
        key: int = _LENGTH_AND_KEY.unpack_from(self._view, self._start)[1]
        return key

    def consume(self, end: int) -> None:
        """The frame that `whole_frame` returned with this `end` has been taken."""
        self._start = end
        self.needed = _LENGTH.size
        if end == self._end:
            # Nothing is under way: hold no memory. Views given out keep theirs alive.
            self._view = _NOTHING
            self._start = self._end = 0
            self._is_own = self._is_mapped = False

    def _next_size(self) -> tuple[int, bool]:
        """Size of the next buffer, and whether it is mapped."""
        arrived = self._end - self._start
        if self.needed <= CHUNK_BYTES_MAX:
            return max(self._chunk_bytes, min(self.needed, GROWTH * arrived)), False
        if arrived >= MAPPED_AFTER and self.needed > MAPPED_BYTES_MIN:
            return self.needed, True
        return min(self.needed, max(self._chunk_bytes, GROWTH * arrived)), False

    def _make_room(self) -> None:
        """A new buffer that begins with the bytes of the unfinished frame, which are copied."""
        arrived = self._end - self._start
        size, self._is_mapped = self._next_size()
        self._is_own = self.needed > CHUNK_BYTES_MAX
        assert size > arrived, (size, arrived, self.needed)
        view = memoryview(mmap.mmap(-1, size) if self._is_mapped else bytearray(size))
        view[:arrived] = self._view[self._start : self._end]
        self._view = view
        self._start, self._end = 0, arrived


@dataclass(slots=True)
class Request:
    """One request as it arrived. `body` is writable, and a view of the connection's memory."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview
    bytes: int
    """Size of the frame, header included."""
    arrived_ns: int = 0
    """When it was whole, if whoever took it said so."""


class Connection:
    """A client's connection as a server reads it: frames whose header has been read."""

    __slots__ = ("_flexible_from", "_frames", "bare_tokens")

    def __init__(
        self,
        *,
        bytes_max: int = REQUEST_BYTES_MAX,
        flexible_from: Mapping[int, int] = FLEXIBLE_FROM,
    ) -> None:
        self._frames = FrameReader(bytes_max)
        self._flexible_from = flexible_from
        self.bare_tokens = False
        """Frames are tokens of a login, without a header: requests of `BARE_TOKEN` version."""

    @property
    def bytes_max(self) -> int:
        """Largest request this connection takes."""
        return self._frames.bytes_max

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self._frames.bytes_max = value

    @property
    def mid_request(self) -> bool:
        """Whether a request has begun to arrive and is not whole."""
        return self._frames.mid_frame

    @property
    def arrived(self) -> int:
        """Bytes of the request which is arriving that are here; 0 between requests."""
        return self._frames.arrived

    @property
    def needed(self) -> int:
        """Bytes of the request which is arriving when it is whole, as far as is known."""
        return self._frames.needed

    @property
    def held(self) -> int:
        """Bytes that the request which is arriving takes now."""
        return self._frames.held

    @property
    def memory(self) -> int:
        """Bytes that the request which is arriving will hold after one more read."""
        return self._frames.memory

    def get_buffer(self, size_hint: int = -1) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._frames.get_buffer(size_hint)

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were put into what `get_buffer` gave last."""
        self._frames.buffer_updated(count)

    def next_request(self) -> Request | None:
        """The next whole request, in order of arrival; None until more arrives.

        Raises WireError if the length or the header cannot be.
        """
        frames = self._frames
        whole = frames.whole_frame()
        if frames.needed > OTHER_BYTES_MAX and frames.begins_with() not in (None, _PRODUCE):
            raise BadFrameLength(frames.needed, OTHER_BYTES_MAX)
        if whole is None:
            return None
        frame, end = whole
        if self.bare_tokens:
            frames.consume(end)
            return Request(SASL_AUTHENTICATE, BARE_TOKEN, 0, None, frame, len(frame))
        header = decode_request_header(frame, self._flexible_from)
        frames.consume(end)
        return Request(
            header.api_key,
            header.api_version,
            header.correlation_id,
            header.client_id,
            frame[header.body_start :],
            len(frame),
        )
